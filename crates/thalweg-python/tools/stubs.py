"""Writes the type stubs of the package from the operator table: `python/thalweg/_core.pyi` and `__init__.pyi`, which git ignores.

    cargo xtask stubs
"""

import ast
import inspect
import keyword
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "python"
sys.path.insert(0, str(FOLDER))

import thalweg  # noqa: E402

import module_stubs  # noqa: E402

KINDS = {
    "Tensor": "Tensor", "Scalar": "AnyNumber", "int": "int", "float": "float", "bool": "_bool", "str": "str", "ScalarType": "dtype",
    "Layout": "memory_format", "Device": "Device", "MemoryFormat": "memory_format", "Generator": "Generator",
}
RESULTS = {"Tensor": "Tensor", "Scalar": "Number", "int": "_int", "float": "_float", "bool": "_bool"}
HEADER = '"""{doc} Written by `cargo xtask stubs` from the operator table."""\n\n'
DRAWING = ("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like")
BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
REFLECTED = ("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow", "rand", "ror", "rxor")
IN_PLACE = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift")


def annotation(parameter):
    """Returns the type of a parameter."""
    kind = KINDS[parameter["kind"]].replace("int", "_int").replace("float", "_float") if parameter["kind"] in ("int", "float") \
        else KINDS[parameter["kind"]]
    if parameter["list"]:
        element = f"Optional[{kind}]" if parameter["optional_elements"] else kind
        single = f" | {kind}" if parameter["length"] is not None and parameter["kind"] in ("int", "float", "bool") else ""
        text = f"Sequence[{element}]{single}"
    else:
        text = kind
    return f"{text} | None" if parameter["optional"] else text


def result(overload):
    """Returns the type of an overload's result."""
    types = [f"tuple[{RESULTS[kind]}, ...]" if is_list else RESULTS[kind] for kind, is_list in overload["results"]]
    if not types:
        return "None"
    if len(types) > 1 and all(overload["result_names"]):
        return f"_result_{'_'.join(overload['result_names'])}"
    return types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"


def results_classes(table):
    """Returns the classes of named results."""
    classes = {}
    for overload in table:
        name = result(overload)
        if name.startswith("_result_"):
            fields = [f"    {field}: {f'tuple[{RESULTS[kind]}, ...]' if is_list else RESULTS[kind]}"
                      for field, (kind, is_list) in zip(overload["result_names"], overload["results"])]
            classes[name] = "\n".join([f"class {name}(NamedTuple):", *fields])
    return [*classes.values(), ""]


def parameters(overload, is_method):
    """Returns the parameters of an overload in Python syntax, or nothing if a name is a Python keyword."""
    before, named = [], []
    is_optional = False
    for place, parameter in enumerate(overload["parameters"]):
        if is_method and place == overload["receiver"]:
            continue
        name = "input" if parameter["name"] == "self" else parameter["name"]
        if keyword.iskeyword(name):
            name = f"_{name}"
        text = f"{name}: {annotation(parameter)}"
        has_default = parameter["default"] is not None
        is_optional |= has_default and not parameter["keyword_only"]
        if has_default or (is_optional and not parameter["keyword_only"]):
            text += " = ..."
        (named if parameter["keyword_only"] else before).append(text)
    if any(parameter["name"] == "pin_memory" for parameter in overload["parameters"]):
        named.append("requires_grad: _bool = ...")
    if overload["function"] in DRAWING:
        named.append("generator: Generator | None = ...")
    results = [kind for kind, _ in overload["results"]]
    if results == ["Tensor"] and not overload["function"].endswith("_"):
        named.append("out: Tensor | None = ...")
    texts = (["self"] if is_method else []) + before + (["*"] + named if named else [])
    return ", ".join(texts)


def varargs(overload, is_method):
    """Returns the parameters of a call that passes the integers of a list as separate arguments, if the overload allows that."""
    own = [parameter for place, parameter in enumerate(overload["parameters"])
           if not (is_method and place == overload["receiver"]) and not parameter["keyword_only"]]
    if len(own) != 1 or not own[0]["list"] or own[0]["kind"] != "int":
        return None
    named = [f"{parameter['name']}: {annotation(parameter)} = ..." for parameter in overload["parameters"] if parameter["keyword_only"]]
    if any(parameter["name"] == "pin_memory" for parameter in overload["parameters"]):
        named.append("requires_grad: _bool = ...")
    if overload["function"] in DRAWING:
        named.append("generator: Generator | None = ...")
    return ", ".join((["self"] if is_method else []) + [f"*{own[0]['name']}: _int"] + named)


def definitions(name, overloads, is_method):
    """Returns the lines of a function or method, with one overload each, in the order in which they are tried."""
    signatures = []
    for overload in overloads:
        for text in (parameters(overload, is_method), varargs(overload, is_method)):
            line = text and f"def {name}({text}) -> {result(overload)}: ..."
            if line and line not in signatures:
                signatures.append(line)
    indent = "    " if is_method else ""
    if len(signatures) == 1:
        return [indent + signatures[0]]
    return [part for line in signatures for part in (f"{indent}@overload", f"{indent}{line}")]


def own_members(names):
    """Returns the lines of the class members that are not in the table."""
    lines = []
    for name in sorted(vars(thalweg.Tensor)):
        if name in names or name.startswith("_") or name in ("layout", "is_sparse", "is_quantized"):
            continue
        member = inspect.getattr_static(thalweg.Tensor, name)
        kind = type(member).__name__
        if kind == "getset_descriptor":
            lines += PROPERTIES.get(name, [f"    @property\n    def {name}(self) -> Any: ..."])
        else:
            lines.append(METHODS.get(name, f"    def {name}(self, *args: Any, **kwargs: Any) -> Tensor: ..."))
    return lines


def prop(name, kind, setter=False):
    lines = [f"    @property\n    def {name}(self) -> {kind}: ..."]
    return lines + ([f"    @{name}.setter\n    def {name}(self, value: {kind}) -> None: ..."] if setter else [])


PROPERTIES = {
    "shape": prop("shape", "Size"), "dtype": prop("dtype", "_dtype"), "device": prop("device", "_device"), "ndim": prop("ndim", "_int"),
    "itemsize": prop("itemsize", "_int"), "nbytes": prop("nbytes", "_int"), "is_cuda": prop("is_cuda", "_bool"),
    "is_meta": prop("is_meta", "_bool"), "is_leaf": prop("is_leaf", "_bool"), "requires_grad": prop("requires_grad", "_bool", True),
    "grad": prop("grad", "Tensor | None", True), "data": prop("data", "Tensor", True), "T": prop("T", "Tensor"),
    "mT": prop("mT", "Tensor"), "H": prop("H", "Tensor"), "mH": prop("mH", "Tensor"), "real": prop("real", "Tensor"),
    "imag": prop("imag", "Tensor"), "grad_fn": prop("grad_fn", "_Node | None"), "retains_grad": prop("retains_grad", "_bool"),
}
METHODS = {
    "backward": "    def backward(self, gradient: Tensor | None = ..., retain_graph: _bool | None = ..., create_graph: _bool = ...,"
                " inputs: None = ...) -> None: ...",
    "item": "    def item(self) -> Any: ...", "tolist": "    def tolist(self) -> Any: ...", "numpy": "    def numpy(self, *, force: _bool = ...) -> Any: ...",
    "dim": "    def dim(self) -> _int: ...", "numel": "    def numel(self) -> _int: ...", "nelement": "    def nelement(self) -> _int: ...",
    "element_size": "    def element_size(self) -> _int: ...", "data_ptr": "    def data_ptr(self) -> _int: ...",
    "storage_offset": "    def storage_offset(self) -> _int: ...", "get_device": "    def get_device(self) -> _int: ...",
    "size": "    @overload\n    def size(self, dim: None = ...) -> Size: ...\n    @overload\n    def size(self, dim: _int) -> _int: ...",
    "stride": "    @overload\n    def stride(self, dim: None = ...) -> tuple[_int, ...]: ...\n    @overload\n    def stride(self, dim: _int) -> _int: ...",
    "is_contiguous": "    def is_contiguous(self, memory_format: memory_format | None = ...) -> _bool: ...",
    "is_floating_point": "    def is_floating_point(self) -> _bool: ...", "is_complex": "    def is_complex(self) -> _bool: ...",
    "is_pinned": "    def is_pinned(self, device: Any = ...) -> _bool: ...", "detach": "    def detach(self) -> Tensor: ...",
    "type": "    def type(self, dtype: _dtype | None = ..., non_blocking: _bool = ...) -> Any: ...",
    "record_stream": "    def record_stream(self, stream: Any) -> None: ...",
    "register_hook": "    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> _HookHandle: ...",
    "register_post_accumulate_grad_hook":
        "    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> _HookHandle: ...",
    "retain_grad": "    def retain_grad(self) -> None: ...", "is_inference": "    def is_inference(self) -> _bool: ...",
    "requires_grad_": "    def requires_grad_(self, requires_grad: _bool = ...) -> Tensor: ...",
}


GRAPH = """class _HookHandle:
    def remove(self) -> None: ...
    def __enter__(self) -> _HookHandle: ...
    def __exit__(self, *exception: Any) -> None: ...

_Gradients = tuple[Optional["Tensor"], ...]

class _Node:
    @property
    def next_functions(self) -> tuple[tuple[_Node | None, _int], ...]: ...
    def name(self) -> str: ...
    def register_hook(self, fn: Callable[[_Gradients, _Gradients], Any]) -> _HookHandle: ...
    def register_prehook(self, fn: Callable[[_Gradients], Any]) -> _HookHandle: ...

class Generator:
    @property
    def device(self) -> _device: ...
    def __init__(self, device: Device | None = ...) -> None: ...
    def manual_seed(self, seed: _int) -> Generator: ...
    def seed(self) -> _int: ...
    def initial_seed(self) -> _int: ...
    def get_state(self) -> Tensor: ...
    def set_state(self, new_state: Tensor) -> None: ...
    def clone_state(self) -> Generator: ...
"""


def core_stub():
    table = thalweg._core._table()
    functions = {}
    for overload in table:
        functions.setdefault(overload["function"], []).append(overload)
    # Overloads that a type checker cannot distinguish differ in the result, not in the arguments; comparisons return tensors.
    lines = ['# mypy: disable-error-code="overload-overlap,overload-cannot-match,override,misc"\n',
             HEADER.format(doc="The extension module.") + "import builtins\nfrom typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence, overload\n",
             "from ._results import Size\n",
             "_bool = bool\n_int = int\n_float = float\nNumber = _int | _float | _bool\nAnyNumber = Number | builtins.complex\n"]
    lines.append('class dtype:\n    is_floating_point: _bool\n    is_complex: _bool\n    is_signed: _bool\n    itemsize: _int\n    _name: str\n')
    lines.append('class device:\n    type: str\n    index: _int\n    def __init__(self, type: Any, index: _int | None = ...) -> None: ...\n')
    lines.append("class memory_format: ...\n\n_dtype = dtype\n_device = device\nDevice = device | str | _int\n")
    lines.append("class OutOfMemoryError(RuntimeError): ...\n")
    lines.append(GRAPH)
    lines += results_classes(table)
    lines.append("class Tensor:\n    def __init__(self, data: Any = ..., requires_grad: _bool = ...) -> None: ...")
    lines += [f"    def __{name}__(self, other: Any) -> Tensor: ..." for name in (*BINARY, "matmul", *REFLECTED)]
    lines += [f"    def __{name}__(self, other: Any) -> Tensor: ..." for name in ("lt", "le", "gt", "ge")]
    lines += [f"    def __{name}__(self, other: Any) -> Tensor: ..." for name in ("eq", "ne")]
    lines += [f"    def __{name}__(self, other: Any) -> Tensor: ..." for name in IN_PLACE]
    lines += [f"    def __{name}__(self) -> Tensor: ..." for name in ("neg", "pos", "abs", "invert")]
    lines += ["    def __getitem__(self, index: Any) -> Tensor: ...", "    def __setitem__(self, index: Any, value: Any) -> None: ...",
              "    def __len__(self) -> _int: ...", "    def __iter__(self) -> Iterator[Tensor]: ...", "    def __bool__(self) -> _bool: ...",
              "    def __float__(self) -> _float: ...", "    def __int__(self) -> _int: ...", "    def __index__(self) -> _int: ...",
              "    def __hash__(self) -> _int: ...", "    def __contains__(self, value: Any) -> _bool: ...",
              "    def __array__(self, dtype: Any = ..., copy: Any = ...) -> Any: ...",
              "    def __array_namespace__(self, /, *, api_version: str | None = ...) -> Any: ...",
              "    def __dlpack__(self, *, stream: Any = ..., max_version: Any = ..., dl_device: Any = ..., copy: _bool | None = ...) -> Any: ...",
              "    def __dlpack_device__(self) -> tuple[_int, _int]: ...", "    def __deepcopy__(self, memo: Any) -> Tensor: ...",
              "    layout: Any", "    is_sparse: _bool", "    is_quantized: _bool"]
    methods = {name: [overload for overload in overloads if overload["receiver"] is not None] for name, overloads in functions.items()}
    taken = {name for name, overloads in methods.items() if overloads and type(vars(thalweg.Tensor).get(name)).__name__ == "method_descriptor"
             and name not in METHODS and name not in ("to", "copy_")}
    lines += own_members(taken)
    for name in sorted(taken):
        lines += [line.replace(" dtype:", " dtype:") for line in definitions(name, methods[name], True)]
    text = "\n".join(lines).replace("dtype: dtype", "dtype: _dtype") + "\n\n"
    shadowed = {"bool", "int", "float"}
    for name in sorted(functions):
        if not (name.endswith("_") and not name.endswith("__")) and not keyword.iskeyword(name):
            text += "\n".join(definitions(name, functions[name], False)).replace("dtype: dtype", "dtype: _dtype") + "\n"
    for name in dir(thalweg._core):
        value = getattr(thalweg._core, name)
        if isinstance(value, thalweg.dtype):
            text += f"{name}: _dtype\n"
        elif type(value).__name__ == "memory_format":
            text += f"{name}: memory_format\n"
        elif name in shadowed:
            raise AssertionError(name)
    text += ("def tensor(data: Any, *, dtype: _dtype | None = ..., device: Device | None = ..., requires_grad: _bool = ..., "
             "pin_memory: _bool = ...) -> Tensor: ...\n")
    text += "def get_default_device() -> _device: ...\ndef is_grad_enabled() -> _bool: ...\n"
    text += "".join(f"def {name}() -> _bool: ...\n"
                    for name in ("is_inference_mode_enabled", "is_anomaly_enabled", "is_anomaly_check_nan_enabled"))
    text += "def is_autocast_enabled(device_type: str | None = ...) -> _bool: ...\n"
    text += "def __getattr__(name: str) -> Any: ...\n"
    return text


def package_stub():
    from thalweg import _aliases, _functions, _typed
    own = {*_functions.__all__, "Tensor", "device", "dtype", "OutOfMemoryError"}
    core = [name for name in dir(thalweg._core) if not name.startswith("_") and name not in own and not keyword.iskeyword(name)]
    text = HEADER.format(doc="Thalweg with PyTorch's names.") + "\n".join([
        "import builtins",
        "from typing import Any",
        "from . import accelerator as accelerator, amp as amp, autograd as autograd, backends as backends, cuda as cuda",
        "from . import distributed as distributed, nn as nn, optim as optim, profiler as profiler, random as random",
        "from . import safetensors as safetensors, serialization as serialization, utils as utils",
        "from ._core import Tensor as Tensor, device as device, dtype as dtype, OutOfMemoryError as OutOfMemoryError",
        *(f"from ._core import {name} as {name}" for name in core),
        *(f"from ._functions import {name} as {name}" for name in _functions.__all__),
        "from ._results import Size as Size",
        "from ._alias import install_as_torch as install_as_torch",
        "from ._dlpack import from_dlpack as from_dlpack",
        *(f"from ._core import {name} as {alias}" for alias, name in {**_aliases._ALIASES, **_aliases._FUNCTIONS}.items() if alias not in core),
        *(f"{name}: Any" for name in (*_aliases._IN_PLACE, *_typed.NAMES)),
        "from .amp import GradScaler as GradScaler, autocast as autocast",
        "from .cuda import Event as Event, Stream as Stream",
        "from .autograd import enable_grad as enable_grad, inference_mode as inference_mode",
        "from .autograd import no_grad as no_grad, set_grad_enabled as set_grad_enabled",
        "from .random import get_rng_state as get_rng_state, initial_seed as initial_seed",
        "from .random import manual_seed as manual_seed, seed as seed, set_rng_state as set_rng_state",
        "from .serialization import load as load, save as save",
        "", "__version__: str", "linalg: Any", "fft: Any", "special: Any", "newaxis: None",
        *(f"{name}: builtins.float" for name in ("pi", "e", "inf", "nan")),
        "def compile(model: Any = ..., **options: Any) -> Any: ...", ""])
    declared = {alias.asname or alias.name for node in ast.parse(text).body if isinstance(node, ast.ImportFrom) for alias in node.names}
    declared |= {node.target.id for node in ast.parse(text).body if isinstance(node, ast.AnnAssign)} | {"compile"}
    others = sorted(name for name in vars(thalweg) if not name.startswith("_") and not keyword.iskeyword(name) and name not in declared)
    return text + "".join(f"{name}: Any\n" for name in others)


def has_stub(path):
    """Returns whether a file of the package has stubs: those of PyTorch's backend import PyTorch, and are not for users."""
    return path.parent.name != "dynamo"


def stubs():
    """Yields the stub files, as pairs of a path in the package and a text."""
    yield "_core.pyi", core_stub()
    yield "__init__.pyi", package_stub()
    functions = sorted({overload["function"] for overload in thalweg._core._table() if overload["function"].isidentifier()
                        and not overload["function"].startswith("_") and not keyword.iskeyword(overload["function"])
                        and not overload["function"].endswith("_")})
    package = FOLDER / "thalweg"
    for path in sorted(filter(has_stub, package.rglob("*.py"))):
        inner = path.relative_to(package)
        module = ".".join(inner.with_suffix("").parts).removesuffix(".__init__")
        if module != "__init__":
            yield str(inner.with_suffix(".pyi")), module_stubs.module_stub(module, path, functions)


def main():
    for path, text in stubs():
        (FOLDER / "thalweg" / path).write_text(text)


if __name__ == "__main__":
    main()
