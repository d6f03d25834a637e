"""Programs under the simulated GPU of a check: many orders that CUDA allows, with a sanitizer that finds races and lifetime bugs.

`check(program)` is the function; the fixture `thalweg_check` of pytest runs a test under it. `assert_close` and `make_tensor` are PyTorch's
(`torch.testing`).
"""

import re

from .. import _core
from .._left_out import placeholder
from . import _utils  # noqa: F401
from ._close import assert_allclose, assert_close
from ._made import make_tensor

# An operator with the line of Python that called it, and behind it the line of the extension module.
_PLACE = re.compile(r"`?(\w+)\s+\(([^()]+?):\s*(\d+)\)`?\s+at\s+\S+\.rs:\d+")
SEEDS = 100
FileCheck = placeholder(f"{__name__}.FileCheck", "it looks at the text of compiled programs")


class CheckFailed(AssertionError):
    """The exception of a check that found something: its text is the report."""


def check(program, *, seeds=SEEDS):
    """Runs a function without arguments under so many seeds on a simulated GPU; raises `CheckFailed` with a report of what was found.

    Every seed is another order of what CUDA leaves open. `cpu`, `cuda` and `sim` name the device of the check. An exception of the function is raised
    as it is, with the report as a note. `THALWEG_SEED=17` in the environment makes it that one seed.
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
    """Returns a report whose places are lines of Python."""
    return _PLACE.sub(r"`\1` at \2:\3", report)
