"""Thalweg with PyTorch's names: `import thalweg as torch` runs programs on an NVIDIA GPU, or on a simulated one.

Every operator of the table is a function here and a method of `Tensor`. Names of PyTorch that this package leaves out raise an
error that names them; `docs/python.md` in the repository lists the differences.
"""

import math as _math
import os as _os
import sys as _sys
import warnings as _warnings
import importlib as _importlib
from importlib.machinery import EXTENSION_SUFFIXES as _SUFFIXES

if "t" in getattr(_sys, "abiflags", "") and not _os.path.exists(_os.path.join(_os.path.dirname(__file__), f"_core{_SUFFIXES[0]}")):
    # The extension for builds with the interpreter lock would be loaded, and would crash the process.
    raise ImportError(f"thalweg has no extension module for this free-threaded build of Python (_core{_SUFFIXES[0]} is missing): install the wheel "
                      f"for cp{_sys.version_info[0]}{_sys.version_info[1]}t, or build it with `cargo xtask wheel thalweg --python {_sys.executable}`")

from . import _core
from . import _left_out as _omitted
from . import _torch_functions
from ._core import *  # noqa: F401,F403
from ._core import OutOfMemoryError, Tensor, __version__, device, dtype
from ._results import Size
from ._storage import UntypedStorage
from ._typed_storage import TypedStorage
from . import _absent, _aliases, _foreach, _methods, _operators, _tensor, _tensor_names, _typed, _typed_storage
from ._alias import install_as_torch
from . import accelerator, amp, autograd, backends, cuda, nn, optim, profiler, random, return_types
from . import safetensors, serialization, signal, utils
# Modules that libraries use from PyTorch besides operators, modules and devices.
from . import __config__, __future__, _C, _compiling, _draws, compiler, func, functional, futures, jit, masked, overrides, sparse, storage, testing, types, version
from ._condition_checks import *  # noqa: F401,F403
from ._control_flow import *  # noqa: F401,F403
from ._dlpack import from_dlpack
from ._functions import *  # noqa: F401,F403
from ._names import *  # noqa: F401,F403
from ._underscored import *  # noqa: F401,F403
from ._prefixed import module as _module
from .amp import GradScaler, autocast, get_autocast_dtype
from .autograd import enable_grad, inference_mode, no_grad, set_grad_enabled
from .cuda import Event, Stream
from .random import get_rng_state, initial_seed, manual_seed, seed, set_rng_state
from .func import vmap
from .futures import Future
from .jit import ScriptFunction, ScriptModule
from .serialization import load, save
from .testing import FileCheck

# Machine code of common kernels, which a wheel has; others are compiled when they are first used.
_core._use_precompiled(_os.path.join(_os.path.dirname(__file__), "kernels"))

# Names that are also builtins are not exported by `*`.
globals().update({_name: getattr(_core, _name) for _name in dir(_core) if not _name.startswith("_")})
from ._functions import *  # noqa: E402,F401,F403
from ._devices import *  # noqa: E402,F401,F403
from ._composed import *  # noqa: E402,F401,F403
from ._statistics import *  # noqa: E402,F401,F403
from ._lowrank import pca_lowrank, svd_lowrank
from .nn.functional import conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d
from ._operators import *  # noqa: E402,F401,F403
from .signal.windows import bartlett_window, blackman_window, hamming_window, hann_window, kaiser_window

_tensor_names.add()
_absent.add(globals())
_draws.add(globals())
_foreach.add(globals())
_aliases.add(globals())
_typed.add(globals(), "thalweg", None)
globals().update(_typed_storage.classes("thalweg", False))
Storage = FloatStorage  # noqa: F405
_tensor_classes = _typed.classes(globals(), vars(cuda))
_storage_classes = _typed_storage.all_classes()

linalg = _module("linalg", "Linear algebra (`torch.linalg`).")
linalg.matmul = matmul  # noqa: F405
_operators.add_to_linalg(linalg)
fft = _module("fft", "Transforms (`torch.fft`): what the table has.")
special = _module("special", "Special functions (`torch.special`).")

pi, e, inf, nan = _math.pi, _math.e, _math.inf, _math.nan
newaxis = None
compile = _compiling.compile

_torch_functions.register([nn.Parameter, nn.Buffer, Size])
_omitted.install()
_rest = _omitted.attributes(__name__)


def __getattr__(name):
    if name == "default_generator":
        # Created on first access, because it opens the device.
        return globals().setdefault(name, _core._default_generator("cpu"))
    if name == "_VF":
        return _importlib.import_module(f"{__name__}._VF")
    if name in ("sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor"):
        from . import _sparse
        return getattr(_sparse, name)
    return _rest(name)
