"""Regions in which failing backward passes report more (`torch.autograd.anomaly_mode`)."""

import warnings

from .. import _core
from .._regions import Open


class set_detect_anomaly:
    """Sets whether failing backward passes name the operator of the forward pass, and whether a NaN is a failure. Takes effect
    immediately; as a context manager, it ends with the region."""

    def __init__(self, mode, check_nan=True):
        self._former = _core._set_anomaly(bool(mode), bool(check_nan))

    def __enter__(self):
        return None

    def __exit__(self, *_):
        _core._set_anomaly(*self._former)


class detect_anomaly:
    """A region in which a failing backward pass names the operator of the forward pass, and a NaN is a failure."""

    def __init__(self, check_nan=True):
        warnings.warn("Anomaly Detection has been enabled. This mode will increase the runtime and should only be enabled for debugging.", stacklevel=2)
        self._check_nan = check_nan
        self._former = Open()

    def __enter__(self):
        self._former.enter(_core._set_anomaly(True, bool(self._check_nan)))

    def __exit__(self, *_):
        _core._set_anomaly(*self._former.leave())
