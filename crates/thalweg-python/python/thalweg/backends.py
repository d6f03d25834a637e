"""Switches of the libraries that operators use (`torch.backends`), process-wide.
A captured graph keeps the settings from its capture."""

import collections
import contextlib
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


class _NoPlans:
    """The plans of transforms that are kept: none. A limit is stored."""

    size, max_size = 0, 4096

    def __getitem__(self, device):
        return self

    def clear(self):
        """Does nothing: there are no plans."""


class _Settings(types.ModuleType):
    """A module whose names are switches. Unknown names are refused, so that no setting is ignored silently."""

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
        from ._left_out_names import reason_of
        reason = reason_of(self.__name__.partition(".")[2], name)
        if reason is not None:
            raise AttributeError(f"{self.__name__}.{name} is left out: {reason}")
        raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")


_BY_TF32 = property(lambda self: "tf32" if self.allow_tf32 else "ieee", lambda self, value: setattr(self, "allow_tf32", value == "tf32"),
                    doc="How results of float32 are computed: `ieee` or `tf32`.")


class _Matmul(_Settings):
    fp32_precision = _BY_TF32
    allow_tf32 = _switch("cuda.matmul.allow_tf32", "Whether products of float32 are computed in TF32.")
    allow_fp16_accumulation = _switch("cuda.matmul.allow_fp16_accumulation", "Whether products of float16 are accumulated in 16 bits.")
    allow_fp16_reduced_precision_reduction = _reduction("fp16")
    allow_bf16_reduced_precision_reduction = _reduction("bf16")


_ATTENTION = dict.fromkeys(("cudnn", "flash", "mem_efficient", "math"), True)


def _allow(**given):
    """Sets which implementations of attention this thread may use. The memory-efficient one is flash attention as well."""
    _ATTENTION.update({name: bool(enabled) for name, enabled in given.items()})
    _inner._replace_sdp(_ATTENTION["cudnn"], _ATTENTION["flash"] or _ATTENTION["mem_efficient"], _ATTENTION["math"])


def _enable(name):
    def enable(enabled):
        _allow(**{name: enabled})
    enable.__name__, enable.__doc__ = f"enable_{name}_sdp", f"Sets whether this thread's attention may be computed by the way `{name}`."
    return staticmethod(enable)


def _enabled(name):
    def read():
        return _ATTENTION[name]
    read.__name__, read.__doc__ = f"{name}_sdp_enabled", f"Returns whether this thread's attention may be computed by the way `{name}`."
    return staticmethod(read)


class _Cuda(_Settings):
    enable_cudnn_sdp, cudnn_sdp_enabled = _enable("cudnn"), _enabled("cudnn")
    enable_flash_sdp, flash_sdp_enabled = _enable("flash"), _enabled("flash")
    enable_mem_efficient_sdp, mem_efficient_sdp_enabled = _enable("mem_efficient"), _enabled("mem_efficient")
    enable_math_sdp, math_sdp_enabled = _enable("math"), _enabled("math")

    @staticmethod
    @contextlib.contextmanager
    def sdp_kernel(enable_flash=True, enable_math=True, enable_mem_efficient=True, enable_cudnn=True):
        """Returns a region with other implementations of attention for this thread."""
        former = dict(_ATTENTION)
        _allow(flash=enable_flash, math=enable_math, mem_efficient=enable_mem_efficient, cudnn=enable_cudnn)
        try:
            yield {}
        finally:
            _allow(**former)

    @property
    def SDPBackend(self):
        """The implementations of attention (`nn.attention.SDPBackend`)."""
        from .nn.attention import SDPBackend
        return SDPBackend

    cufft_plan_cache = _NoPlans()
    SDPAParams = collections.namedtuple("SDPAParams", "query key value attn_mask dropout is_causal enable_gqa", defaults=(False,))

    @staticmethod
    def is_flash_attention_available():
        """Returns whether there is a GPU, which has a kernel of flash attention."""
        return _core._cuda._gpu_count() > 0

    @staticmethod
    def can_use_flash_attention(params, debug=False):
        """Returns whether attention with these arguments is a call of flash attention: on a GPU, in 16 bits, without a mask."""
        return bool(_ATTENTION["flash"] and params.query._is_on_gpu and params.attn_mask is None and params.query.dtype in (_core.float16, _core.bfloat16))

    can_use_efficient_attention = can_use_cudnn_attention = can_use_flash_attention

    @staticmethod
    def is_built():
        """Returns True: the package runs on GPUs if there are any."""
        return True

    @staticmethod
    def preferred_linalg_library(backend=None):
        """Returns the name of the only library."""
        return "default"

    preferred_blas_library = preferred_rocm_fa_library = preferred_linalg_library


class _Cudnn(_Settings):
    fp32_precision = _BY_TF32

    @staticmethod
    def version():
        """Returns None: only the Rust crate has the version of cuDNN."""
        return None

    @staticmethod
    def is_available():
        """Returns whether there is a GPU, for which cuDNN is loaded if it is found."""
        return _core._cuda._gpu_count() > 0

    @staticmethod
    def is_acceptable(tensor):
        """Returns whether convolutions of a tensor may use cuDNN."""
        return tensor._is_on_gpu and cudnn.enabled

    @staticmethod
    def set_flags(_enabled=None, _benchmark=None, _benchmark_limit=None, _deterministic=None, _allow_tf32=None, _fp32_precision="none"):
        """Sets switches, and returns the previous settings."""
        given = dict(enabled=_enabled, benchmark=_benchmark, benchmark_limit=_benchmark_limit, deterministic=_deterministic,
                     allow_tf32=_allow_tf32)
        former = tuple(getattr(cudnn, name) for name in given)
        for name, value in given.items():
            if value is not None:
                setattr(cudnn, name, value)
        return former

    @staticmethod
    @contextlib.contextmanager
    def flags(enabled=False, benchmark=False, benchmark_limit=10, deterministic=False, allow_tf32=True, fp32_precision="none"):
        """Returns a region with other settings."""
        former = cudnn.set_flags(enabled, benchmark, benchmark_limit, deterministic, allow_tf32)
        try:
            yield
        finally:
            cudnn.set_flags(*former)

    enabled = _switch("cudnn.enabled", "Whether convolutions may be calls of cuDNN.")
    allow_tf32 = _switch("cudnn.allow_tf32", "Whether convolutions of float32 are computed in TF32.")
    deterministic = _switch("cudnn.deterministic", "Whether convolutions repeat their bits.")
    benchmark = _switch("cudnn.benchmark", "Whether the first convolution of some sizes tries cuDNN's algorithms, and keeps the fastest.")

    @property
    def benchmark_limit(self):
        """The maximum number of algorithms that are tried; 0 for all."""
        return _inner._benchmark_limit()

    @benchmark_limit.setter
    def benchmark_limit(self, value):
        if not isinstance(value, int) or not 0 <= value < 1 << 32:
            raise RuntimeError(f"set cudnn.benchmark_limit to a number of algorithms, or to 0 for all, not {value!r}")
        _inner._set_benchmark_limit(value)


class _Absent(_Settings):
    """A library that is not available. Its switches accept only the values of that state."""

    enabled, engine, supported_engines, strategy = False, "none", ["none"], None

    @staticmethod
    def is_available():
        """Returns False."""
        return False

    is_built = is_available

    @staticmethod
    @contextlib.contextmanager
    def flags(*args, **kwargs):
        """Returns a region that changes nothing."""
        yield

    @staticmethod
    def set_flags(*args, **kwargs):
        """Returns the only setting: the library is not enabled."""
        return (False,)

    @staticmethod
    def is_macos_or_newer(major, minor):
        """Returns False."""
        return False

    @staticmethod
    def get_cpu_capability():
        """Returns the vector instructions of this machine's processor, by which programs choose between ways of the same result."""
        try:
            with open("/proc/cpuinfo", encoding="ascii", errors="ignore") as file:
                flags = set(next((line for line in file if line.startswith("flags")), "").split())
        except OSError:
            flags = set()
        return "AVX512" if flags >= {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"} else "AVX2" if flags >= {"avx2", "fma"} else "DEFAULT"


class _Precision(_Settings):
    """The precision in which a library computes products of float32: `ieee`, as `set_float32_matmul_precision` sets it for
    all."""

    fp32_precision = "none"


cuda = _Cuda("cuda", "Switches of products (`torch.backends.cuda`).")
matmul = _Matmul("cuda.matmul", "How products are computed (`torch.backends.cuda.matmul`).")
cuda.matmul = matmul
del matmul
cudnn = _Cudnn("cudnn", "Switches of convolutions (`torch.backends.cudnn`).")
for _name in ("conv", "rnn"):
    setattr(cudnn, _name, _Precision(f"cudnn.{_name}", "The precision of an operator of cuDNN."))
for _name in ("mps", "mkl", "mkldnn", "openmp", "opt_einsum", "xnnpack", "nnpack", "quantized", "xeon", "cpu", "cusparselt", "kleidiai", "miopen",
              "mha"):
    globals()[_name] = _Absent(_name, f"The library or device `{_name}` (`torch.backends.{_name}`): there is none here.")
for _name in ("conv", "rnn", "matmul"):
    setattr(globals()["mkldnn"], _name, _Precision(f"mkldnn.{_name}", "The precision of an operator of a library that is not here."))
# `torch.backends.cudnn.rnn` and others can be imported as if they existed.
__path__ = []


# A region in which switches can be set, as they can be everywhere.
__allow_nonbracketed_mutation = contextlib.nullcontext


def disable_global_flags():
    """Does nothing: switches are set one by one."""


def __getattr__(name):
    raise AttributeError(f"module 'thalweg.backends' has no attribute '{name}'")
