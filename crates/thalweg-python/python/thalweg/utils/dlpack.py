"""Tensors of other libraries (`torch.utils.dlpack`)."""

from .._dlpack import from_dlpack, to_dlpack
