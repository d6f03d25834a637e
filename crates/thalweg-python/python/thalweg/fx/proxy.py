"""Symbolic values (`torch.fx.proxy`): the operations of a program on them are recorded as nodes."""

import copy
import dis
import enum
import inspect
import operator
import sys
import traceback as _traceback

from .. import _core
from . import traceback
from .graph import magic_methods, reflectable_magic_methods
from .node import Node, base_types, map_aggregate

__all__ = ["Attribute", "GraphAppendingTracer", "ParameterProxy", "Proxy", "Scope", "ScopeContextManager", "TraceError", "TracerBase"]


class TraceError(ValueError):
    """The exception of a program that uses a symbolic value as only a number can be used."""


class Scope:
    """The module that a program is in: its path and its class."""

    def __init__(self, module_path, module_type):
        self.module_path, self.module_type = module_path, module_type


class ScopeContextManager:
    """A region in which another module is the current one."""

    def __init__(self, scope, current_scope):
        self._scope, self._former = scope, copy.copy(scope)
        scope.module_path, scope.module_type = current_scope.module_path, current_scope.module_type

    def __enter__(self):
        return self._scope

    def __exit__(self, *_):
        self._scope.module_path, self._scope.module_type = self._former.module_path, self._former.module_type


_COPIED = ("stack_trace", "nn_module_stack", "module_stack", "custom", "seq_nr", "source_fn_stack", "autograd_backward", "partitioner_tag")


class TracerBase:
    """The base class of tracers, which make nodes and symbolic values."""

    graph = None
    record_stack_traces = False
    _record_forward_stack_traces_only = False
    check_mutable_operations = False
    trace_asserts = False
    proxy_buffer_attributes = False
    traced_func_name = "forward"
    scope = None
    module_stack = None
    node_name_to_scope = None

    def create_node(self, kind, target, args, kwargs, name=None, type_expr=None):
        """Returns a new node of the graph."""
        if kind == "call_function" and self.check_mutable_operations:
            from .operator_schemas import check_for_mutable_operation
            check_for_mutable_operation(target, args, kwargs)
        node = self.graph.create_node(kind, target, args, kwargs, name, type_expr)
        if self.node_name_to_scope is not None:
            self.node_name_to_scope[node.name] = (self.scope.module_path, self.scope.module_type)
        if traceback.has_preserved_node_meta():
            current = traceback.get_current_meta()
            node.meta.update({key: current[key] for key in _COPIED if key in current})
            if "from_node" in current:
                node.meta["from_node"] = current["from_node"]
        elif self.module_stack:
            node.meta["nn_module_stack"] = copy.copy(self.module_stack)
        return node

    def proxy(self, node):
        """Returns the symbolic value of a node."""
        return Proxy(node, self)

    def create_proxy(self, kind, target, args, kwargs, name=None, type_expr=None, proxy_factory_fn=None):
        """Returns the symbolic value of a new node. Symbolic values among the arguments become nodes."""
        args, kwargs = self.create_arg(args), self.create_arg(kwargs)
        assert isinstance(args, tuple) and isinstance(kwargs, dict)
        node = self.create_node(kind, target, args, kwargs, name, type_expr)
        proxy = proxy_factory_fn(node) if proxy_factory_fn else self.proxy(node)
        if self.record_stack_traces and not node.stack_trace:
            frame = self._find_user_frame()
            if frame is not None:
                node.stack_trace = "".join(_traceback.StackSummary.extract(_traceback.walk_stack(frame)).format()[:1])
        return proxy

    def _find_user_frame(self):
        """Returns the innermost frame that is not of this package."""
        frame = inspect.currentframe()
        here = sys.modules[__name__.rpartition(".")[0]].__path__[0]
        while frame is not None and (frame.f_code.co_filename.startswith(here) or "/nn/module.py" in frame.f_code.co_filename):
            frame = frame.f_back
        return frame

    def create_arg(self, a):
        """Returns a value as an argument of nodes. Raises for values that no code can express."""
        if isinstance(a, Proxy):
            return a.node
        if hasattr(a, "__fx_create_arg__"):
            return a.__fx_create_arg__(self)
        if isinstance(a, tuple):
            if hasattr(a, "_fields"):
                return type(a)(*[self.create_arg(part) for part in a])
            return tuple([self.create_arg(part) for part in a])
        if isinstance(a, list):
            return [self.create_arg(part) for part in a]
        if isinstance(a, dict):
            return {self._key(key): self.create_arg(part) for key, part in a.items()}
        if isinstance(a, slice):
            return slice(self.create_arg(a.start), self.create_arg(a.stop), self.create_arg(a.step))
        if isinstance(a, range):
            return range(self.create_arg(a.start), self.create_arg(a.stop), self.create_arg(a.step))
        if isinstance(a, base_types) or isinstance(a, enum.Enum) or a is None or a is ...:
            return a
        if hasattr(a, "_qualified_name") or isinstance(a, Node):
            return a
        if hasattr(type(a), "__dataclass_fields__"):
            kwargs = {name: self.create_arg(getattr(a, name)) for name in type(a).__dataclass_fields__}
            return self.create_node("call_function", type(a), (), kwargs)
        raise NotImplementedError(f"argument of type: {type(a)}")

    def _key(self, key):
        """Returns a key of a dictionary, which may not be symbolic."""
        key = self.create_arg(key)

        def refuse(part):
            if isinstance(part, Node):
                raise RuntimeError("Keys for dictionaries used as an argument cannot contain a Node. Got key: {key}".format(key=key))
            return part
        map_aggregate(key, refuse)
        return key

    def to_bool(self, obj):
        """Is called for the truth of a symbolic value. Raises."""
        raise TraceError("symbolically traced variables cannot be used as inputs to control flow")

    def iter(self, obj):
        """Is called for a loop over a symbolic value. Raises."""
        raise TraceError(
            "Proxy object cannot be iterated. This can be attempted when the Proxy is used in a loop or as a *args or **kwargs function argument. "
            "See the torch.fx docs on pytorch.org for a more detailed explanation of what types of control flow can be traced, and check out the "
            "Proxy docstring for help troubleshooting Proxy iteration errors")

    def keys(self, obj):
        """Is called for the keys of a symbolic value. Returns a symbolic value."""
        return Attribute(obj, "keys")()


class GraphAppendingTracer(TracerBase):
    """A tracer that adds nodes to a given graph."""

    def __init__(self, graph):
        super().__init__()
        self.graph, self.scope, self.module_stack, self.node_name_to_scope = graph, Scope("", None), {}, {}


def assert_fn(x):
    """Raises an `AssertionError` unless a value is true."""
    assert x


def _instruction(frame):
    """Returns the instruction that a frame is in, and those of its function."""
    instructions = list(dis.get_instructions(frame.f_code))
    place = next((place for place, one in enumerate(instructions) if one.offset == frame.f_lasti), None)
    return (instructions, place) if place is not None else ([], 0)


class Proxy:
    """The symbolic value of a node. Functions, methods and operators with it become nodes."""

    def __init__(self, node, tracer=None):
        self.tracer = GraphAppendingTracer(node.graph) if tracer is None else tracer
        self.node = node

    def __repr__(self):
        return f"Proxy({self.node.name})"

    def __getattr__(self, name):
        # A copied or unpickled object has no attributes yet.
        if name in ("node", "tracer"):
            raise AttributeError(name)
        return Attribute(self, name)

    def __getstate__(self):
        return self.__dict__

    def __setstate__(self, state):
        self.__dict__ = state

    def __deepcopy__(self, memo):
        return Proxy(copy.deepcopy(self.node, memo), self.tracer) if isinstance(self.node, Node) else self

    def __call__(self, *args, **kwargs):
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    def __iter__(self):
        frame = inspect.currentframe().f_back
        instructions, place = _instruction(frame)
        if instructions and instructions[place].opname == "UNPACK_SEQUENCE":
            return (self[part] for part in range(instructions[place].argval))
        return self.tracer.iter(self)

    def __abs__(self):
        return self.tracer.create_proxy("call_function", operator.abs, (self,), {})

    def __bool__(self):
        if self.tracer.trace_asserts:
            # An assertion becomes a node instead of a jump.
            instructions, place = _instruction(inspect.currentframe().f_back)
            if instructions and instructions[place].opname.startswith(("POP_JUMP", "TO_BOOL")):
                following = [one.opname for one in instructions[place + 1:place + 3]]
                if any(name in ("LOAD_ASSERTION_ERROR", "LOAD_COMMON_CONSTANT") for name in following) or (
                        following and following[0].startswith("POP_JUMP")):
                    self.tracer.create_proxy("call_function", assert_fn, (self,), {})
                    return True
        return self.tracer.to_bool(self)

    def keys(self):
        """Returns the keys, as the tracer decides."""
        return self.tracer.keys(self)

    def __len__(self):
        raise RuntimeError("'len' is not supported in symbolic tracing by default. If you want this call to be recorded, please call "
                           "torch.fx.wrap('len') at module scope")

    @classmethod
    def __torch_function__(cls, orig_method, types, args=None, kwargs=None):
        args, kwargs = args or (), kwargs or {}
        tracers = {}

        def find(part):
            if isinstance(part, cls):
                tracers[part.tracer] = None
            return part
        map_aggregate(args, find)
        map_aggregate(kwargs, find)
        if len(tracers) > 1:
            raise RuntimeError(f"Found multiple different tracers {list(tracers)} while trying to trace operations {orig_method}")
        tracer = next(iter(tracers))
        if getattr(_core.Tensor, getattr(orig_method, "__name__", ""), None) is orig_method and callable(orig_method):
            return tracer.create_proxy("call_method", orig_method.__name__, args, kwargs)
        name = getattr(tracer, "_name_of_call", None)
        return tracer.create_proxy("call_function", orig_method, args, kwargs, name=name(orig_method) if name else None)


class MetaProxy(Proxy):
    """A symbolic value with a tensor that has only a shape and a dtype."""

    def __init__(self, node, tracer=None, fake_mode=None):
        super().__init__(node, tracer)
        self.fake_mode = fake_mode


class Attribute(Proxy):
    """The attribute of a symbolic value. It becomes a node when it is used, unless it is a method that is called."""

    def __init__(self, root, attr):
        self.root, self.attr, self.tracer, self._node = root, attr, root.tracer, None

    @property
    def node(self):
        """The node that reads the attribute."""
        if self._node is None:
            self._node = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {}).node
        return self._node

    def __call__(self, *args, **kwargs):
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


class ParameterProxy(Proxy):
    """The symbolic value of a parameter. Its shape and size are those of the parameter."""

    def __init__(self, tracer, node, name, param):
        super().__init__(node, tracer)
        assert isinstance(param, _core.Tensor)
        self.param, self.name = param, name

    def __repr__(self):
        return f"ParameterProxy({self.name})"

    @property
    def shape(self):
        """The shape of the parameter."""
        return self.param.shape

    def size(self):
        """Returns the shape of the parameter."""
        return self.param.size()

    def dim(self):
        """Returns the number of dimensions of the parameter."""
        return self.param.dim()

    @property
    def ndim(self):
        """The number of dimensions of the parameter."""
        return self.param.ndim

    def numel(self):
        """Returns the number of elements of the parameter."""
        return self.param.numel()

    def nelement(self):
        """Returns the number of elements of the parameter."""
        return self.param.nelement()


def _operator_method(name, python_name):
    function = getattr(operator, name)

    def method(*args, **kwargs):
        return args[0].tracer.create_proxy("call_function", function, args, kwargs)
    method.__name__ = python_name
    return method


def _reflected_method(name, python_name):
    function = getattr(operator, name)

    def method(self, other):
        return self.tracer.create_proxy("call_function", function, (other, self), {})
    method.__name__ = python_name
    return method


for _name in magic_methods:
    if hasattr(operator, _name):
        setattr(Proxy, f"__{_name.strip('_')}__", _operator_method(_name, f"__{_name.strip('_')}__"))
for _name in reflectable_magic_methods:
    if hasattr(operator, _name):
        setattr(Proxy, f"__r{_name.strip('_')}__", _reflected_method(_name, f"__r{_name.strip('_')}__"))
Proxy.__div__, Proxy.__rdiv__ = Proxy.__truediv__, Proxy.__rtruediv__
Proxy.__hash__ = object.__hash__
