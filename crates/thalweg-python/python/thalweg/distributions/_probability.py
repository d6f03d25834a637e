"""Distributions whose argument is a probability, or its logit."""

from .utils import broadcast_all, lazy_property, logits_to_probs, probs_to_logits


def _set_probs_or_logits(distribution, probs, logits):
    """Sets the argument that was passed, and returns the batch shape."""
    if (probs is None) == (logits is None):
        raise ValueError("Either `probs` or `logits` must be specified, but not both.")
    name, value = ("probs", probs) if probs is not None else ("logits", logits)
    tensor, = broadcast_all(value)
    setattr(distribution, name, tensor)
    distribution._param = tensor
    return tensor.size()


def _set_count_and(distribution, total_count, probs, logits):
    """Sets a count and the argument that was passed, broadcast to one shape. Returns that shape, the batch shape."""
    if (probs is None) == (logits is None):
        raise ValueError("Either `probs` or `logits` must be specified, but not both.")
    count, value = broadcast_all(total_count, probs if probs is not None else logits)
    distribution.total_count = count.to(value.dtype)
    return _set_probs_or_logits(distribution, *((value, None) if probs is not None else (None, value)))


class _OfProbability:
    """A distribution with a probability as parameter, given directly or by its logit."""

    _is_binary = True
    _tensors = {"_param": 0}

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
