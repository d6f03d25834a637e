"""The names that programs ask of `torch._C`, the part of PyTorch that is compiled: classes by their other names, and what was built in."""

import sys
import types

from . import _c_functions, _core
from ._core import (  # noqa: F401
    Tensor as TensorBase, _current_autograd_node, _current_graph_task_id, device, dtype, is_grad_enabled)
from ._left_out import rest

# `torch._C._distributed_c10d` and others are imported as if they were there.
__path__ = []
has_lapack, has_spectral, has_openmp, has_mkl, has_mkldnn, _has_mkldnn, has_cuda = True, True, False, False, False, False, False
_GLIBCXX_USE_CXX11_ABI = True


def _get_privateuse1_backend_name():
    """Returns the name of a backend that could be added."""
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
_set_grad_enabled = _core._set_grad_enabled
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

def _parse_to(*args, **kwargs):
    """Returns the device, the dtype, whether to copy at once, and the memory format of a call of `to`."""
    names = {type(_core.contiguous_format): "memory_format", dtype: "dtype", device: "device", bool: "non_blocking"}
    found = {"device": None, "dtype": None, "non_blocking": False, "memory_format": None}
    for value in args:
        if isinstance(value, TensorBase):
            found.update(device=value.device, dtype=value.dtype)
        elif value is not None:
            found[names.get(type(value), "device")] = value
    found.update({name: value for name, value in kwargs.items() if name in found})
    if found["device"] is not None:
        found["device"] = device(found["device"])
    return tuple(found.values())


_nn = types.ModuleType(f"{__name__}._nn", "What programs ask of `torch._C._nn`.")
_nn._parse_to, _nn.__getattr__ = _parse_to, rest(_nn.__name__)
sys.modules[_nn.__name__] = _nn
_WeakTensorRef = _c_functions._WeakTensorRef
globals().update(_c_functions.install(__name__))

__getattr__ = rest(__name__)
