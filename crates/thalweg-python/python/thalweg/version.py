"""The versions of the package, and of the software that it is compatible with (`torch.version`)."""

from . import _core
from ._alias import VERSION, TorchVersion

__version__ = TorchVersion(VERSION)
debug, hip, xpu, rocm = False, None, None, None
git_version = _core.__version__
# The release of CUDA whose interfaces are called, if there is a GPU.
cuda = "13.0" if _core._cuda._gpu_count() else None
