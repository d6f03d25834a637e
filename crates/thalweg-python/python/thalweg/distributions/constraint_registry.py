"""Functions from the real numbers to sets of values (`torch.distributions.constraint_registry`)."""

from . import constraints, transforms


class ConstraintRegistry:
    """A table that maps sets to functions."""

    def __init__(self):
        self._registry = {}

    def register(self, constraint, factory=None):
        """Registers the function that returns the transform for a kind of set."""
        if factory is None:
            return lambda factory: self.register(constraint, factory)
        kind = type(constraint) if isinstance(constraint, constraints.Constraint) else constraint
        if not isinstance(kind, type) or not issubclass(kind, constraints.Constraint):
            raise TypeError(f"Expected constraint to be either a Constraint subclass or instance, but got {constraint}")
        self._registry[kind] = factory
        return factory

    def __call__(self, constraint):
        for kind in type(constraint).__mro__:
            if kind in self._registry:
                return self._registry[kind](constraint)
        raise NotImplementedError(f"Cannot transform {type(constraint).__name__} constraints")


biject_to, transform_to = ConstraintRegistry(), ConstraintRegistry()


def _both(kind, factory):
    for registry in (biject_to, transform_to):
        registry.register(kind, factory)


def _between(constraint):
    """Returns the transform to an interval."""
    low, high = constraint.lower_bound, constraint.upper_bound
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low == 0 and high == 1:
        return transforms.SigmoidTransform()
    return transforms.ComposeTransform([transforms.SigmoidTransform(), transforms.AffineTransform(low, high - low)])


_both(constraints._Real, lambda constraint: transforms.identity_transform)
_both(constraints._GreaterThan, lambda constraint: transforms.ComposeTransform(
    [transforms.ExpTransform(), transforms.AffineTransform(constraint.lower_bound, 1)]))
_both(constraints._GreaterThanEq, biject_to._registry[constraints._GreaterThan])
_both(constraints._LessThan, lambda constraint: transforms.ComposeTransform(
    [transforms.ExpTransform(), transforms.AffineTransform(constraint.upper_bound, -1)]))
_both(constraints._Interval, _between)
_both(constraints._HalfOpenInterval, _between)
_both(constraints._LowerCholesky, lambda constraint: transforms.LowerCholeskyTransform())
_both(constraints._PositiveDefinite, lambda constraint: transforms.PositiveDefiniteTransform())
_both(constraints._PositiveSemidefinite, lambda constraint: transforms.PositiveDefiniteTransform())
_both(constraints._CorrCholesky, lambda constraint: transforms.CorrCholeskyTransform())
biject_to.register(constraints._Simplex, lambda constraint: transforms.StickBreakingTransform())
transform_to.register(constraints._Simplex, lambda constraint: transforms.SoftmaxTransform())
for _registry in (biject_to, transform_to):
    _registry.register(constraints._IndependentConstraint, lambda constraint, registry=_registry: transforms.IndependentTransform(
        registry(constraint.base_constraint), constraint.reinterpreted_batch_ndims))
    _registry.register(constraints._Cat, lambda constraint, registry=_registry: transforms.CatTransform(
        [registry(one) for one in constraint.cseq], constraint.dim, constraint.lengths))
    _registry.register(constraints._Stack, lambda constraint, registry=_registry: transforms.StackTransform(
        [registry(one) for one in constraint.cseq], constraint.dim))
