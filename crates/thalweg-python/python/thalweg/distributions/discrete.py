"""Distributions over integers and categories."""

import math

from .. import _core
from .._draws import binomial, poisson
from .._functions import broadcast_shapes, finfo
from .._results import Size
from ..autograd import no_grad
from . import constraints
from ._probability import _OfProbability, _set_count_and, _set_probs_or_logits
from .distribution import Distribution, ExponentialFamily
from .utils import broadcast_all, clamp_probs


def _cross_entropy(logits, value):
    from .continuous import _binary_cross_entropy
    return _binary_cross_entropy(logits, value)


class Bernoulli(_OfProbability, ExponentialFamily):
    """The distribution of a variable that is 0 or 1."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.boolean
    has_enumerate_support = True
    _mean_carrier_measure = 0

    def __init__(self, probs=None, logits=None, validate_args=None):
        super().__init__(_set_probs_or_logits(self, probs, logits), validate_args=validate_args)

    mean = property(lambda self: self.probs, doc="The mean.")
    variance = property(lambda self: self.probs * (1 - self.probs), doc="The variance.")

    @property
    def mode(self):
        return (self.probs >= 0.5).to(self.probs.dtype).masked_fill(self.probs == 0.5, math.nan)

    @no_grad()
    def sample(self, sample_shape=Size()):
        return _core.bernoulli(self.probs.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return -_cross_entropy(self.logits, value)

    def entropy(self):
        return _cross_entropy(self.logits, self.probs)

    def enumerate_support(self, expand=True):
        values = _core.arange(2, dtype=self._param.dtype, device=self._param.device).view([-1] + [1] * len(self._batch_shape))
        return values.expand(Size((-1,)) + self._batch_shape) if expand else values

    @property
    def _natural_params(self):
        return (self.logits,)

    def _log_normalizer(self, x):
        return x.exp().log1p()


class Geometric(_OfProbability, Distribution):
    """The distribution of the number of failures before the first success."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.nonnegative_integer

    def __init__(self, probs=None, logits=None, validate_args=None):
        super().__init__(_set_probs_or_logits(self, probs, logits), validate_args=validate_args)
        if self._validate_args and probs is not None and not constraints._are_all(self.probs > 0):
            raise ValueError(f"Expected parameter probs of distribution {self!r} to be positive but found invalid values:\n{self.probs}")

    mean = property(lambda self: 1.0 / self.probs - 1.0, doc="The mean.")
    mode = property(lambda self: _core.zeros_like(self.probs), doc="Zero.")
    variance = property(lambda self: (1.0 / self.probs - 1.0) / self.probs, doc="The variance.")

    @no_grad()
    def sample(self, sample_shape=Size()):
        from .continuous import _uniform
        shape = self._extended_shape(sample_shape)
        return (_uniform(shape, self.probs).log() / (-self.probs.expand(shape)).log1p()).floor()

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        value, probs = broadcast_all(value, self.probs)
        failed = (-probs).log1p()
        return value * failed.masked_fill((probs == 1) & (value == 0), 0.0) + probs.log()

    def entropy(self):
        return _cross_entropy(self.logits, self.probs) / self.probs


class Binomial(_OfProbability, Distribution):
    """The distribution of the number of successes in a number of trials."""

    arg_constraints = {"total_count": constraints.nonnegative_integer, "probs": constraints.unit_interval, "logits": constraints.real}
    has_enumerate_support = True

    def __init__(self, total_count=1, probs=None, logits=None, validate_args=None):
        super().__init__(_set_count_and(self, total_count, probs, logits), validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self):
        return constraints.integer_interval(0, self.total_count)

    mean = property(lambda self: self.total_count * self.probs, doc="The mean.")
    mode = property(lambda self: ((self.total_count + 1) * self.probs).floor().clamp(max=self.total_count), doc="The most probable number.")
    variance = property(lambda self: self.total_count * self.probs * (1 - self.probs), doc="The variance.")

    @no_grad()
    def sample(self, sample_shape=Size()):
        shape = self._extended_shape(sample_shape)
        return binomial(self.total_count.expand(shape), self.probs.expand(shape))

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        choices = (self.total_count + 1).lgamma() - (value + 1).lgamma() - (self.total_count - value + 1).lgamma()
        return choices + value * self.logits - self.total_count * _core.softplus(self.logits)

    def entropy(self):
        most = int(self.total_count.max())
        if int(self.total_count.min()) != most:
            raise NotImplementedError("Inhomogeneous total count not supported by `entropy`.")
        found = self.log_prob(self.enumerate_support(False))
        return -(found.exp() * found).sum(0)

    def enumerate_support(self, expand=True):
        most = int(self.total_count.max())
        if int(self.total_count.min()) != most:
            raise NotImplementedError("Inhomogeneous total count not supported by `enumerate_support`.")
        values = _core.arange(1 + most, dtype=self._param.dtype, device=self._param.device).view([-1] + [1] * len(self._batch_shape))
        return values.expand(Size((-1,)) + self._batch_shape) if expand else values


class NegativeBinomial(_OfProbability, Distribution):
    """The distribution of the number of successes before a given number of failures."""

    arg_constraints = {"total_count": constraints.greater_than_eq(0), "probs": constraints.half_open_interval(0.0, 1.0), "logits": constraints.real}
    support = constraints.nonnegative_integer

    def __init__(self, total_count, probs=None, logits=None, validate_args=None):
        super().__init__(_set_count_and(self, total_count, probs, logits), validate_args=validate_args)

    mean = property(lambda self: self.total_count * self.logits.exp(), doc="The mean.")
    mode = property(lambda self: ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0.0), doc="The most probable number.")
    variance = property(lambda self: self.mean / (-self.logits).sigmoid(), doc="The variance.")

    @no_grad()
    def sample(self, sample_shape=Size()):
        from .continuous import Gamma
        rate = Gamma(concentration=self.total_count, rate=(-self.logits).exp(), validate_args=False).sample(sample_shape)
        return poisson(rate)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        log_failed, log_succeeded = -_core.softplus(self.logits), -_core.softplus(-self.logits)
        counts = (self.total_count + value).lgamma() - (1.0 + value).lgamma() - self.total_count.lgamma()
        return self.total_count * log_failed + value * log_succeeded + counts.masked_fill(self.total_count + value == 0.0, 0.0)


class Poisson(ExponentialFamily):
    """The Poisson distribution with a rate."""

    arg_constraints = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer

    def __init__(self, rate, validate_args=None):
        self._begin(validate_args, rate=rate)

    mean = variance = property(lambda self: self.rate, doc="The mean.")
    mode = property(lambda self: self.rate.floor(), doc="The most probable number.")

    @no_grad()
    def sample(self, sample_shape=Size()):
        return poisson(self.rate.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        rate, value = broadcast_all(self.rate, value)
        return _core.xlogy(value, rate) - rate - (value + 1).lgamma()


class Categorical(_OfProbability, Distribution):
    """The distribution of a choice among the categories in the last dimension."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    has_enumerate_support = True
    _is_binary = False
    _tensors, _kept = {"_param": 1}, ("_num_events",)

    def __init__(self, probs=None, logits=None, validate_args=None):
        if (probs is None) == (logits is None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both.")
        given = probs if probs is not None else logits
        if given.dim() < 1:
            raise ValueError(f"`{'probs' if probs is not None else 'logits'}` parameter must be at least one-dimensional.")
        if probs is not None:
            self.probs = self._param = probs / probs.sum(-1, keepdim=True)
        else:
            self.logits = self._param = logits - logits.logsumexp(dim=-1, keepdim=True)
        self._num_events = self._param.size()[-1]
        super().__init__(self._param.size()[:-1], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self):
        return constraints.integer_interval(0, self._num_events - 1)

    mean = variance = property(lambda self: _core.full(list(self._extended_shape()), math.nan, dtype=self._param.dtype, device=self._param.device),
                               doc="NaN: choices are not numbers.")
    mode = property(lambda self: self.probs.argmax(dim=-1), doc="The most probable choice.")

    @no_grad()
    def sample(self, sample_shape=Size()):
        sample_shape = Size(sample_shape)
        drawn = _core.multinomial(self.probs.reshape(-1, self._num_events), sample_shape.numel(), True).T
        return drawn.reshape(self._extended_shape(sample_shape))

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        value = value.long().unsqueeze(-1)
        shape = Size(broadcast_shapes(value.shape[:-1], self.logits.shape[:-1]))
        logits = self.logits.expand(shape + self.logits.shape[-1:])
        return logits.gather(-1, value.expand(shape + (1,))).squeeze(-1)

    def entropy(self):
        logits = self.logits.clamp(min=finfo(self.logits.dtype).min)
        return -(logits * self.probs).sum(-1)

    def enumerate_support(self, expand=True):
        values = _core.arange(self._num_events, dtype=_core.int64, device=self._param.device).view([-1] + [1] * len(self._batch_shape))
        return values.expand(Size((-1,)) + self._batch_shape) if expand else values


class _OfCategorical(Distribution):
    """A distribution with the parameters of a categorical distribution."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    _inner = ("_categorical",)

    def _begin_with(self, validate_args, probs, logits):
        self._categorical = Categorical(probs, logits)
        Distribution.__init__(self, self._categorical.batch_shape, self._categorical.param_shape[-1:], validate_args=validate_args)

    probs = property(lambda self: self._categorical.probs, doc="The probabilities.")
    logits = property(lambda self: self._categorical.logits, doc="The logits.")
    _param = property(lambda self: self._categorical._param)
    param_shape = property(lambda self: self._categorical.param_shape, doc="The shape of the argument.")


class OneHotCategorical(_OfCategorical):
    """The distribution of a choice, as a vector with one 1."""

    support = constraints.one_hot
    has_enumerate_support = True

    def __init__(self, probs=None, logits=None, validate_args=None):
        self._begin_with(validate_args, probs, logits)

    mean = property(lambda self: self.probs, doc="The mean.")
    variance = property(lambda self: self.probs * (1 - self.probs), doc="The variance.")

    @property
    def mode(self):
        return _core.one_hot(self.probs.argmax(-1), self.event_shape[-1]).to(self.probs.dtype)

    @no_grad()
    def sample(self, sample_shape=Size()):
        return _core.one_hot(self._categorical.sample(sample_shape), self.event_shape[-1]).to(self.probs.dtype)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return self._categorical.log_prob(value.argmax(-1))

    def entropy(self):
        return self._categorical.entropy()

    def enumerate_support(self, expand=True):
        count = self.event_shape[0]
        values = _core.eye(count, dtype=self._param.dtype, device=self._param.device)
        values = values.view([count] + [1] * len(self.batch_shape) + [count])
        return values.expand(Size((count,)) + self.batch_shape + (count,)) if expand else values


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """Categorical choices as vectors. Gradients pass to the probabilities unchanged."""

    has_rsample = True

    def rsample(self, sample_shape=Size()):
        drawn, probs = self.sample(sample_shape), self.probs
        return drawn + (probs - probs.detach())


class Multinomial(_OfCategorical):
    """The distribution of the count of each category."""

    _kept = ("total_count",)

    def __init__(self, total_count=1, probs=None, logits=None, validate_args=None):
        if not isinstance(total_count, int):
            raise NotImplementedError("inhomogeneous total_count is not supported")
        self.total_count = total_count
        self._begin_with(validate_args, probs, logits)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self):
        return constraints.multinomial(self.total_count)

    mean = property(lambda self: self.probs * self.total_count, doc="The mean.")
    variance = property(lambda self: self.total_count * self.probs * (1 - self.probs), doc="The variance.")

    @no_grad()
    def sample(self, sample_shape=Size()):
        drawn = self._categorical.sample(Size((self.total_count,)) + Size(sample_shape))
        return _core.one_hot(drawn, self.event_shape[-1]).sum(0).to(self.probs.dtype)

    def entropy(self):
        n = _core.tensor(float(self.total_count), dtype=self.probs.dtype, device=self.probs.device)
        support = Binomial(self.total_count, probs=self.probs).enumerate_support(expand=False)[1:]
        weights = Binomial(self.total_count, probs=self.probs).log_prob(support).exp()
        return self.total_count * self._categorical.entropy() - (n + 1).lgamma() + (weights * (support + 1).lgamma()).sum([0, -1])

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        factor = (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1)
        return factor + (logits.masked_fill((value == 0) & (logits == -math.inf), 0.0) * value).sum(-1)


class _LogitRelaxedBernoulli(_OfProbability, Distribution):
    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.real
    has_rsample = True
    _kept = ("temperature",)

    def __init__(self, temperature, probs=None, logits=None, validate_args=None):
        self.temperature = temperature
        super().__init__(_set_probs_or_logits(self, probs, logits), validate_args=validate_args)

    def rsample(self, sample_shape=Size()):
        from .continuous import _uniform
        shape = self._extended_shape(sample_shape)
        probs = clamp_probs(self.probs.expand(shape))
        uniform = clamp_probs(_uniform(shape, probs))
        return (uniform.log() - (-uniform).log1p() + probs.log() - (-probs).log1p()) / self.temperature

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        difference = logits - value * self.temperature
        return _log(self.temperature) + difference - 2 * _core.softplus(difference)


def _log(value):
    return value.log() if isinstance(value, _core.Tensor) else math.log(value)


class ExpRelaxedCategorical(_OfCategorical):
    """The logarithms of relaxed choices (Gumbel softmax)."""

    support = constraints.real_vector
    has_rsample = True
    _kept = ("temperature",)

    def __init__(self, temperature, probs=None, logits=None, validate_args=None):
        self.temperature = temperature
        self._begin_with(validate_args, probs, logits)

    def rsample(self, sample_shape=Size()):
        from .continuous import _uniform
        shape = self._extended_shape(sample_shape)
        gumbels = -(-clamp_probs(_uniform(shape, self.logits)).log()).log()
        scores = (self.logits + gumbels) / self.temperature
        return scores - scores.logsumexp(dim=-1, keepdim=True)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        count = self._categorical._num_events
        logits, value = broadcast_all(self.logits, value)
        scale = math.lgamma(count) + (count - 1) * _log(self.temperature)
        score = logits - value * self.temperature
        return (score - score.logsumexp(dim=-1, keepdim=True)).sum(-1) + scale
