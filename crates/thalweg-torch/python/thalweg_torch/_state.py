"""The one allocator of the process: enabled as PyTorch's, or the source of pools of PyTorch's."""

import threading

from ._library import Library


class Enabled:
    """The result of `enable`: the tier that is in use and the reason, for people."""

    def __init__(self, library, way, reason):
        self.library, self.way, self.reason = library, way, reason

    @property
    def tier(self):
        """1: PyTorch's hooks. 2: the native class."""
        return self.way.tier

    def __repr__(self):
        return f"<thalweg_torch tier {self.tier}: {self.reason}>"


# Held while one of them is set.
lock = threading.Lock()
# At most one of them is set: hooks are plain functions, which call one allocator.
enabled = None
source = None
# The library of kernels inside PyTorch, once it was requested: it stays the same one.
kernels = None
# The watcher of the program, if there is one.
sanitizer = None


def library():
    if enabled is None:
        raise RuntimeError("Thalweg's allocator is not in use: call thalweg_torch.enable() before the first CUDA allocation")
    return enabled.library


def kernels_library():
    """Returns the library of kernels inside PyTorch. The caller holds the lock."""
    global kernels
    if kernels is None:
        kernels = enabled.library if enabled is not None else Library("cuda")
    return kernels
