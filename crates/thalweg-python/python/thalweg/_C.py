"""What programs ask of `torch._C`, the part of PyTorch that is compiled: classes by their other names, and what was built in."""

from . import _core
from ._core import Tensor as TensorBase, device, dtype  # noqa: F401
from ._left_out import rest

# `torch._C._distributed_c10d` and others are imported as if they were there.
__path__ = []
has_lapack, has_spectral, has_openmp, has_mkl, has_mkldnn, _has_mkldnn, has_cuda = True, True, False, False, False, False, False
_GLIBCXX_USE_CXX11_ABI = True


def _get_privateuse1_backend_name():
    """Returns the name of a backend that nobody has added."""
    return "privateuseone"


def _get_graph_executor_optimize(new=None):
    """Returns False: there is no executor of graphs."""
    return False


def _set_nothing(*values, **names):
    """Does nothing, and returns False: what it would set is not here."""
    return False


_set_graph_executor_optimize = _jit_set_profiling_executor = _jit_set_profiling_mode = _jit_set_num_profiled_runs = _set_nothing
# The stream of a thread is what `cuda.stream` makes it.
_cuda_setStream = _set_nothing
_get_tracing_state = _is_tracing = _cuda_clearCublasWorkspaces = lambda: None
_is_torch_function_enabled = lambda: False


def _get_accelerator(check=None):
    """Returns the device of the accelerator."""
    return _core.get_default_device()


def _cuda_setDevice(device):
    """Makes a device the current one of this thread."""
    _core._set_current_device(device)


def _log_api_usage_once(event):
    """Does nothing: nothing is logged."""

__getattr__ = rest(__name__)
