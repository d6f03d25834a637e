"""Symbolic tracing (`torch.fx.symbolic_trace`): a program runs once with symbolic values, which record its nodes."""

import builtins
import functools
import inspect
import math
import types
import warnings

from .. import _core
from ..nn.module import Module
from ..nn.parameter import Parameter
from ..utils import _pytree as pytree
from ._compatibility import compatibility  # noqa: F401
from .graph import Graph, PyTreeInfo, _PyTreeCodeGen
from .graph_module import GraphModule
from .node import base_types, map_aggregate
from .proxy import ParameterProxy, Proxy, Scope, ScopeContextManager, TracerBase

# Names of PyTorch's module, for tracers of others that replace `trace`.
FunctionType = types.FunctionType
_orig_module_call, _orig_module_getattr = Module.__call__, Module.__getattr__


class ScriptObject:
    """The class of objects of compiled programs, of which there are none."""


_HAS_VARSTUFF = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
# Functions and methods whose calls with symbolic values become nodes, by the namespace and the name where programs find them.
_wrapped_fns_to_patch = {}
_wrapped_methods_to_patch = []
_proxyable_classes = {}
_is_fx_tracing_flag = False


def is_fx_tracing():
    """Returns whether a program is being traced."""
    return _is_fx_tracing_flag


def is_fx_symbolic_tracing():
    """Returns whether a program is being traced."""
    return _is_fx_tracing_flag


class ProxyableClassMeta(type):
    """The metaclass of classes whose constructors are nodes when they are called with symbolic values."""

    def __init__(cls, name, bases, attrs):
        _proxyable_classes.setdefault(cls)
        super().__init__(name, bases, attrs)

    def __call__(cls, *args, **kwargs):
        made = cls.__new__(cls)
        if not is_fx_tracing():
            cls.__init__(made, *args, **kwargs)
            return made
        found = []
        map_aggregate((args, kwargs), lambda part: found.append(part) if isinstance(part, Proxy) else part)
        if not found:
            cls.__init__(made, *args, **kwargs)
            return made
        return found[0].tracer.create_proxy("call_function", cls, args, kwargs)


class PHBase:
    """A part of an argument that stays symbolic, although the argument is given."""

    def __repr__(self):
        return "PH"


PH = PHBase()


class PHWithMeta(PHBase):
    """A part of an argument that stays symbolic, with attributes for its node."""

    def __init__(self, ph_key=None):
        super().__init__()
        self.ph_key = ph_key


def _transfer_attrs(fr, to):
    for name in dir(fr):
        value = getattr(fr, name)
        if not callable(value) and not name.startswith("__") and not hasattr(to, name):
            setattr(to, name, value)


def _assert_is_none(value, message):
    """Raises an `AssertionError` unless a value is None."""
    assert value is None, message


def _patch_function(fn, count):
    """Returns a function that takes all its parameters by position: `*args` and `**kwargs` as one each."""
    code = fn.__code__
    code = code.replace(co_flags=code.co_flags & ~_HAS_VARSTUFF, co_argcount=count, co_posonlyargcount=0, co_kwonlyargcount=0)
    return types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)


def _find_proxy(*values):
    found = []
    map_aggregate(values, lambda part: found.append(part) if isinstance(part, Proxy) else part)
    return found[0] if found else None


def _create_wrapped_func(orig_fn):
    @functools.wraps(orig_fn)
    def wrapped(*args, **kwargs):
        proxy = _find_proxy(args, kwargs)
        if proxy is None:
            return orig_fn(*args, **kwargs)
        result = proxy.tracer.create_proxy("call_function", orig_fn, args, kwargs)
        result.node.meta["is_wrapped"] = True
        return result
    return wrapped


def _create_wrapped_method(cls, name):
    original = getattr(cls, name)

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        proxy = _find_proxy(args, kwargs)
        return original(*args, **kwargs) if proxy is None else proxy.tracer.create_proxy("call_method", name, args, kwargs)
    return wrapped


_MISSING = object()


class _Patcher:
    """Replaces functions in namespaces and methods of classes until the region ends."""

    def __init__(self):
        self._undo, self._visited = [], set()

    def patch(self, namespace, name, new):
        """Replaces an entry of a namespace."""
        former = namespace.get(name, _MISSING)
        if getattr(former, "__fx_already_patched", False):
            return
        new.__fx_already_patched = True
        namespace[name] = new
        self._undo.append((namespace.__setitem__, namespace.__delitem__, name, former))

    def patch_method(self, cls, name, new, deduplicate=True):
        """Replaces a method of a class."""
        former = cls.__dict__.get(name, _MISSING)
        if deduplicate and getattr(former, "__fx_already_patched", False):
            return
        new.__fx_already_patched = True
        setattr(cls, name, new)
        self._undo.append((functools.partial(setattr, cls), functools.partial(delattr, cls), name, former))

    def visit_once(self, thing):
        """Returns whether an object is visited for the first time."""
        is_new = id(thing) not in self._visited
        self._visited.add(id(thing))
        return is_new

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for put, delete, name, former in reversed(self._undo):
            delete(name) if former is _MISSING else put(name, former)
        self._undo.clear()
        self._visited.clear()


def _patch_wrapped_functions(patcher):
    for (_, name), namespace in list(_wrapped_fns_to_patch.items()):
        original = namespace[name] if name in namespace else getattr(builtins, name)
        patcher.patch(namespace, name, _create_wrapped_func(original))
    for cls, name in _wrapped_methods_to_patch:
        patcher.patch_method(cls, name, _create_wrapped_method(cls, name))


def _autowrap_check(patcher, namespace, function_ids):
    """Replaces the functions of a namespace whose calls become nodes wherever they are called."""
    if patcher.visit_once(namespace):
        for name, value in list(namespace.items()):
            if not name.startswith("_") and callable(value) and id(value) in function_ids:
                patcher.patch(namespace, name, _create_wrapped_func(value))


def wrap(fn_or_name):
    """Makes calls of a function of the calling module nodes, instead of tracing into it. Takes the function or its name, and may decorate it."""
    if not callable(fn_or_name) and not isinstance(fn_or_name, str):
        raise RuntimeError("Unsupported type for global function! Must be either a callable or string name")
    name = fn_or_name.__name__ if callable(fn_or_name) else fn_or_name
    frame = inspect.currentframe().f_back
    if frame.f_code.co_name != "<module>":
        raise NotImplementedError("wrap must be called at the top level of a module")
    _wrapped_fns_to_patch[(id(frame.f_globals), name)] = frame.f_globals
    return fn_or_name


class Tracer(TracerBase):
    """Traces modules and functions. Subclasses decide which modules are called as a whole, and more."""

    def __init__(self, autowrap_modules=(math,), autowrap_functions=(), param_shapes_constant=False):
        super().__init__()
        self._autowrap_function_ids = {
            id(value) for module in autowrap_modules for name, value in vars(module).items() if not name.startswith("_") and callable(value)}
        self._autowrap_function_ids |= {id(function) for function in autowrap_functions}
        self._autowrap_search = list(autowrap_modules)
        self.param_shapes_constant = param_shapes_constant
        self.submodule_paths, self.root_module_name = None, ""
        self.scope, self.module_stack, self.num_calls, self.node_name_to_scope = Scope("", None), {}, {}, {}
        self._qualname_counter = {}

    def get_fresh_qualname(self, prefix):
        """Returns a name that the root does not have yet."""
        number = self._qualname_counter.get(prefix, 0)
        while hasattr(self.root, f"{prefix}{number}"):
            number += 1
        self._qualname_counter[prefix] = number
        return f"{prefix}{number}"

    def create_arg(self, a):
        """Returns a value as an argument of nodes. Parameters, buffers, modules and other tensors become attributes of the root."""
        if isinstance(a, Parameter):
            for name, own in self.root.named_parameters():
                if a is own:
                    return self.create_node("get_attr", name, (), {})
            raise NameError("parameter is not a member of this module")
        if isinstance(a, _core.Tensor):
            for name, own in self.root.named_buffers():
                if a is own:
                    return self.create_node("get_attr", name, (), {})
        elif isinstance(a, Module):
            for name, own in self.root.named_modules():
                if a is own:
                    return self.create_node("get_attr", name, (), {})
        if isinstance(a, tuple) and hasattr(a, "_fields"):
            return self.create_node("call_function", type(a), tuple(self.create_arg(part) for part in a), {})
        if isinstance(a, _core.Tensor):
            return self._constant(a, "_tensor_constant")
        if type(a) in _proxyable_classes:
            return self._constant(a, f"_{type(a).__name__}_constant_")
        return super().create_arg(a)

    def _constant(self, value, prefix):
        """Returns the node of a value that becomes an attribute of the root."""
        name = self.tensor_attrs.get(id(value), (None,))[0]
        if name is None:
            name = self.get_fresh_qualname(prefix)
            self.tensor_attrs[id(value)] = (name, value)
            setattr(self.root, name, value)
        return self.create_node("get_attr", name, (), {})

    def is_leaf_module(self, m, module_qualified_name):
        """Returns whether a module is called as a whole: those of this package are, but for `Sequential`."""
        from ..nn import Sequential
        return m.__module__.startswith(("torch.nn", "torch.ao.nn", f"{__name__.partition('.')[0]}.nn")) and not isinstance(m, Sequential)

    def path_of_module(self, mod):
        """Returns the path of a submodule of the root."""
        if self.submodule_paths:
            path = self.submodule_paths.get(mod)
            if path is None:
                raise NameError("module is not installed as a submodule")
            return path
        for name, own in self.root.named_modules():
            if mod is own:
                return name
        raise NameError("module is not installed as a submodule")

    def call_module(self, m, forward, args, kwargs):
        """Is called for each call of a module: makes a node, or traces into the module."""
        path = self.path_of_module(m)
        with ScopeContextManager(self.scope, Scope(path, type(m))) as scope:
            number = self.num_calls.get(path, 0)
            self.num_calls[path] = number + 1
            key = f"{scope.module_path}@{number}" if number else scope.module_path
            self.module_stack[key] = (path, scope.module_type)
            try:
                if self.is_leaf_module(m, path):
                    return self.create_proxy("call_module", path, args, kwargs)
                return forward(*args, **kwargs)
            finally:
                self.module_stack.pop(key, None)

    def getattr(self, attr, attr_val, parameter_proxy_cache):
        """Is called for each attribute of a module: parameters, and buffers if so chosen, become symbolic."""
        sources = [self.root.named_parameters]
        if self.proxy_buffer_attributes:
            sources.append(self.root.named_buffers)
        if not isinstance(attr_val, _core.Tensor):
            return attr_val
        for source in sources:
            for name, own in source():
                if attr_val is own:
                    return self._attribute(name, own, parameter_proxy_cache)
        return attr_val

    def _attribute(self, name, value, known):
        if name not in known:
            factory = (lambda node: ParameterProxy(self, node, name, value)) if self.param_shapes_constant else None
            known[name] = self.create_proxy("get_attr", name, (), {}, proxy_factory_fn=factory)
        return known[name]

    # Kept for tracers that override it under its older name.
    def _module_getattr(self, attr, attr_val, parameter_proxy_cache):
        return Tracer.getattr(self, attr, attr_val, parameter_proxy_cache)

    def create_args_for_root(self, root_fn, is_module, concrete_args=None):
        """Returns the function to call and its symbolic arguments."""
        analysed = inspect.unwrap(root_fn)
        code, signature = analysed.__code__, inspect.signature(analysed)
        count, names = code.co_argcount + code.co_kwonlyargcount, iter(code.co_varnames)
        skipped, args = 0, []
        if is_module:
            if count == 0:
                raise RuntimeError("``self`` argument cannot be part of *args expansion!")
            skipped = 1
            next(names)
            args.append(self.root)
        if isinstance(concrete_args, tuple):
            own = list(code.co_varnames[skipped:count])
            if len(own) != len(concrete_args):
                raise RuntimeError(f"Tracing expected {len(own)} arguments but got {len(concrete_args)} concrete arguments")
            concrete_args = dict(zip(own, concrete_args))

        def proxy(name):
            return self._proxy_placeholder(name, concrete_args, signature, analysed)
        args.extend(proxy(next(names)) for _ in range(skipped, count))
        if code.co_kwonlyargcount > 0 or code.co_flags & _HAS_VARSTUFF:
            if code.co_flags & inspect.CO_VARARGS:
                args.append(proxy("*" + next(names)))
            if code.co_flags & inspect.CO_VARKEYWORDS:
                args.append(proxy("**" + next(names)))
            root_fn = _patch_function(root_fn, len(args))
        leaves, spec = pytree.tree_flatten(tuple(args))
        if concrete_args is None or len(leaves) == len(args) and all(one is other for one, other in zip(leaves, args)):
            return root_fn, args
        return self._flattened(root_fn, leaves, spec, list(code.co_varnames[:count]))

    def _flattened(self, root_fn, leaves, in_spec, names):
        """Returns a function of the leaves of nested arguments."""
        codegen = self.graph._codegen = _PyTreeCodeGen(PyTreeInfo(names, in_spec, None))

        def flat(*args):
            result, out_spec = pytree.tree_flatten(root_fn(*pytree.tree_unflatten(list(args), in_spec)))
            codegen.pytree_info = codegen.pytree_info._replace(out_spec=out_spec)
            return result
        return flat, leaves

    def _proxy_placeholder(self, name, concrete_args, signature, function):
        """Returns the symbolic value of a parameter, or the given value with nodes for its parts."""
        default = ()
        if not name.startswith("*") and signature.parameters[name].default is not inspect.Parameter.empty:
            default = (signature.parameters[name].default,)
        if concrete_args is None or name not in concrete_args:
            kind = getattr(function, "__annotations__", {}).get(name, None)
            return self.create_proxy("placeholder", name, default, {}, type_expr=kind)
        count = 0

        def replaced(part):
            nonlocal count
            count += 1
            proxy = self.create_proxy("placeholder", f"{name}_{count}", default, {})
            if isinstance(part, PHBase):
                if part != PH:
                    _transfer_attrs(part, proxy.node)
                return proxy
            message = f"{name} has been specialized to have value {part} but got another value"
            if isinstance(part, bool) or (isinstance(part, base_types) and not isinstance(part, _core.Tensor)):
                from .. import _assert
                self.create_proxy("call_function", _assert, (proxy == part, message), {})
                return part
            if part is None:
                self.create_proxy("call_function", _assert_is_none, (proxy, message), {})
                return part
            warnings.warn(f"Was not able to add assertion to guarantee correct input {name} to specialized function. It is up to the user to make "
                          "sure that your inputs match the inputs you specialized the function with.", stacklevel=2)
            return part
        return pytree.tree_map(replaced, concrete_args[name])

    def trace(self, root, concrete_args=None):
        """Returns the graph of a module or function. `concrete_args` are arguments with fixed values, by name."""
        global _is_fx_tracing_flag
        former, _is_fx_tracing_flag = _is_fx_tracing_flag, True
        try:
            return self._traced(root, concrete_args)
        finally:
            _is_fx_tracing_flag = former
            self.submodule_paths = None

    def _traced(self, root, concrete_args):
        if isinstance(root, Module):
            from .. import fx
            fx._lazy_graph_module._force_on(root)
            assert hasattr(type(root), self.traced_func_name), f"traced_func_name={self.traced_func_name} doesn't exist in {type(root).__name__}"
            self.root, function = root, getattr(type(root), self.traced_func_name)
            self.root_module_name = root._get_name()
            self.submodule_paths = {module: name for name, module in root.named_modules()}
        else:
            self.root, function = Module(), root
        self.graph = Graph(tracer_cls=type(self))
        if hasattr(function, "__code__"):
            self.graph._co_fields = {"co_name": function.__code__.co_name, "co_filename": function.__code__.co_filename,
                                     "co_firstlineno": function.__code__.co_firstlineno}
        self.tensor_attrs = {}
        self._collect_tensors(self.root, "")
        assert isinstance(function, types.FunctionType), f"{function} is not a function of Python"
        returned = getattr(function, "__annotations__", {}).get("return", None)
        namespace = function.__globals__
        function, args = self.create_args_for_root(function, isinstance(root, Module), concrete_args)
        self._run(function, args, namespace, returned)
        return self.graph

    def _collect_tensors(self, module, prefix):
        """Remembers the tensors that are attributes of modules."""
        for name, value in vars(module).items():
            if isinstance(value, _core.Tensor):
                self.tensor_attrs[id(value)] = (prefix + name, value)
        for name, child in module.named_children():
            self._collect_tensors(child, f"{prefix}{name}.")

    def _run(self, function, args, namespace, returned):
        """Runs the program. This tracer receives its accesses to attributes of modules and its calls of modules."""
        known, read, call = {}, Module.__getattr__, Module.__call__

        @functools.wraps(read)
        def attribute(module, name):
            return self.getattr(name, read(module, name), known)

        @functools.wraps(call)
        def called(module, *args, **kwargs):
            _autowrap_check(patcher, getattr(getattr(module, "forward", module), "__globals__", {}), self._autowrap_function_ids)
            return self.call_module(module, lambda *args, **kwargs: call(module, *args, **kwargs), args, kwargs)
        with _Patcher() as patcher:
            patcher.patch_method(Module, "__getattr__", attribute, deduplicate=False)
            patcher.patch_method(Module, "__call__", called, deduplicate=False)
            _patch_wrapped_functions(patcher)
            _autowrap_check(patcher, namespace, self._autowrap_function_ids)
            for module in self._autowrap_search:
                _autowrap_check(patcher, vars(module), self._autowrap_function_ids)
            self.create_node("output", "output", (self.create_arg(function(*args)),), {}, type_expr=returned)

    def __deepcopy__(self, memo):
        import copy
        made = type(self).__new__(type(self))
        for name, value in vars(self).items():
            setattr(made, name, value if name == "_autowrap_search" else copy.deepcopy(value, memo))
        return made


def symbolic_trace(root, concrete_args=None):
    """Returns a module that does what a module or function does, as a graph."""
    tracer = Tracer()
    graph = tracer.trace(root, concrete_args)
    return GraphModule(tracer.root, graph, type(root).__name__ if isinstance(root, Module) else root.__name__)
