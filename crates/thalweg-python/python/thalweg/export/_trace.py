"""Recording a program as a graph: it runs once, and each function that it calls becomes a node.

Extents of tensors are numbers that know how they follow from the inputs (`SymInt`), so that a graph computes with other extents as
well where the program says which may change.
"""

import operator
import types

from .. import _core, _torch_functions, ops
from .._results import Size
from ..func import _batching
from ..fx.graph import Graph
from ..overrides import TorchFunctionMode

Tensor = _core.Tensor
_READS = frozenset(("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__complex__", "__array__", "__contains__"))


class SymInt(int):
    """A number that follows from the extents of inputs."""

    def __new__(cls, value, recorder, make):
        made = super().__new__(cls, value)
        made._recorder, made._make, made._node = recorder, make, None
        return made

    @property
    def node(self):
        """The node of the graph, which is made when it is first needed."""
        if self._node is None:
            self._node = self._make()
            self._node.meta["val"] = int(self)
        return self._node

    def __reduce__(self):
        return int, (int(self),)


def _computed(name, is_reversed=False):
    function, plain = getattr(operator, name), getattr(int, f"__{'r' * is_reversed}{name.strip('_')}__")

    def compute(self, *others):
        value = plain(self, *others)
        if type(value) is not int:
            return value
        operands = (*others, self) if is_reversed else (self, *others)
        recorder = self._recorder
        return SymInt(value, recorder, lambda: recorder.graph.call_function(function, tuple(recorder.argument(one) for one in operands)))
    return compute


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    setattr(SymInt, f"__{_name}__", _computed(_name))
    setattr(SymInt, f"__r{_name}__", _computed(_name, True))
SymInt.__neg__ = _computed("neg")


class Recorder(TorchFunctionMode):
    """A region whose functions become the nodes of a graph."""

    def __init__(self, is_dynamic=False):
        super().__init__()
        self.graph, self.constants, self._is_dynamic = Graph(), {}, is_dynamic
        # The nodes of tensors by their identities, the tensors, which stay alive, and the nodes that depend on no input.
        self._nodes, self._tensors, self._fixed, self._sizes = {}, [], set(), {}

    # ---- Values ---------------------------------------------------------------------------------------------------

    def name(self, tensor, node, is_fixed=False):
        """Makes a node the value of a tensor."""
        node.meta["val"] = shown(tensor)
        self._nodes[_core._tensor_identity(tensor)] = node
        self._tensors.append(tensor)
        if is_fixed:
            self._fixed.add(node)

    def node_of(self, tensor):
        """Returns the node of a tensor, or None."""
        return self._nodes.get(_core._tensor_identity(tensor))

    def _constant(self, tensor):
        """Returns the node of a tensor that the program has made outside, or from numbers."""
        name = f"lifted_tensor_{len(self.constants)}"
        self.constants[name] = tensor.detach()
        with self.graph.inserting_before(next(iter(self.graph.nodes), None)):
            node = self.graph.placeholder(f"c_{name}")
        self.name(tensor, node, is_fixed=True)
        return node

    def argument(self, value):
        """Returns a value with the nodes of its tensors and numbers."""
        if isinstance(value, Tensor):
            return self.node_of(value) or self._constant(value)
        if isinstance(value, SymInt):
            return value.node
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*[self.argument(part) for part in value])
        if isinstance(value, (list, tuple)):
            return (tuple if type(value) is tuple else list)(self.argument(part) for part in value)
        if isinstance(value, dict):
            return {key: self.argument(part) for key, part in value.items()}
        if isinstance(value, slice):
            return slice(*[self.argument(part) for part in (value.start, value.stop, value.step)])
        return value

    # ---- Calls ----------------------------------------------------------------------------------------------------

    def __torch_function__(self, func, types_, args=(), kwargs=None):
        func, kwargs = _torch_functions.plain(func), kwargs or {}
        attribute, name = _torch_functions.property_name(func), getattr(func, "__name__", "")
        if _batching.find(args, kwargs):
            # Inside of `vmap` the functions that compute with all slices are recorded.
            with self:
                return _batching.called(func, args, kwargs)
        if attribute is not None:
            return self._attribute(attribute, func, args)
        if name == "size" and args and self._is_dynamic:
            dims = args[1:] or tuple(value for key, value in kwargs.items() if key == "dim")
            shape = self._shape(args[0])
            return shape if not dims or dims[0] is None else shape[dims[0]]
        if name in _READS and isinstance(args[0], Tensor):
            self._check_read(name, args[0])
        own = getattr(func, "__wrapped__", func)
        if isinstance(own, types.FunctionType) and not isinstance(func, ops.OpOverload):
            with self:
                return own(*args, **kwargs)
        result = func(*args, **kwargs)
        if _has_tensors(result) or name == "__setitem__":
            self._record(func, name, args, kwargs, result)
        return result

    def _attribute(self, name, func, args):
        if name == "shape" and self._is_dynamic:
            return self._shape(args[0])
        result = func(*args)
        if isinstance(result, Tensor) and name not in ("grad", "_base") and self.node_of(result) is None:
            node = self.graph.call_function(getattr, (self.argument(args[0]), name))
            self.name(result, node)
        return result

    def _shape(self, tensor):
        """Returns the shape of a tensor: numbers that the graph reads, if the tensor depends on an input."""
        plain = _torch_functions._original("shape").__get__(tensor)
        node = self.node_of(tensor)
        if node is None or node in self._fixed:
            return plain

        def extent(place, size):
            def make():
                if (node, place) not in self._sizes:
                    self._sizes[node, place] = self.graph.call_method("size", (node, place))
                return self._sizes[node, place]
            return SymInt(size, self, make)
        return tuple.__new__(Size, (extent(place, size) for place, size in enumerate(plain)))

    def _check_read(self, name, tensor):
        node = self.node_of(tensor)
        if node is not None and node not in self._fixed:
            raise RuntimeError(f"Could not guard on data-dependent expression: the program reads `{name.strip('_')}` of a tensor that depends on the inputs "
                               f"(`{node}` = {node.format_node()}), which a graph of fixed calls cannot express. Compute with tensors instead (`torch.where`), or "
                               "leave that part out of what is exported.")

    def _record(self, func, name, args, kwargs, result):
        given = self.argument(tuple(args)), self.argument(kwargs)
        if isinstance(func, ops.OpOverload):
            node = self.graph.call_function(func, *given)
        elif name in ("__getitem__", "__setitem__"):
            node = self.graph.call_function(getattr(operator, name.strip("_")), *given)
        else:
            found, _ = _torch_functions.overload_of(name, args, kwargs)
            if found is not None:
                places = given[0][::-1] if name in _torch_functions._REVERSED else given[0]
                node = self.graph.call_function(ops.overload(found), places, given[1])
            elif args and isinstance(args[0], Tensor) and hasattr(Tensor, name):
                node = self.graph.call_method(name, *given)
            else:
                node = self.graph.call_function(func, *given)
        self._bind(result, node, all(one in self._fixed for one in node.all_input_nodes))

    def _bind(self, result, node, is_fixed):
        if isinstance(result, Tensor):
            if self.node_of(result) is None:
                self.name(result, node, is_fixed)
        elif isinstance(result, (list, tuple)):
            node.meta["val"] = [shown(part) for part in result]
            for place, part in enumerate(result):
                if _has_tensors(part):
                    self._bind(part, self.graph.call_function(operator.getitem, (node, place)), is_fixed)


def _has_tensors(value):
    return isinstance(value, Tensor) or (isinstance(value, (list, tuple)) and any(_has_tensors(part) for part in value))


def shown(value):
    """Returns a tensor's shape, strides and dtype as a tensor on the meta device; other values as they are."""
    if not isinstance(value, Tensor):
        return int(value) if isinstance(value, SymInt) else value
    with _torch_functions.DisableTorchFunction():
        return _core.empty_strided(list(value.shape), list(value.stride()), dtype=value.dtype, device="meta")
