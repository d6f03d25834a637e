"""Random numbers of devices (`torch.cuda.random`)."""


from .. import _core
from ..random import get_rng_state, initial_seed, manual_seed as _manual_seed, set_rng_state

__all__ = ["get_rng_state", "get_rng_state_all", "set_rng_state", "set_rng_state_all", "manual_seed", "manual_seed_all", "seed", "seed_all",
           "initial_seed"]


def manual_seed(seed):
    """Seeds the generator of the current device."""
    _manual_seed(seed)


manual_seed_all = manual_seed


def seed():
    """Seeds the generator of the current device with a random number from the operating system."""
    import secrets
    _manual_seed(secrets.randbits(63))


seed_all = seed


def get_rng_state_all():
    """Returns the states of the default generators of all devices of the current device's kind."""
    return [get_rng_state(number) for number in range(_core._cuda._device_count())]


def set_rng_state_all(new_states):
    """Sets the states of the default generators, one device after another."""
    for number, state in enumerate(new_states):
        set_rng_state(state, number)
