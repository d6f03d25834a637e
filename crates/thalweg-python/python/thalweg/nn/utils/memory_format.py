"""Weights of convolutions in another memory format (`torch.nn.utils.memory_format`)."""

from ..layers import Conv2d, Conv3d, ConvTranspose2d, ConvTranspose3d


def _convert(module, kinds, memory_format):
    changed = [(one, one.weight.detach().contiguous(memory_format=memory_format)) for one in module.modules() if isinstance(one, kinds)]
    for one, data in changed:
        one.weight.data = data
    return module


def convert_conv2d_weight_memory_format(module, memory_format):
    """Converts the weights of all two-dimensional convolutions in a module."""
    return _convert(module, (Conv2d, ConvTranspose2d), memory_format)


def convert_conv3d_weight_memory_format(module, memory_format):
    """Converts the weights of all three-dimensional convolutions in a module."""
    return _convert(module, (Conv3d, ConvTranspose3d), memory_format)
