"""Modules whose `forward` is the generated code of a graph (`torch.fx.graph_module`)."""

import contextlib
import copy
import itertools
import linecache
import os
import sys
import traceback

from .._left_out import attributes as _attributes
from .. import _core
from ..nn.module import Module
from ..nn.parameter import Parameter
from ._names import custom_builtins, package, qualified
from .graph import Graph, _PyTreeCodeGen

__all__ = ["GraphModule", "reduce_deploy_graph_module", "reduce_graph_module"]


class _SourceLoader:
    """Keeps the text of generated code, so that traces of errors show it."""

    def __init__(self):
        self._texts, self._count = {}, itertools.count()

    def cache(self, text, namespace, fields=None):
        """Returns the name of a file with the text."""
        key = f"<eval_with_key>.{next(self._count)}"
        if fields and "co_name" in fields:
            key += f" from {fields['co_filename']}:{fields['co_firstlineno']} in {fields['co_name']}"
        self._texts[key] = text
        linecache.lazycache(key, {**namespace, "__name__": key, "__loader__": self})
        return key

    def get_source(self, name):
        """Returns the text of a file."""
        return self._texts.get(name)


_loader = _SourceLoader()


def _exec_with_source(text, namespace, fields=None):
    exec(compile(text, _loader.cache(text, namespace, fields), "exec"), namespace)


def _forward_from_src(src, namespace, co_fields=None):
    """Returns the function of generated code."""
    namespace = dict(namespace)
    _exec_with_source(src, namespace, co_fields)
    return namespace["forward"]


def _import_statement(name, obj):
    """Returns the statement that imports a global of generated code."""
    if name in custom_builtins and custom_builtins.get(name).obj is obj:
        return custom_builtins.get(name).import_str
    if not hasattr(obj, "__name__") or getattr(obj, "__module__", None) in ("typing", "types"):
        text = repr(obj).replace(f"{package().__name__}.", "torch.")
        return f"import typing, types, torch; {name} = {text}"
    if qualified(obj).startswith("torch."):
        return f"from {qualified(obj).rpartition('.')[0]} import {qualified(obj).rpartition('.')[2]} as {name}"
    module = getattr(obj, "__module__", None)
    if module is None and hasattr(obj, "__name__"):
        return f"import {obj.__name__} as {name}"
    own = obj.__qualname__ if hasattr(obj, "__qualname__") else obj._name if hasattr(obj, "_name") else obj.__name__
    if module == "builtins" or (module == "_operator"):
        module = "builtins" if module == "builtins" else "operator"
        own = obj.__name__
    if own.partition(".")[0] != own:
        return f"from {module} import {own.partition('.')[0]}; {name} = {own}" if "<locals>" not in own else f"from {module} import {own}"
    return f"from {module} import {own} as {name}"


def _format_import_block(names, importer=None):
    return "\n".join(sorted({_import_statement(name, obj) for name, obj in names.items()}))


def _with_package(src):
    """Runs import statements of generated code, in which this package is `torch`, and returns the names that they
    define."""
    namespace = {}
    own = package().__name__
    for statement in src.split("\n"):
        if "torch" in sys.modules and sys.modules["torch"] is package():
            exec(statement, namespace)
        elif statement == "import torch" or statement.startswith("import typing, types, torch; "):
            namespace["torch"] = package()
            exec(statement.replace(", torch; ", "; ") if "; " in statement else "pass", namespace)
        else:
            exec(statement.replace("import torch.", f"import {own}.").replace("from torch", f"from {own}"), namespace)
    return namespace


def reduce_graph_module(body, import_block):
    """Returns a module from its pickled attributes and the imports of its code."""
    src = body.get("_code") or body.get("code")
    return _deserialize_graph_module(_forward_from_src(src, _with_package(import_block)), body)


def reduce_deploy_graph_module(importer, body, import_block):
    """Returns a module from its pickled attributes and the imports of its code."""
    return reduce_graph_module(body, import_block)


class _CodeOnlyModule(Module):
    """A module with the attributes of a pickled one, whose code is traced."""

    def __init__(self, body):
        super().__init__()
        self.__dict__ = body


def _deserialize_graph_module(forward, body, graph_module_cls=None):
    """Returns a module by tracing its code."""
    from ._symbolic_trace import Tracer
    _CodeOnlyModule.forward = forward
    tracer_class = body.get("_tracer_cls") or Tracer
    graphmodule_name = body.get("_graphmodule_cls_name", "GraphModule")
    module = _CodeOnlyModule(body)
    extras = body.get("_tracer_extras") or {}

    class _Keeping(tracer_class):
        """Traces the code of a graph, in which every module is called as a whole."""

        def is_leaf_module(self, m, module_qualified_name):
            return True
    module.__class__.__name__ = graphmodule_name
    try:
        graph = _Keeping().trace(module, **extras)
    finally:
        _CodeOnlyModule.__name__ = "_CodeOnlyModule"
    graph._tracer_cls, graph._tracer_extras = tracer_class, extras
    if "_codegen" in body:
        graph._codegen = body["_codegen"]
    made = (graph_module_cls or GraphModule)(module, graph, class_name=graphmodule_name)
    for name, value in body.items():
        if not hasattr(made, name):
            setattr(made, name, value)
    return made


def _copy_attr(source, target, path):
    """Copies an attribute, by its path, from one module to another, with modules on the way."""
    *prefix, field = path.split(".")
    for name in prefix:
        inner, own = getattr(source, name, None), getattr(target, name, None)
        if inner is own:
            return
        if own is None:
            own = Module()
            setattr(target, name, own)
        source, target = inner, own
    value = getattr(source, field)
    if isinstance(value, _core.Tensor) and not isinstance(value, Parameter):
        target.register_buffer(field, value, persistent=field not in source._non_persistent_buffers_set)
    else:
        setattr(target, field, value)


def _assign_attr(value, target, path):
    """Sets an attribute by its path, with modules on the way."""
    *prefix, field = path.split(".")
    for name in prefix:
        own = getattr(target, name, None)
        if own is None:
            own = Module()
            setattr(target, name, own)
        target = own
    if isinstance(value, _core.Tensor) and not isinstance(value, Parameter):
        target.register_buffer(field, value)
    else:
        setattr(target, field, value)


def _has_attr(module, path):
    """Returns whether a module has an attribute, by its path."""
    for name in path.split("."):
        if not hasattr(module, name):
            return False
        module = getattr(module, name)
    return True


def _get_attr(module, path):
    """Returns an attribute of a module, by its path."""
    for name in path.split("."):
        module = getattr(module, name)
    return module


def _del_attr(module, path):
    """Deletes an attribute of a module, by its path."""
    *prefix, field = path.split(".")
    for name in prefix:
        module = getattr(module, name)
    return delattr(module, field)


class _WrappedCall:
    """Calls a module. Errors show the line of the generated code."""

    def __init__(self, cls, cls_call):
        self.cls, self.cls_call = cls, cls_call

    def __call__(self, module, *args, **kwargs):
        try:
            if self.cls_call is not None:
                return self.cls_call(module, *args, **kwargs)
            return super(self.cls, module).__call__(*args, **kwargs)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            if "eval_with_key" in last.filename:
                print(self._shown(last), file=sys.stderr)
                raise error.with_traceback(None)
            raise

    @staticmethod
    def _shown(frame):
        """Returns the line that failed, with those around it."""
        lines = linecache.getlines(frame.filename)
        before, after = "".join(lines[max(frame.lineno - 3, 0):frame.lineno]), "".join(lines[frame.lineno:frame.lineno + 2])
        marked = "~" * len(lines[frame.lineno - 1]) + "~~~ <--- HERE" if lines else ""
        text = "".join(traceback.format_exception_only(*sys.exc_info()[:2]))
        return f"{text}\nCall using an FX-traced Module, line {frame.lineno} of the traced Module's generated forward function:\n{before}{marked}\n{after}"


_HOOKS = ("_replace_hooks", "_create_node_hooks", "_erase_node_hooks", "_deepcopy_hooks")


class GraphModule(Module):
    """A module of a graph. Its `forward` is code that is generated from the graph whenever that is set or `recompile` is called."""

    def __new__(cls, *args, **kwargs):
        # Each module has a class of its own, since a method belongs to a class.
        for base in cls.__mro__:
            qualname = base.__qualname__.split(".")[-1]
            if qualname != "GraphModuleImpl":
                cls = base
                break

        class GraphModuleImpl(cls):
            pass
        return super().__new__(GraphModuleImpl)

    def __init__(self, root, graph, class_name="GraphModule"):
        super().__init__()
        type(self).__name__ = class_name
        if isinstance(root, Module):
            self._take_from_module(root, graph)
        elif isinstance(root, dict):
            self._take_from_dict(root, graph)
        else:
            raise RuntimeError(f"Unsupported type {root} passed for root!")
        self.graph = graph
        self._tracer_cls = None
        if graph._tracer_cls and "<locals>" not in graph._tracer_cls.__qualname__:
            self._tracer_cls = graph._tracer_cls
        self._tracer_extras = graph._tracer_extras or {}
        self.meta = dict(root.meta) if isinstance(getattr(root, "meta", None), dict) else {}
        for name in _HOOKS:
            setattr(self, name, [])

    def _take_from_module(self, root, graph):
        if hasattr(root, "training"):
            self.training = root.training
        for name, value in vars(root).items():
            if name.startswith("_") and name.endswith("_spec_holder"):
                setattr(self, name, value)
        for node in graph.nodes:
            if node.op in ("get_attr", "call_module"):
                assert isinstance(node.target, str), "a target is a name"
                _copy_attr(root, self, node.target)

    def _take_from_dict(self, root, graph):
        wanted = []
        for node in graph.nodes:
            if node.op in ("get_attr", "call_module"):
                if node.target not in root:
                    raise RuntimeError(f"Node {node} referenced target {node.target} but that target was not provided in ``root``!")
                wanted.append(node.target)
        # Modules come before what is in them.
        for target in sorted(set(wanted), key=lambda target: target.count(".")):
            _assign_attr(root[target], self, target)

    # PyTorch's TorchScript would not compile them.
    __jit_unused_properties__ = ["graph", "_boxed_call"]

    @property
    def graph(self):
        """The graph. Setting it generates the code."""
        return self._graph

    @graph.setter
    def graph(self, graph):
        assert isinstance(graph, Graph), f"Expected a Graph instance, but got {type(graph)}"
        self._graph = graph
        graph._owners += 1
        graph.owning_module = self
        self.recompile()

    @property
    def code(self):
        """The generated code."""
        if not hasattr(self, "_code"):
            raise RuntimeError("Code has not been generated! Please report a bug to PyTorch")
        return self._code

    @property
    def _boxed_call(self):
        return getattr(self._graph._codegen, "_boxed_call", False)

    def recompile(self):
        """Generates the code from the graph, and returns it with its globals."""
        if isinstance(self._graph._codegen, _PyTreeCodeGen):
            self._in_spec = self._graph._codegen.pytree_info.in_spec
            self._out_spec = self._graph._codegen.pytree_info.out_spec
        python_code = self._graph.python_code(root_module="self")
        self._code, self._lineno_map = python_code.src, python_code._lineno_map
        self._prologue_start = python_code._prologue_start
        cls = type(self)
        cls.forward = _forward_from_src(self._code, python_code.globals, getattr(self._graph, "_co_fields", {}))
        own_call = cls.__call__ if "__call__" in vars(cls) else None
        if "_wrapped_call" not in vars(cls):
            cls._wrapped_call = _WrappedCall(cls, own_call)

            def call_wrapped(self, *args, **kwargs):
                return self._wrapped_call(self, *args, **kwargs)
            cls.__call__ = call_wrapped
        self._recompile_submodules()
        return python_code

    def _recompile_submodules(self):
        return []

    # ---- Submodules -----------------------------------------------------------------------------------------------

    def add_submodule(self, target, m):
        """Adds a module at a path, with empty modules on the way. Returns whether the path was free."""
        *prefix, field = target.split(".")
        module = self
        for name in prefix:
            inner = getattr(module, name, None)
            if inner is None:
                inner = Module()
                setattr(module, name, inner)
            if not isinstance(inner, Module):
                return False
            module = inner
        module.add_module(field, m)
        return True

    def delete_submodule(self, target):
        """Deletes the module at a path. Returns whether there was one."""
        *prefix, field = target.split(".")
        module = self
        for name in prefix:
            if not hasattr(module, name):
                return False
            module = getattr(module, name)
            if not isinstance(module, Module):
                return False
        if not isinstance(getattr(module, field, None), Module):
            return False
        delattr(module, field)
        return True

    def delete_all_unused_submodules(self):
        """Deletes the modules that no node uses."""
        used = set()
        for node in self.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                path = node.target.split(".")
                used.update(".".join(path[:count]) for count in range(1, len(path) + 1))
                if node.op == "call_module":
                    try:
                        inner = self.get_submodule(node.target)
                    except AttributeError:
                        continue
                    used.update(f"{node.target}.{name}" for name, _ in inner.named_modules() if name)
        for name in [name for name, _ in self.named_modules() if name and name not in used]:
            self.delete_submodule(name)

    # ---- Copies and pickles ---------------------------------------------------------------------------------------

    def __reduce__(self):
        body = self.__dict__.copy()
        python_code = self.recompile()
        block = _format_import_block(python_code.globals)
        for name in ("_graph", *_HOOKS):
            body.pop(name, None)
        body["_code"], body["_graphmodule_cls_name"] = python_code.src, type(self).__name__
        if isinstance(self._graph._codegen, _PyTreeCodeGen):
            body["_codegen"] = self._graph._codegen
        return reduce_graph_module, (body, block)

    def _deepcopy_init(self):
        return GraphModule.__init__

    def __deepcopy__(self, memo):
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        root = Module()
        root.__dict__ = copy.deepcopy({name: value for name, value in vars(self).items() if name not in ("_graph", *_HOOKS)}, memo)
        self._deepcopy_init()(made, root, copy.deepcopy(self._graph, {}), type(self).__name__)
        for name in ("_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", *_HOOKS):
            if getattr(self, name, None):
                setattr(made, name, copy.copy(getattr(self, name)))
        made.meta = copy.deepcopy(getattr(self, "meta", {}), memo)
        for hook in self._deepcopy_hooks:
            hook(made)
        for name, value in vars(root).items():
            if name not in vars(made) and not name.startswith("_"):
                vars(made)[name] = value
        return made

    def __copy__(self):
        made = GraphModule(self, self.graph)
        made.meta = getattr(self, "meta", {})
        return made

    def _replicate_for_data_parallel(self):
        made = self.__copy__()
        made.__dict__["_is_replica"] = True
        return made

    # ---- Text -----------------------------------------------------------------------------------------------------

    def print_readable(self, print_output=True, include_stride=False, include_device=False, colored=False, **_):
        """Prints the code of the module and of the graph modules in it, with the program's lines. Returns it as well."""
        text = self._readable(type(self).__name__)
        if print_output:
            print(text)
        return text

    def _readable(self, name):
        code = self._graph.python_code(root_module="self", verbose=True).src.lstrip("\n")
        text = f"class {name}(torch.nn.Module):\n" + "\n".join(f"    {line}" if line.strip() else "" for line in code.rstrip().split("\n")) + "\n"
        for child_name, child in self.named_children():
            if isinstance(child, GraphModule):
                inner = child._readable(child_name).rstrip()
                text += "\n" + "\n".join(f"    {line}" if line.strip() else "" for line in inner.split("\n")) + "\n"
        return text

    def __str__(self):
        readable = "# To see more debug info, please use `graph_module.print_readable()`"
        return "\n".join([super().__str__(), self._code, readable])

    def to_folder(self, folder, module_name="FxModule"):
        """Writes the module as a package of Python with its state to a folder."""
        os.makedirs(folder, exist_ok=True)
        from ..serialization import save
        save(self.state_dict(), os.path.join(folder, "state_dict.pt"))
        lines = ["import torch", "from torch.nn import *", "", f"class {module_name}(torch.nn.Module):", "    def __init__(self):",
                 "        super().__init__()"]
        for name, child in self.named_children():
            save(child, os.path.join(folder, f"{name}.pt"))
            lines.append(f"        self.{name} = torch.load(r'{os.path.join(folder, name)}.pt', weights_only=False)")
        lines += [f"        self.register_buffer('{name}', torch.empty({list(value.shape)}, dtype={value.dtype}))"
                  for name, value in self._buffers.items() if value is not None]
        lines += [f"        self.{name} = torch.nn.Parameter(torch.empty({list(value.shape)}, dtype={value.dtype}))"
                  for name, value in self._parameters.items() if value is not None]
        lines.append(f"        self.load_state_dict(torch.load(r'{folder}/state_dict.pt'))")
        lines += [f"    {line}" for line in self.code.split("\n")]
        with open(os.path.join(folder, "module.py"), "w") as file:
            file.write("\n".join(lines) + "\n")
        with open(os.path.join(folder, "__init__.py"), "w") as file:
            file.write("from .module import *\n")

    # ---- Hooks ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _set_replace_hook(self, f):
        """Returns a region in which a function is called for each node that is replaced."""
        self._register_replace_node_hook(f)
        try:
            yield
        finally:
            self._unregister_replace_node_hook(f)


def _hook_methods(kind):
    def register(self, f):
        assert callable(f), f"{kind} hook must be a callable."
        getattr(self, kind).append(f)

    def unregister(self, f):
        assert callable(f), f"{kind} hook must be a callable."
        getattr(self, kind).remove(f)
    return register, unregister


for _own, _kind in (("replace_node", "_replace_hooks"), ("create_node", "_create_node_hooks"), ("erase_node", "_erase_node_hooks"),
                    ("deepcopy", "_deepcopy_hooks")):
    _register, _unregister = _hook_methods(_kind)
    setattr(GraphModule, f"_register_{_own}_hook", _register)
    setattr(GraphModule, f"_unregister_{_own}_hook", _unregister)


__getattr__ = _attributes(__name__)
