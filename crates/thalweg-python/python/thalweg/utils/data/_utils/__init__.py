"""Parts of data loaders (`torch.utils.data._utils`)."""

from . import collate, pin_memory, worker
from .worker import MP_STATUS_CHECK_INTERVAL
