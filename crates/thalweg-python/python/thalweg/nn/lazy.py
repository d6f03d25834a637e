"""Modules whose numbers of inputs are determined by their first call (`torch.nn.LazyLinear` and others)."""

from .. import _core
from . import layers
from .parameter import UninitializedBuffer, UninitializedParameter, is_lazy


class LazyModuleMixin:
    """A module that creates its parameters in its first call: `initialize_parameters` gives them their shapes, from the inputs.
    The module then becomes an instance of the class `cls_to_become`, if there is one."""

    cls_to_become = None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._initialize_hook = self.register_forward_pre_hook(self._infer_parameters, with_kwargs=True)

    def initialize_parameters(self, *args, **kwargs):
        """Gives parameters and buffers their shapes, from the inputs of `forward`. Subclasses implement it."""
        raise NotImplementedError(f"initialize_parameters is not implemented for {type(self).__name__}")

    def has_uninitialized_params(self):
        """Returns whether a parameter or a buffer has no shape yet."""
        return any(is_lazy(tensor) for members in (self._parameters, self._buffers) for tensor in members.values())

    def _infer_parameters(self, module, args, kwargs=None):
        module.initialize_parameters(*args, **(kwargs or {}))
        if module.has_uninitialized_params():
            raise RuntimeError(f"module {self._get_name()} has not been fully initialized")
        module._initialize_hook.remove()
        del module._initialize_hook
        if module.cls_to_become is not None:
            module.__class__ = module.cls_to_become

    def _replicate_for_data_parallel(self):
        raise RuntimeError("Modules with uninitialized parameters can't be used with `DataParallel`. Run a dummy forward pass to correctly initialize "
                           "the modules")


class _LazyLayer(LazyModuleMixin):
    """The common part of this package's lazy layers. `_count` names the attribute that is determined by the first call, and is 0
    until then."""

    _count = None

    def _leave_open(self, device, dtype, parameters, buffers=()):
        """Creates parameters and buffers without shapes."""
        for name in parameters:
            setattr(self, name, UninitializedParameter(device=device, dtype=dtype))
        for name in buffers:
            setattr(self, name, UninitializedBuffer(device=device, dtype=dtype))

    def reset_parameters(self):
        """Draws new initial values, if there are shapes."""
        if getattr(self, self._count) and not self.has_uninitialized_params():
            super().reset_parameters()

    def initialize_parameters(self, input, *args, **kwargs):
        """Determines the number of inputs, and creates the parameters and buffers without shapes."""
        found = self._found(input)
        if not self.has_uninitialized_params():
            # A state with shapes has been loaded.
            found = self._loaded()
        setattr(self, self._count, found)
        if self.has_uninitialized_params():
            former = _core._set_grad_enabled(False)
            try:
                for name, tensor in (*self._parameters.items(), *self._buffers.items()):
                    if is_lazy(tensor):
                        tensor.materialize(self._shape(name))
                self.reset_parameters()
            finally:
                _core._set_grad_enabled(former)


class LazyLinear(_LazyLayer, layers.Linear):
    """y = x · weightᵀ + bias, with as many features as the first input has."""

    cls_to_become, _count = layers.Linear, "in_features"

    def __init__(self, out_features, bias=True, device=None, dtype=None):
        super().__init__(0, 0, False)
        self.out_features = out_features
        self._leave_open(device, dtype, ("weight", "bias") if bias else ("weight",))

    def _found(self, input):
        return input.shape[-1]

    def _loaded(self):
        return self.weight.shape[-1]

    def _shape(self, name):
        return [self.out_features] if name == "bias" else [self.out_features, self.in_features]


class _LazyConvolution(_LazyLayer):
    _count = "in_channels"

    def _open(self, out_channels, bias, device, dtype):
        layers._check_groups(0, out_channels, self.groups)
        self.out_channels = out_channels
        self._leave_open(device, dtype, ("weight", "bias") if bias else ("weight",))

    def _found(self, input):
        batched = self._dims + 2
        if input.dim() not in (batched, batched - 1):
            raise RuntimeError(f"Expected {batched - 1}D (unbatched) or {batched}D (batched) input to {type(self).__name__}, but got input of size: "
                               f"{input.shape}")
        channels = input.shape[-self._dims - 1]
        if channels % self.groups:
            raise ValueError("in_channels must be divisible by groups")
        return channels

    def _loaded(self):
        is_transposed = isinstance(self, layers._ConvTranspose)
        return self.weight.shape[0] if is_transposed else self.weight.shape[1] * self.groups

    def _shape(self, name):
        if name == "bias":
            return [self.out_channels]
        one, other = self.out_channels, self.in_channels
        if isinstance(self, layers._ConvTranspose):
            one, other = other, one
        return [one, other // self.groups, *self.kernel_size]


class _LazyConv(_LazyConvolution):
    def __init__(self, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True, padding_mode="zeros", device=None, dtype=None):
        super().__init__(0, 0, kernel_size, stride, padding, dilation, groups, False, padding_mode)
        self._open(out_channels, bias, device, dtype)


class _LazyConvTranspose(_LazyConvolution):
    def __init__(self, out_channels, kernel_size, stride=1, padding=0, output_padding=0, groups=1, bias=True, dilation=1, padding_mode="zeros",
                 device=None, dtype=None):
        super().__init__(0, 0, kernel_size, stride, padding, output_padding, groups, False, dilation, padding_mode)
        self._open(out_channels, bias, device, dtype)


class _LazyNorm(_LazyLayer):
    _count = "num_features"

    def __init__(self, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, device=None, dtype=None):
        super().__init__(0, eps, momentum, False, False)
        self.affine, self.track_running_stats = affine, track_running_stats
        self._leave_open(device, dtype, ("weight", "bias") if affine else (), ("running_mean", "running_var") if track_running_stats else ())
        if track_running_stats:
            self.num_batches_tracked = _core.tensor(0, dtype=_core.int64, device=device)

    def _found(self, input):
        self._check_input_dim(input)
        return input.shape[input.dim() - self._rank + 1 if isinstance(self, layers._InstanceNorm) else 1]

    def _loaded(self):
        return next((tensor.shape[0] for tensor in (self.weight, self.running_mean) if tensor is not None), 0)

    def _shape(self, name):
        return [self.num_features]


def _lazy(base, eager):
    """Returns the lazy class of a layer."""
    name = f"Lazy{eager.__name__}"
    return type(name, (base, eager), {
        "cls_to_become": eager, "__doc__": f"`{eager.__name__}`, for the number of channels that the first input has.", "__module__": __name__})


LazyConv1d, LazyConv2d, LazyConv3d = (_lazy(_LazyConv, kind) for kind in (layers.Conv1d, layers.Conv2d, layers.Conv3d))
LazyConvTranspose1d, LazyConvTranspose2d, LazyConvTranspose3d = (
    _lazy(_LazyConvTranspose, kind) for kind in (layers.ConvTranspose1d, layers.ConvTranspose2d, layers.ConvTranspose3d))
LazyBatchNorm1d, LazyBatchNorm2d, LazyBatchNorm3d = (_lazy(_LazyNorm, kind) for kind in (layers.BatchNorm1d, layers.BatchNorm2d, layers.BatchNorm3d))
LazyInstanceNorm1d, LazyInstanceNorm2d, LazyInstanceNorm3d = (
    _lazy(_LazyNorm, kind) for kind in (layers.InstanceNorm1d, layers.InstanceNorm2d, layers.InstanceNorm3d))
