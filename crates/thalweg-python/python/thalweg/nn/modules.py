"""Modules under the names with which PyTorch defines them (`torch.nn.modules.linear.Linear`)."""

import sys
import types

from .. import _left_out
from . import _calls
from . import activations as _activations
from . import adaptive as _adaptive
from . import containers as _containers
from . import layers as _layers
from . import lazy as _lazy
from . import losses as _losses
from . import module as _module
from . import _naming
from . import padding as _padding
from . import parameter as _parameter
from . import pooling as _pooling
from . import recurrent as _recurrent
from . import _states
from . import transformer as _transformer


def _named(source, *parts):
    """Returns the classes of a module whose names contain one of these parts; all classes if there are no parts."""
    return {name: value for name, value in vars(source).items()
            if isinstance(value, type) and issubclass(value, _module.Module) and value is not _module.Module
            and (not parts or any(part in name for part in parts))}


_PLACES = {
    "activation": _named(_activations),
    "adaptive": {"AdaptiveLogSoftmaxWithLoss": _adaptive.AdaptiveLogSoftmaxWithLoss},
    "batchnorm": _named(_layers, "BatchNorm", "_NormBase") | _named(_lazy, "LazyBatchNorm"),
    "channelshuffle": _named(_layers, "ChannelShuffle"),
    "container": _named(_containers),
    "conv": _named(_layers, "Conv") | _named(_lazy, "LazyConv") | {"_ConvNd": _layers._Conv, "_ConvTransposeNd": _layers._ConvTranspose},
    "distance": _named(_layers, "PairwiseDistance", "CosineSimilarity"),
    "dropout": _named(_layers, "Dropout") | {"_DropoutNd": _layers._Dropout},
    "flatten": _named(_layers, "Flatten", "Unflatten"),
    "fold": _named(_layers, "Fold", "Unfold"),
    "instancenorm": _named(_layers, "InstanceNorm") | _named(_lazy, "LazyInstanceNorm"),
    "lazy": {"LazyModuleMixin": _lazy.LazyModuleMixin},
    "linear": {kind.__name__: kind for kind in (_layers.Linear, _layers.Bilinear, _layers.Identity, _lazy.LazyLinear)}
    | {"NonDynamicallyQuantizableLinear": _layers.NonDynamicallyQuantizableLinear},
    "loss": _named(_losses),
    "normalization": _named(_layers, "LayerNorm", "RMSNorm", "GroupNorm", "LocalResponseNorm"),
    "padding": _named(_padding) | {f"{name}Nd": value for name, value in _named(_padding, "_").items() if name.endswith("Pad")},
    "pixelshuffle": _named(_layers, "PixelShuffle", "PixelUnshuffle"),
    "pooling": _named(_pooling),
    "rnn": _named(_recurrent),
    "sparse": _named(_layers, "Embedding"),
    "transformer": _named(_transformer),
    "upsampling": _named(_layers, "Upsampl"),
    "utils": {name: value for name, value in vars(_naming).items() if callable(value)},
}


def _made():
    for place, members in _PLACES.items():
        made = types.ModuleType(f"{__name__}.{place}", f"What PyTorch has in `torch.nn.modules.{place}`.")
        vars(made).update(members)
        for name, value in members.items():
            # Programs and files use the module in which PyTorch defines a class.
            if value.__name__ == name and not value.__module__.startswith(f"{__name__}."):
                made.__file__ = getattr(made, "__file__", sys.modules[value.__module__].__file__)
                value.__module__ = made.__name__
        sys.modules[made.__name__] = globals()[place] = made
        globals().update({name: value for name, value in members.items() if not name.startswith("_")})
    # A program may assign other dictionaries of global hooks to this module, and calls read them here.
    vars(_calls).update(Module=_module.Module, _IncompatibleKeys=_module._IncompatibleKeys, _EXTRA_STATE_KEY_SUFFIX=_states.EXTRA)
    sys.modules[f"{__name__}.module"] = globals()["module"] = _calls
    globals().update(Module=_module.Module, Parameter=_parameter.Parameter)


_made()
__all__ = sorted(name for name, value in globals().items() if isinstance(value, type) and issubclass(value, _module.Module))
# Other submodules can be imported as if they existed.
__path__ = []
__getattr__ = _left_out.attributes(__name__)
