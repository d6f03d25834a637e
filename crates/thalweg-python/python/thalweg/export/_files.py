"""Files of exported programs (`torch.export.save` and `load`): the graph as JSON, and the tensors as `torch.save` writes them.

The format is this package's own. Reading one runs no code of the file: targets are operators, methods of tensors, and functions of
this package and of `operator` and `math`, by name.
"""

import importlib
import io
import json
import zipfile

from .. import _core, ops, serialization
from ..fx.graph import Graph
from ..fx.node import Node
from ..nn.module import Module
from ..nn.parameter import Parameter
from ..utils import _pytree
from . import graph_signature as signatures
from ._program import ExportedProgram, Inputs

_FORMAT = 1
_PACKAGE = __name__.partition(".")[0]


def _encoded(value):
    """Returns an argument of a node as JSON."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Node):
        return {"node": value.name}
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if value is ...:
        return {"ellipsis": True}
    if isinstance(value, slice):
        return {"slice": [_encoded(part) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, tuple):
        return {"tuple": [_encoded(part) for part in value]}
    if isinstance(value, list):
        return [_encoded(part) for part in value]
    if isinstance(value, dict):
        return {"dict": [[key, _encoded(part)] for key, part in value.items()]}
    for kind in ("dtype", "device", "memory_format", "layout"):
        if isinstance(value, getattr(_core, kind)):
            return {kind: str(value).rpartition(".")[2]}
    raise TypeError(f"torch.export.save: {value!r} in the graph cannot be written")


def _decoded(value, nodes):
    if isinstance(value, list):
        return [_decoded(part, nodes) for part in value]
    if not isinstance(value, dict):
        return value
    (kind, own), = value.items()
    if kind == "node":
        return nodes[own]
    if kind == "float":
        return float(own)
    if kind == "complex":
        return complex(*own)
    if kind == "ellipsis":
        return ...
    if kind == "dict":
        return {key: _decoded(part, nodes) for key, part in own}
    if kind in ("slice", "tuple"):
        parts = [_decoded(part, nodes) for part in own]
        return slice(*parts) if kind == "slice" else tuple(parts)
    return _core.device(own) if kind == "device" else getattr(_core, own)


def _target(target):
    if isinstance(target, str):
        return target
    if isinstance(target, ops.OpOverload):
        return ["operator", target.namespace, target._packet.__name__, target._overloadname]
    module = {"_operator": "operator"}.get(target.__module__ or "", target.__module__)
    if module.partition(".")[0] == "torch":
        module = _PACKAGE + module.removeprefix("torch")
    return ["function", module, target.__name__]


def _target_of(data):
    if isinstance(data, str):
        return data
    kind, module, name, *rest = data
    if kind == "operator":
        return getattr(getattr(getattr(ops, module), name), rest[0])
    if module.partition(".")[0] not in (_PACKAGE, "operator", "math") and (module, name) != ("builtins", "getattr"):
        raise ValueError(f"torch.export.load: the graph calls {module}.{name}, which is not a function of tensors")
    return getattr(importlib.import_module(module), name)


def save(ep, f, *, extra_files=None, opset_version=None, pickle_protocol=2):
    """Writes an exported program to a path or a binary file."""
    if not isinstance(ep, ExportedProgram):
        raise TypeError(f"The 'ep' parameter must be an instance of 'ExportedProgram', got '{type(ep).__name__}' instead.")
    nodes = [{"op": node.op, "name": node.name, "target": _target(node.target), "args": [_encoded(part) for part in node.args],
              "kwargs": {key: _encoded(part) for key, part in node.kwargs.items()}} for node in ep.graph.nodes]
    inputs = [[one.kind.name, type(one.arg).__name__, vars(one.arg), one.target, one.persistent] for one in ep.graph_signature.input_specs]
    outputs = [[one.kind.name, type(one.arg).__name__, vars(one.arg), one.target] for one in ep.graph_signature.output_specs]
    program = {
        "format": _FORMAT, "nodes": nodes, "inputs": inputs, "outputs": outputs, "names": ep._inputs.names, "leaves": ep._inputs.leaves,
        "in_spec": _pytree.treespec_dumps(ep._inputs.spec), "out_spec": _pytree.treespec_dumps(ep._out_spec),
        "ranges": ep.range_constraints, "parameters": [name for name, _ in ep.named_parameters()]}
    tensors = io.BytesIO()
    serialization.save({"state": {name: value.detach() for name, value in ep.state_dict.items()}, "constants": ep.constants}, tensors)
    with zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("program.json", json.dumps(program))
        archive.writestr("tensors.pt", tensors.getvalue())
        for name, content in (extra_files or {}).items():
            archive.writestr(f"extra/{name}", content)


def load(f, *, extra_files=None, expected_opset_version=None):
    """Reads an exported program from a path or a binary file."""
    with zipfile.ZipFile(f) as archive:
        names = archive.namelist()
        if "program.json" not in names:
            raise RuntimeError("torch.export.load: the file is not an exported program of this package; export it here, and use `torch.export.save`")
        program = json.loads(archive.read("program.json"))
        tensors = serialization.load(io.BytesIO(archive.read("tensors.pt")))
        for name in extra_files if extra_files is not None else ():
            extra_files[name] = archive.read(f"extra/{name}").decode() if f"extra/{name}" in names else ""
    graph, nodes = Graph(), {}
    for one in program["nodes"]:
        args = tuple(_decoded(part, nodes) for part in one["args"])
        kwargs = {key: _decoded(part, nodes) for key, part in one["kwargs"].items()}
        nodes[one["name"]] = graph.output(args[0]) if one["op"] == "output" else graph.create_node(
            one["op"], _target_of(one["target"]), args, kwargs, one["name"])
    signature = signatures.ExportGraphSignature(
        [signatures.InputSpec(signatures.InputKind[kind], getattr(signatures, argument)(**fields), target, persistent)
         for kind, argument, fields, target, persistent in program["inputs"]],
        [signatures.OutputSpec(signatures.OutputKind[kind], getattr(signatures, argument)(**fields), target)
         for kind, argument, fields, target in program["outputs"]])
    state = {name: Parameter(value, value.is_floating_point() or value.is_complex()) if name in program["parameters"] else value
             for name, value in tensors["state"].items()}
    inputs = Inputs(program["names"], _pytree.treespec_loads(program["in_spec"]), [], [])
    inputs.leaves = program["leaves"]
    return ExportedProgram(Module(), graph, signature, state, {name: tuple(pair) for name, pair in program["ranges"].items()}, (), None,
                           tensors["constants"], inputs=inputs, out_spec=_pytree.treespec_loads(program["out_spec"]))
