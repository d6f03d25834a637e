"""Writes the signatures of PyTorch's public functions, methods and constructors to `tests/signatures/torch.txt`. Needs PyTorch 2.11:

    python tools/signatures.py

A line is `name(parameters)`, followed by `-> tuple` or by the fields of a named tuple if the function returns one. Each overload
has its own line. Signatures of Python functions come from `inspect`; those of builtin functions come from PyTorch's type stubs,
or from the schemas of their operators if the stubs lack them.
"""

import ast
import inspect
import pathlib
import re

import torch

TARGET = pathlib.Path(__file__).resolve().parent.parent / "tests/signatures/torch.txt"
STUBS = pathlib.Path(torch.__file__).parent / "_C"
# A namespace, the object that has its names, and the prefix of its operators' names.
FUNCTIONS = [
    ("torch", torch, ""), ("nn.functional", torch.nn.functional, ""), ("linalg", torch.linalg, "linalg_"), ("fft", torch.fft, "fft_"),
    ("special", torch.special, "special_"), ("nn.init", torch.nn.init, ""), ("signal.windows", torch.signal.windows, "")]
CLASSES = [("nn", torch.nn), ("optim", torch.optim), ("optim.lr_scheduler", torch.optim.lr_scheduler)]


def default_text(value):
    """Returns the default of an imported function's parameter as text."""
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return repr(tuple(value))
    return getattr(value, "__name__", type(value).__name__)


# Constructors that accept any parameters and pass them to another one. The real parameters are documented in a comment.
TANH = "nonlinearity='tanh', "
RECURRENT = "num_layers=1, {}bias=True, batch_first=False, dropout=0.0, bidirectional=False, {}device=None, dtype=None"
GIVEN = {
    torch.nn.LSTM: f"(input_size, hidden_size, {RECURRENT.format('', 'proj_size=0, ')})",
    torch.nn.GRU: f"(input_size, hidden_size, {RECURRENT.format('', '')})",
    torch.nn.RNN: f"(input_size, hidden_size, {RECURRENT.format(TANH, '')})"}


def inner(value):
    """Returns the function that has the real parameters of one that accepts any parameters."""
    name = getattr(value, "__name__", "")
    if inspect.isclass(value) or list(inspect.signature(value).parameters) != ["args", "kwargs"]:
        return value
    choices = [(torch.functional, f"_{name}_impl"), (torch.nn.functional, f"{name}_with_indices"), (torch.nn.init, f"{name}_")]
    return next((getattr(module, choice) for module, choice in choices if hasattr(module, choice)), value)


def running_line(value):
    """Returns the parameters and results of a Python function."""
    parts, is_named = [], False
    if value in GIVEN:
        return GIVEN[value]
    value = inner(value)
    for one in inspect.signature(value).parameters.values():
        if one.kind is one.KEYWORD_ONLY and not is_named:
            parts.append("*")
        is_named |= one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        parts.append(stars + one.name + ("" if one.default is one.empty else f"={default_text(one.default)}"))
    return f"({', '.join(parts)})"


def results_of(annotation):
    """Returns the results of a stub's annotation: the fields of a named tuple, `tuple`, or nothing for other types."""
    text = "" if annotation is None else ast.unparse(annotation)
    if text.startswith("torch.return_types."):
        return " -> " + ",".join(getattr(torch.return_types, text.rpartition(".")[2]).__match_args__)
    return " -> tuple" if re.match(r"(tuple|list)\[", text) else ""


def stub_lines(node):
    """Returns the parameters and results of a function in a stub."""
    arguments = node.args
    places = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(places) - len(arguments.defaults)) + list(arguments.defaults)

    def text(argument, default):
        if default is None:
            return argument.arg
        return f"{argument.arg}={re.sub(r'^torch[.]', '', ast.unparse(default))}"
    parts = [text(*pair) for pair in zip(places, defaults)]
    if arguments.vararg:
        parts.append(f"*{arguments.vararg.arg}")
    if arguments.kwonlyargs:
        parts += ([] if arguments.vararg else ["*"]) + [text(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    if arguments.kwarg:
        parts.append(f"**{arguments.kwarg.arg}")
    return f"({', '.join(parts)}){results_of(node.returns)}"


def stub(name, owner=None):
    """Returns the lines of each function of a stub, by name."""
    body = ast.parse((STUBS / name).read_text()).body
    if owner is not None:
        body = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == owner).body
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            is_property = any(ast.unparse(mark) == "property" or ast.unparse(mark).endswith(".setter") for mark in node.decorator_list)
            if not is_property:
                found.setdefault(node.name, []).append(stub_lines(node))
    return found


def schema_lines(name):
    """Returns the parameters and results of an operator's overloads, from their schemas."""
    found = []
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        if any(one.alias_info is not None and one.alias_info.is_write and one.kwarg_only for one in schema.arguments):
            continue
        parts, is_named = [], False
        for one in schema.arguments:
            if one.kwarg_only and not is_named:
                parts.append("*")
                is_named = True
            own = "input" if one.name == "self" else one.name
            parts.append(own + (f"={default_text(one.default_value)}" if one.has_default_value() else ""))
        names = [one.name for one in schema.returns if one.name]
        is_tuple = len(schema.returns) > 1 or any("List" in str(one.type) for one in schema.returns)
        results = " -> " + ",".join(names) if len(names) > 1 else " -> tuple" if is_tuple else ""
        found.append(f"({', '.join(parts)}){results}")
    return found


# Signatures that are skipped: entries to libraries, compiled programs, sparse, quantized and named tensors, and deprecated
# orders of arguments.
UNASKED = re.compile(
    r"torch\.(cudnn|miopen|mkldnn|fbgemm|sym|import_ir|parse)_|.*[( ]names[,)]|.*outdim|.*out_dim|.*sparse|.*quantize|.*\.q_|"
    r"\w+\.\w+\((beta, self|self, alpha|self, value), ")


def lines_of(name, value, stubs, operator):
    """Returns the lines of a function or method, without its name."""
    if inspect.isfunction(value):
        return [running_line(value)]
    found = next((found[name] for found in stubs if name in found), None) or schema_lines(operator)
    if found:
        return found
    try:
        return [running_line(value)]
    except (TypeError, ValueError):
        return ["(?)"]


def is_function(value):
    return callable(value) and not inspect.isclass(value) and not isinstance(value, torch._ops.OpOverloadPacket) and not inspect.ismodule(value)


def is_public(module, name, value):
    """Returns whether a namespace defines a name itself instead of importing it."""
    if name.startswith("_") or not is_function(value):
        return False
    home = getattr(value, "__module__", None)
    is_external = home is not None and not home.startswith("torch")
    return not is_external and name not in ("boolean_dispatch", "assert_int_or_pair", "handle_torch_function", "has_torch_function",
                                        "has_torch_function_unary", "has_torch_function_variadic")


def main():
    functions, methods, networks = stub("_VariableFunctions.pyi"), stub("__init__.pyi", "TensorBase"), stub("_nn.pyi")
    top = stub("__init__.pyi")
    lines = set()
    for namespace, module, prefix in FUNCTIONS:
        stubs = [networks, functions] if namespace == "nn.functional" else [functions, top] if namespace == "torch" else []
        for name in dir(module):
            value = getattr(module, name)
            if is_public(module, name, value):
                lines |= {f"{namespace}.{name}{line}" for line in lines_of(name, value, stubs, prefix + name)}
    for name in dir(torch.Tensor):
        value = inspect.getattr_static(torch.Tensor, name)
        if not name.startswith("_") and callable(getattr(torch.Tensor, name)):
            lines |= {f"Tensor.{name}{line}" for line in lines_of(name, value, [methods], name)}
    for namespace, module in CLASSES:
        for name in dir(module):
            value = getattr(module, name)
            if inspect.isclass(value) and not name.startswith("_") and value.__module__.startswith(f"torch.{namespace}"):
                lines.add(f"{namespace}.{name}{running_line(value)}")
    lines = {line for line in lines if not UNASKED.match(line)}
    TARGET.write_text("\n".join(sorted(lines)) + "\n")
    print(f"{len(lines)} signatures of {len({line.partition('(')[0] for line in lines})} names")


if __name__ == "__main__":
    main()
