"""A scaler of losses for modules whose parameters are spread over ranks (`ShardedGradScaler`)."""

from ..._left_out import attributes
from ...amp import GradScaler
from .. import _check, all_reduce
from .._group import ReduceOp


class ShardedGradScaler(GradScaler):
    """A scaler of losses: if the gradients of a rank are not finite, no rank takes the step."""

    def __init__(self, device="cuda", init_scale=2.0**16, backoff_factor=0.5, growth_factor=2.0, growth_interval=2000, enabled=True, process_group=None):
        super().__init__(device, init_scale=init_scale, backoff_factor=backoff_factor, growth_factor=growth_factor, growth_interval=growth_interval, enabled=enabled)
        self.process_group = process_group

    def unscale_(self, optimizer):
        """Divides the gradients of an optimizer by the scale."""
        super().unscale_(optimizer)
        if self.is_enabled():
            own = self._stages[id(optimizer)][1]
            for found in (self._inner.tensors()[2], own):
                if found is not None:
                    all_reduce(found, ReduceOp.MAX, _check("ShardedGradScaler", self.process_group))

    def step(self, optimizer, *args, **kwargs):
        """Steps an optimizer, unless one of its gradients is not finite on any rank."""
        if self.is_enabled() and self._stage(optimizer) is None:
            self.unscale_(optimizer)
        return super().step(optimizer, *args, **kwargs)


__getattr__ = attributes(__name__)
