"""Operators over lists of tensors (`torch._foreach_add`): each applies the operator to one tensor after another."""

from . import _core

Tensor = _core.Tensor

_OF_ONE = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma", "log", "log10", "log1p",
    "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc")
_OF_TWO = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "div", "clamp_min": "clamp_min", "clamp_max": "clamp_max", "minimum": "clamp_max",
    "maximum": "clamp_min", "pow": "pow"}


def _tensors(name, values):
    """Returns the tensors of an argument, which must not be empty."""
    if not isinstance(values, (list, tuple)) or not all(isinstance(value, Tensor) for value in values):
        raise TypeError(f"{name}() takes a tuple or list of Tensors, not {type(values).__name__}")
    if not values:
        raise RuntimeError("Tensor list must have at least one tensor.")
    return values


def _each(name, values, count):
    """Returns an argument's value for each tensor: the elements of a list, or one value for all."""
    if isinstance(values, Tensor) or not isinstance(values, (list, tuple)):
        return [values] * count
    if len(values) != count:
        raise RuntimeError(f"{name}: Tensor lists must have the same number of tensors, got {count} and {len(values)}")
    return values


def _named(name, is_in_place, function):
    made = function
    made.__name__ = made.__qualname__ = f"_foreach_{name}{'_' if is_in_place else ''}"
    made.__module__, made.__doc__ = __package__, f"Computes `{name}` of each tensor{', in place' if is_in_place else ''}."
    return made


def _of_one(name, is_in_place):
    call = getattr(Tensor, f"{name}_" if is_in_place else name)

    def function(self):
        results = [call(tensor) for tensor in _tensors(function.__name__, self)]
        return None if is_in_place else tuple(results)
    return _named(name, is_in_place, function)


def _of_two(name, own, is_in_place):
    call = getattr(Tensor, f"{own}_" if is_in_place else own)

    def function(self, other, *, alpha=1):
        if name == "pow" and not isinstance(self, (list, tuple)):
            return tuple(_core.pow(self, exponent) for exponent in _tensors(function.__name__, other))
        tensors = _tensors(function.__name__, self)
        others = _each(function.__name__, other, len(tensors))
        options = {} if alpha == 1 else {"alpha": alpha}
        results = [call(tensor, value, **options) for tensor, value in zip(tensors, others)]
        return None if is_in_place else tuple(results)
    return _named(name, is_in_place, function)


def _of_three(name, is_in_place):
    call = getattr(Tensor, f"{name}_" if is_in_place else name)

    def function(self, tensor1, tensor2, value=1, scalars=None):
        tensors = _tensors(function.__name__, self)
        count = len(tensors)
        values = value if scalars is None else scalars
        if isinstance(values, Tensor):
            values = values.tolist()
        parts = zip(tensors, _each(function.__name__, tensor1, count), _each(function.__name__, tensor2, count),
                    _each(function.__name__, values, count))
        results = [call(tensor, one, other, value=factor) for tensor, one, other, factor in parts]
        return None if is_in_place else tuple(results)
    return _named(name, is_in_place, function)


def _lerp(is_in_place):
    call = Tensor.lerp_ if is_in_place else Tensor.lerp

    def function(self, tensors1, weights=None, *, weight=None):
        tensors = _tensors(function.__name__, self)
        parts = zip(tensors, _each(function.__name__, tensors1, len(tensors)),
                    _each(function.__name__, weight if weights is None else weights, len(tensors)))
        results = [call(tensor, other, amount) for tensor, other, amount in parts]
        return None if is_in_place else tuple(results)
    return _named("lerp", is_in_place, function)


def _foreach_norm(self, ord=2, dtype=None):
    """Returns the norm of each tensor."""
    return tuple(_core.linalg_vector_norm(tensor, ord, dtype=dtype) for tensor in _tensors("_foreach_norm", self))


def _foreach_max(self):
    """Returns the largest element of each tensor."""
    return tuple(tensor.max() for tensor in _tensors("_foreach_max", self))


def _foreach_zero_(self):
    """Sets the elements of each tensor to zero."""
    for tensor in _tensors("_foreach_zero_", self):
        tensor.zero_()


def _foreach_copy_(self, src, non_blocking=False):
    """Copies the elements of tensors to others."""
    tensors = _tensors("_foreach_copy_", self)
    for tensor, source in zip(tensors, _each("_foreach_copy_", src, len(tensors))):
        tensor.copy_(source)


def _foreach_clone(self, *, memory_format=None):
    """Returns a copy of each tensor."""
    return tuple(tensor.clone() for tensor in _tensors("_foreach_clone", self))


def add(namespace):
    """Adds the functions to a namespace."""
    made = [_of_one(name, is_in_place) for name in _OF_ONE for is_in_place in (False, True)]
    made += [_of_two(name, own, is_in_place) for name, own in _OF_TWO.items() for is_in_place in (False, True)]
    made += [_of_three(name, is_in_place) for name in ("addcmul", "addcdiv") for is_in_place in (False, True)]
    made += [_lerp(False), _lerp(True), _foreach_norm, _foreach_max, _foreach_zero_, _foreach_copy_, _foreach_clone]
    namespace.update({function.__name__: function for function in made})
