"""The names that programs use from `torch._C`, the compiled part of PyTorch: classes under other names, and build settings."""

import contextlib
import sys
import types

from . import _c_functions, _core, _transform_levels
from ._core import (  # noqa: F401
    Tensor as TensorBase, _current_autograd_node, _current_graph_task_id, device, dtype, is_grad_enabled)
from ._left_out import rest
from ._torch_functions import (  # noqa: F401
    DisableTorchFunction, DisableTorchFunctionSubclass, _disabled_torch_dispatch_impl, _disabled_torch_function_impl)
from ._utils import _flatten_dense_tensors, _unflatten_dense_tensors

# `torch._C._distributed_c10d` and others can be imported as if they existed.
__path__ = []
has_lapack, has_spectral, has_openmp, has_mkl, has_mkldnn, _has_mkldnn, has_cuda = True, True, False, False, False, False, False
_GLIBCXX_USE_CXX11_ABI = True


def _get_privateuse1_backend_name():
    """Returns the name of the backend that an extension could add."""
    return "privateuseone"


def _get_graph_executor_optimize(new=None):
    """Returns False: there is no graph executor."""
    return False


def _set_nothing(*values, **names):
    """Does nothing and returns False: there is no such setting here."""
    return False


_set_graph_executor_optimize = _jit_set_profiling_executor = _jit_set_profiling_mode = _jit_set_num_profiled_runs = _set_nothing
# A thread's stream is set by `cuda.stream` only.
_cuda_setStream = _set_nothing
_set_grad_enabled = _core._set_grad_enabled
_get_tracing_state = _is_tracing = _cuda_clearCublasWorkspaces = lambda: None
_is_torch_function_enabled = lambda: _core._overrides_off() == 0
_DisableFuncTorch = contextlib.nullcontext


def _are_functorch_transforms_active():
    """Returns whether a transform of a function runs on this thread."""
    return bool(_transform_levels.local.maps or _transform_levels.local.derivatives)



class DispatchKeySet:
    """A set of dispatch keys, for programs that compute one while they are imported. It has no effect."""

    def __init__(self, key, *others):
        self._keys = frozenset((key, *others))

    def __or__(self, other):
        return DispatchKeySet(*self._keys, *other._keys)

    def has(self, key):
        """Returns whether a key is in the set."""
        return key in self._keys


# The class of the class of tensors.
_TensorMeta = type(TensorBase)


def _get_accelerator(check=None):
    """Returns the device of the accelerator."""
    return _core.get_default_device()


def _cuda_setDevice(device):
    """Makes a device the current one of this thread."""
    _core._set_current_device(device)


def _log_api_usage_once(event):
    """Does nothing: API usage is not logged."""

def _parse_to(*args, **kwargs):
    """Returns the device, the dtype, the `non_blocking` flag and the memory format of a call of `to`."""
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


def _switches(name, read, write):
    """Creates the two functions with which PyTorch reads and sets a switch for products."""
    globals()[f"_get_{name}"], globals()[f"_set_{name}"] = read, write


def _matmul_switches():
    from .backends import cuda
    for name in ("cublas_allow_tf32", "cublas_allow_fp16_reduced_precision_reduction", "cublas_allow_bf16_reduced_precision_reduction"):
        switch = name.removeprefix("cublas_")
        _switches(name, lambda switch=switch: getattr(cuda.matmul, switch), lambda value, switch=switch: setattr(cuda.matmul, switch, value))


_matmul_switches()


def _of(name, find):
    """Creates the module `torch._C.NAME`, whose attributes are looked up in another module."""
    made, others = types.ModuleType(f"{__name__}.{name}", f"Functions that programs ask of `torch._C.{name}`."), rest(f"{__name__}.{name}")
    made.__getattr__ = lambda asked: others(asked) if (found := find(asked)) is None else found
    sys.modules[made.__name__] = globals()[name] = made
    return made


def _functional(name):
    from .nn import functional
    return None if name.startswith("__") else getattr(functional, name, None) or getattr(_core, name, None)


_nn = _of("_nn", _functional)
_nn._parse_to, _nn.flatten_dense_tensors, _nn.unflatten_dense_tensors = _parse_to, _flatten_dense_tensors, _unflatten_dense_tensors
_of("_linalg", lambda name: None if name.startswith("__") else getattr(_core, name, None))
# No kernels are chosen by what a processor supports.
_of("_cpu", lambda name: _set_nothing if name.startswith("_is_") else None)
_WeakTensorRef = _c_functions._WeakTensorRef
globals().update(_c_functions.install(__name__))

__getattr__ = rest(__name__)
