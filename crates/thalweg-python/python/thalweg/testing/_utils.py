"""Regions for tests that draw random numbers (`torch.testing._utils`)."""

import contextlib

from .. import _core, cuda
from ..random import get_rng_state, manual_seed, set_rng_state


@contextlib.contextmanager
def freeze_rng_state():
    """Returns a region after which the random generators are restored to their former states."""
    state = get_rng_state()
    on_gpu = cuda.get_rng_state() if cuda.is_available() else None
    try:
        yield
    finally:
        if on_gpu is not None:
            cuda.set_rng_state(on_gpu)
        set_rng_state(state)


def wrapper_set_seed(op, *args, **kwargs):
    """Returns the result of a function that draws with seed 42, and restores the generators."""
    with freeze_rng_state():
        manual_seed(42)
        return op(*args, **kwargs)
