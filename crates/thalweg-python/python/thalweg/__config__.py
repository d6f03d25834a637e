"""The build of the package (`torch.__config__`)."""

from . import _core


def show():
    """Returns a description of the build."""
    return f"Thalweg {_core.__version__}\n  - kernels are compiled by NVRTC when they are first used\n"


def parallel_info():
    """Returns a description of the threads."""
    return "Threads are those of the device.\n"


def _cxx_flags():
    return ""
