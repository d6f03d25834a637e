"""The base class of all distributions (`torch.distributions.Distribution`)."""

import math

from .. import _core
from .._results import Size
from ..autograd import no_grad
from . import constraints
from .utils import broadcast_all


class Distribution:
    """A distribution over events of shape `event_shape`, with a batch of `batch_shape` independent parameters."""

    has_rsample = False
    has_enumerate_support = False
    _validate_args = __debug__

    @staticmethod
    def set_default_validate_args(value):
        """Sets whether arguments are checked by default."""
        if value not in (True, False):
            raise ValueError
        Distribution._validate_args = value

    def __init__(self, batch_shape=Size(), event_shape=Size(), validate_args=None):
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            self._check_arguments()
        super().__init__()

    def _check_arguments(self):
        try:
            wanted = self.arg_constraints
        except NotImplementedError:
            return
        for name, constraint in wanted.items():
            # Values that are computed from other arguments are not checked.
            if constraints.is_dependent(constraint) or (name not in self.__dict__ and _is_lazy(type(self), name)):
                continue
            value = getattr(self, name)
            if not constraints._are_all(constraint.check(value)):
                raise ValueError(f"Expected parameter {name} ({type(value).__name__} of shape {tuple(value.shape)}) of distribution {self!r} to "
                                 f"satisfy the constraint {constraint!r}, but found invalid values:\n{value}")

    def _begin(self, validate_args, **arguments):
        """Sets arguments, numbers and tensors, broadcast to one shape, the batch shape."""
        tensors = broadcast_all(*arguments.values())
        for name, tensor in zip(arguments, tensors):
            setattr(self, name, tensor)
        Distribution.__init__(self, tensors[0].size(), validate_args=validate_args)

    # Attributes of an expanded distribution besides its arguments: tensors, each with the number of its event dimensions,
    # distributions with the same batch shape, and attributes that are kept unchanged.
    _tensors, _inner, _kept = {}, (), ()

    def expand(self, batch_shape, _instance=None):
        """Returns the distribution with another batch shape, expanded along the new dimensions."""
        return self._expand_into(self._blank(_instance), Size(batch_shape))

    def _expand_into(self, made, batch_shape):
        own = self.__dict__
        dims = {name: constraint.event_dim for name, constraint in self.arg_constraints.items() if name in own}
        for name, count in {**dims, **self._tensors}.items():
            if name in own:
                setattr(made, name, own[name].expand(batch_shape + own[name].shape[own[name].dim() - count:]))
        for name in self._inner:
            setattr(made, name, own[name].expand(batch_shape))
        for name in self._kept:
            setattr(made, name, own[name])
        Distribution.__init__(made, batch_shape, self.event_shape, validate_args=False)
        made._validate_args = self._validate_args
        return made

    def _blank(self, instance):
        """Returns an instance without attributes, if the constructor of the class is one that is defined here."""
        known = next(kind for kind in type(self).__mro__ if kind.__module__.split(".")[:2] in (["thalweg", "distributions"], ["torch", "distributions"]))
        return self._get_checked_instance(known, instance)

    @property
    def batch_shape(self):
        """The shape of the batch of distributions."""
        return self._batch_shape

    @property
    def event_shape(self):
        """The shape of one event."""
        return self._event_shape

    @property
    def arg_constraints(self):
        """The sets of valid arguments."""
        raise NotImplementedError

    @property
    def support(self):
        """The set of possible samples."""
        raise NotImplementedError

    @property
    def mean(self):
        """The mean."""
        raise NotImplementedError

    @property
    def mode(self):
        """The most probable event."""
        raise NotImplementedError(f"{self.__class__} does not implement mode")

    @property
    def variance(self):
        """The variance."""
        raise NotImplementedError

    @property
    def stddev(self):
        """The standard deviation."""
        return self.variance.sqrt()

    def sample(self, sample_shape=Size()):
        """Returns samples that no gradient flows through."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape=Size()):
        """Returns samples, through which gradients flow to the parameters."""
        raise NotImplementedError

    def sample_n(self, n):
        """Returns n samples."""
        return self.sample(Size((n,)))

    def log_prob(self, value):
        """Returns the logarithm of the density, or of the probability, of values."""
        raise NotImplementedError

    def cdf(self, value):
        """Returns the cumulative probability of a value."""
        raise NotImplementedError

    def icdf(self, value):
        """Returns the value with this cumulative probability."""
        raise NotImplementedError

    def enumerate_support(self, expand=True):
        """Returns all values of a discrete distribution."""
        raise NotImplementedError

    def entropy(self):
        """Returns the entropy."""
        raise NotImplementedError

    def perplexity(self):
        """Returns the exponential of the entropy."""
        return self.entropy().exp()

    def _extended_shape(self, sample_shape=Size()):
        return Size(sample_shape) + self._batch_shape + self._event_shape

    def _validate_sample(self, value):
        """Raises unless values have the shape of samples and are in the support."""
        if not isinstance(value, _core.Tensor):
            raise ValueError("The value argument to log_prob must be a Tensor")
        dims = value.dim() - len(self._event_shape)
        if value.shape[max(dims, 0):] != self._event_shape:
            raise ValueError(f"The right-most size of value must match event_shape: {value.shape} vs {self._event_shape}.")
        for mine, theirs in zip(reversed(value.shape), reversed(self._batch_shape + self._event_shape)):
            if mine != 1 and theirs != 1 and mine != theirs:
                raise ValueError(f"Value is not broadcastable with batch_shape+event_shape: {value.shape} vs "
                                 f"{self._batch_shape + self._event_shape}.")
        try:
            support = self.support
        except NotImplementedError:
            return
        if not constraints._are_all(support.check(value)):
            raise ValueError(f"Expected value argument ({type(value).__name__} of shape {tuple(value.shape)}) to be within the support ({support!r}) "
                             f"of the distribution {self!r}, but found invalid values:\n{value}")

    def _get_checked_instance(self, cls, _instance=None):
        if _instance is None and type(self).__init__ != cls.__init__:
            raise NotImplementedError(f"Subclass {self.__class__.__name__} of {cls.__name__} that defines a custom __init__ method must also define a "
                                      "custom .expand() method.")
        return self.__new__(type(self)) if _instance is None else _instance

    def __repr__(self):
        try:
            names = [name for name in self.arg_constraints if name in self.__dict__]
        except NotImplementedError:
            names = []
        parts = [f"{name}: {value if value.numel() == 1 else value.size()}" for name in names if hasattr(value := self.__dict__[name], "numel")]
        return f"{self.__class__.__name__}({', '.join(parts)})"


def _is_lazy(kind, name):
    from .utils import lazy_property
    return isinstance(getattr(kind, name, None), lazy_property)


class ExponentialFamily(Distribution):
    """A distribution of the exponential family, given by its natural parameters."""

    @property
    def _natural_params(self):
        raise NotImplementedError

    def _log_normalizer(self, *natural_params):
        raise NotImplementedError

    @property
    def _mean_carrier_measure(self):
        raise NotImplementedError

    def entropy(self):
        """Returns the entropy, from the derivative of the log normalizer."""
        from ..autograd import enable_grad, grad
        with enable_grad():
            parameters = [value.detach().requires_grad_() for value in self._natural_params]
            normalizer = self._log_normalizer(*parameters)
            gradients = grad(normalizer.sum(), parameters, create_graph=True)
        result = -self._mean_carrier_measure + normalizer
        for value, gradient in zip(parameters, gradients):
            result = result - (value * gradient).reshape(self._batch_shape + (-1,)).sum(-1)
        return result


LOG_2PI = math.log(2 * math.pi)
