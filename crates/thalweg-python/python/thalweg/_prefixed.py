"""Modules whose functions are the operators with the module's name as a prefix: `linalg`, `fft`, `special`."""

import sys
import types

from . import _core


# Functions of `torch.special` whose operators have different names.
_SPECIAL = {name: name for name in (
    "digamma", "erf", "erfc", "erfinv", "exp2", "expm1", "i0", "log1p", "log_softmax", "logit", "logsumexp", "polygamma", "round",
    "sinc", "softmax", "xlogy")} | {
    "expit": "sigmoid", "gammainc": "igamma", "gammaincc": "igammac", "gammaln": "lgamma", "multigammaln": "mvlgamma", "psi": "digamma"}


def module(name, doc):
    """Creates the module `thalweg.NAME` from the operators `NAME_…`."""
    made = types.ModuleType(f"thalweg.{name}", doc)
    prefix = f"{name}_"
    for full in dir(_core):
        if full.startswith(prefix):
            setattr(made, full.removeprefix(prefix), getattr(_core, full))
    for own, operator in _SPECIAL.items() if name == "special" else ():
        if not hasattr(made, own) and hasattr(_core, operator):
            setattr(made, own, getattr(_core, operator))
    if name == "linalg":
        made.LinAlgError = _core._LinAlgError
    sys.modules[made.__name__] = made
    return made
