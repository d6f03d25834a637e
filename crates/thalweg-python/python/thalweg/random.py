"""Seeds and states of the generators of random numbers (`torch.random`)."""

import contextlib
import struct

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
    """Returns the seed of the current device's default generator."""
    return _seed if _is_forked else _core._rng_state(_drawing())[0]


def _as_bytes(state):
    """Returns a state, seed and offset, as a tensor of bytes on a device with memory."""
    return _core.tensor(list(struct.pack("<QQ", *state)), dtype=_core.uint8, device=_drawing())


def _from_bytes(state):
    """Returns the seed and the offset of a state."""
    if not isinstance(state, _core.Tensor):
        raise TypeError(f"expected a torch.ByteTensor, but got {type(state).__name__}")
    if state.dtype is not _core.uint8:
        raise TypeError("RNG state must be a torch.ByteTensor")
    if state.numel() != 16:
        raise RuntimeError(f"RNG state is wrong size: it has {state.numel()} bytes, not 16")
    return struct.unpack("<QQ", bytes(state.flatten().tolist()))


def get_rng_state(device=None):
    """Returns the state of a device's default generator, as 16 bytes."""
    return _as_bytes(_core._rng_state(_drawing(device)))


def set_rng_state(new_state, device=None):
    """Sets the state of a device's default generator."""
    _core._set_rng_state(*_from_bytes(new_state), _drawing(device))


def _restored(device, seed, offset):
    """Returns a generator with the given state, to unpickle one."""
    generator = _core.Generator(device)
    generator._set_state(seed, offset)
    return generator


def _get_state(self):
    """Returns the state, as 16 bytes."""
    return _as_bytes(self._state())


def _set_state(self, new_state):
    """Sets the state."""
    self._set_state(*_from_bytes(new_state))


def _clone_state(self):
    """Returns another generator in the same state."""
    state = self._state()
    other = _core.Generator(self.device)
    other._set_state(*state)
    return other


_core.Generator.get_state = _get_state
_core.Generator.set_state = _set_state
_core.Generator.clone_state = _clone_state
