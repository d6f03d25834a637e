"""Modes of dispatch (`torch.utils._mode_utils`), of which there are none."""

import contextlib


@contextlib.contextmanager
def no_dispatch():
    """Runs its block as it is: no mode would change its operators."""
    yield


def all_same_mode(modes):
    """Returns whether modes are one."""
    return all(mode == modes[0] for mode in modes)
