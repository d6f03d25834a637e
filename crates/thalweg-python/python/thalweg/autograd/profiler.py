"""The first profiler of PyTorch (`torch.autograd.profiler`): recordings of `torch.profiler` by its names."""

from .. import profiler
from .._left_out import attributes
from ..profiler import emit_nvtx, record_function
from . import kineto_available  # noqa: F401

__all__ = ["emit_nvtx", "profile", "record_function"]


class profile(profiler.profile):
    """Records a region."""

    def __init__(self, enabled=True, *, use_cuda=False, use_device=None, record_shapes=False, with_flops=False, profile_memory=False, with_stack=False,
                 with_modules=False, use_kineto=False, use_cpu=True, experimental_config=None, acc_events=False, custom_trace_id_callback=None):
        super().__init__(profile_memory=profile_memory)
        self.enabled = enabled

    def __enter__(self):
        return super().__enter__() if self.enabled else self

    def __exit__(self, *_):
        if self.enabled:
            super().__exit__()

    @property
    def function_events(self):
        """The single events, or None before the region has ended."""
        return None if self._trace is None else self.events()

    @property
    def self_cpu_time_total(self):
        """The microseconds on the host."""
        return sum(row.self_cpu_time_total for row in self.key_averages())

    def table(self, sort_by=None, row_limit=100, **options):
        """Returns the sums per operator as a table."""
        return self.key_averages().table(sort_by, row_limit)

    def total_average(self):
        """Returns the sum of all operators."""
        rows = self.key_averages()
        total = type(rows[0])(**vars(rows[0])) if rows else None
        for name in vars(total) if rows else ():
            if name != "key":
                setattr(total, name, sum(getattr(row, name) for row in rows))
        return total

    def __repr__(self):
        return "<unfinished torch.autograd.profile>" if self._trace is None else self.table()

    __str__ = __repr__


__getattr__ = attributes(__name__)
