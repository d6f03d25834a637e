"""Seeds and states of the generators of random numbers (`torch.random`)."""

import contextlib

from . import _core

_seed = 67280421310721
# In a worker that was forked, the generators of devices from before the fork are out of reach.
_is_forked = False


def _drawing(device=None):
    """Returns the device whose generator is used. The meta device draws nothing: if it is the current one, the device is a GPU or
    the simulated one."""
    if device is None and _core.get_default_device().type == "meta":
        return _core.device("cuda" if _core._cuda._gpu_count() else "sim")
    return device


def manual_seed(seed):
    """Seeds the default generator of every device in use. Returns that of the device that is current when it is used."""
    global _seed
    seed = int(seed)
    if not -2**63 <= seed < 2**64:
        raise ValueError("Overflow when unpacking long long: a seed has 64 bits")
    _seed = seed % 2**64
    if _is_forked:
        _core._default_generator("cpu").manual_seed(_seed)
    else:
        _core._manual_seed((_seed + 2**63) % 2**64 - 2**63)
    return _core._generator_of_current_device()


def seed():
    """Seeds the default generators with a number from the operating system, and returns it."""
    import secrets
    manual_seed(secrets.randbits(63))
    return _seed


@contextlib.contextmanager
def fork_rng(devices=None, enabled=True, device_type="cuda"):
    """Returns a region after which the default generators of some devices, by default the current one, are restored to their former
    states."""
    if not enabled:
        yield
        return
    own = _drawing()
    places = [own] if devices is None else [own, *devices]
    states = [_core._rng_state(place) for place in places]
    try:
        yield
    finally:
        for place, (seed, offset) in zip(places, states):
            _core._set_rng_state(seed, offset, place)


def initial_seed():
    """Returns the seed that was set last."""
    return _seed


def _as_tensor(state):
    """Returns a state as a tensor on a device with memory."""
    return _core.tensor([value - 2**64 if value >= 2**63 else value for value in state], dtype=_core.int64, device=_drawing())


def get_rng_state(device=None):
    """Returns the state of a device's default generator: seed and offset, as int64."""
    return _as_tensor(_core._rng_state(_drawing(device)))


def set_rng_state(new_state, device=None):
    """Sets the state of a device's default generator."""
    seed, offset = new_state.tolist()
    _core._set_rng_state(seed % 2**64, offset % 2**64, _drawing(device))


def _restored(device, seed, offset):
    """Returns a generator with the given state, to unpickle one."""
    generator = _core.Generator(device)
    generator._set_state(seed, offset)
    return generator


def _get_state(self):
    """Returns the state: seed and offset, as int64."""
    return _as_tensor(self._state())


def _set_state(self, new_state):
    """Sets the state."""
    seed, offset = new_state.tolist()
    self._set_state(seed % 2**64, offset % 2**64)


def _clone_state(self):
    """Returns another generator in the same state."""
    state = self._state()
    other = _core.Generator(self.device)
    other._set_state(*state)
    return other


_core.Generator.get_state = _get_state
_core.Generator.set_state = _set_state
_core.Generator.clone_state = _clone_state
