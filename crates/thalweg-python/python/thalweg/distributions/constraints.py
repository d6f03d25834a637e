"""Sets of valid values for parameters and samples (`torch.distributions.constraints`)."""

from .. import _core

_BOOL = getattr(_core, "bool")


class Constraint:
    """A set of values. `check` returns, for each event, whether it is in the set."""

    is_discrete = False
    event_dim = 0

    def check(self, value):
        """Returns whether each event of a tensor is in the set."""
        raise NotImplementedError

    def __repr__(self):
        return self.__class__.__name__.removeprefix("_") + "()"


class _Dependent(Constraint):
    """A set that depends on other values."""

    def __init__(self, *, is_discrete=NotImplemented, event_dim=NotImplemented):
        self._is_discrete, self._event_dim = is_discrete, event_dim

    @property
    def is_discrete(self):
        """Whether the set is discrete."""
        if self._is_discrete is NotImplemented:
            raise NotImplementedError(".is_discrete cannot be determined statically")
        return self._is_discrete

    @property
    def event_dim(self):
        """The number of dimensions of an event."""
        if self._event_dim is NotImplemented:
            raise NotImplementedError(".event_dim cannot be determined statically")
        return self._event_dim

    def __call__(self, *, is_discrete=NotImplemented, event_dim=NotImplemented):
        return _Dependent(is_discrete=self._is_discrete if is_discrete is NotImplemented else is_discrete,
                          event_dim=self._event_dim if event_dim is NotImplemented else event_dim)

    def check(self, x):
        """Raises: the set is not known."""
        raise ValueError("Cannot determine validity of dependent constraint")


class _DependentProperty(property, _Dependent):
    """A property whose value is a set. Read from the class, it is itself a set that depends on other values."""

    def __init__(self, fn=None, *, is_discrete=NotImplemented, event_dim=NotImplemented):
        property.__init__(self, fn)
        self._is_discrete, self._event_dim = is_discrete, event_dim

    def __call__(self, fn):
        return _DependentProperty(fn, is_discrete=self._is_discrete, event_dim=self._event_dim)


class _IndependentConstraint(Constraint):
    """A set of events whose last dimensions must all be in another set."""

    def __init__(self, base_constraint, reinterpreted_batch_ndims):
        self.base_constraint, self.reinterpreted_batch_ndims = base_constraint, reinterpreted_batch_ndims

    @property
    def is_discrete(self):
        """Whether the set is discrete."""
        return self.base_constraint.is_discrete

    @property
    def event_dim(self):
        """The number of dimensions of an event."""
        return self.base_constraint.event_dim + self.reinterpreted_batch_ndims

    def check(self, value):
        """Returns whether each event is in the set."""
        result = self.base_constraint.check(value)
        count = self.reinterpreted_batch_ndims
        if result.dim() < count:
            raise ValueError(f"Expected value.dim() >= {self.base_constraint.event_dim + count} but got {value.dim()}")
        return result.flatten(-count).all(-1) if count else result

    def __repr__(self):
        return f"IndependentConstraint({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


class MixtureSameFamilyConstraint(Constraint):
    """The set of samples of a mixture: the values that are in the sets of its components."""

    def __init__(self, base_constraint):
        self.base_constraint = base_constraint

    @property
    def is_discrete(self):
        """Whether the set is discrete."""
        return self.base_constraint.is_discrete

    @property
    def event_dim(self):
        """The number of dimensions of an event."""
        return self.base_constraint.event_dim

    def check(self, value):
        """Returns whether each event is in the set of every component."""
        result = self.base_constraint.check(value.unsqueeze(-1 - self.event_dim))
        return result.all(-1)

    def __repr__(self):
        return f"MixtureSameFamilyConstraint({self.base_constraint!r})"


class _Boolean(Constraint):
    is_discrete = True

    def check(self, value):
        """Returns whether each value is 0 or 1."""
        return (value == 0) | (value == 1)


class _OneHot(Constraint):
    is_discrete, event_dim = True, 1

    def check(self, value):
        """Returns whether each vector has a single 1 and zeros elsewhere."""
        return ((value == 0) | (value == 1)).all(-1) & value.sum(-1).eq(1)


class _IntegerInterval(Constraint):
    is_discrete = True

    def __init__(self, lower_bound, upper_bound):
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    def check(self, value):
        """Returns whether each value is an integer within the bounds."""
        return (value % 1 == 0) & (self.lower_bound <= value) & (value <= self.upper_bound)

    def __repr__(self):
        return f"IntegerInterval(lower_bound={self.lower_bound}, upper_bound={self.upper_bound})"


class _Bounded(Constraint):
    """A set of numbers on one side of a bound."""

    def __repr__(self):
        bounds = ", ".join(f"{name}={value}" for name, value in vars(self).items())
        return f"{self.__class__.__name__[1:]}({bounds})"


class _IntegerLessThan(_Bounded):
    is_discrete = True

    def __init__(self, upper_bound):
        self.upper_bound = upper_bound

    def check(self, value):
        """Returns whether each value is an integer that is at most the bound."""
        return (value % 1 == 0) & (value <= self.upper_bound)


class _IntegerGreaterThan(_Bounded):
    is_discrete = True

    def __init__(self, lower_bound):
        self.lower_bound = lower_bound

    def check(self, value):
        """Returns whether each value is an integer that is at least the bound."""
        return (value % 1 == 0) & (value >= self.lower_bound)


class _Real(Constraint):
    def check(self, value):
        """Returns whether each value is not NaN."""
        return value == value


class _GreaterThan(_Bounded):
    def __init__(self, lower_bound):
        self.lower_bound = lower_bound

    def check(self, value):
        """Returns whether each value is above the bound."""
        return self.lower_bound < value


class _GreaterThanEq(_Bounded):
    def __init__(self, lower_bound):
        self.lower_bound = lower_bound

    def check(self, value):
        """Returns whether each value is at least the bound."""
        return self.lower_bound <= value


class _LessThan(_Bounded):
    def __init__(self, upper_bound):
        self.upper_bound = upper_bound

    def check(self, value):
        """Returns whether each value is below the bound."""
        return value < self.upper_bound


class _Interval(_Bounded):
    def __init__(self, lower_bound, upper_bound):
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    def check(self, value):
        """Returns whether each value is within the bounds."""
        return (self.lower_bound <= value) & (value <= self.upper_bound)


class _HalfOpenInterval(_Interval):
    def check(self, value):
        """Returns whether each value is within the bounds. The upper bound is excluded."""
        return (self.lower_bound <= value) & (value < self.upper_bound)


class _Simplex(Constraint):
    event_dim = 1

    def check(self, value):
        """Returns whether each vector has no negative element and has the sum 1."""
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-6)


class _Multinomial(Constraint):
    is_discrete, event_dim = True, 1

    def __init__(self, upper_bound):
        self.upper_bound = upper_bound

    def check(self, x):
        """Returns whether each vector has no negative element and a sum that is at most the bound."""
        return (x >= 0).all(-1) & (x.sum(-1) <= self.upper_bound)


class _Matrix(Constraint):
    event_dim = 2


def _all_of_matrix(value):
    return value.flatten(-2).all(-1)


class _LowerTriangular(_Matrix):
    def check(self, value):
        """Returns whether each matrix is zero above its diagonal."""
        return _all_of_matrix(value.tril() == value)


class _LowerCholesky(_Matrix):
    def check(self, value):
        """Returns whether each matrix is zero above its diagonal and positive on it."""
        return _all_of_matrix(value.tril() == value) & (value.diagonal(dim1=-2, dim2=-1) > 0).all(-1)


class _CorrCholesky(_Matrix):
    def check(self, value):
        """Returns whether each matrix is the Cholesky factor of a correlation matrix: its rows have length 1."""
        tolerance = _eps(value) * value.shape[-1] * 10
        rows = _core.linalg_vector_norm(value.detach(), dim=-1)
        return _LowerCholesky().check(value) & ((rows - 1).abs() <= tolerance).all(-1)


class _Square(_Matrix):
    def check(self, value):
        """Returns whether the matrices are square."""
        return _core.full(list(value.shape[:-2]), value.shape[-2] == value.shape[-1], dtype=_BOOL, device=value.device)


class _Symmetric(_Square):
    def check(self, value):
        """Returns whether each matrix is symmetric."""
        is_square = super().check(value)
        return _all_of_matrix(_core.isclose(value, value.mT, atol=1e-6)) if _are_all(is_square) else is_square


class _PositiveSemidefinite(_Symmetric):
    def check(self, value):
        """Returns whether each matrix is symmetric and has no negative eigenvalue."""
        is_symmetric = super().check(value)
        return _core.linalg_eigvalsh(value).ge(0).all(-1) if _are_all(is_symmetric) else is_symmetric


class _PositiveDefinite(_Symmetric):
    def check(self, value):
        """Returns whether each matrix is symmetric and has positive eigenvalues."""
        is_symmetric = super().check(value)
        return _core.linalg_cholesky_ex(value)[1].eq(0) if _are_all(is_symmetric) else is_symmetric


class _Cat(Constraint):
    """Sets for consecutive parts of a dimension."""

    def __init__(self, cseq, dim=0, lengths=None):
        self.cseq, self.dim = list(cseq), dim
        self.lengths = list(lengths) if lengths is not None else [1] * len(self.cseq)

    @property
    def is_discrete(self):
        """Whether a set is discrete."""
        return any(one.is_discrete for one in self.cseq)

    @property
    def event_dim(self):
        """The number of dimensions of an event."""
        return max(one.event_dim for one in self.cseq)

    def check(self, value):
        """Returns whether each part is in its set."""
        parts, start = [], 0
        for one, length in zip(self.cseq, self.lengths):
            parts.append(one.check(value.narrow(self.dim, start, length)))
            start += length
        return _core.cat(parts, self.dim)


class _Stack(Constraint):
    """Sets for the indices of a dimension."""

    def __init__(self, cseq, dim=0):
        self.cseq, self.dim = list(cseq), dim

    @property
    def is_discrete(self):
        """Whether a set is discrete."""
        return any(one.is_discrete for one in self.cseq)

    @property
    def event_dim(self):
        """The number of dimensions of an event."""
        dim = max(one.event_dim for one in self.cseq)
        return dim + 1 if self.dim + dim < 0 else dim

    def check(self, value):
        """Returns whether each part is in its set."""
        return _core.stack([one.check(part) for one, part in zip(self.cseq, value.unbind(self.dim))], self.dim)


def _are_all(valid):
    """Returns whether all truth values are true, in every slice of a map."""
    from ..func._batching import Batched
    while isinstance(valid, Batched):
        valid = valid._value
    return bool(valid.all())


def _eps(value):
    from .._functions import finfo
    return finfo(value.dtype).eps


def is_dependent(constraint):
    """Returns whether a set depends on other values."""
    return isinstance(constraint, _Dependent)


dependent = _Dependent()
dependent_property = _DependentProperty
independent = _IndependentConstraint
boolean, one_hot = _Boolean(), _OneHot()
nonnegative_integer, positive_integer = _IntegerGreaterThan(0), _IntegerGreaterThan(1)
integer_interval, real = _IntegerInterval, _Real()
real_vector = independent(real, 1)
positive, nonnegative = _GreaterThan(0.0), _GreaterThanEq(0.0)
greater_than, greater_than_eq, less_than, multinomial = _GreaterThan, _GreaterThanEq, _LessThan, _Multinomial
unit_interval, interval, half_open_interval = _Interval(0.0, 1.0), _Interval, _HalfOpenInterval
simplex, lower_triangular, lower_cholesky, corr_cholesky = _Simplex(), _LowerTriangular(), _LowerCholesky(), _CorrCholesky()
square, symmetric, positive_semidefinite, positive_definite = _Square(), _Symmetric(), _PositiveSemidefinite(), _PositiveDefinite()
cat, stack = _Cat, _Stack
__all__ = ["Constraint", "MixtureSameFamilyConstraint", *(name for name, value in list(globals().items()) if name[0] != "_" and (
    isinstance(value, Constraint) or value in (cat, dependent_property, greater_than, greater_than_eq, half_open_interval, independent, integer_interval, interval,
                                               is_dependent, less_than, multinomial, stack)))]
