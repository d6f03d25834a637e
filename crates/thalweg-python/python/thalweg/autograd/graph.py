"""The recorded graph (`torch.autograd.graph`): its nodes, and hooks of the tensors that they save."""

from .. import _core
from .._regions import Open
from .._left_out import attributes as _attributes

Node = _core._Node


class saved_tensors_hooks:
    """A region whose operators save `pack_hook(tensor)` in place of a tensor; the backward pass asks `unpack_hook` for the tensor."""

    def __init__(self, pack_hook, unpack_hook):
        for hook in (pack_hook, unpack_hook):
            if not callable(hook):
                raise TypeError(f"a hook is a function, not {type(hook).__name__}")
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook
        self._regions = Open()

    def __enter__(self):
        self._regions.enter(_core._SavedTensorsRegion(self.pack_hook, self.unpack_hook))

    def __exit__(self, *_):
        self._regions.leave().close()


class save_on_cpu(saved_tensors_hooks):
    """A region whose operators save tensors in the host's memory."""

    def __init__(self, pin_memory=False, device_type="cuda"):
        def pack(tensor):
            return tensor.device, tensor.cpu() if tensor._is_on_gpu else tensor.clone()

        def unpack(packed):
            device, tensor = packed
            return tensor.to(device)
        super().__init__(pack, unpack)


_LEFT_OUT = {
    "GradientEdge": "gradients flow to tensors; use `next_functions`", "get_gradient_edge": "gradients flow to tensors",
    "register_multi_grad_hook": "register a hook of each tensor", "increment_version": "versions count what operators write",
    "allow_mutation_on_saved_tensors": "write out of place", "disable_saved_tensors_hooks": "leave the region of the hooks",
}

__getattr__ = _attributes(__name__, _LEFT_OUT)
