"""The Python blocks of the pages in `docs` and of the README run, and print what the pages show.

The blocks of a page are one program, in a folder and a process of their own. A block ```` ```text output ```` has the text that the
Python block before it prints, and a block ```` ```text console ```` has commands of `thalweg` with their output, which runs where the
command line is built. In both, `…` replaces text that differs from machine to machine, and a line `…` any number of lines.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "crates/thalweg-python/python"

# Pages with Python that does not run here, with the reasons.
NOT_RUN = {
    "docs/pytorch.md": "needs PyTorch and an NVIDIA GPU",
    "docs/memory-toolbox.md": "is an excerpt of a program",
}

# The program of a page: it runs block after block, and prints the output of each as a line of JSON.
RUNNER = """
import contextlib, io, json, pathlib, sys
namespace = {"__name__": "__main__"}
for block in json.loads(pathlib.Path(sys.argv[1]).read_text()):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(block, "program.py", "exec"), namespace)
    print(json.dumps(output.getvalue()), flush=True)
"""


def pages():
    """Returns the pages with Python blocks, by their paths from the root of the repository."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in found}
    return {name: text for name, text in texts.items() if "\n```python\n" in text and name not in NOT_RUN}


def blocks(text):
    """Returns the languages and the texts of a page's blocks, in order."""
    return [(kind.strip(), block) for kind, block in re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


def matches(shown, printed):
    """Returns whether a page shows the printed output."""
    lines = []
    for line in shown.rstrip("\n").split("\n"):
        if line.strip() == "…":
            lines.append(r"(?:.*\n)*?")
        else:
            lines.append("[^\n]*".join(re.escape(part) for part in line.split("…")) + r"[ ]*\n")
    return re.fullmatch("".join(lines), printed.rstrip("\n") + "\n") is not None


def command_line():
    """Returns the program `thalweg` if it is built, after the last change of its sources."""
    program = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"), "debug/thalweg")
    changed = max(path.stat().st_mtime for path in (ROOT / "crates/thalweg-cli/src").rglob("*.rs"))
    return program if program.is_file() and program.stat().st_mtime >= changed else None


def run_page(name, text):
    """Runs the blocks of a page. Returns the reason if some were left out."""
    parts = blocks(text)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "blocks.json")
        path.write_text(json.dumps([block for kind, block in parts if kind == "python"]))
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
        run = subprocess.run([sys.executable, "-c", RUNNER, str(path)], capture_output=True, text=True, cwd=folder, env=environment)
        assert run.returncode == 0, f"{name}: {run.stdout}\n{run.stderr}"
        outputs, last = iter(run.stdout.splitlines()), ""
        for kind, block in parts:
            if kind == "python":
                last = json.loads(next(outputs))
            elif kind == "text output":
                assert matches(block, last), f"{name} shows\n{block}\nbut the block before it prints\n{last}"
            elif kind == "text console" and command_line() is None:
                return f"{name}: the command line is not built"
            elif kind == "text console":
                run_console(name, block, folder)


def run_console(name, block, folder):
    """Runs the commands of a block, each of which is followed by its output."""
    environment = {**os.environ, "COLUMNS": "100"}
    for command, shown in re.findall(r"^\$ thalweg (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        run = subprocess.run([command_line(), *command.split()], capture_output=True, text=True, cwd=folder, env=environment)
        printed = run.stdout + run.stderr
        assert matches(shown, printed), f"{name}: thalweg {command} prints\n{printed}"


def test_pages():
    with ThreadPoolExecutor(2) as pool:
        found = pages()
        reasons = [reason for reason in pool.map(run_page, found, found.values()) if reason]
    assert len(found) >= 2
    return "; ".join(reasons) or None


def test_matches():
    assert matches("a … c\n", "a b c\n") and not matches("a … c\n", "a b\nc\n")
    assert matches("a\n…\nc\n", "a\nb\nb\nc\n") and matches("a\n…\nc\n", "a\nc\n") and not matches("a\n", "a\nb\n")
    assert blocks("```text output\nx\n```\n```python\ny\n```\n") == [("text output", "x\n"), ("python", "y\n")]
