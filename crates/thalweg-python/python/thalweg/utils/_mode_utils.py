"""Questions of libraries about modes of dispatch, of which there are none (`torch.utils._mode_utils`)."""

import contextlib


@contextlib.contextmanager
def no_dispatch():
    """Returns a region that changes nothing: no mode takes calls over."""
    yield


def all_same_mode(modes):
    """Returns whether all modes are one."""
    return all(mode == modes[0] for mode in modes)
