"""Distributions whose argument is a probability, or its logit."""

from numbers import Number

from .._results import Size
from .utils import broadcast_all, lazy_property, logits_to_probs, probs_to_logits


def _set_probs_or_logits(distribution, probs, logits):
    """Sets the argument that is given, and returns the batch shape."""
    if (probs is None) == (logits is None):
        raise ValueError("Either `probs` or `logits` must be specified, but not both.")
    name, value = ("probs", probs) if probs is not None else ("logits", logits)
    tensor, = broadcast_all(value)
    setattr(distribution, name, tensor)
    distribution._param = tensor
    return Size() if isinstance(value, Number) else tensor.size()


class _OfProbability:
    """A distribution of one probability, given as such or by its logit."""

    _is_binary = True

    @lazy_property
    def logits(self):
        """The logits."""
        return probs_to_logits(self.probs, is_binary=self._is_binary)

    @lazy_property
    def probs(self):
        """The probabilities."""
        return logits_to_probs(self.logits, is_binary=self._is_binary)

    @property
    def param_shape(self):
        """The shape of the argument."""
        return self._param.size()

    def _expand_into(self, made, batch_shape):
        dims = 0 if self._is_binary else 1
        made._param = self._param.expand(batch_shape + self._param.shape[self._param.dim() - dims:])
        return super()._expand_into(made, batch_shape)
