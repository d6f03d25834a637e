"""Seeds and states of the generators of random numbers (`torch.random`)."""

from . import _core

_seed = 67280421310721


def manual_seed(seed):
    """Seeds the default generator of every device in use."""
    global _seed
    _seed = int(seed)
    _core._manual_seed((_seed + 2**63) % 2**64 - 2**63)


def initial_seed():
    """Returns the seed that was set last."""
    return _seed


def get_rng_state(device=None):
    """Returns the state of a device's default generator: seed and offset, as int64."""
    return _core.tensor([value - 2**64 if value >= 2**63 else value for value in _core._rng_state(device)], dtype=_core.int64)


def set_rng_state(state, device=None):
    """Sets the state of a device's default generator."""
    seed, offset = state.tolist()
    _core._set_rng_state(seed % 2**64, offset % 2**64, device)
