"""Type stubs of the package's Python modules, with the names and parameters of the imported modules.

Types are derived from a module's source: bool defaults, functions without a return value, and first sentences of docstrings
("Returns whether …", "Returns the number of …"). Parameters of networks that PyTorch gives the same name everywhere have the
type of that name. Everything else is `Any`.
"""

import ast
import builtins
import importlib
import inspect
import keyword
import sys
import textwrap
import types

# mypy's checks of a class against its base compare signatures that differ on purpose, as they do in PyTorch.
HEADER = ('# mypy: disable-error-code="override,misc,assignment,overload-overlap,explicit-override"\n'
          '"""{doc} Written by `cargo xtask stubs`."""\n\nimport builtins\nimport enum\nfrom typing import Any, Callable, Iterator, Sequence, TypeVar\nfrom typing_extensions import Self\n')
FUNCTION = '_F = TypeVar("_F", bound=Callable[..., Any])\n'
KEPT = ("__init__", "__call__", "__enter__", "__exit__", "__iter__", "__len__", "__getitem__", "__setitem__", "__delitem__", "__contains__",
        "__next__", "__add__")
# Definitions that the rules of this file would get wrong, by module and name.
GIVEN = {
    ("autograd", "_GradMode.__call__"): "def __call__(self, function: _F) -> _F: ...",
    ("autograd", "set_grad_enabled.__call__"): "def __call__(self, function: _F) -> _F: ...",
    ("amp", "autocast.__call__"): "def __call__(self, function: _F) -> _F: ...",
    ("nn.module", "Module.__getattr__"): "def __getattr__(self, name: str) -> Any: ...",
    ("nn.module", "Module.parameters"): "def parameters(self, recurse: builtins.bool = ...) -> Iterator[Parameter]: ...",
    ("nn.module", "Module.named_parameters"):
        "def named_parameters(self, prefix: str = ..., recurse: builtins.bool = ..., remove_duplicate: builtins.bool = ...) "
        "-> Iterator[tuple[str, Parameter]]: ...",
    ("nn.module", "Module.state_dict"): "def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]: ...",
    ("cuda.memory", "mem_get_info"): "def mem_get_info(device: Any = ...) -> tuple[builtins.int, builtins.int]: ...",
    **{("cuda", name): f"def {name}(device: Any = ...) -> builtins.int: ..."
       for name in ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate")},
    ("cuda.memory", "list_gpu_processes"): "def list_gpu_processes(device: Any = ...) -> str: ...",
    ("array_api._dtypes", "__array_namespace_info__"): "class __array_namespace_info__(Any): ...",
    ("optim.optimizer", "Optimizer.step"): "def step(self, *args: Any, **kwargs: Any) -> Any: ...",
    ("autograd.function", "Function.forward"): "@staticmethod\n    def forward(*args: Any, **kwargs: Any) -> Any: ...",
    ("autograd.function", "Function.backward"): "@staticmethod\n    def backward(*args: Any, **kwargs: Any) -> Any: ...",
}
# Base classes that need arguments.
GENERIC = {"weakref.ref": "weakref.ref[Any]", "tuple": "tuple[Any, ...]", "list": "list[Any]", "dict": "dict[Any, Any]"}
# Public functions whose names begin with an underscore, as in PyTorch.
UNDERSCORED = {"_record_memory_history", "_snapshot", "_dump_snapshot", "_set_memory_metadata", "_get_memory_metadata",
               "_memory_metadata_supported", "_annotate_tensor", "_set_allocator_settings"}
SELF = {"train", "eval", "to", "cuda", "cpu", "float", "double", "half", "bfloat16", "requires_grad_", "apply", "type"}
# Functions of `nn.functional` whose result is not one tensor.
SEVERAL = ("return_indices", "need_weights")


# Parameters of networks by their names: those of modules and functions that are whole numbers or one number for each dimension, and
# those of functions that are tensors.
WHOLE = frozenset(
    "in_features out_features in1_features in2_features in_channels out_channels num_embeddings embedding_dim input_size hidden_size num_layers "
    "num_features num_groups num_channels num_parameters groups embed_dim num_heads d_model nhead dim_feedforward proj_size upscale_factor "
    "downscale_factor".split())
SIZES = frozenset("kernel_size stride padding dilation output_padding normalized_shape".split())
TENSORS = frozenset("input other weight query key value input1 input2 x1 x2 anchor positive negative grid running_mean running_var".split())


def tree_of(value):
    """Returns the syntax tree of a function, or None if it is a lambda or has no source."""
    try:
        node = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    except (OSError, TypeError, SyntaxError):
        return None
    return node if isinstance(node, ast.FunctionDef) else None


def own_nodes(node):
    """Yields the nodes of a function, without those of nested functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            yield child
            yield from own_nodes(child)


def result(name, value, module, owner):
    """Returns the type of a function's result, as far as its source and docstring determine it."""
    doc = inspect.getdoc(value) or ""
    node = tree_of(value)
    if name in ("__init__", "__exit__", "__setitem__", "__delitem__"):
        return "None"
    if name == "__len__":
        return "builtins.int"
    if owner is not None and name == "__enter__" and node is not None:
        names = [ast.unparse(child.value) for child in own_nodes(node) if isinstance(child, ast.Return) and child.value is not None]
        return "Self" if names == ["self"] else "Any"
    if owner is not None and module == "nn.module" and name in SELF:
        return "Self"
    if doc.startswith("Returns whether"):
        return "builtins.bool"
    if doc.startswith(("Returns the bytes ", "Returns the most bytes", "Returns the number of")):
        return "builtins.int"
    if node is not None and not any(
            isinstance(child, (ast.Yield, ast.YieldFrom, ast.Raise)) or (isinstance(child, ast.Return) and child.value is not None)
            for child in own_nodes(node)):
        return "None"
    if module == "nn.functional" and owner is None and not any(word in inspect.signature(value).parameters for word in SEVERAL):
        return "Tensor"
    return "Any"


def kind_of(one, module):
    """Returns the type of a parameter."""
    if isinstance(one.default, bool):
        return "builtins.bool"
    kind = "Any"
    if module == "nn.functional" and one.name in TENSORS:
        kind = "Tensor"
    elif module.startswith("nn.") and module != "nn.module" and one.name in WHOLE:
        kind = "builtins.int"
    elif module.startswith("nn.") and one.name in SIZES:
        kind = "builtins.int | Sequence[builtins.int]" + (" | str" if one.name == "padding" else "")
    elif module.startswith("nn.") and type(one.default) is float:
        return "builtins.float | None"
    return kind if kind == "Any" or one.default is not None else f"{kind} | None"


def parameter(one, module):
    """Returns a parameter in stub syntax."""
    kind = kind_of(one, module)
    name = f"{one.name}_" if keyword.iskeyword(one.name) else one.name
    if one.kind is one.VAR_POSITIONAL:
        return f"*{name}: Any"
    if one.kind is one.VAR_KEYWORD:
        return f"**{name}: Any"
    return f"{name}: {kind}" + ("" if one.default is one.empty else " = ...")


def signature(value, module):
    """Returns the parameters of a function; `*args` and `**kwargs` if it has no signature."""
    try:
        found = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return ["*args: Any", "**kwargs: Any"]
    texts, is_named, was_only = [], False, False
    for one in found:
        if was_only and one.kind is not one.POSITIONAL_ONLY:
            texts.append("/")
        was_only = one.kind is one.POSITIONAL_ONLY
        if one.kind is one.KEYWORD_ONLY and not is_named:
            texts.append("*")
        is_named |= one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        texts.append(parameter(one, module))
    return texts + (["/"] if was_only else [])


def function(name, value, module, owner=None):
    """Returns the definition of a function or a method."""
    if owner is None and (module, name) in GIVEN:
        return GIVEN[module, name]
    inner = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
    texts = signature(inner, module)
    if owner is not None and not isinstance(value, staticmethod) and texts:
        first = texts[0].partition(":")[0]
        if first.startswith("*"):
            texts.insert(0, "self")
        else:
            texts[0] = first
            texts = [text for place, text in enumerate(texts) if not (place == 1 and text == "/")]
    mark = {staticmethod: "@staticmethod\n    ", classmethod: "@classmethod\n    "}.get(type(value), "") if owner is not None else ""
    return f"{mark}def {name}({', '.join(texts)}) -> {result(name, inner, module, owner)}: ..."


def members(cls):
    """Returns the members of a class by name, without those that subclasses of tensors get to override functions."""
    from thalweg._torch_functions import _made
    given = set(map(id, _made.values()))
    return {name: value for name, value in vars(cls).items() if id(value) not in given}


def attributes(cls):
    """Returns the names that the methods of a class set on its objects."""
    names = []
    for value in members(cls).values():
        node = tree_of(value) if inspect.isfunction(value) else None
        for child in own_nodes(node) if node is not None else ():
            if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store) and ast.unparse(child.value) == "self":
                names.append(child.attr)
    return names


def class_stub(name, cls, bases, module):
    """Returns the lines of a class."""
    lines = []
    seen = set()
    for own, value in members(cls).items():
        key = (module, f"{name}.{own}")
        if key in GIVEN or (own.startswith("_") and own not in KEPT) or keyword.iskeyword(own) or not own.isidentifier():
            continue
        seen.add(own)
        if inspect.isfunction(value) or isinstance(value, (staticmethod, classmethod)) or type(value).__name__ == "method_descriptor":
            lines.append(function(own, value, module, cls))
        elif isinstance(value, property) or type(value).__name__ == "getset_descriptor":
            lines.append(f"@property\n    def {own}(self) -> Any: ...")
            if getattr(value, "fset", None):
                lines.append(f"@{own}.setter\n    def {own}(self, value: Any) -> None: ...")
        else:
            lines.append(f"{own}: Any")
    lines += [text for (where, which), text in GIVEN.items() if where == module and which.startswith(f"{name}.")]
    lines += [f"{own}: Any" for own in dict.fromkeys(attributes(cls)) if own not in seen and not own.startswith("_")]
    if "__init__" not in vars(cls) and type(cls).__name__ == "type" and not bases:
        lines.insert(0, f"def __init__({', '.join(['self', *signature(cls, module)])}) -> None: ...")
    head = f"class {name}({', '.join(bases)}):" if bases else f"class {name}:"
    return [head] + [f"    {line}" for line in lines or ["..."]]


def is_named(name):
    """Returns whether programs call a function by this name, which makes it public."""
    return not name.startswith("_") or name in UNDERSCORED


def imported(node, running):
    """Returns the lines of an import from the package, whose names the module re-exports."""
    names = [ast.unparse(alias) if alias.name == "*" else f"{alias.name} as {alias.asname or alias.name}"
             for alias in node.names if is_named(alias.name) or isinstance(getattr(running, alias.name, None), (type, types.ModuleType))]
    return [f"from {'.' * node.level}{node.module or ''} import {', '.join(names)}"] if node.level and names else []


def module_stub(module, path, functions=()):
    """Returns the stub of a module, from its name within the package and its file. `functions` are operators that it contains as
    well."""
    if module == "_pytest":
        return "from typing import Any\n\ndef __getattr__(name: str) -> Any: ...\n"
    running = importlib.import_module(f"thalweg.{module}")
    tree = ast.parse(path.read_text())
    is_package = path.name == "__init__.py"
    up = "." * (module.count(".") + (1 if not is_package else 2))
    own = (running.__doc__ or "").strip().split("\n")[0]
    lines = [HEADER.format(doc=own), FUNCTION]
    if module == "nn.functional":
        lines.append(f"from {up}_core import Tensor")
        lines += [f"from {up}_core import {name} as {name}" for name in functions if not hasattr_static(tree, name)]
    bodies = [child for node in tree.body for child in ((*node.body, *(one for part in node.handlers for one in part.body))
                                                        if isinstance(node, ast.Try) else (node,))]
    for node in bodies:
        if isinstance(node, ast.ImportFrom):
            lines += imported(node, running)
        elif isinstance(node, ast.FunctionDef) and node.name != "__getattr__":
            if is_named(node.name):
                lines.append(function(node.name, getattr(running, node.name), module))
        elif isinstance(node, ast.ClassDef):
            bases = [GENERIC.get(ast.unparse(base), ast.unparse(base)) for base in node.bases
                     if ast.unparse(base).partition(".")[0] not in ("collections", "pickle", "types")]
            if any(isinstance(base, ast.Call) for base in node.bases):
                bases = [base.__name__ for base in getattr(running, node.name).__mro__[1:2]]
            lines += class_stub(node.name, getattr(running, node.name), bases, module)
        elif isinstance(node, ast.Assign):
            targets = [name for target in node.targets for name in (target.elts if isinstance(target, ast.Tuple) else [target])]
            for target in targets:
                if isinstance(target, ast.Name) and hasattr(running, target.id):
                    lines += assigned(target.id, getattr(running, target.id), node, module)
    return completed(lines + made(lines, tree, running), tree) + "\n"


def made(lines, tree, running):
    """Returns the lines of the public names that a module makes when it is imported (`globals().update`)."""
    if not any(isinstance(node, ast.Name) and node.id == "globals" for node in ast.walk(tree)):
        return []
    stub, known = ast.parse("\n".join(lines)), set()
    for node in stub.body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            known |= set(vars(importlib.import_module(f"{'.' * node.level}{node.module or ''}", running.__spec__.parent)))
        elif isinstance(node, ast.ImportFrom):
            known |= {alias.asname or alias.name for alias in node.names}
        known |= {node.name} if isinstance(node, (ast.ClassDef, ast.FunctionDef)) else set()
        known |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
    imported_names = {alias.asname or alias.name for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names}
    return [f"{name}: Any" for name, value in vars(running).items() if not name.startswith("_") and name not in known | imported_names
            and not isinstance(value, types.ModuleType) and not keyword.iskeyword(name)]


def completed(lines, tree):
    """Returns the text of a stub with the imports that its base classes and annotations need. Base classes that are neither imported nor
    defined in it are `Any`."""
    others = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            others |= {(alias.asname or alias.name).partition(".")[0]: f"import {alias.name}" for alias in node.names if alias.asname is None}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            others |= {alias.asname or alias.name: f"from {node.module} import {ast.unparse(alias)}" for alias in node.names}
    stub = ast.parse("\n".join(lines))
    known = set(dir(builtins)) | {"Any", "Callable", "Iterator", "Sequence", "TypeVar", "Self", "builtins", "enum"}
    for node in stub.body:
        known |= {alias.asname or alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
        known |= {node.name} if isinstance(node, (ast.ClassDef, ast.FunctionDef)) else set()
        # A name of unknown type cannot be a base class.
        known |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
                  and not isinstance(node, ast.AnnAssign)}
    is_open = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in stub.body)
    needed = []
    for place, line in enumerate(lines):
        if line.startswith("class ") and "(" in line:
            name, _, bases = line.partition("(")
            kept = []
            for base in ast.parse(f"f({bases.removesuffix('):')})", mode="eval").body.args:
                root = ast.unparse(base).partition("[")[0].partition(".")[0]
                if root not in known and root in others:
                    needed.append(others[root])
                kept.append(ast.unparse(base) if root in known | set(others) or is_open else "Any")
            lines[place] = f"{name}({', '.join(dict.fromkeys(kept))}):"
    return "\n".join([lines[0], *dict.fromkeys(needed), *lines[1:]])


def hasattr_static(tree, name):
    """Returns whether a module's source defines a name."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return True
        if isinstance(node, ast.Assign) and any(
                isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store) and child.id == name for child in ast.walk(node)):
            return True
    return False


def assigned(name, value, node, module):
    """Returns the lines for a name that is assigned."""
    if name == "__all__":
        return [f"__all__ = {value!r}"]
    if name == "__path__" or (name.startswith("_") and not name.startswith("__") and not isinstance(value, type)):
        return []
    if isinstance(value, type):
        if value.__name__ != name:
            is_known = vars(sys.modules[f"thalweg.{module}"]).get(value.__name__) is value
            return [f"{name} = {value.__name__}"] if is_known else [f"{name}: Any"]
        if vars(sys.modules["thalweg._core"]).get(name) is value:
            return [f"from thalweg._core import {name} as {name}"]
        bases = [GENERIC.get(base.__name__, base.__name__) for base in value.__bases__ if base is not object]
        return class_stub(name, value, bases, module)
    if callable(value) and (inspect.isfunction(value) or inspect.isbuiltin(value)):
        return [function(name, value, module)]
    if type(value) in (bool, int, float, str):
        return [f"{name}: builtins.{type(value).__name__}"]
    return [f"{name}: Any"]
