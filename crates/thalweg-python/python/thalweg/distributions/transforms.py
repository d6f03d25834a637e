"""Invertible functions with the logarithms of their derivatives (`torch.distributions.transforms`)."""

import math
import operator
import weakref

from .._left_out import attributes as _attributes
from .. import _core
from .._functions import broadcast_shapes, finfo
from . import constraints
from .utils import _sum_rightmost, tril_matrix_to_vec, vec_to_tril_matrix


class Transform:
    """An invertible function, defined by `_call`, `_inverse` and `log_abs_det_jacobian`."""

    bijective = False
    domain = codomain = constraints.real

    def __init__(self, cache_size=0):
        if cache_size not in (0, 1):
            raise ValueError("cache_size must be 0 or 1")
        self._cache_size, self._inv = cache_size, None
        if cache_size == 1:
            self._cached_x_y = None, None
        super().__init__()

    def __getstate__(self):
        return {**self.__dict__, "_inv": None}

    @property
    def event_dim(self):
        """The number of dimensions of an event."""
        if self.domain.event_dim == self.codomain.event_dim:
            return self.domain.event_dim
        raise ValueError("Please use either .domain.event_dim or .codomain.event_dim")

    @property
    def inv(self):
        """The inverse."""
        inverse = self._inv() if self._inv is not None else None
        if inverse is None:
            inverse = _InverseTransform(self)
            self._inv = weakref.ref(inverse)
        return inverse

    @property
    def sign(self):
        """The sign of the derivative, if it is constant."""
        raise NotImplementedError

    def with_cache(self, cache_size=1):
        """Returns the function with or without a cache for its last value."""
        if self._cache_size == cache_size:
            return self
        if type(self).__init__ is Transform.__init__:
            return type(self)(cache_size=cache_size)
        raise NotImplementedError(f"{type(self)}.with_cache is not implemented")

    def __eq__(self, other):
        return self is other

    def __ne__(self, other):
        return not self == other

    __hash__ = object.__hash__

    def __call__(self, x):
        if self._cache_size == 0:
            return self._call(x)
        former, result = self._cached_x_y
        if x is not former:
            result = self._call(x)
            self._cached_x_y = x, result
        return result

    def _inv_call(self, y):
        if self._cache_size == 0:
            return self._inverse(y)
        result, former = self._cached_x_y
        if y is not former:
            result = self._inverse(y)
            self._cached_x_y = result, y
        return result

    def _call(self, x):
        raise NotImplementedError

    def _inverse(self, y):
        raise NotImplementedError

    def log_abs_det_jacobian(self, x, y):
        """Returns the logarithm of the absolute determinant of the derivative."""
        raise NotImplementedError

    def __repr__(self):
        return f"{self.__class__.__name__}()"

    def forward_shape(self, shape):
        """Returns the shape of the values for arguments of this shape."""
        return shape

    def inverse_shape(self, shape):
        """Returns the shape of the arguments for values of this shape."""
        return shape


class _InverseTransform(Transform):
    def __init__(self, transform):
        super().__init__(cache_size=transform._cache_size)
        self._inv = transform

    domain = property(lambda self: self._inv.codomain, doc="The set of arguments.")
    codomain = property(lambda self: self._inv.domain, doc="The set of values.")
    bijective = property(lambda self: self._inv.bijective, doc="Whether each value has one argument.")
    sign = property(lambda self: self._inv.sign, doc="The sign of the derivative.")
    inv = property(lambda self: self._inv, doc="The function of which this is the inverse.")

    def __getstate__(self):
        return self.__dict__

    def with_cache(self, cache_size=1):
        return self.inv.with_cache(cache_size).inv

    def __eq__(self, other):
        return isinstance(other, _InverseTransform) and self._inv == other._inv

    __hash__ = object.__hash__

    def __repr__(self):
        return f"{self.__class__.__name__}({self._inv!r})"

    def __call__(self, x):
        return self._inv._inv_call(x)

    def _inv_call(self, y):
        return self._inv(y)

    def log_abs_det_jacobian(self, x, y):
        return -self._inv.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape):
        return self._inv.inverse_shape(shape)

    def inverse_shape(self, shape):
        return self._inv.forward_shape(shape)


class ComposeTransform(Transform):
    """The composition of functions, applied one after the other."""

    def __init__(self, parts, cache_size=0):
        super().__init__(cache_size=cache_size)
        self.parts = [part.with_cache(cache_size) for part in parts] if cache_size else list(parts)

    def __eq__(self, other):
        return isinstance(other, ComposeTransform) and self.parts == other.parts

    __hash__ = object.__hash__

    def _side(self, parts, inner, outer):
        """Returns the domain, or, for the inverse, the codomain."""
        if not parts:
            return constraints.real
        found = inner(parts[0])
        dim = outer(parts[-1]).event_dim
        for part in reversed(parts):
            dim += inner(part).event_dim - outer(part).event_dim
            dim = max(dim, inner(part).event_dim)
        return constraints.independent(found, dim - found.event_dim) if dim > found.event_dim else found

    @property
    def domain(self):
        return self._side(self.parts, operator.attrgetter("domain"), operator.attrgetter("codomain"))

    @property
    def codomain(self):
        return self._side(self.parts[::-1], operator.attrgetter("codomain"), operator.attrgetter("domain"))

    @property
    def bijective(self):
        return all(part.bijective for part in self.parts)

    @property
    def sign(self):
        sign = 1
        for part in self.parts:
            sign = sign * part.sign
        return sign

    @property
    def inv(self):
        inverse = self._inv() if self._inv is not None else None
        if inverse is None:
            inverse = ComposeTransform([part.inv for part in reversed(self.parts)])
            self._inv = weakref.ref(inverse)
            inverse._inv = weakref.ref(self)
        return inverse

    def with_cache(self, cache_size=1):
        return self if self._cache_size == cache_size else ComposeTransform(self.parts, cache_size=cache_size)

    def __call__(self, x):
        for part in self.parts:
            x = part(x)
        return x

    def log_abs_det_jacobian(self, x, y):
        if not self.parts:
            return _core.zeros_like(x)
        values = [x]
        for part in self.parts[:-1]:
            values.append(part(values[-1]))
        values.append(y)
        total, dim = 0, self.domain.event_dim
        for part, x, y in zip(self.parts, values[:-1], values[1:]):
            total = total + _sum_rightmost(part.log_abs_det_jacobian(x, y), dim - part.domain.event_dim)
            dim += part.codomain.event_dim - part.domain.event_dim
        return total

    def forward_shape(self, shape):
        for part in self.parts:
            shape = part.forward_shape(shape)
        return shape

    def inverse_shape(self, shape):
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return shape

    def __repr__(self):
        return f"{self.__class__.__name__}(\n    " + ",\n    ".join(map(repr, self.parts)) + "\n)"


identity_transform = ComposeTransform([])


class IndependentTransform(Transform):
    """A function that treats the last dimensions as those of one event."""

    def __init__(self, base_transform, reinterpreted_batch_ndims, cache_size=0):
        super().__init__(cache_size=cache_size)
        self.base_transform, self.reinterpreted_batch_ndims = base_transform.with_cache(cache_size), reinterpreted_batch_ndims

    def with_cache(self, cache_size=1):
        same = self._cache_size == cache_size
        return self if same else IndependentTransform(self.base_transform, self.reinterpreted_batch_ndims, cache_size=cache_size)

    domain = property(lambda self: constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims), doc="The set of arguments.")
    codomain = property(lambda self: constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims), doc="The set of values.")
    bijective = property(lambda self: self.base_transform.bijective, doc="Whether each value has one argument.")
    sign = property(lambda self: self.base_transform.sign, doc="The sign of the derivative.")

    def _call(self, x):
        if x.dim() < self.domain.event_dim:
            raise ValueError("Too few dimensions on input")
        return self.base_transform(x)

    def _inverse(self, y):
        if y.dim() < self.codomain.event_dim:
            raise ValueError("Too few dimensions on input")
        return self.base_transform.inv(y)

    def log_abs_det_jacobian(self, x, y):
        return _sum_rightmost(self.base_transform.log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)

    def __repr__(self):
        return f"{self.__class__.__name__}({self.base_transform!r}, {self.reinterpreted_batch_ndims})"

    def forward_shape(self, shape):
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape):
        return self.base_transform.inverse_shape(shape)


class ReshapeTransform(Transform):
    """A change of shape of the last dimensions."""

    bijective = True

    def __init__(self, in_shape, out_shape, cache_size=0):
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if math.prod(self.in_shape) != math.prod(self.out_shape):
            raise ValueError("in_shape, out_shape have different numbers of elements")
        super().__init__(cache_size=cache_size)

    domain = property(lambda self: constraints.independent(constraints.real, len(self.in_shape)), doc="The set of arguments.")
    codomain = property(lambda self: constraints.independent(constraints.real, len(self.out_shape)), doc="The set of values.")

    def with_cache(self, cache_size=1):
        return self if self._cache_size == cache_size else ReshapeTransform(self.in_shape, self.out_shape, cache_size=cache_size)

    def _call(self, x):
        return x.reshape(x.shape[:x.dim() - len(self.in_shape)] + self.out_shape)

    def _inverse(self, y):
        return y.reshape(y.shape[:y.dim() - len(self.out_shape)] + self.in_shape)

    def log_abs_det_jacobian(self, x, y):
        return x.new_zeros(x.shape[:x.dim() - len(self.in_shape)])

    @staticmethod
    def _reshaped(shape, former, new):
        if len(shape) < len(former):
            raise ValueError("Too few dimensions on input")
        cut = len(shape) - len(former)
        if tuple(shape[cut:]) != former:
            raise ValueError(f"Shape mismatch: expected {tuple(shape[cut:])} but got {former}")
        return shape[:cut] + new

    def forward_shape(self, shape):
        return self._reshaped(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape):
        return self._reshaped(shape, self.out_shape, self.in_shape)


class _Same(Transform):
    """A function without parameters: all instances of a class are equal."""

    def __eq__(self, other):
        return type(other) is type(self)

    __hash__ = object.__hash__


class ExpTransform(_Same):
    """The exponential."""

    domain, codomain, bijective, sign = constraints.real, constraints.positive, True, 1

    def _call(self, x):
        return x.exp()

    def _inverse(self, y):
        return y.log()

    def log_abs_det_jacobian(self, x, y):
        return x


class PowerTransform(Transform):
    """A power."""

    domain = codomain = constraints.positive
    bijective = True

    def __init__(self, exponent, cache_size=0):
        super().__init__(cache_size=cache_size)
        self.exponent = exponent if isinstance(exponent, _core.Tensor) else _core.tensor(float(exponent))

    def with_cache(self, cache_size=1):
        return self if self._cache_size == cache_size else PowerTransform(self.exponent, cache_size=cache_size)

    sign = property(lambda self: self.exponent.sign(), doc="The sign of the derivative.")

    def __eq__(self, other):
        return isinstance(other, PowerTransform) and bool(self.exponent.eq(other.exponent).all())

    __hash__ = object.__hash__

    def _call(self, x):
        return x.pow(self.exponent)

    def _inverse(self, y):
        return y.pow(1 / self.exponent)

    def log_abs_det_jacobian(self, x, y):
        return (self.exponent * y / x).abs().log()

    def forward_shape(self, shape):
        return broadcast_shapes(shape, self.exponent.shape)

    inverse_shape = forward_shape


def _clipped_sigmoid(x):
    """Returns the logistic function, cut off so that no value is 0 or 1."""
    limits = finfo(x.dtype)
    return x.sigmoid().clamp(min=limits.tiny, max=1.0 - limits.eps)


class SigmoidTransform(_Same):
    """The logistic function."""

    domain, codomain, bijective, sign = constraints.real, constraints.unit_interval, True, 1

    def _call(self, x):
        return _clipped_sigmoid(x)

    def _inverse(self, y):
        limits = finfo(y.dtype)
        y = y.clamp(min=limits.tiny, max=1.0 - limits.eps)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x, y):
        return -_core.softplus(-x) - _core.softplus(x)


class SoftplusTransform(_Same):
    """The logarithm of 1 + e^x."""

    domain, codomain, bijective, sign = constraints.real, constraints.positive, True, 1

    def _call(self, x):
        return _core.softplus(x)

    def _inverse(self, y):
        return (-y).expm1().neg().log() + y

    def log_abs_det_jacobian(self, x, y):
        return -_core.softplus(-x)


class TanhTransform(_Same):
    """The hyperbolic tangent."""

    domain, codomain, bijective, sign = constraints.real, constraints.interval(-1.0, 1.0), True, 1

    def _call(self, x):
        return x.tanh()

    def _inverse(self, y):
        return y.atanh()

    def log_abs_det_jacobian(self, x, y):
        return 2.0 * (math.log(2.0) - x - _core.softplus(-2.0 * x))


class AbsTransform(_Same):
    """The absolute value. The inverse returns the positive argument."""

    domain, codomain = constraints.real, constraints.positive

    def _call(self, x):
        return x.abs()

    def _inverse(self, y):
        return y


class AffineTransform(Transform):
    """The affine function `loc + scale * x`."""

    bijective = True

    def __init__(self, loc, scale, event_dim=0, cache_size=0):
        super().__init__(cache_size=cache_size)
        self.loc, self.scale, self._event_dim = loc, scale, event_dim

    event_dim = property(lambda self: self._event_dim, doc="The number of dimensions of an event.")

    def with_cache(self, cache_size=1):
        return self if self._cache_size == cache_size else AffineTransform(self.loc, self.scale, self.event_dim, cache_size=cache_size)

    @property
    def domain(self):
        return constraints.independent(constraints.real, self.event_dim) if self.event_dim else constraints.real

    codomain = domain

    def __eq__(self, other):
        def same(one, two):
            found = one == two
            return bool(found.all()) if isinstance(found, _core.Tensor) else found
        return isinstance(other, AffineTransform) and same(self.loc, other.loc) and same(self.scale, other.scale)

    __hash__ = object.__hash__

    @property
    def sign(self):
        if isinstance(self.scale, (int, float)):
            return 1 if self.scale > 0 else -1 if self.scale < 0 else 0
        return self.scale.sign()

    def _call(self, x):
        return self.loc + self.scale * x

    def _inverse(self, y):
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x, y):
        scale = self.scale
        result = _core.full_like(x, math.log(abs(scale))) if isinstance(scale, (int, float)) else scale.abs().log()
        if self.event_dim:
            return _sum_rightmost(result.expand(x.shape), self.event_dim)
        return result.expand(x.shape)

    def forward_shape(self, shape):
        return broadcast_shapes(shape, getattr(self.loc, "shape", ()), getattr(self.scale, "shape", ()))

    inverse_shape = forward_shape


class CorrCholeskyTransform(Transform):
    """The map from vectors to Cholesky factors of correlation matrices."""

    domain, codomain, bijective = constraints.real_vector, constraints.corr_cholesky, True

    def _call(self, x):
        x = x.tanh()
        eps = finfo(x.dtype).eps
        r = vec_to_tril_matrix(x.clamp(min=-1 + eps, max=1 - eps), diag=-1)
        rest = (1 - r * r).sqrt().cumprod(-1)
        r = r + _core.eye(r.shape[-1], dtype=r.dtype, device=r.device)
        return r * _core.cat([_core.ones_like(rest[..., :1]), rest[..., :-1]], -1)

    def _inverse(self, y):
        cumulated = 1 - (y * y).cumsum(-1)
        shifted = _core.cat([_core.ones_like(cumulated[..., :1]), cumulated[..., :-1]], -1)
        return (tril_matrix_to_vec(y, diag=-1) / tril_matrix_to_vec(shifted, diag=-1).sqrt()).atanh()

    def log_abs_det_jacobian(self, x, y, intermediates=None):
        cumulated = (1 - (y * y).cumsum(-1)).clamp_min(finfo(y.dtype).tiny)
        shifted = _core.cat([_core.ones_like(cumulated[..., :1]), cumulated[..., :-1]], -1)
        factor = 0.5 * tril_matrix_to_vec(shifted, diag=-1).log().sum(-1)
        return factor - 2 * (x + _core.softplus(-2 * x) - math.log(2.0)).sum(dim=-1)

    def forward_shape(self, shape):
        count = shape[-1]
        size = round((0.25 + 2 * count) ** 0.5 + 0.5)
        if size * (size - 1) // 2 != count:
            raise ValueError("Input is not a flattened lower-diagonal number")
        return shape[:-1] + (size, size)

    def inverse_shape(self, shape):
        if shape[-2] != shape[-1]:
            raise ValueError("Input is not square")
        return shape[:-2] + (shape[-1] * (shape[-1] - 1) // 2,)


class SoftmaxTransform(_Same):
    """Softmax along the last dimension. The inverse returns the logarithm."""

    domain, codomain = constraints.real_vector, constraints.simplex

    def _call(self, x):
        return x.softmax(-1)

    def _inverse(self, y):
        return y.log()


class StickBreakingTransform(_Same):
    """The map from vectors to vectors with sum 1 and one more element."""

    domain, codomain, bijective = constraints.real_vector, constraints.simplex, True

    @staticmethod
    def _offset(x, length):
        return _core.arange(length, 0, -1, dtype=x.dtype, device=x.device)

    def _call(self, x):
        z = _clipped_sigmoid(x - self._offset(x, x.shape[-1]).log())
        one = x.new_ones(x.shape[:-1] + (1,))
        return _core.cat([z, one], -1) * _core.cat([one, (1 - z).cumprod(-1)], -1)

    def _inverse(self, y):
        cut = y[..., :-1]
        rest = (1 - cut.cumsum(-1)).clamp(min=finfo(y.dtype).tiny)
        return cut.log() - rest.log() + self._offset(y, cut.shape[-1]).log()

    def log_abs_det_jacobian(self, x, y):
        x = x - self._offset(x, x.shape[-1]).log()
        return (-x - _core.softplus(-x) + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape):
        return shape[:-1] + (shape[-1] + 1,)

    def inverse_shape(self, shape):
        return shape[:-1] + (shape[-1] - 1,)


class LowerCholeskyTransform(_Same):
    """The map from matrices to lower triangular matrices with a positive diagonal."""

    domain, codomain = constraints.independent(constraints.real, 2), constraints.lower_cholesky

    def _call(self, x):
        return x.tril(-1) + _core.diag_embed(x.diagonal(dim1=-2, dim2=-1).exp())

    def _inverse(self, y):
        return y.tril(-1) + _core.diag_embed(y.diagonal(dim1=-2, dim2=-1).log())


class PositiveDefiniteTransform(_Same):
    """The map from matrices to positive definite matrices."""

    domain, codomain = constraints.independent(constraints.real, 2), constraints.positive_definite

    def _call(self, x):
        factor = LowerCholeskyTransform()(x)
        return factor @ factor.mT

    def _inverse(self, y):
        return LowerCholeskyTransform().inv(_core.linalg_cholesky(y))


class CatTransform(Transform):
    """Functions for consecutive parts of a dimension."""

    def __init__(self, tseq, dim=0, lengths=None, cache_size=0):
        super().__init__(cache_size=cache_size)
        self.transforms = [part.with_cache(cache_size) for part in tseq] if cache_size else list(tseq)
        self.lengths, self.dim = list(lengths) if lengths is not None else [1] * len(self.transforms), dim

    event_dim = property(lambda self: max(part.event_dim for part in self.transforms), doc="The number of dimensions of an event.")
    length = property(lambda self: sum(self.lengths), doc="The size of the dimension.")
    domain = property(lambda self: constraints.cat([part.domain for part in self.transforms], self.dim, self.lengths), doc="The set of arguments.")
    codomain = property(lambda self: constraints.cat([part.codomain for part in self.transforms], self.dim, self.lengths), doc="The set of values.")
    bijective = property(lambda self: all(part.bijective for part in self.transforms), doc="Whether each value has one argument.")

    def with_cache(self, cache_size=1):
        return self if self._cache_size == cache_size else CatTransform(self.transforms, self.dim, self.lengths, cache_size)

    def _parts(self, *values):
        start = 0
        for part, length in zip(self.transforms, self.lengths):
            yield (part, *(value.narrow(self.dim, start, length) for value in values))
            start += length

    def _call(self, x):
        return _core.cat([part(piece) for part, piece in self._parts(x)], dim=self.dim)

    def _inverse(self, y):
        return _core.cat([part.inv(piece) for part, piece in self._parts(y)], dim=self.dim)

    def log_abs_det_jacobian(self, x, y):
        found = []
        for part, mine, theirs in self._parts(x, y):
            found.append(_sum_rightmost(part.log_abs_det_jacobian(mine, theirs), self.event_dim - part.event_dim))
        dim = self.dim if self.dim < 0 else self.dim - x.dim()
        dim += self.event_dim
        return _core.cat(found, dim=dim) if dim < 0 else sum(found)


class StackTransform(Transform):
    """Functions for the indices of a dimension."""

    def __init__(self, tseq, dim=0, cache_size=0):
        super().__init__(cache_size=cache_size)
        self.transforms, self.dim = [part.with_cache(cache_size) for part in tseq] if cache_size else list(tseq), dim

    domain = property(lambda self: constraints.stack([part.domain for part in self.transforms], self.dim), doc="The set of arguments.")
    codomain = property(lambda self: constraints.stack([part.codomain for part in self.transforms], self.dim), doc="The set of values.")
    bijective = property(lambda self: all(part.bijective for part in self.transforms), doc="Whether each value has one argument.")

    def with_cache(self, cache_size=1):
        return self if self._cache_size == cache_size else StackTransform(self.transforms, self.dim, cache_size)

    def _slice(self, z):
        return [z.select(self.dim, place) for place in range(z.size(self.dim))]

    def _call(self, x):
        return _core.stack([part(piece) for part, piece in zip(self.transforms, self._slice(x))], dim=self.dim)

    def _inverse(self, y):
        return _core.stack([part.inv(piece) for part, piece in zip(self.transforms, self._slice(y))], dim=self.dim)

    def log_abs_det_jacobian(self, x, y):
        pieces = zip(self.transforms, self._slice(x), self._slice(y))
        return _core.stack([part.log_abs_det_jacobian(mine, theirs) for part, mine, theirs in pieces], dim=self.dim)


class CumulativeDistributionTransform(Transform):
    """The map from values to their cumulative probabilities."""

    bijective, codomain, sign = True, constraints.unit_interval, 1

    def __init__(self, distribution, cache_size=0):
        super().__init__(cache_size=cache_size)
        self.distribution = distribution

    domain = property(lambda self: self.distribution.support, doc="The set of arguments.")

    def _call(self, x):
        return self.distribution.cdf(x)

    def _inverse(self, y):
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x, y):
        return self.distribution.log_prob(x)

    def with_cache(self, cache_size=1):
        return self if self._cache_size == cache_size else CumulativeDistributionTransform(self.distribution, cache_size=cache_size)


__all__ = [name for name, value in list(globals().items()) if isinstance(value, type) and issubclass(value, Transform) and name[0] != "_"] + [
    "identity_transform"]
__getattr__ = _attributes(__name__)
