"""Ways of training on several ranks (`torch.distributed.algorithms`)."""

from ..._left_out import attributes

__getattr__ = attributes(__name__)
