"""Type stubs: the stubs generated from the table are valid Python and have every name, and `mypy --strict` accepts them and
programs that use them."""

import ast
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import thalweg as th

CRATE = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(CRATE / "tools"))
import stubs  # noqa: E402


def test_stubs_have_every_name():
    module = ast.parse(stubs.core_stub())
    ast.parse(stubs.package_stub())
    functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    tensor = next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Tensor")
    methods = {node.name for node in tensor.body if isinstance(node, ast.FunctionDef)}
    for overload in th._core._table():
        name = overload["function"]
        assert name in functions or name.endswith("_") or not name.isidentifier(), name
        assert overload["receiver"] is None or name in methods or name in stubs.PROPERTIES, name


def test_stubs_have_every_module():
    written = dict(stubs.stubs())
    files = {str(path.relative_to(CRATE / "python/thalweg").with_suffix(".pyi")) for path in filter(stubs.has_stub, (CRATE / "python/thalweg").rglob("*.py"))}
    assert set(written) == files | {"_core.pyi"}
    for name, text in written.items():
        ast.parse(text, name)
    classes = {node.name: node for node in ast.parse(written["optim/rules.pyi"]).body if isinstance(node, ast.ClassDef)}
    options = [argument.arg for argument in classes["SGD"].body[0].args.args]
    assert options == ["self", "params", "lr", "momentum", "dampening", "weight_decay", "nesterov"]


def mypy(arguments, folder):
    """Returns the errors that `mypy --strict` reports."""
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", f"{folder}/cache", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ, "MYPYPATH": f"{folder}/package"})
    return "" if run.returncode == 0 else run.stdout + run.stderr


def test_mypy_accepts_them():
    if importlib.util.find_spec("mypy") is None:
        return "mypy is not installed"
    with tempfile.TemporaryDirectory() as folder:
        for name, text in stubs.stubs():
            path = pathlib.Path(folder, "package/thalweg", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        pathlib.Path(folder, "package/thalweg/py.typed").touch()
        assert not mypy(["-p", "thalweg"], folder), mypy(["-p", "thalweg"], folder)
        program = str(CRATE / "tests/programs/typed.py")
        assert not mypy([program], folder), mypy([program], folder)
        wrong = pathlib.Path(folder, "wrong.py")
        wrong.write_text("import thalweg as th\nth.nn.Linear('a', 2)\nth.nn.functional.relu('a')\nth.nn.Conv2d(1, 2, 'b')\nth.nn.Linear(1, 2, bias=False)\n"
                         "th.nn.Conv2d(1, 2, (3, 3), padding='same')\nth.nn.BatchNorm1d(2, momentum=None)\n")
        found = mypy([str(wrong)], folder)
        assert re.findall(r"wrong.py:(\d+)", found) == ["2", "3", "4"], found
        page = (CRATE.parents[1] / "docs/python.md").read_text()
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)):
            path = pathlib.Path(folder, f"block_{number}.py")
            path.write_text(block)
            # The functions on that page have no annotations, and read gradients without checking for None.
            found = mypy(["--allow-untyped-defs", "--allow-untyped-calls", "--no-strict-optional", str(path)], folder)
            assert not found, found
