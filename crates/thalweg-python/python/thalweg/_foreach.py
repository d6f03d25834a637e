"""Operators over lists of tensors (`torch._foreach_add`, …), one call after another: fused steps are those of `optim`."""

from . import _core

_OF_ONE = ("abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round rsqrt sigmoid sign "
           "sin sinh sqrt tan tanh trunc").split()
# With the method for each: the second argument is a number, a tensor, or a list of either.
_OF_TWO = {"add": "add", "sub": "sub", "mul": "mul", "div": "div", "pow": "pow", "maximum": "maximum", "minimum": "minimum",
           "clamp_max": "clamp_max", "clamp_min": "clamp_min"}


def _check(name, tensors, *others):
    """Refuses an empty list, and lists of other lengths."""
    if not tensors:
        raise RuntimeError("Tensor list must have at least one tensor.")
    for other in others:
        if isinstance(other, (list, tuple)) and len(other) != len(tensors):
            raise RuntimeError(f"_foreach_{name}: Tensor lists must have the same number of tensors, got {len(tensors)} and {len(other)}")


def _spread(value, count):
    """Returns a list of so many values."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, _core.Tensor) and value.dim() == 1 and len(value) == count:
        return value.tolist()
    return [value] * count


def _bounded(method, tensor, other):
    """Calls a method of tensors that is a clamp where the other is a number."""
    if method in ("maximum", "minimum") and not isinstance(other, _core.Tensor):
        return tensor.clamp_min(other) if method == "maximum" else tensor.clamp_max(other)
    return getattr(tensor, method)(other)


def _of_one(name):
    def function(self):
        _check(name, self)
        return tuple(getattr(tensor, name)() for tensor in self)

    def in_place(self):
        _check(name, self)
        for tensor in self:
            getattr(tensor, f"{name}_")()
    return function, in_place


def _of_two(name, method):
    def results(self, other, alpha):
        _check(name, self, other)
        others = _spread(other, len(self))
        if alpha is not None:
            return [getattr(tensor, method)(one, alpha=alpha) for tensor, one in zip(self, others)]
        return [_bounded(method, tensor, one) for tensor, one in zip(self, others)]

    def function(self, other, *, alpha=None):
        return tuple(results(self, other, alpha))

    def in_place(self, other, *, alpha=None):
        for tensor, result in zip(self, results(self, other, alpha)):
            tensor.copy_(result)
    return function, in_place


def _of_three(name):
    def results(self, tensor1, tensor2, value):
        _check(name, self, tensor1, tensor2, value)
        values = _spread(value, len(self))
        return [getattr(one, name)(a, b, value=number) for one, a, b, number in zip(self, tensor1, tensor2, values)]

    def function(self, tensor1, tensor2, value=1):
        return tuple(results(self, tensor1, tensor2, value))

    def in_place(self, tensor1, tensor2, value=1):
        for tensor, result in zip(self, results(self, tensor1, tensor2, value)):
            tensor.copy_(result)
    return function, in_place


def _foreach_lerp(self, tensors1, weight):
    """Returns the tensors moved towards others by a weight."""
    _check("lerp", self, tensors1, weight)
    return tuple(one.lerp(other, part) for one, other, part in zip(self, tensors1, _spread(weight, len(self))))


def _foreach_lerp_(self, tensors1, weight):
    """Moves the tensors towards others by a weight."""
    for tensor, result in zip(self, _foreach_lerp(self, tensors1, weight)):
        tensor.copy_(result)


def _foreach_norm(self, ord=2, dtype=None):
    """Returns the norm of each tensor."""
    _check("norm", self)
    return tuple(_core.linalg_vector_norm(tensor, ord, dtype=dtype) for tensor in self)


def _foreach_max(self):
    """Returns the greatest element of each tensor."""
    _check("max", self)
    return tuple(tensor.max() for tensor in self)


def _foreach_copy_(self, src, non_blocking=False):
    """Overwrites the tensors with others."""
    _check("copy_", self, src)
    for tensor, source in zip(self, src):
        tensor.copy_(source)


def _foreach_zero_(self):
    """Sets the tensors to 0."""
    _check("zero_", self)
    for tensor in self:
        tensor.zero_()


def add(namespace):
    """Adds the functions to a module's names."""
    made = {name: value for name, value in globals().items() if name.startswith("_foreach_")}
    pairs = {name: _of_one(name) for name in _OF_ONE}
    pairs |= {name: _of_two(name, method) for name, method in _OF_TWO.items()}
    pairs |= {name: _of_three(name) for name in ("addcmul", "addcdiv")}
    for name, (function, in_place) in pairs.items():
        made[f"_foreach_{name}"], made[f"_foreach_{name}_"] = function, in_place
    for name, function in made.items():
        function.__name__ = function.__qualname__ = name
        function.__doc__ = function.__doc__ or f"Calls `{name.removeprefix('_foreach_')}` for each tensor of a list."
    namespace.update(made)
