"""Thalweg with PyTorch's names: `import thalweg as torch` runs programs on an NVIDIA GPU, or on a simulated one.

Every operator of the table is a function here and a method of `Tensor`. What PyTorch has and this package leaves out raises by its
name; `docs/python.md` of the repository lists the differences.
"""

import math as _math
import os as _os
import sys as _sys
import warnings as _warnings
from importlib.machinery import EXTENSION_SUFFIXES as _SUFFIXES

if "t" in getattr(_sys, "abiflags", "") and not _os.path.exists(_os.path.join(_os.path.dirname(__file__), f"_core{_SUFFIXES[0]}")):
    # The extension for builds with the interpreter lock would be loaded, and end the process.
    raise ImportError(f"thalweg has no extension module for this free-threaded build of Python (_core{_SUFFIXES[0]} is missing): install the wheel "
                      f"for cp{_sys.version_info[0]}{_sys.version_info[1]}t, or build it with `cargo xtask wheel thalweg --python {_sys.executable}`")

from . import _core
from ._core import *  # noqa: F401,F403
from ._core import OutOfMemoryError, Tensor, __version__, device, dtype
from ._results import Size
from . import _aliases, _tensor, _typed
from ._storage import TypedStorage, UntypedStorage
from . import accelerator, amp, autograd, backends, cuda, distributed, nn, onnx, optim, profiler, random, return_types
from . import safetensors, serialization, utils
from ._dlpack import from_dlpack
from ._functions import *  # noqa: F401,F403
from ._prefixed import module as _module
from .amp import GradScaler, autocast, get_autocast_dtype
from .autograd import enable_grad, inference_mode, no_grad, set_grad_enabled
from .cuda import Event, Stream
from .random import get_rng_state, initial_seed, manual_seed, seed, set_rng_state
from .serialization import load, save

# Names that builtins have too are not part of `*`.
globals().update({_name: getattr(_core, _name) for _name in dir(_core) if not _name.startswith("_")})
from ._functions import *  # noqa: E402,F401,F403

_aliases.add(globals())
_typed.add(globals(), "thalweg", None)

linalg = _module("linalg", "Linear algebra (`torch.linalg`).")
fft = _module("fft", "Transforms (`torch.fft`): what the table has.")
special = _module("special", "Special functions (`torch.special`).")

pi, e, inf, nan = _math.pi, _math.e, _math.inf, _math.nan
newaxis = None

_LEFT_OUT = {
    "jit": "programs run eagerly, or are captured into graphs (`cuda.graph`)",
    "export": "programs run eagerly, or are captured into graphs (`cuda.graph`)",
    "fx": "programs run eagerly, or are captured into graphs (`cuda.graph`)",
    "multiprocessing": "memory is not shared between processes",
    "sparse": "there are no sparse tensors",
    "quantization": "there are no quantized tensors",
    "func": "transforms of functions are left out",
    "vmap": "transforms of functions are left out",
    "hub": "models come as code and `state_dict`",
    "_C": "the extension module is Thalweg's own; what programs ask of PyTorch's has public names (`cuda.memory_stats`, `cuda.memory._snapshot`)",
}


def __getattr__(name):
    if name in _LEFT_OUT:
        raise AttributeError(f"thalweg.{name} is left out: {_LEFT_OUT[name]}")
    raise AttributeError(f"module 'thalweg' has no attribute '{name}': PyTorch has no such name, or it is left out")


def compile(model=None, **options):
    """Returns the model as it is, with a warning: programs run eagerly, or are captured into graphs (`cuda.graph`)."""
    if model is None:
        return compile
    _warnings.warn("thalweg.compile compiles nothing: the model runs eagerly", stacklevel=2)
    return model
