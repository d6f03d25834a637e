"""Parts of loaders (`torch.utils.data._utils`)."""

from . import collate, pin_memory, worker
