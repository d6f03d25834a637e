"""Helpers for dispatch modes (`torch.utils._mode_utils`), which do not exist here."""

import contextlib


@contextlib.contextmanager
def no_dispatch():
    """Returns a region that changes nothing: there is no mode that intercepts calls."""
    yield


def all_same_mode(modes):
    """Returns whether all modes are the same."""
    return all(mode == modes[0] for mode in modes)
