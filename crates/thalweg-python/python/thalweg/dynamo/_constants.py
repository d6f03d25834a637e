"""Values on the CPU that do not depend on the inputs of a graph for a GPU, such as `torch.tensor(0.5)` in a model: they are computed when
the graph is compiled."""

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.node import map_arg

# The largest constant that is computed, in elements.
_MOST_ELEMENTS = 1 << 18


class Constants:
    """The constants of a graph, by their nodes."""

    def __init__(self, device):
        self._device, self._known = device, {}

    def add(self, node, tensor):
        """Notes a tensor of the graph."""
        if self._device.type == "cuda" and tensor.device.type == "cpu" and not isinstance(tensor, torch._subclasses.FakeTensor):
            self._known[node] = tensor

    def of(self, node):
        """Returns the tensor of a node, if it is a constant on the CPU."""
        return self._known.get(node)

    def number(self, node):
        """Returns the number in a scalar."""
        with unset_fake_temporarily():
            return self._known[node].item()

    def moved(self, node):
        """Returns a constant on the CPU as a tensor of the graph's device."""
        with unset_fake_temporarily():
            return self._known[node].to(self._device if torch.cuda.is_available() else "cpu")

    def computed(self, node):
        """Returns the value of a call of constants: a tensor on the CPU, or one of the graph's device; `None` if it has no such value."""
        if not self._is_constant(node):
            return None
        with unset_fake_temporarily(), torch.no_grad():
            args, kwargs = (map_arg(part, self._known.get) for part in (node.args, node.kwargs))
            made = node.target(*args, **self._here(kwargs))
        if node.meta["val"].device.type == "cpu":
            self._known[node] = made
        return made

    def _here(self, kwargs):
        """Returns arguments in which the graph's device is one that exists."""
        is_missing = kwargs.get("device") is not None and kwargs["device"].type == "cuda" and not torch.cuda.is_available()
        return {**kwargs, "device": torch.device("cpu")} if is_missing else kwargs

    def _is_constant(self, node):
        value, target = node.meta.get("val"), node.target
        is_call = self._device.type == "cuda" and isinstance(target, torch._ops.OpOverload) and target.namespace in ("aten", "prims")
        if not is_call or not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return False
        is_fixed = all(isinstance(size, int) for size in value.shape) and value.numel() <= _MOST_ELEMENTS
        draws = torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable
        read = node.all_input_nodes
        is_read = bool(read) or value.device.type == "cpu"
        return is_fixed and not draws and is_read and all(one in self._known for one in read)
