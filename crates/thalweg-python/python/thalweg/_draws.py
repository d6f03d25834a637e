"""Random numbers by rejection (`torch.poisson`, `torch.binomial`, gamma and Dirichlet numbers).
The host waits to know which were rejected."""

import math

from . import _core
from ._functions import broadcast_tensors, finfo
from .autograd import Function


def _rejected(propose):
    """Returns, for each element, the first number that is accepted. `propose` returns candidates and whether they are
    accepted. One that is not finite is kept: its parameters are not, and no other would be accepted."""
    drawn, accepted = propose()
    while not bool((accepted := accepted | ~drawn.isfinite()).all()):
        again, is_accepted = propose()
        drawn = _core.where(accepted, drawn, again)
        accepted = accepted | is_accepted
    return drawn


def _gamma_of(shape, generator=None):
    """Returns gamma numbers of scale 1 (Marsaglia and Tsang, 2000), computed in float64 for float64 and in float32 for other
    dtypes. None is 0: the smallest is the smallest normal number."""
    alpha = shape if shape.dtype is _core.float64 else shape.float()
    is_small = alpha < 1
    # A gamma number of shape a is one of shape a + 1 times a uniform number to the power of 1 / a.
    d = _core.where(is_small, alpha + 1, alpha) - 1.0 / 3.0
    c = (9 * d).rsqrt()

    def propose():
        x = _core.randn(list(alpha.shape), dtype=alpha.dtype, device=alpha.device, generator=generator)
        u = 1 - _core.rand(list(alpha.shape), dtype=alpha.dtype, device=alpha.device, generator=generator)
        v = (1 + c * x) ** 3
        return d * v, (v > 0) & (u.log() < 0.5 * x * x + d - d * v + d * v.clamp_min(1e-30).log())
    drawn = _rejected(propose)
    u = 1 - _core.rand(list(alpha.shape), dtype=alpha.dtype, device=alpha.device, generator=generator)
    drawn = _core.where(is_small, drawn * (u.log() / alpha).exp(), drawn)
    return drawn.to(shape.dtype).clamp_min(finfo(shape.dtype).tiny)


def _gamma_gradient(alpha, x):
    """Returns the derivative of gamma numbers by their shape at a fixed probability: −(∂P/∂a) / density, by differences in
    float64."""
    a, x = alpha.double(), x.double()
    step = 1e-4 * a.clamp_min(1e-2)
    slope = (-_core.igamma(a + 2 * step, x) + 8 * _core.igamma(a + step, x) - 8 * _core.igamma(a - step, x) + _core.igamma(a - 2 * step, x)) / (12 * step)
    density = ((a - 1) * x.log() - x - a.lgamma()).exp()
    # Where numbers underflow to 0, P is x^a / (a Γ(a)), whose logarithm has the derivative log x − digamma(a + 1).
    near_zero = -x / a * (x.log() - _core.digamma(a + 1))
    return _core.where(x < 1e-5, near_zero, -slope / density.clamp_min(1e-300)).to(alpha.dtype)


class _StandardGamma(Function):
    @staticmethod
    def forward(ctx, alpha):
        drawn = _gamma_of(alpha)
        ctx.save_for_backward(alpha, drawn)
        return drawn

    @staticmethod
    def backward(ctx, gradient):
        return gradient * _gamma_gradient(*ctx.saved_tensors)


def _standard_gamma(input, generator=None):
    """Returns gamma numbers of scale 1. Gradients flow to the shape."""
    if generator is not None:
        return _gamma_of(input, generator)
    return _StandardGamma.apply(input)


def _sample_dirichlet(input, generator=None):
    """Returns gamma numbers of float64 divided by their sums along the last dimension. None is 0 or 1."""
    drawn, limits = _standard_gamma(input.double(), generator), finfo(input.dtype)
    return (drawn / drawn.sum(-1, keepdim=True)).to(input.dtype).clamp(limits.tiny, 1 - limits.eps / 2)


def _small_poisson(rate, generator):
    """Returns Poisson numbers for rates up to about 10: the number of uniform factors until their product is small."""
    limit = (-rate).exp()
    product, count = _core.ones_like(rate), _core.zeros_like(rate)
    is_open = rate > 0
    while bool(is_open.any()):
        product = product * _core.rand(list(rate.shape), dtype=rate.dtype, device=rate.device, generator=generator)
        is_open = is_open & (product > limit)
        count = count + is_open.to(rate.dtype)
    return count


def _large_poisson(rate, generator):
    """Returns Poisson numbers for rates of at least 10, by transformed rejection (Hörmann, 1993)."""
    b = 0.931 + 2.53 * rate.sqrt()
    a = -0.059 + 0.02483 * b
    inverse = 1.1239 + 1.1328 / (b - 3.4)
    most = 0.9277 - 3.6224 / (b - 2)

    def propose():
        u, v = (_core.rand(list(rate.shape), dtype=rate.dtype, device=rate.device, generator=generator) for _ in range(2))
        u, v = u - 0.5, 1 - v
        us = 0.5 - u.abs()
        k = ((2 * a / us + b) * u + rate + 0.43).floor()
        is_sure = (us >= 0.07) & (v <= most)
        is_possible = (k >= 0) & ~((us < 0.013) & (v > us))
        is_below = (v * inverse / (a / (us * us) + b)).log() <= k * rate.log() - rate - (k.clamp_min(0) + 1).lgamma()
        return k, is_sure | (is_possible & is_below)
    return _rejected(propose)


def poisson(input, generator=None):
    """Returns Poisson numbers whose means are the elements."""
    if input.device.type == "meta":
        return _core.empty_like(input)
    rate = input.detach().double()
    if not bool((rate >= 0).all()):
        raise RuntimeError("invalid Poisson rate, expected rate to be non-negative")
    is_small = rate < 10
    small = _small_poisson(_core.where(is_small, rate, 0.0), generator)
    if bool(is_small.all()):
        return small.to(input.dtype)
    return _core.where(is_small, small, _large_poisson(rate.clamp_min(10.0), generator)).to(input.dtype)


def _few_successes(count, prob, generator):
    """Returns binomial numbers for small means: how many geometric numbers have a sum that is at most `count`."""
    place, found = _core.zeros_like(prob), _core.zeros_like(prob)
    is_open = (count > 0) & (prob > 0)
    while bool(is_open.any()):
        u = 1 - _core.rand(list(prob.shape), dtype=prob.dtype, device=prob.device, generator=generator)
        place = place + (u.log() / (-prob).log1p()).ceil()
        is_open = is_open & (place <= count)
        found = found + is_open.to(prob.dtype)
    return found


def _many_successes(count, prob, generator):
    """Returns binomial numbers for means of at least 10 and probabilities up to 1/2, by transformed rejection (Hörmann, 1993)."""
    odds, deviation = prob / (1 - prob), (count * prob * (1 - prob)).sqrt()
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * prob
    most, inverse = 0.92 - 4.2 / b, (2.83 + 5.1 / b) * deviation
    mode = ((count + 1) * prob).floor()

    def terms(k):
        return k * odds.log() - (k + 1).lgamma() - (count - k + 1).lgamma()

    def propose():
        u, v = (_core.rand(list(prob.shape), dtype=prob.dtype, device=prob.device, generator=generator) for _ in range(2))
        u, v = u - 0.5, 1 - v
        us = 0.5 - u.abs()
        k = ((2 * a / us + b) * u + count * prob + 0.5).floor()
        is_possible = (k >= 0) & (k <= count)
        is_below = (v * inverse / (a / (us * us) + b)).log() <= terms(k.clamp_min(0).minimum(count)) - terms(mode)
        return k, is_possible & (((us >= 0.07) & (v <= most)) | is_below)
    return _rejected(propose)


def binomial(count, prob, generator=None):
    """Returns the numbers of successes in `count` trials of probability `prob`."""
    for name, value in (("count", count), ("prob", prob)):
        if not value.is_floating_point():
            raise ValueError(f"binomial only supports floating-point dtypes for {name}, got: {value.dtype}")
    n, p = broadcast_tensors(count.detach().double(), prob.detach().double())
    rarer = p.minimum(1 - p)
    is_many = n * rarer >= 10
    found = _few_successes(_core.where(is_many, 0.0, n), rarer, generator)
    if bool(is_many.any()):
        found = _core.where(is_many, _many_successes(_core.where(is_many, n, 100.0), _core.where(is_many, rarer, 0.5), generator), found)
    found = _core.where(p > 0.5, n.clamp_min(0) - found, found)
    return found.masked_fill(n.isnan() | p.isnan(), math.nan).to(count.dtype)


def add(namespace):
    """Adds the functions to a namespace."""
    namespace.update(poisson=poisson, binomial=binomial, _standard_gamma=_standard_gamma, _sample_dirichlet=_sample_dirichlet)
