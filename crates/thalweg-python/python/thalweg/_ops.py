"""The classes of `torch.ops` (`torch._ops`)."""

from ._left_out import rest as _rest
from .ops import OpOverload, OpOverloadPacket, _OpNamespace, ops  # noqa: F401


class OperatorBase:
    """The base class of operators that PyTorch has."""


class HigherOrderOperator(OperatorBase):
    """An operator that takes functions, of which there is none here."""


__getattr__ = _rest(__name__)
