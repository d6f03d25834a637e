"""The parts of `torch.autograd.profiler` beside the profiler itself."""

from ..profiler import emit_nvtx, record_function

__all__ = ["emit_nvtx", "record_function"]
