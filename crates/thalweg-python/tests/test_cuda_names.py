"""Every public name of PyTorch's `torch.cuda` exists here or is listed as left out, and the documentation has the same list."""

import importlib
import pathlib

import thalweg as th
from support import raises
from thalweg._left_out import reason_of

NAMES = [line for line in (pathlib.Path(__file__).parent / "names/cuda.txt").read_text().splitlines() if not line.startswith("#")]
DOCUMENT = pathlib.Path(__file__).resolve().parents[3] / "docs/python.md"


def test_every_name_is_there_or_left_out():
    assert len(NAMES) > 150, len(NAMES)
    left_out = set()
    for name in NAMES:
        place, _, last = name.rpartition(".")
        module = importlib.import_module(f"thalweg.cuda.{place}" if place else "thalweg.cuda")
        if last in vars(module) and reason_of(f"cuda.{name}") is None:
            assert last not in getattr(module, "_LEFT_OUT", {}), f"{name} is there and in the list of what is left out"
            continue
        with raises(NotImplementedError, "is left out: "):
            getattr(module, last)()
        left_out.add(name)
    assert not set(th.cuda._LEFT_OUT) - left_out - {"comm"}, "the list has names that PyTorch does not"


def test_the_documentation_lists_what_is_left_out():
    text = DOCUMENT.read_text()
    part = text[text.index("## What `th.cuda` leaves out"):]
    part = part[:part.index("\n## ")]
    for name, reason in th.cuda._LEFT_OUT.items():
        row = next((line for line in part.splitlines() if f"`{name}`" in line), None)
        assert row is not None, f"docs/python.md does not list {name}; tools/left_out.py prints the table"
        assert row.endswith(f"| {reason} |"), row
