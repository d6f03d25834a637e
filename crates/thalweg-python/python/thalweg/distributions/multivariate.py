"""Distributions over vectors and matrices."""

import math

from .. import _core
from .._draws import _sample_dirichlet
from .._functions import broadcast_shapes
from .._results import Size
from . import constraints
from .distribution import LOG_2PI, Distribution, ExponentialFamily
from .utils import broadcast_all, lazy_property


def _mahalanobis(factor, difference):
    """Returns squared Mahalanobis lengths of vectors, from the Cholesky factor of the covariance."""
    solved = _core.linalg_solve_triangular(factor, difference.unsqueeze(-1), upper=False).squeeze(-1)
    return solved.pow(2).sum(-1)


def _broadcast_factor(factor, shape):
    return factor.expand(Size(shape) + factor.shape[-2:])


def _half_log_det(factor):
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _factor_of_precision(precision):
    """Returns the Cholesky factor of the covariance, from the inverse of the covariance."""
    flipped = _core.linalg_cholesky(precision.flip((-2, -1)))
    inverse = flipped.flip((-2, -1)).transpose(-2, -1)
    eye = _core.eye(precision.shape[-1], dtype=precision.dtype, device=precision.device)
    return _core.linalg_solve_triangular(inverse, eye.expand(precision.shape), upper=False)


# The Cholesky factor of a covariance, from each matrix that may be passed.
_FACTORS = {"scale_tril": lambda value: value, "covariance_matrix": _core.linalg_cholesky, "precision_matrix": _factor_of_precision}


def _only(**matrices):
    """Returns the name and the value of the one matrix that was passed."""
    given = [(name, value) for name, value in matrices.items() if value is not None]
    if len(given) != 1:
        raise ValueError("Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified.")
    return given[0]


class Dirichlet(ExponentialFamily):
    """The Dirichlet distribution over vectors with sum 1."""

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    support = constraints.simplex
    has_rsample = True

    def __init__(self, concentration, validate_args=None):
        if concentration.dim() < 1:
            raise ValueError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args=validate_args)

    mean = property(lambda self: self.concentration / self.concentration.sum(-1, True), doc="The mean.")

    @property
    def mode(self):
        less = (self.concentration - 1).clamp(min=0.0)
        found = less / less.sum(-1, True)
        mask = (self.concentration < 1).all(dim=-1)
        corner = _core.one_hot(found.nan_to_num(0.0).argmax(dim=-1), self.concentration.shape[-1]).to(found.dtype)
        return _core.where(mask.unsqueeze(-1), corner, found)

    @property
    def variance(self):
        total = self.concentration.sum(-1, True)
        return self.concentration * (total - self.concentration) / (total.pow(2) * (total + 1))

    def rsample(self, sample_shape=Size()):
        return _sample_dirichlet(self.concentration.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return (_core.xlogy(self.concentration - 1.0, value).sum(-1) + self.concentration.sum(-1).lgamma() - self.concentration.lgamma().sum(-1))

    def entropy(self):
        count, total = self.concentration.size(-1), self.concentration.sum(-1)
        return (self.concentration.lgamma().sum(-1) - total.lgamma() - (count - total) * total.digamma()
                - ((self.concentration - 1.0) * self.concentration.digamma()).sum(-1))

    @property
    def _natural_params(self):
        return (self.concentration,)

    def _log_normalizer(self, x):
        return x.lgamma().sum(-1) - x.sum(-1).lgamma()


class MultivariateNormal(Distribution):
    """The normal distribution over vectors, with a mean and a covariance matrix, its inverse, or its Cholesky factor."""

    arg_constraints = {
        "loc": constraints.real_vector, "covariance_matrix": constraints.positive_definite, "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky}
    support = constraints.real_vector
    has_rsample = True
    _tensors = {"_unbroadcasted_scale_tril": 2}

    def __init__(self, loc, covariance_matrix=None, precision_matrix=None, scale_tril=None, validate_args=None):
        if loc.dim() < 1:
            raise ValueError("loc must be at least one-dimensional.")
        name, matrix = _only(covariance_matrix=covariance_matrix, precision_matrix=precision_matrix, scale_tril=scale_tril)
        if matrix.dim() < 2:
            raise ValueError(f"{name} must be at least two-dimensional, with optional leading batch dimensions")
        batch = Size(broadcast_shapes(matrix.shape[:-2], loc.shape[:-1]))
        setattr(self, name, matrix.expand(batch + matrix.shape[-2:]))
        self.loc = loc.expand(batch + loc.shape[-1:])
        super().__init__(batch, self.loc.shape[-1:], validate_args=validate_args)
        self._unbroadcasted_scale_tril = _FACTORS[name](matrix)

    @lazy_property
    def scale_tril(self):
        return _broadcast_factor(self._unbroadcasted_scale_tril, self._batch_shape)

    @lazy_property
    def covariance_matrix(self):
        factor = self._unbroadcasted_scale_tril
        return _broadcast_factor(factor @ factor.mT, self._batch_shape)

    @lazy_property
    def precision_matrix(self):
        return _broadcast_factor(_core.cholesky_inverse(self._unbroadcasted_scale_tril), self._batch_shape)

    mean = mode = property(lambda self: self.loc, doc="The mean.")

    @property
    def variance(self):
        return self._unbroadcasted_scale_tril.pow(2).sum(-1).expand(self._batch_shape + self._event_shape)

    def rsample(self, sample_shape=Size()):
        noise = _core.randn(list(self._extended_shape(sample_shape)), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + (self._unbroadcasted_scale_tril @ noise.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        factor = self._unbroadcasted_scale_tril
        difference = value - self.loc
        shape = Size(broadcast_shapes(difference.shape[:-1], factor.shape[:-2]))
        squared = _mahalanobis(_broadcast_factor(factor, shape), difference.expand(shape + difference.shape[-1:]))
        return -0.5 * (self._event_shape[0] * LOG_2PI + squared) - _half_log_det(factor)

    def entropy(self):
        found = 0.5 * self._event_shape[0] * (1.0 + LOG_2PI) + _half_log_det(self._unbroadcasted_scale_tril)
        return found.expand(self._batch_shape)


class LowRankMultivariateNormal(Distribution):
    """The normal distribution over vectors whose covariance is a low-rank product plus a diagonal."""

    arg_constraints = {
        "loc": constraints.real_vector, "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1)}
    support = constraints.real_vector
    has_rsample = True
    _tensors = {"_capacitance_tril": 2, "_unbroadcasted_cov_factor": 2, "_unbroadcasted_cov_diag": 1}

    def __init__(self, loc, cov_factor, cov_diag, validate_args=None):
        if loc.dim() < 1:
            raise ValueError("loc must be at least one-dimensional.")
        event = loc.shape[-1:]
        if cov_factor.dim() < 2 or cov_factor.shape[-2:-1] != event:
            raise ValueError(f"cov_factor must be a batch of matrices with shape {event[0]} x m")
        if cov_diag.shape[-1:] != event:
            raise ValueError(f"cov_diag must be a batch of vectors with shape {event}")
        batch = Size(broadcast_shapes(loc.shape[:-1], cov_factor.shape[:-2], cov_diag.shape[:-1]))
        self.loc, self.cov_diag = loc.expand(batch + event), cov_diag.expand(batch + event)
        self.cov_factor = cov_factor.expand(batch + cov_factor.shape[-2:])
        super().__init__(batch, event, validate_args=validate_args)
        self._unbroadcasted_cov_factor, self._unbroadcasted_cov_diag = cov_factor, cov_diag
        scaled = self.cov_factor.mT / self.cov_diag.unsqueeze(-2)
        inner = scaled @ self.cov_factor
        self._capacitance_tril = _core.linalg_cholesky(inner + _core.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device))

    mean = mode = property(lambda self: self.loc, doc="The mean.")

    @lazy_property
    def variance(self):
        return self.cov_factor.pow(2).sum(-1) + self.cov_diag

    @lazy_property
    def covariance_matrix(self):
        return self.cov_factor @ self.cov_factor.mT + _core.diag_embed(self.cov_diag)

    @lazy_property
    def scale_tril(self):
        return _core.linalg_cholesky(self.covariance_matrix)

    @lazy_property
    def precision_matrix(self):
        scaled = self.cov_factor.mT / self.cov_diag.unsqueeze(-2)
        half = _core.linalg_solve_triangular(self._capacitance_tril, scaled, upper=False)
        return _core.diag_embed(self.cov_diag.reciprocal()) - half.mT @ half

    def rsample(self, sample_shape=Size()):
        shape = self._extended_shape(sample_shape)
        options = dict(dtype=self.loc.dtype, device=self.loc.device)
        thin = _core.randn(list(shape[:-1]) + [self.cov_factor.shape[-1]], **options)
        return self.loc + (self.cov_factor @ thin.unsqueeze(-1)).squeeze(-1) + self.cov_diag.sqrt() * _core.randn(list(shape), **options)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        difference = value - self.loc
        inner = ((self.cov_factor.mT / self.cov_diag.unsqueeze(-2)) @ difference.unsqueeze(-1)).squeeze(-1)
        factor = _broadcast_factor(self._capacitance_tril, inner.shape[:-1])
        squared = (difference.pow(2) / self.cov_diag).sum(-1) - _mahalanobis(factor, inner)
        return -0.5 * (self._event_shape[0] * LOG_2PI + self._log_det() + squared)

    def _log_det(self):
        return 2 * _half_log_det(self._capacitance_tril) + self.cov_diag.log().sum(-1)

    def entropy(self):
        return 0.5 * (self._event_shape[0] * (1.0 + LOG_2PI) + self._log_det())


class LKJCholesky(Distribution):
    """The distribution of Cholesky factors of correlation matrices (Lewandowski, Kurowicka and Joe, 2009)."""

    arg_constraints = {"concentration": constraints.positive}
    support = constraints.corr_cholesky
    _kept = ("dim",)

    def __init__(self, dim, concentration=1.0, validate_args=None):
        if dim < 2:
            raise ValueError(f"Expected dim to be an integer greater than or equal to 2. Found dim={dim}.")
        self.dim = dim
        self.concentration, = broadcast_all(concentration)
        super().__init__(self.concentration.size(), Size((dim, dim)), validate_args=validate_args)

    def sample(self, sample_shape=Size()):
        from ..autograd import no_grad
        from .continuous import Beta
        with no_grad():
            options = dict(dtype=self.concentration.dtype, device=self.concentration.device)
            places = _core.arange(self.dim - 1, **options)
            marginal = self.concentration.unsqueeze(-1) + 0.5 * (self.dim - 2)
            offset = _core.cat([_core.zeros(1, **options), places])
            one = offset + 0.5
            zero = _core.cat([marginal, marginal - 0.5 * places], -1) if self.dim > 1 else marginal
            y = Beta(one.expand(zero.shape), zero).sample(sample_shape).unsqueeze(-1)
            normal = _core.randn(list(self._extended_shape(sample_shape)), **options).tril(-1)
            lengths = _core.linalg_vector_norm(normal, dim=-1, keepdim=True)
            sphere = normal / lengths.masked_fill(lengths == 0, 1.0)
            w = y.sqrt() * sphere
            w = w.masked_fill((_core.arange(self.dim, device=w.device) == 0).unsqueeze(-1), 0.0)
            diagonal = (1 - (w * w).sum(-1)).clamp(min=1e-30).sqrt()
            return w + _core.diag_embed(diagonal)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        diagonal = value.diagonal(dim1=-1, dim2=-2)[..., 1:]
        order = 2 * (self.concentration - 1).unsqueeze(-1) + self.dim - _core.arange(2, self.dim + 1, device=self.concentration.device)
        unnormalized = (order * diagonal.log()).sum(-1)
        less = self.dim - 1
        alpha = self.concentration + 0.5 * less
        return unnormalized - (0.5 * less * math.log(math.pi) + _core.mvlgamma(alpha - 0.5, less) - alpha.lgamma() * less)


class Wishart(ExponentialFamily):
    """The distribution of scatter matrices of normal vectors."""

    arg_constraints = property(lambda self: {
        "covariance_matrix": constraints.positive_definite, "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky, "df": constraints.greater_than(self._event_shape[-1] - 1)}, doc="The sets of valid arguments.")
    support = constraints.positive_definite
    has_rsample = True
    _mean_carrier_measure = 0
    _tensors = {"_unbroadcasted_scale_tril": 2}

    def __init__(self, df, covariance_matrix=None, precision_matrix=None, scale_tril=None, validate_args=None):
        name, matrix = _only(covariance_matrix=covariance_matrix, precision_matrix=precision_matrix, scale_tril=scale_tril)
        if matrix.dim() < 2:
            raise ValueError("scale_tril must be at least two-dimensional, with optional leading batch dimensions")
        df = df if isinstance(df, _core.Tensor) else _core.tensor(float(df), dtype=matrix.dtype, device=matrix.device)
        batch = Size(broadcast_shapes(matrix.shape[:-2], df.shape))
        self.df = df.expand(batch)
        setattr(self, name, matrix.expand(batch + matrix.shape[-2:]))
        super().__init__(batch, matrix.shape[-2:], validate_args=validate_args)
        if bool((self.df <= matrix.shape[-1] - 1).any()):
            raise ValueError(f"Value of df={df} expected to be greater than ndim - 1 = {matrix.shape[-1] - 1}.")
        self._unbroadcasted_scale_tril = _FACTORS[name](matrix)

    mode = property(lambda self: _core.where((self.df > self._event_shape[-1] + 1)[..., None, None], (
        self.df - self._event_shape[-1] - 1).view(self._batch_shape + (1, 1)) * self.covariance_matrix, math.nan), doc="The most probable matrix.")
    mean = property(lambda self: self.df.view(self._batch_shape + (1, 1)) * self.covariance_matrix, doc="The mean.")

    @lazy_property
    def scale_tril(self):
        return _broadcast_factor(self._unbroadcasted_scale_tril, self._batch_shape)

    @lazy_property
    def covariance_matrix(self):
        factor = self._unbroadcasted_scale_tril
        return _broadcast_factor(factor @ factor.mT, self._batch_shape)

    @lazy_property
    def precision_matrix(self):
        return _broadcast_factor(_core.cholesky_inverse(self._unbroadcasted_scale_tril), self._batch_shape)

    @property
    def variance(self):
        covariance = self.covariance_matrix
        diagonal = covariance.diagonal(dim1=-2, dim2=-1)
        return self.df.view(self._batch_shape + (1, 1)) * (covariance.pow(2) + diagonal.unsqueeze(-1) * diagonal.unsqueeze(-2))

    def rsample(self, sample_shape=Size(), max_try_correction=None):
        """Returns samples by Bartlett's decomposition."""
        from .continuous import Chi2
        size, shape = self._event_shape[-1], Size(sample_shape) + self._batch_shape
        freedom = self.df.unsqueeze(-1) - _core.arange(size, dtype=self.df.dtype, device=self.df.device)
        diagonal = Chi2(freedom).rsample(sample_shape).sqrt()
        noise = _core.randn(list(shape) + [size, size], dtype=self.df.dtype, device=self.df.device).tril(-1) + _core.diag_embed(diagonal)
        factor = self._unbroadcasted_scale_tril @ noise
        return factor @ factor.mT

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        nu, size = self.df, self._event_shape[-1]
        factor = self._unbroadcasted_scale_tril
        shape = Size(broadcast_shapes(value.shape[:-2], factor.shape[:-2]))
        inner = _core.cholesky_solve(value.expand(shape + self._event_shape), _broadcast_factor(factor, shape))
        return (-nu * (size * math.log(2) / 2 + _half_log_det(self._unbroadcasted_scale_tril)) - _core.mvlgamma(nu / 2, size)
                + (nu - size - 1) / 2 * _core.linalg_slogdet(value)[1] - inner.diagonal(dim1=-2, dim2=-1).sum(-1) / 2)

    def entropy(self):
        nu, size = self.df, self._event_shape[-1]
        places = _core.arange(size, dtype=nu.dtype, device=nu.device)
        digammas = (0.5 * (nu.unsqueeze(-1) - places)).digamma().sum(-1)
        return ((size + 1) * (size * math.log(2) / 2 + _half_log_det(self._unbroadcasted_scale_tril)) + _core.mvlgamma(nu / 2, size)
                - (nu - size - 1) / 2 * digammas + nu * size / 2)
