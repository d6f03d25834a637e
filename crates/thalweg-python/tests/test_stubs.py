"""Type stubs: what is written from the table is Python, and has every name."""

import ast
import importlib.util
import pathlib

import thalweg as th

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "tools/stubs.py"


def test_stubs_have_every_name():
    spec = importlib.util.spec_from_file_location("stubs", SCRIPT)
    stubs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stubs)
    module = ast.parse(stubs.core_stub())
    ast.parse(stubs.package_stub())
    functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    tensor = next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Tensor")
    methods = {node.name for node in tensor.body if isinstance(node, ast.FunctionDef)}
    for overload in th._core._table():
        name = overload["function"]
        assert name in functions or name.endswith("_") or not name.isidentifier(), name
        assert overload["receiver"] is None or name in methods or hasattr(stubs.PROPERTIES, name) or name in stubs.PROPERTIES, name
