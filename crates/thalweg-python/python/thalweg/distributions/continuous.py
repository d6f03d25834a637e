"""Distributions over real numbers."""

import math

from .. import _core
from .._draws import _standard_gamma
from .._functions import as_tensor, finfo
from .._results import Size
from . import constraints
from ._probability import _OfProbability, _set_probs_or_logits
from .distribution import LOG_2PI, Distribution, ExponentialFamily
from .utils import broadcast_all, clamp_probs


def _uniform(shape, like):
    """Returns uniform numbers above 0 and below 1."""
    eps = finfo(like.dtype)
    return _core.rand(list(shape), dtype=like.dtype, device=like.device).clamp(min=eps.tiny, max=1 - eps.eps / 2)


class Normal(ExponentialFamily):
    """The normal distribution with a mean and a standard deviation."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(self, loc, scale, validate_args=None):
        self._begin(validate_args, loc=loc, scale=scale)

    mean = mode = property(lambda self: self.loc, doc="The mean.")
    stddev = property(lambda self: self.scale, doc="The standard deviation.")
    variance = property(lambda self: self.scale.pow(2), doc="The variance.")

    def rsample(self, sample_shape=Size()):
        shape = self._extended_shape(sample_shape)
        return self.loc + _core.randn(list(shape), dtype=self.loc.dtype, device=self.loc.device) * self.scale

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return -((value - self.loc) ** 2) / (2 * self.scale**2) - self.scale.log() - 0.5 * LOG_2PI

    def cdf(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return 0.5 * (1 + ((value - self.loc) / self.scale / math.sqrt(2)).erf())

    def icdf(self, value):
        return self.loc + self.scale * (2 * value - 1).erfinv() * math.sqrt(2)

    def entropy(self):
        return 0.5 + 0.5 * LOG_2PI + self.scale.log()

    @property
    def _natural_params(self):
        return self.loc / self.scale.pow(2), -0.5 * self.scale.pow(2).reciprocal()

    def _log_normalizer(self, x, y):
        return -0.25 * x.pow(2) / y + 0.5 * (-math.pi / y).log()


class Uniform(Distribution):
    """The uniform distribution between two bounds."""

    has_rsample = True

    def __init__(self, low, high, validate_args=None):
        self._begin(validate_args, low=low, high=high)

    arg_constraints = property(lambda self: {"low": constraints.less_than(self.high), "high": constraints.greater_than(self.low)},
                               doc="The sets of valid arguments, each of which bounds the other.")
    mean = property(lambda self: (self.high + self.low) / 2, doc="The mean.")
    mode = property(lambda self: float("nan") * self.high, doc="NaN: all values are as probable.")
    variance = property(lambda self: (self.high - self.low).pow(2) / 12, doc="The variance.")
    stddev = property(lambda self: (self.high - self.low) / 12**0.5, doc="The standard deviation.")

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self):
        return constraints.interval(self.low, self.high)

    def rsample(self, sample_shape=Size()):
        shape = self._extended_shape(sample_shape)
        return self.low + _core.rand(list(shape), dtype=self.low.dtype, device=self.low.device) * (self.high - self.low)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        is_within = self.low.le(value) & self.high.gt(value)
        return is_within.to(self.low.dtype).log() - (self.high - self.low).log()

    def cdf(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return ((value - self.low) / (self.high - self.low)).clamp(min=0, max=1)

    def icdf(self, value):
        return value * (self.high - self.low) + self.low

    def entropy(self):
        return (self.high - self.low).log()


class Exponential(ExponentialFamily):
    """The exponential distribution with a rate."""

    arg_constraints = {"rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(self, rate, validate_args=None):
        self._begin(validate_args, rate=rate)

    mean = stddev = property(lambda self: self.rate.reciprocal(), doc="The mean.")
    mode = property(lambda self: _core.zeros_like(self.rate), doc="Zero.")
    variance = property(lambda self: self.rate.pow(-2), doc="The variance.")

    def rsample(self, sample_shape=Size()):
        shape = self._extended_shape(sample_shape)
        return self.rate.new_empty(shape).exponential_() / self.rate

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return self.rate.log() - self.rate * value

    def cdf(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return 1 - (-self.rate * value).exp()

    def icdf(self, value):
        return -(-value).log1p() / self.rate

    def entropy(self):
        return 1.0 - self.rate.log()

    @property
    def _natural_params(self):
        return (-self.rate,)

    def _log_normalizer(self, x):
        return -(-x).log()


class Laplace(Distribution):
    """The Laplace distribution with a mean and a scale."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, loc, scale, validate_args=None):
        self._begin(validate_args, loc=loc, scale=scale)

    mean = mode = property(lambda self: self.loc, doc="The mean.")
    variance = property(lambda self: 2 * self.scale.pow(2), doc="The variance.")
    stddev = property(lambda self: 2**0.5 * self.scale, doc="The standard deviation.")

    def rsample(self, sample_shape=Size()):
        u = _uniform(self._extended_shape(sample_shape), self.loc) * 2 - 1
        return self.loc - self.scale * u.sign() * (-u.abs().clamp(max=1 - finfo(u.dtype).eps)).log1p()

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return -(2 * self.scale).log() - (value - self.loc).abs() / self.scale

    def cdf(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return 0.5 - 0.5 * (value - self.loc).sign() * (-(value - self.loc).abs() / self.scale).expm1()

    def icdf(self, value):
        term = value - 0.5
        return self.loc - self.scale * term.sign() * (-2 * term.abs()).log1p()

    def entropy(self):
        return 1 + (2 * self.scale).log()


class Cauchy(Distribution):
    """The Cauchy distribution with a median and a half width at half height."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, loc, scale, validate_args=None):
        self._begin(validate_args, loc=loc, scale=scale)

    mean = property(lambda self: _core.full_like(self.loc, math.nan), doc="NaN: there is none.")
    mode = property(lambda self: self.loc, doc="The median.")
    variance = property(lambda self: _core.full_like(self.loc, math.inf), doc="Infinite.")

    def rsample(self, sample_shape=Size()):
        shape = self._extended_shape(sample_shape)
        return self.loc + self.loc.new_empty(shape).cauchy_() * self.scale

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return -math.log(math.pi) - self.scale.log() - (((value - self.loc) / self.scale) ** 2).log1p()

    def cdf(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return ((value - self.loc) / self.scale).atan() / math.pi + 0.5

    def icdf(self, value):
        return (math.pi * (value - 0.5)).tan() * self.scale + self.loc

    def entropy(self):
        return math.log(4 * math.pi) + self.scale.log()


class Gamma(ExponentialFamily):
    """The gamma distribution with a shape and a rate."""

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(self, concentration, rate, validate_args=None):
        self._begin(validate_args, concentration=concentration, rate=rate)

    mean = property(lambda self: self.concentration / self.rate, doc="The mean.")
    mode = property(lambda self: ((self.concentration - 1) / self.rate).clamp(min=0), doc="The most probable value.")
    variance = property(lambda self: self.concentration / self.rate.pow(2), doc="The variance.")

    def rsample(self, sample_shape=Size()):
        shape = self._extended_shape(sample_shape)
        value = _standard_gamma(self.concentration.expand(shape)) / self.rate.expand(shape)
        return value.clamp(min=finfo(value.dtype).tiny)

    def log_prob(self, value):
        value = as_tensor(value, dtype=self.rate.dtype, device=self.rate.device)
        if self._validate_args:
            self._validate_sample(value)
        return (_core.xlogy(self.concentration, self.rate) + _core.xlogy(self.concentration - 1, value) - self.rate * value
                - self.concentration.lgamma())

    def cdf(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return _core.igamma(self.concentration, self.rate * value)

    def entropy(self):
        return (self.concentration - self.rate.log() + self.concentration.lgamma() + (1.0 - self.concentration) * self.concentration.digamma())

    @property
    def _natural_params(self):
        return self.concentration - 1, -self.rate

    def _log_normalizer(self, x, y):
        return (x + 1).lgamma() + (x + 1) * (-y.reciprocal()).log()


class Chi2(Gamma):
    """The distribution of a sum of squares of normal variables."""

    arg_constraints = {"df": constraints.positive}
    _tensors = {"concentration": 0, "rate": 0}

    def __init__(self, df, validate_args=None):
        super().__init__(0.5 * df, 0.5, validate_args=validate_args)

    df = property(lambda self: self.concentration * 2, doc="The number of squares.")


class Beta(ExponentialFamily):
    """The beta distribution with two shapes."""

    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support = constraints.unit_interval
    has_rsample = True
    _inner = ("_dirichlet",)

    def __init__(self, concentration1, concentration0, validate_args=None):
        from .multivariate import Dirichlet
        one, zero = broadcast_all(concentration1, concentration0)
        self._dirichlet = Dirichlet(_core.stack([one, zero], -1), validate_args=validate_args)
        super().__init__(self._dirichlet._batch_shape, validate_args=validate_args)

    concentration1 = property(lambda self: self._dirichlet.concentration[..., 0], doc="The shape at 1.")
    concentration0 = property(lambda self: self._dirichlet.concentration[..., 1], doc="The shape at 0.")
    mean = property(lambda self: self.concentration1 / (self.concentration1 + self.concentration0), doc="The mean.")
    mode = property(lambda self: self._dirichlet.mode[..., 0], doc="The most probable value.")

    @property
    def variance(self):
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total.pow(2) * (total + 1))

    def rsample(self, sample_shape=Size()):
        return self._dirichlet.rsample(sample_shape).select(-1, 0)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return self._dirichlet.log_prob(_core.stack([value, 1.0 - value], -1))

    def entropy(self):
        return self._dirichlet.entropy()


class StudentT(Distribution):
    """Student's distribution."""

    arg_constraints = {"df": constraints.positive, "loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True
    _inner = ("_chi2",)

    def __init__(self, df, loc=0.0, scale=1.0, validate_args=None):
        self._begin(validate_args, df=df, loc=loc, scale=scale)
        self._chi2 = Chi2(self.df)

    mean = property(lambda self: self.loc.masked_fill(self.df <= 1, math.nan), doc="The mean.")
    mode = property(lambda self: self.loc, doc="The most probable value.")

    @property
    def variance(self):
        found = self.scale.pow(2) * self.df / (self.df - 2).clamp_min(finfo(self.df.dtype).tiny)
        found = _core.where((self.df > 1) & (self.df <= 2), math.inf, found)
        return found.masked_fill(self.df <= 1, math.nan)

    def rsample(self, sample_shape=Size()):
        shape = self._extended_shape(sample_shape)
        x = _core.randn(list(shape), dtype=self.df.dtype, device=self.df.device)
        return self.loc + self.scale * x * (self._chi2.rsample(sample_shape) / self.df).rsqrt()

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        y = (value - self.loc) / self.scale
        z = self.scale.log() + 0.5 * self.df.log() + 0.5 * math.log(math.pi) + (0.5 * self.df).lgamma() - (0.5 * (self.df + 1)).lgamma()
        return -0.5 * (self.df + 1) * (y**2 / self.df).log1p() - z

    def entropy(self):
        half, more = 0.5 * self.df, 0.5 * (self.df + 1)
        logarithm = self.scale.log() + half.lgamma() + math.lgamma(0.5) - more.lgamma()
        return logarithm + more * (more.digamma() - half.digamma()) + 0.5 * self.df.log()


class FisherSnedecor(Distribution):
    """The distribution of the quotient of two sums of squares."""

    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive
    has_rsample = True
    _inner = ("_gamma1", "_gamma2")

    def __init__(self, df1, df2, validate_args=None):
        self._begin(validate_args, df1=df1, df2=df2)
        self._gamma1, self._gamma2 = Gamma(self.df1 * 0.5, self.df1), Gamma(self.df2 * 0.5, self.df2)

    @property
    def mean(self):
        return (self.df2 / (self.df2 - 2)).masked_fill(self.df2 <= 2, math.nan)

    @property
    def mode(self):
        found = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return found.masked_fill(self.df1 <= 2, math.nan)

    @property
    def variance(self):
        found = 2 * self.df2.pow(2) * (self.df1 + self.df2 - 2) / (self.df1 * (self.df2 - 2).pow(2) * (self.df2 - 4))
        return found.masked_fill(self.df2 <= 4, math.nan)

    def rsample(self, sample_shape=Size()):
        tiny = finfo(self.df1.dtype).tiny
        found = self._gamma1.rsample(sample_shape) / self._gamma2.rsample(sample_shape).clamp(min=tiny)
        return found.clamp(min=tiny)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        one, two, quotient = self.df1 * 0.5, self.df2 * 0.5, self.df1 / self.df2
        return ((one + two).lgamma() - one.lgamma() - two.lgamma() + one * quotient.log() + (one - 1) * value.log()
                - (one + two) * (quotient * value).log1p())


class VonMises(Distribution):
    """The von Mises distribution over angles."""

    arg_constraints = {"loc": constraints.real, "concentration": constraints.positive}
    support = constraints.real

    def __init__(self, loc, concentration, validate_args=None):
        self._begin(validate_args, loc=loc, concentration=concentration)

    mean = mode = property(lambda self: self.loc, doc="The angle in the middle.")

    @property
    def variance(self):
        return 1 - _core.special_i1e(self.concentration) / _core.special_i0e(self.concentration)

    def sample(self, sample_shape=Size()):
        """Returns angles, by rejection (Best and Fisher, 1979)."""
        from .._draws import _rejected
        shape = self._extended_shape(sample_shape)
        kappa = self.concentration.detach().double().expand(shape)
        tau = 1 + (1 + 4 * kappa**2).sqrt()
        rho = (tau - (2 * tau).sqrt()) / (2 * kappa)
        # For small concentrations the formula loses precision, so the limit is used.
        r = _core.where(kappa < 1e-5, 1 / kappa + kappa, (1 + rho**2) / (2 * rho))

        def propose():
            u = [_core.rand(list(shape), dtype=_core.float64, device=kappa.device) for _ in range(3)]
            z = (math.pi * u[0]).cos()
            f = ((1 + r * z) / (r + z)).clamp(-1, 1)
            c = kappa * (r - f)
            return (u[2] - 0.5).sign() * f.acos(), (c * (2 - c) - u[1] > 0) | ((c / u[1]).log() + 1 - c >= 0)
        angle = _rejected(propose) + math.pi + self.loc.detach().double()
        return (angle % (2 * math.pi) - math.pi).to(self.loc.dtype)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return (self.concentration * (value - self.loc).cos() - math.log(2 * math.pi) - _core.special_i0e(self.concentration).log()
                - self.concentration)


class ContinuousBernoulli(_OfProbability, ExponentialFamily):
    """The continuous distribution on [0, 1] whose density is proportional to the Bernoulli probability."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.unit_interval
    has_rsample = True
    _kept = ("_lims",)

    def __init__(self, probs=None, logits=None, lims=(0.499, 0.501), validate_args=None):
        given = _set_probs_or_logits(self, probs, logits)
        self._lims = lims
        super().__init__(given, validate_args=validate_args)
        if probs is not None:
            self.probs = self._param = clamp_probs(self.probs)

    def _is_outside(self):
        return (self.probs <= self._lims[0]) | (self.probs > self._lims[1])

    def _cut(self):
        return _core.where(self._is_outside(), self.probs, self._lims[0])

    def _log_norm(self):
        cut = self._cut()
        below, above = cut.clamp(max=0.5 - 1e-12), cut.clamp(min=0.5 + 1e-12)
        exact = ((-cut).log1p() - cut.log()).abs().log() - _core.where(cut <= 0.5, (-2 * below).log1p(), (2 * above - 1).log())
        x = self.probs - 0.5
        return _core.where(self._is_outside(), exact, math.log(2.0) + (4.0 / 3.0 + 104.0 / 45.0 * x**2) * x**2)

    @property
    def mean(self):
        cut = self._cut()
        exact = cut / (2 * cut - 1) + 1 / ((-cut).log1p() - cut.log())
        x = self.probs - 0.5
        return _core.where(self._is_outside(), exact, 0.5 + (1.0 / 3.0 + 16.0 / 45.0 * x**2) * x)

    @property
    def variance(self):
        cut = self._cut()
        exact = cut * (cut - 1) / (1 - 2 * cut) ** 2 + 1 / ((-cut).log1p() - cut.log()) ** 2
        x = (self.probs - 0.5) ** 2
        return _core.where(self._is_outside(), exact, 1.0 / 12.0 - (1.0 / 15.0 - 128.0 / 945.0 * x) * x)

    def rsample(self, sample_shape=Size()):
        return self.icdf(_uniform(self._extended_shape(sample_shape), self.probs))

    def icdf(self, value):
        cut = self._cut()
        exact = ((-cut + value * (2 * cut - 1)).log1p() - (-cut).log1p()) / (cut.log() - (-cut).log1p())
        return _core.where(self._is_outside(), exact, value)

    def cdf(self, value):
        if self._validate_args:
            self._validate_sample(value)
        cut = self._cut()
        exact = (cut**value * (1 - cut) ** (1 - value) + cut - 1) / (2 * cut - 1)
        inner = _core.where(self._is_outside(), exact, value)
        return _core.where(value <= 0, 0.0, _core.where(value >= 1, 1.0, inner))

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return -_binary_cross_entropy(self.logits, value) + self._log_norm()

    def entropy(self):
        log_p, log_q = self.probs.log(), (-self.probs).log1p()
        return self.mean * (log_q - log_p) - self._log_norm() - log_q


def _binary_cross_entropy(logits, value):
    from ..nn.functional import binary_cross_entropy_with_logits
    from .._functions import broadcast_tensors
    logits, value = broadcast_tensors(logits, value)
    return binary_cross_entropy_with_logits(logits, value, reduction="none")


class GeneralizedPareto(Distribution):
    """The generalized Pareto distribution."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive, "concentration": constraints.real}
    has_rsample = True

    def __init__(self, loc, scale, concentration, validate_args=None):
        self._begin(validate_args, loc=loc, scale=scale, concentration=concentration)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self):
        upper = _core.where(self.concentration < 0, self.loc - self.scale / self.concentration, math.inf)
        return constraints.interval(self.loc, upper)

    def _is_zero(self):
        return self.concentration.abs() < 1e-8

    def _safe(self):
        return _core.where(self._is_zero(), 1.0, self.concentration)

    def rsample(self, sample_shape=Size()):
        return self.icdf(_uniform(self._extended_shape(sample_shape), self.loc))

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        z, k = (value - self.loc) / self.scale, self._safe()
        return _core.where(self._is_zero(), -z, -(1 / k + 1) * (k * z).log1p()) - self.scale.log()

    def log_survival_function(self, value):
        """Returns the logarithms of the probabilities of values above those given."""
        if self._validate_args:
            self._validate_sample(value)
        z, k = (value - self.loc) / self.scale, self._safe()
        return _core.where(self._is_zero(), -z, -(k * z).log1p() / k)

    def log_cdf(self, value):
        """Returns the logarithms of the probabilities of values up to those given."""
        return (-self.log_survival_function(value).exp()).log1p()

    def cdf(self, value):
        return self.log_cdf(value).exp()

    def icdf(self, value):
        k, log_rest = self._safe(), (-value).log1p()
        return self.loc + self.scale * _core.where(self._is_zero(), -log_rest, (-k * log_rest).expm1() / k)

    @property
    def mean(self):
        k = self.concentration
        return _core.where(k < 1, self.loc + self.scale / (1 - k.masked_fill(k >= 1, 0.0)), math.nan)

    @property
    def variance(self):
        k, is_finite = self.concentration, self.concentration < 0.5
        safe = k.masked_fill(~is_finite, 0.0)
        return _core.where(is_finite, self.scale**2 / ((1 - safe) ** 2 * (1 - 2 * safe)), math.nan)

    mode = property(lambda self: self.loc, doc="The most probable value.")

    def entropy(self):
        return self.scale.log() + self.concentration + 1
