"""Kullback-Leibler divergences (`torch.distributions.kl`)."""

import functools
import math

from .._left_out import attributes as _attributes
from .. import _core
from . import composed as c
from . import continuous as n
from . import discrete as d
from . import multivariate as m
from .distribution import ExponentialFamily
from .utils import _sum_rightmost

_REGISTRY = {}


def register_kl(type_p, type_q):
    """Returns a decorator that registers a function for the divergence of two kinds of distributions."""
    for kind in (type_p, type_q):
        if not isinstance(kind, type):
            raise TypeError(f"Expected type_p and type_q to be Distribution subclasses but got {kind}")

    def decorator(function):
        _REGISTRY[type_p, type_q] = function
        _found.cache_clear()
        return function
    return decorator


@functools.lru_cache(None)
def _found(type_p, type_q):
    """Returns the function that is registered for the closest base classes."""
    fitting = [pair for pair in _REGISTRY if issubclass(type_p, pair[0]) and issubclass(type_q, pair[1])]
    if not fitting:
        return None
    return _REGISTRY[min(fitting, key=lambda pair: (type_p.__mro__.index(pair[0]) + type_q.__mro__.index(pair[1])))]


def kl_divergence(p, q):
    """Returns the divergence of a distribution from another."""
    function = _found(type(p), type(q))
    if function is None:
        raise NotImplementedError(f"No KL(p || q) is implemented for p type {p.__class__.__name__} and q type {q.__class__.__name__}")
    return function(p, q)




def _of(type_p, type_q=None):
    return register_kl(type_p, type_q or type_p)


@_of(n.Normal)
def _normal(p, q):
    ratio, distance = (p.scale / q.scale).pow(2), ((p.loc - q.loc) / q.scale).pow(2)
    return 0.5 * (ratio + distance - 1 - ratio.log())


@_of(d.Bernoulli)
def _bernoulli(p, q):
    succeeded = p.probs * (_core.softplus(-q.logits) - _core.softplus(-p.logits))
    failed = (1 - p.probs) * (_core.softplus(q.logits) - _core.softplus(p.logits))
    succeeded = succeeded.masked_fill(q.probs == 0, math.inf).masked_fill(p.probs == 0, 0.0)
    failed = failed.masked_fill(q.probs == 1, math.inf).masked_fill(p.probs == 1, 0.0)
    return succeeded + failed


@_of(d.Binomial)
def _binomial(p, q):
    if bool((p.total_count < q.total_count).any()):
        raise NotImplementedError("KL between Binomials where q.total_count > p.total_count is not implemented")
    found = p.total_count * (p.probs * (p.logits - q.logits) + (-p.probs).log1p() - (-q.probs).log1p())
    return found.masked_fill(p.total_count > q.total_count, math.inf)


@_of(d.Categorical)
def _categorical(p, q):
    found = p.probs * (p.logits - q.logits)
    found = _core.where((q.probs == 0).expand(found.shape), math.inf, found)
    return _core.where((p.probs == 0).expand(found.shape), 0.0, found).sum(-1)


@_of(d.OneHotCategorical)
def _one_hot(p, q):
    return _categorical(p._categorical, q._categorical)


@_of(d.Geometric)
def _geometric(p, q):
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@_of(d.Poisson)
def _poisson(p, q):
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@_of(n.Exponential)
def _exponential(p, q):
    ratio = q.rate / p.rate
    return -ratio.log() + ratio - 1


@_of(n.Gamma)
def _gamma(p, q):
    return (q.concentration * (p.rate / q.rate).log() + q.concentration.lgamma() - p.concentration.lgamma()
            + (p.concentration - q.concentration) * p.concentration.digamma() + (q.rate - p.rate) * (p.concentration / p.rate))


@_of(n.Beta)
def _beta(p, q):
    return _dirichlet(p._dirichlet, q._dirichlet)


@_of(m.Dirichlet)
def _dirichlet(p, q):
    total = p.concentration.sum(-1)
    return (total.lgamma() - q.concentration.sum(-1).lgamma() - (p.concentration.lgamma() - q.concentration.lgamma()).sum(-1)
            + ((p.concentration - q.concentration) * (p.concentration.digamma() - total.digamma().unsqueeze(-1))).sum(-1))


@_of(n.Laplace)
def _laplace(p, q):
    ratio, distance = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + distance / q.scale + ratio * (-distance / p.scale).exp() - 1


@_of(n.Cauchy)
def _cauchy(p, q):
    return ((p.scale + q.scale).pow(2) + (p.loc - q.loc).pow(2)).log() - (4 * p.scale * q.scale).log()


@_of(n.Uniform)
def _uniform(p, q):
    found = ((q.high - q.low) / (p.high - p.low)).log()
    return found.masked_fill((q.low > p.low) | (q.high < p.high), math.inf)


@_of(n.ContinuousBernoulli)
def _continuous_bernoulli(p, q):
    return p.mean * (p.logits - q.logits) + p._log_norm() + (-p.probs).log1p() - q._log_norm() - (-q.probs).log1p()


@_of(c.Gumbel)
def _gumbel(p, q):
    ratio, mine, theirs = p.scale / q.scale, q.loc / q.scale, p.loc / q.scale
    return -ratio.log() - mine + theirs + ratio * c.euler_constant + (mine + (1 + ratio).lgamma() - theirs).exp() - (1 + c.euler_constant)


@_of(c.HalfNormal)
def _half_normal(p, q):
    if type(p) is not type(q):
        raise NotImplementedError
    return kl_divergence(p.base_dist, q.base_dist)


@_of(c.LogNormal)
def _log_normal(p, q):
    return _normal(p.base_dist, q.base_dist)


@_of(c.Pareto)
def _pareto(p, q):
    ratio = p.scale / q.scale
    found = q.alpha * ratio.log() + p.alpha.log() - q.alpha.log() + q.alpha / p.alpha - 1
    return found.masked_fill(p.scale < q.scale, math.inf)


@_of(m.MultivariateNormal)
def _multivariate_normal(p, q):
    return _of_factors(p, q, p._unbroadcasted_scale_tril, q._unbroadcasted_scale_tril)


@_of(m.LowRankMultivariateNormal)
@_of(m.LowRankMultivariateNormal, m.MultivariateNormal)
@_of(m.MultivariateNormal, m.LowRankMultivariateNormal)
def _low_rank(p, q):
    return _of_factors(p, q, p.scale_tril, q.scale_tril)


def _of_factors(p, q, mine, theirs):
    if p.event_shape != q.event_shape:
        raise ValueError("KL-divergence between two multivariate normals with different event shapes cannot be computed")
    shape = c.Size(m.broadcast_shapes(p.batch_shape, q.batch_shape))
    size = p.event_shape[0]
    mine, theirs = (factor.expand(shape + (size, size)) for factor in (mine, theirs))
    inner = _core.linalg_solve_triangular(theirs, mine, upper=False).pow(2).sum([-2, -1])
    squared = m._mahalanobis(theirs, (q.loc - p.loc).expand(shape + (size,)))
    return m._half_log_det(theirs) - m._half_log_det(mine) + 0.5 * (inner + squared - size)


@_of(m.Wishart)
def _wishart(p, q):
    size, mine, theirs = p._event_shape[-1], p._unbroadcasted_scale_tril, q._unbroadcasted_scale_tril
    shape = c.Size(m.broadcast_shapes(mine.shape[:-2], theirs.shape[:-2])) + mine.shape[-2:]
    trace = _core.linalg_solve_triangular(theirs.expand(shape), mine.expand(shape), upper=False).pow(2).sum([-2, -1])
    places = _core.arange(size, dtype=p.df.dtype, device=p.df.device)
    digammas = (0.5 * (p.df.unsqueeze(-1) - places)).digamma().sum(-1)
    return (q.df * (m._half_log_det(theirs) - m._half_log_det(mine)) + p.df / 2 * (trace - size) + (p.df - q.df) / 2 * digammas
            + _core.mvlgamma(q.df / 2, size) - _core.mvlgamma(p.df / 2, size))


@_of(c.Independent)
def _independent(p, q):
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError
    return _sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


@_of(c.TransformedDistribution)
def _transformed(p, q):
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError
    extra = len(p.event_shape) - len(p.base_dist.event_shape)
    return _sum_rightmost(kl_divergence(p.base_dist, q.base_dist), extra)


@_of(ExponentialFamily)
def _exponential_family(p, q):
    """Returns the divergence from derivatives of the log normalizer (Bregman divergence)."""
    from ..autograd import enable_grad, grad
    if type(p) is not type(q):
        raise NotImplementedError("The cross KL-divergence between different exponential families cannot be computed using Bregman divergences")
    with enable_grad():
        mine = [value.detach().requires_grad_() for value in p._natural_params]
        normalizer = p._log_normalizer(*mine)
        gradients = grad(normalizer.sum(), mine, create_graph=True)
    result = q._log_normalizer(*q._natural_params) - normalizer
    for one, other, gradient in zip(mine, q._natural_params, gradients):
        result = result - _sum_rightmost((other - one) * gradient, len(q.event_shape))
    return result


# ---- Of different kinds ----------------------------------------------------------------------------------------------


@_of(n.Normal, n.Laplace)
def _normal_laplace(p, q):
    distance = p.loc - q.loc
    scaled = distance / p.scale
    folded = p.scale * math.sqrt(2 / math.pi) * (-0.5 * scaled.pow(2)).exp() + distance * (math.sqrt(0.5) * scaled).erf()
    return (2 * q.scale).log() - p.scale.log() - 0.5 * (math.log(2 * math.pi) + 1) + folded / q.scale


@_of(n.Laplace, n.Normal)
def _laplace_normal(p, q):
    variance = q.scale.pow(2)
    return (0.5 * (2 * p.scale.pow(2) / variance).reciprocal().log() + 0.5 * math.log(math.pi) + p.scale.pow(2) / variance
            + (p.loc - q.loc).pow(2) / (2 * variance) - 1)


def _of_each(kinds, type_q):
    """Returns a decorator that registers a function for the divergences of several kinds from one."""
    def decorator(function):
        for kind in kinds:
            register_kl(kind, type_q)(function)
        return function
    return decorator


def _outside(p, low, high):
    """Returns whether a distribution has values outside of an interval."""
    mine = (p.low, p.high) if isinstance(p, n.Uniform) else (0.0, 1.0)
    return _core.logical_or(_tensor(p, mine[0] < low), _tensor(p, mine[1] > high))


def _tensor(p, value):
    return value if isinstance(value, _core.Tensor) else _core.full(list(p.batch_shape), value, dtype=getattr(_core, "bool"))


@_of_each((n.Beta, n.ContinuousBernoulli, n.Exponential, n.Gamma, n.Uniform, c.Gumbel, c.Pareto), n.Normal)
def _to_normal(p, q):
    squared = p.variance + (p.mean - q.loc).pow(2)
    return -p.entropy() + 0.5 * math.log(2 * math.pi) + q.scale.log() + 0.5 * squared / q.scale.pow(2)


@_of_each((n.Beta, n.ContinuousBernoulli, n.Gamma, n.Uniform, c.Pareto), n.Exponential)
def _to_exponential(p, q):
    found = -p.entropy() - q.rate.log() + q.rate * p.mean
    return found.masked_fill(p.low < 0, math.inf) if isinstance(p, n.Uniform) else found


def _mean_of_logarithm(p):
    if isinstance(p, n.Beta):
        return p.concentration1.digamma() - (p.concentration1 + p.concentration0).digamma()
    if isinstance(p, c.Pareto):
        return p.scale.log() + p.alpha.reciprocal()
    if isinstance(p, n.Exponential):
        return -p.rate.log() - c.euler_constant
    return (_core.xlogy(p.high, p.high) - _core.xlogy(p.low, p.low)) / (p.high - p.low) - 1


@_of_each((n.Beta, n.Exponential, n.Uniform, c.Pareto), n.Gamma)
def _to_gamma(p, q):
    found = (-p.entropy() + q.concentration.lgamma() - q.concentration * q.rate.log() - (q.concentration - 1) * _mean_of_logarithm(p)
             + q.rate * p.mean)
    return found.masked_fill(p.low < 0, math.inf) if isinstance(p, n.Uniform) else found


@_of(n.Uniform, c.Pareto)
def _uniform_pareto(p, q):
    found = -p.entropy() - q.alpha.log() - _core.xlogy(q.alpha, q.scale) + (q.alpha + 1) * _mean_of_logarithm(p)
    return found.masked_fill(p.low < q.scale, math.inf)


def _mean_of_exponential(p, s):
    """Returns the mean of exp(s x) over p."""
    if isinstance(p, n.Normal):
        return (p.loc * s + 0.5 * (p.scale * s).pow(2)).exp()
    if isinstance(p, n.Uniform):
        return ((p.high * s).exp() - (p.low * s).exp()) / (s * (p.high - p.low))
    return (1 - s / p.rate).pow(-p.concentration if isinstance(p, n.Gamma) else -1)


@_of_each((n.Exponential, n.Gamma, n.Normal, n.Uniform), c.Gumbel)
def _to_gumbel(p, q):
    return -p.entropy() + q.scale.log() + (p.mean - q.loc) / q.scale + (q.loc / q.scale).exp() * _mean_of_exponential(p, -q.scale.reciprocal())


@_of_each((n.Beta, n.ContinuousBernoulli), n.Uniform)
def _to_uniform(p, q):
    return (-p.entropy() + (q.high - q.low).log()).masked_fill(_outside(p, q.low, q.high), math.inf)


@_of_each((n.Beta, n.Uniform), n.ContinuousBernoulli)
def _to_continuous_bernoulli(p, q):
    return (-p.entropy() - p.mean * q.logits - (-q.probs).log1p() - q._log_norm()).masked_fill(_outside(p, 0.0, 1.0), math.inf)


@_of(n.Uniform, n.Beta)
def _uniform_beta(p, q):
    def xlogx(x):
        return _core.xlogy(x, x)
    width = p.high - p.low
    one = (q.concentration1 - 1) * ((xlogx(p.high) - xlogx(p.low)) - width) / width
    zero = (q.concentration0 - 1) * ((xlogx(1 - p.high) - xlogx(1 - p.low)) + width) / width
    normalizer = q.concentration1.lgamma() + q.concentration0.lgamma() - (q.concentration1 + q.concentration0).lgamma()
    found = zero - width.log() - one + normalizer
    return found.masked_fill((p.high > 1) | (p.low < 0), math.inf)


@_of(d.Bernoulli, d.Poisson)
def _bernoulli_poisson(p, q):
    return -p.entropy() - (p.probs * q.rate.log() - q.rate)


def _unbounded(pairs):
    """Makes the divergence infinite for pairs whose first distribution has values outside of the second's support."""
    for type_p, type_q in pairs:
        register_kl(type_p, type_q)(_infinite)


def _infinite(p, q):
    """Returns infinity for each pair, with the shape and the dtype of the first distribution's parameters."""
    like = next(getattr(p, name) for name in p.arg_constraints)
    return like.new_full(m.broadcast_shapes(p.batch_shape, q.batch_shape), math.inf)


_unbounded([
    (n.Beta, c.Pareto), (n.Exponential, n.Beta), (n.Exponential, c.Pareto), (n.Exponential, n.Uniform), (n.Gamma, n.Beta), (n.Gamma, c.Pareto),
    (n.Gamma, n.Uniform), (c.Gumbel, n.Beta), (c.Gumbel, n.Exponential), (c.Gumbel, n.Gamma), (c.Gumbel, c.Pareto), (c.Gumbel, n.Uniform),
    (n.Laplace, n.Beta), (n.Laplace, n.Exponential), (n.Laplace, n.Gamma), (n.Laplace, c.Pareto), (n.Laplace, n.Uniform), (n.Normal, n.Beta),
    (n.Normal, n.Exponential), (n.Normal, n.Gamma), (n.Normal, c.Pareto), (n.Normal, n.Uniform), (c.Pareto, n.Beta), (c.Pareto, n.Uniform),
    (n.ContinuousBernoulli, c.Pareto), (n.Exponential, n.ContinuousBernoulli), (n.Gamma, n.ContinuousBernoulli),
    (c.Gumbel, n.ContinuousBernoulli), (n.Laplace, n.ContinuousBernoulli), (n.Normal, n.ContinuousBernoulli), (c.Pareto, n.ContinuousBernoulli),
    (d.Poisson, d.Bernoulli), (d.Poisson, d.Binomial)])


__getattr__ = _attributes(__name__)
