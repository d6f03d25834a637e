"""Switches of the libraries behind operators (`torch.backends`), process-wide; a captured graph keeps what held when it was captured."""

import sys
import types

from . import _core

_inner = _core._backends


def _switch(name, doc):
    return property(lambda self: _inner._switch(name), lambda self, value: _inner._set_switch(name, _truth(name, value)), doc=doc)


def _truth(name, value):
    if not isinstance(value, bool):
        raise RuntimeError(f"set {name} to True or False, not {value!r}")
    return value


def _reduction(dtype):
    def read(self):
        return _inner._reduction(dtype)[0]

    def write(self, value):
        allow, split = value if isinstance(value, (tuple, list)) else (value, True)
        _inner._set_reduction(dtype, _truth("a reduced precision reduction", allow), _truth("the split along k", split))
    return property(read, write, doc=f"Whether parts of products of {dtype} may be rounded to 16 bits before they are added.")


class _Settings(types.ModuleType):
    """A module whose names are switches: one that it does not have is refused, so that no setting is lost in silence."""

    _left_out = {}

    def __init__(self, name, doc):
        full = f"{__name__}.{name}"
        super().__init__(full, doc)
        sys.modules[full] = self

    def __setattr__(self, name, value):
        if not name.startswith("__") and not hasattr(type(self), name) and not isinstance(value, types.ModuleType):
            self.__getattr__(name)
        super().__setattr__(name, value)

    def __getattr__(self, name):
        if name in self._left_out:
            raise AttributeError(f"{self.__name__}.{name} is left out: {self._left_out[name]}")
        raise AttributeError(f"module '{self.__name__}' has no attribute '{name}': PyTorch has no such name, or it is left out")


class _Matmul(_Settings):
    allow_tf32 = _switch("cuda.matmul.allow_tf32", "Whether products of float32 are computed in TF32.")
    allow_fp16_accumulation = _switch("cuda.matmul.allow_fp16_accumulation", "Whether products of float16 are accumulated in 16 bits.")
    allow_fp16_reduced_precision_reduction = _reduction("fp16")
    allow_bf16_reduced_precision_reduction = _reduction("bf16")


class _Cuda(_Settings):
    _SDP = "choose the backend of attention in the Rust crate (`thalweg::tensor::sdp`)"
    _left_out = dict.fromkeys((
        "sdp_kernel", "enable_flash_sdp", "enable_math_sdp", "enable_mem_efficient_sdp", "enable_cudnn_sdp", "flash_sdp_enabled",
        "math_sdp_enabled", "mem_efficient_sdp_enabled", "cudnn_sdp_enabled"), _SDP)
    _left_out |= {
        "preferred_blas_library": "it is in the Rust crate (`thalweg::backends::cuda`)",
        "preferred_linalg_library": "there is one library",
        "cufft_plan_cache": "transforms keep no plans",
    }

    @staticmethod
    def is_built():
        """Returns True: the package runs on GPUs where there are any."""
        return True


class _Cudnn(_Settings):
    _left_out = {
        "version": "the version of cuDNN is in the Rust crate", "flags": "set the switches one by one", "set_flags": "set the switches one by one"}
    enabled = _switch("cudnn.enabled", "Whether convolutions may be calls of cuDNN.")
    allow_tf32 = _switch("cudnn.allow_tf32", "Whether convolutions of float32 are computed in TF32.")
    deterministic = _switch("cudnn.deterministic", "Whether convolutions repeat their bits.")
    benchmark = _switch("cudnn.benchmark", "Whether the first convolution of some sizes tries cuDNN's algorithms, and keeps the fastest.")

    @property
    def benchmark_limit(self):
        """The number of algorithms that are tried at most; 0 for all."""
        return _inner._benchmark_limit()

    @benchmark_limit.setter
    def benchmark_limit(self, value):
        if not isinstance(value, int) or not 0 <= value < 1 << 32:
            raise RuntimeError(f"set cudnn.benchmark_limit to a number of algorithms, or to 0 for all, not {value!r}")
        _inner._set_benchmark_limit(value)


class _Absent(_Settings):
    @staticmethod
    def is_available():
        """Returns False."""
        return False

    is_built = is_available


cuda = _Cuda("cuda", "Switches of products (`torch.backends.cuda`).")
matmul = _Matmul("cuda.matmul", "How products are computed (`torch.backends.cuda.matmul`).")
cuda.matmul = matmul
del matmul
cudnn = _Cudnn("cudnn", "Switches of convolutions (`torch.backends.cudnn`).")
mps = _Absent("mps", "Apple's GPUs (`torch.backends.mps`): there is no backend of them here.")

_LEFT_OUT = {
    "mkl": "nothing computes on the CPU but the simulated GPU", "mkldnn": "nothing computes on the CPU but the simulated GPU",
    "openmp": "nothing computes on the CPU but the simulated GPU", "cpu": "nothing computes on the CPU but the simulated GPU",
    "opt_einsum": "products are taken from left to right", "quantized": "there are no quantized tensors",
    "xeon": "nothing computes on the CPU but the simulated GPU", "nnpack": "nothing computes on the CPU but the simulated GPU",
}


def __getattr__(name):
    if name in _LEFT_OUT:
        raise AttributeError(f"thalweg.backends.{name} is left out: {_LEFT_OUT[name]}")
    raise AttributeError(f"module 'thalweg.backends' has no attribute '{name}': PyTorch has no such name, or it is left out")
