"""Distributions that are composed of others."""

import math

from .. import _core
from .._functions import finfo
from .._results import Size
from ..autograd import no_grad
from . import constraints
from .continuous import Cauchy, Exponential, Gamma, Normal, Uniform
from .discrete import Categorical, ExpRelaxedCategorical, _LogitRelaxedBernoulli
from .distribution import Distribution
from .transforms import (
    AffineTransform, ComposeTransform, ExpTransform, PowerTransform, SigmoidTransform, StickBreakingTransform, Transform)
from .utils import _sum_rightmost, broadcast_all, euler_constant


class Independent(Distribution):
    """A distribution that treats the last batch dimensions as those of one event."""

    arg_constraints = {}

    def __init__(self, base_distribution, reinterpreted_batch_ndims, validate_args=None):
        count = reinterpreted_batch_ndims
        if count > len(base_distribution.batch_shape):
            raise ValueError("Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), actual "
                             f"{count} vs {len(base_distribution.batch_shape)}")
        shape = base_distribution.batch_shape + base_distribution.event_shape
        cut = len(base_distribution.batch_shape) - count
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, count
        super().__init__(shape[:cut], shape[cut:], validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        made, batch_shape = self._blank(_instance), Size(batch_shape)
        made.base_dist = self.base_dist.expand(batch_shape + self.event_shape[:self.reinterpreted_batch_ndims])
        made.reinterpreted_batch_ndims = self.reinterpreted_batch_ndims
        return self._expand_into(made, batch_shape)

    has_rsample = property(lambda self: self.base_dist.has_rsample, doc="Whether gradients flow through samples.")
    mean = property(lambda self: self.base_dist.mean, doc="The mean.")
    mode = property(lambda self: self.base_dist.mode, doc="The most probable event.")
    variance = property(lambda self: self.base_dist.variance, doc="The variance.")

    @property
    def has_enumerate_support(self):
        return self.reinterpreted_batch_ndims == 0 and self.base_dist.has_enumerate_support

    @constraints.dependent_property
    def support(self):
        found = self.base_dist.support
        return constraints.independent(found, self.reinterpreted_batch_ndims) if self.reinterpreted_batch_ndims else found

    def sample(self, sample_shape=Size()):
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape=Size()):
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value):
        return _sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self):
        return _sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def enumerate_support(self, expand=True):
        if self.reinterpreted_batch_ndims > 0:
            raise NotImplementedError("Enumeration over cartesian product is not implemented")
        return self.base_dist.enumerate_support(expand=expand)

    def __repr__(self):
        return f"{self.__class__.__name__}({self.base_dist}, {self.reinterpreted_batch_ndims})"


class TransformedDistribution(Distribution):
    """The distribution of a function of samples of another distribution."""

    arg_constraints = {}

    def __init__(self, base_distribution, transforms, validate_args=None):
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        if not all(isinstance(transform, Transform) for transform in self.transforms):
            raise ValueError(f"transforms must be a Transform or a list of Transforms, but was {transforms}")
        base_shape = base_distribution.batch_shape + base_distribution.event_shape
        base_dims = len(base_distribution.event_shape)
        transform = ComposeTransform(self.transforms)
        if len(base_shape) < transform.domain.event_dim:
            raise ValueError(f"base_distribution needs to have shape with size at least {transform.domain.event_dim}, but got {base_shape}.")
        forward_shape = Size(transform.forward_shape(base_shape))
        base_distribution = base_distribution.expand(Size(transform.inverse_shape(forward_shape))[:len(base_shape) - base_dims])
        extra = transform.domain.event_dim - base_dims
        self.base_dist = Independent(base_distribution, extra) if extra > 0 else base_distribution
        change = transform.codomain.event_dim - transform.domain.event_dim
        cut = len(forward_shape) - max(transform.codomain.event_dim, base_dims + change)
        super().__init__(forward_shape[:cut], forward_shape[cut:], validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        made, batch_shape = self._blank(_instance), Size(batch_shape)
        made.transforms = self.transforms
        shape = Size(ComposeTransform(self.transforms).inverse_shape(batch_shape + self.event_shape))
        made.base_dist = self.base_dist.expand(shape[:len(shape) - len(self.base_dist.event_shape)])
        return self._expand_into(made, batch_shape)

    has_rsample = property(lambda self: self.base_dist.has_rsample, doc="Whether gradients flow through samples.")

    @constraints.dependent_property(is_discrete=False)
    def support(self):
        if not self.transforms:
            return self.base_dist.support
        found = self.transforms[-1].codomain
        missing = len(self.event_shape) - found.event_dim
        return constraints.independent(found, missing) if missing > 0 else found

    def sample(self, sample_shape=Size()):
        with no_grad():
            return self._transformed(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape=Size()):
        return self._transformed(self.base_dist.rsample(sample_shape))

    def _transformed(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        dim, found, y = len(self.event_shape), 0.0, value
        for transform in reversed(self.transforms):
            x = transform.inv(y)
            dim += transform.domain.event_dim - transform.codomain.event_dim
            found = found - _sum_rightmost(transform.log_abs_det_jacobian(x, y), dim - transform.domain.event_dim)
            y = x
        return found + _sum_rightmost(self.base_dist.log_prob(y), dim - len(self.base_dist.event_shape))

    def _monotone(self, value):
        """Returns cumulative probabilities, taken from above where the function is decreasing."""
        sign = 1
        for transform in self.transforms:
            sign = sign * transform.sign
        return value if isinstance(sign, int) and sign == 1 else sign * (value - 0.5) + 0.5

    def cdf(self, value):
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        if self._validate_args:
            self.base_dist._validate_sample(value)
        return self._monotone(self.base_dist.cdf(value))

    def icdf(self, value):
        return self._transformed(self.base_dist.icdf(self._monotone(value)))


class LogNormal(TransformedDistribution):
    """The distribution of the exponential of a normal variable."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.positive

    def __init__(self, loc, scale, validate_args=None):
        super().__init__(Normal(loc, scale, validate_args=validate_args), ExpTransform(), validate_args=validate_args)

    loc = property(lambda self: self.base_dist.loc, doc="The mean of the logarithm.")
    scale = property(lambda self: self.base_dist.scale, doc="The standard deviation of the logarithm.")
    mean = property(lambda self: (self.loc + self.scale.pow(2) / 2).exp(), doc="The mean.")
    mode = property(lambda self: (self.loc - self.scale.square()).exp(), doc="The most probable value.")

    @property
    def variance(self):
        squared = self.scale.pow(2)
        return squared.expm1() * (2 * self.loc + squared).exp()

    def entropy(self):
        return self.base_dist.entropy() + self.loc


class HalfNormal(TransformedDistribution):
    """The distribution of the absolute value of a normal variable with mean 0."""

    arg_constraints = {"scale": constraints.positive}
    support = constraints.nonnegative
    _base = Normal

    def __init__(self, scale, validate_args=None):
        from .transforms import AbsTransform
        super().__init__(self._base(0, scale, validate_args=False), AbsTransform(), validate_args=validate_args)

    scale = property(lambda self: self.base_dist.scale, doc="The scale.")
    mean = property(lambda self: self.scale * math.sqrt(2 / math.pi), doc="The mean.")
    mode = property(lambda self: _core.zeros_like(self.scale), doc="Zero.")
    variance = property(lambda self: self.scale.pow(2) * (1 - 2 / math.pi), doc="The variance.")

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return _core.where(value >= 0, self.base_dist.log_prob(value) + math.log(2), -math.inf)

    def cdf(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return 2 * self.base_dist.cdf(value) - 1

    def icdf(self, prob):
        return self.base_dist.icdf((prob + 1) / 2)

    def entropy(self):
        return self.base_dist.entropy() - math.log(2)


class HalfCauchy(HalfNormal):
    """The distribution of the absolute value of a Cauchy variable with median 0."""

    _base = Cauchy
    mean = property(lambda self: _core.full_like(self.scale, math.inf), doc="Infinite.")
    variance = property(lambda self: self.base_dist.variance, doc="Infinite.")


class Gumbel(TransformedDistribution):
    """The Gumbel distribution, of maxima."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real

    def __init__(self, loc, scale, validate_args=None):
        self.loc, self.scale = broadcast_all(loc, scale)
        limits = finfo(self.loc.dtype)
        base = Uniform(_core.full_like(self.loc, limits.tiny), _core.full_like(self.loc, 1 - limits.eps), validate_args=validate_args)
        transforms = [ExpTransform().inv, AffineTransform(0, -_core.ones_like(self.scale)), ExpTransform().inv, AffineTransform(self.loc, -self.scale)]
        super().__init__(base, transforms, validate_args=validate_args)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        y = (self.loc - value) / self.scale
        return y - y.exp() - self.scale.log()

    mean = property(lambda self: self.loc + self.scale * euler_constant, doc="The mean.")
    mode = property(lambda self: self.loc, doc="The most probable value.")
    stddev = property(lambda self: math.pi / math.sqrt(6) * self.scale, doc="The standard deviation.")
    variance = property(lambda self: self.stddev.pow(2), doc="The variance.")

    def entropy(self):
        return self.scale.log() + (1 + euler_constant)


class Kumaraswamy(TransformedDistribution):
    """The Kumaraswamy distribution on [0, 1]."""

    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support = constraints.unit_interval

    def __init__(self, concentration1, concentration0, validate_args=None):
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        base = Uniform(_core.zeros_like(self.concentration0), _core.ones_like(self.concentration0), validate_args=validate_args)
        transforms = [PowerTransform(self.concentration0.reciprocal()), AffineTransform(1.0, -1.0), PowerTransform(self.concentration1.reciprocal())]
        super().__init__(base, transforms, validate_args=validate_args)

    def _moment(self, order):
        argument = 1 + order / self.concentration1
        return (argument.lgamma() + self.concentration0.lgamma() - (argument + self.concentration0).lgamma()).exp() * self.concentration0

    mean = property(lambda self: self._moment(1), doc="The mean.")
    variance = property(lambda self: self._moment(2) - self.mean.pow(2), doc="The variance.")

    @property
    def mode(self):
        one, zero = self.concentration1, self.concentration0
        found = ((one - 1) / (one * zero - 1)).pow(one.reciprocal())
        return found.masked_fill((one < 1) | (zero < 1), math.nan)

    def entropy(self):
        one, zero = 1 - self.concentration1.reciprocal(), 1 - self.concentration0.reciprocal()
        harmonic = (self.concentration0 + 1).digamma() + euler_constant
        return zero + one * harmonic - self.concentration1.log() - self.concentration0.log()


class Pareto(TransformedDistribution):
    """The Pareto distribution with a minimum and an exponent."""

    arg_constraints = {"alpha": constraints.positive, "scale": constraints.positive}

    def __init__(self, scale, alpha, validate_args=None):
        self.scale, self.alpha = broadcast_all(scale, alpha)
        base = Exponential(self.alpha, validate_args=validate_args)
        super().__init__(base, [ExpTransform(), AffineTransform(loc=0, scale=self.scale)], validate_args=validate_args)

    @property
    def mean(self):
        a = self.alpha.clamp(min=1)
        return a * self.scale / (a - 1)

    mode = property(lambda self: self.scale, doc="The smallest value.")

    @property
    def variance(self):
        a = self.alpha.clamp(min=2)
        return self.scale.pow(2) * a / ((a - 1).pow(2) * (a - 2))

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self):
        return constraints.greater_than_eq(self.scale)

    def entropy(self):
        return (self.scale / self.alpha).log() + (1 + self.alpha.reciprocal())


class Weibull(TransformedDistribution):
    """The Weibull distribution with a scale and a shape."""

    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}
    support = constraints.positive
    _tensors = {"concentration_reciprocal": 0}

    def __init__(self, scale, concentration, validate_args=None):
        self.scale, self.concentration = broadcast_all(scale, concentration)
        self.concentration_reciprocal = self.concentration.reciprocal()
        base = Exponential(_core.ones_like(self.scale), validate_args=validate_args)
        transforms = [PowerTransform(exponent=self.concentration_reciprocal), AffineTransform(loc=0, scale=self.scale)]
        super().__init__(base, transforms, validate_args=validate_args)

    mean = property(lambda self: self.scale * (1 + self.concentration_reciprocal).lgamma().exp(), doc="The mean.")
    mode = property(lambda self: self.scale * ((self.concentration - 1) / self.concentration) ** self.concentration.reciprocal(),
                    doc="The most probable value.")

    @property
    def variance(self):
        inverse = self.concentration_reciprocal
        return self.scale.pow(2) * ((1 + 2 * inverse).lgamma().exp() - (2 * (1 + inverse).lgamma()).exp())

    def entropy(self):
        return euler_constant * (1 - self.concentration_reciprocal) + (self.scale * self.concentration_reciprocal).log() + 1


class InverseGamma(TransformedDistribution):
    """The distribution of the inverse of a gamma variable."""

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.positive

    def __init__(self, concentration, rate, validate_args=None):
        base = Gamma(concentration, rate, validate_args=validate_args)
        super().__init__(base, PowerTransform(-base.rate.new_ones(())), validate_args=validate_args)

    concentration = property(lambda self: self.base_dist.concentration, doc="The shape.")
    rate = property(lambda self: self.base_dist.rate, doc="The scale.")
    mode = property(lambda self: self.rate / (self.concentration + 1), doc="The most probable value.")

    @property
    def mean(self):
        return _core.where(self.concentration > 1, self.rate / (self.concentration - 1), math.inf)

    @property
    def variance(self):
        a = self.concentration
        return _core.where(a > 2, self.rate.square() / ((a - 1).square() * (a - 2)), math.inf)

    def entropy(self):
        a = self.concentration
        return a + self.rate.log() + a.lgamma() - (1 + a) * a.digamma()


class LogisticNormal(TransformedDistribution):
    """The distribution of normal vectors that are mapped to vectors with sum 1."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.simplex

    def __init__(self, loc, scale, validate_args=None):
        base = Normal(loc, scale, validate_args=validate_args)
        super().__init__(base if base.batch_shape else base.expand([1]), StickBreakingTransform(), validate_args=validate_args)

    loc = property(lambda self: self.base_dist.base_dist.loc, doc="The mean of the vectors.")
    scale = property(lambda self: self.base_dist.base_dist.scale, doc="The standard deviation of the vectors.")


class RelaxedBernoulli(TransformedDistribution):
    """A Bernoulli variable, relaxed to a number between 0 and 1."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.unit_interval

    def __init__(self, temperature, probs=None, logits=None, validate_args=None):
        super().__init__(_LogitRelaxedBernoulli(temperature, probs, logits), SigmoidTransform(), validate_args=validate_args)

    temperature = property(lambda self: self.base_dist.temperature, doc="The temperature.")
    logits = property(lambda self: self.base_dist.logits, doc="The logits.")
    probs = property(lambda self: self.base_dist.probs, doc="The probabilities.")


class RelaxedOneHotCategorical(TransformedDistribution):
    """A categorical choice, relaxed to a vector with sum 1."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.simplex

    def __init__(self, temperature, probs=None, logits=None, validate_args=None):
        super().__init__(ExpRelaxedCategorical(temperature, probs, logits, validate_args=validate_args), ExpTransform(), validate_args=validate_args)

    temperature = property(lambda self: self.base_dist.temperature, doc="The temperature.")
    logits = property(lambda self: self.base_dist.logits, doc="The logits.")
    probs = property(lambda self: self.base_dist.probs, doc="The probabilities.")


class MixtureSameFamily(Distribution):
    """A mixture of the distributions along the last batch dimension."""

    arg_constraints = {}

    def __init__(self, mixture_distribution, component_distribution, validate_args=None):
        if not isinstance(mixture_distribution, Categorical):
            raise ValueError(" The Mixture distribution needs to be an  instance of torch.distributions.Categorical")
        if not isinstance(component_distribution, Distribution):
            raise ValueError("The Component distribution need to be an instance of torch.distributions.Distribution")
        batch = component_distribution.batch_shape
        for mine, theirs in zip(reversed(mixture_distribution.batch_shape), reversed(batch[:-1])):
            if mine != 1 and theirs != 1 and mine != theirs:
                raise ValueError(f"`mixture_distribution.batch_shape` ({mixture_distribution.batch_shape}) is not compatible with "
                                 f"`component_distribution.batch_shape`({batch[:-1]})")
        if mixture_distribution.logits.shape[-1] != batch[-1]:
            raise ValueError(f"`mixture_distribution component` ({mixture_distribution.logits.shape[-1]}) does not equal "
                             f"`component_distribution.batch_shape[-1]` ({batch[-1]})")
        self._mixture_distribution, self._component_distribution = mixture_distribution, component_distribution
        self._num_component, self._event_ndims = batch[-1], len(component_distribution.event_shape)
        super().__init__(batch[:-1], component_distribution.event_shape, validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        made, batch_shape = self._blank(_instance), Size(batch_shape)
        made._component_distribution = self._component_distribution.expand(batch_shape + (self._num_component,))
        made._mixture_distribution = self._mixture_distribution.expand(batch_shape)
        made._num_component, made._event_ndims = self._num_component, self._event_ndims
        return self._expand_into(made, batch_shape)

    @constraints.dependent_property
    def support(self):
        return constraints.MixtureSameFamilyConstraint(self._component_distribution.support)

    mixture_distribution = property(lambda self: self._mixture_distribution, doc="The distribution of the choice.")
    component_distribution = property(lambda self: self._component_distribution, doc="The distributions that are chosen from.")

    def _probs(self):
        probs = self.mixture_distribution.probs
        return probs.reshape(probs.shape + (1,) * self._event_ndims)

    @property
    def mean(self):
        return (self._probs() * self.component_distribution.mean).sum(-1 - self._event_ndims)

    @property
    def variance(self):
        inner = (self._probs() * self.component_distribution.variance).sum(-1 - self._event_ndims)
        distance = self.component_distribution.mean - self.mean.unsqueeze(-1 - self._event_ndims)
        return inner + (self._probs() * distance.pow(2)).sum(-1 - self._event_ndims)

    def cdf(self, x):
        found = self.component_distribution.cdf(x.unsqueeze(-1 - self._event_ndims))
        return (found * self.mixture_distribution.probs).sum(-1)

    def log_prob(self, x):
        if self._validate_args:
            self._validate_sample(x)
        found = self.component_distribution.log_prob(x.unsqueeze(-1 - self._event_ndims))
        return (found + self.mixture_distribution.logits.log_softmax(-1)).logsumexp(-1)

    @no_grad()
    def sample(self, sample_shape=Size()):
        sample_shape = Size(sample_shape)
        dim = len(sample_shape) + len(self.batch_shape)
        choice = self.mixture_distribution.sample(sample_shape)
        drawn = self.component_distribution.sample(sample_shape)
        places = choice.reshape(choice.shape + (1,) * (self._event_ndims + 1)).expand(choice.shape + (1,) + self.event_shape)
        return drawn.gather(dim, places).squeeze(dim)

    def __repr__(self):
        return f"MixtureSameFamily(\n  {self.mixture_distribution},\n  {self.component_distribution})"
