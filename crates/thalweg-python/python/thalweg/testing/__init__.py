"""Programs on the simulated GPU of a check, in many of the orders of execution that CUDA allows.
A sanitizer finds races and lifetime bugs.

`check(program)` runs a function; the pytest fixture `thalweg_check` runs a test. `assert_close` and `make_tensor` are those of
PyTorch (`torch.testing`).
"""

import re

from .. import _core
from . import _utils  # noqa: F401
from ._close import assert_allclose, assert_close
from ._file_check import FileCheck  # noqa: F401
from ._made import make_tensor

# An operator with the Python line that called it, followed by the line of the extension module.
_PLACE = re.compile(r"`?(\w+)\s+\(([^()]+?):\s*(\d+)\)`?\s+at\s+\S+\.rs:\d+")
# Calls of Rust in a report, with those of Python.
_CALLS = ((re.compile(r"wait_stream\(&(\w+)\)"), r"wait_stream(\1)"), (re.compile("`Stream::with_priority`"), "`torch.cuda.Stream`"))
SEEDS = 100


class CheckFailed(AssertionError):
    """The exception for a check with findings. Its text is the report."""


def check(program, *, seeds=SEEDS):
    """Runs a function without arguments on a simulated GPU with many seeds. Raises `CheckFailed` with a report if anything was
    found.

    Every seed is another order of execution among those that CUDA allows. `cpu`, `cuda` and `sim` name the device of the check.
    An exception of the function is raised unchanged, with the report as a note. `THALWEG_SEED=17` in the environment runs only
    that seed.
    """
    if not isinstance(seeds, int) or seeds < 1:
        raise ValueError(f"check: seeds is {seeds!r}, but must be a number from 1 on")
    try:
        _core._check(program, seeds)
    except RuntimeError as error:
        if not str(error).startswith("simulated GPU:"):
            raise
        raise CheckFailed(_with_lines(str(error))) from None


def _with_lines(report):
    """Returns a report whose locations are Python lines, and whose calls are Python's."""
    report = _PLACE.sub(r"`\1` at \2:\3", report)
    for pattern, call in _CALLS:
        report = pattern.sub(call, report)
    return report
