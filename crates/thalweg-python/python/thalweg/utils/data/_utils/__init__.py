"""What a loader is made of (`torch.utils.data._utils`)."""

from . import collate, pin_memory, worker
