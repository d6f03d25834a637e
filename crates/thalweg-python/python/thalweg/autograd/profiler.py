"""The parts of `torch.autograd.profiler` other than the profiler itself."""

from .._left_out import attributes
from ..profiler import emit_nvtx, record_function

__all__ = ["emit_nvtx", "record_function"]

__getattr__ = attributes(__name__)
