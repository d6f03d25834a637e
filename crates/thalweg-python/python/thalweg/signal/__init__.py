"""Windows of signals (`torch.signal`)."""

from . import windows
