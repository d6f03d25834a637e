"""Tensors inside of `vmap`: each has the shape of one slice, and computes with all slices."""

import collections

from .. import _core, _torch_functions
from .. import _transform_levels as _levels

Tensor = _core.Tensor
_Off = _torch_functions.DisableTorchFunction


def _dummy(value):
    """Returns a tensor like one slice, without a copy."""
    with _Off():
        plain = value.detach()
        return plain.select(0, 0) if plain.shape[0] else plain.new_empty(plain.shape[1:])


class Batched(Tensor):
    """A tensor inside of `vmap`: `_value` has the mapped dimension first."""

    # Functions in Python without a rule are followed into the operators that they are made of.
    _follows_functions = True

    @classmethod
    def of(cls, value, level):
        """Returns a value with the mapped dimension first as one slice."""
        made = Tensor.as_subclass(_dummy(value), cls)
        made.__dict__.update(_value=value, _level=level)
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return called(func, args, kwargs or {})


def _find(values, found):
    for value in values:
        if isinstance(value, Batched):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            _find(value, found)
        elif isinstance(value, dict):
            _find(value.values(), found)
        elif isinstance(value, slice):
            _find((value.start, value.stop, value.step), found)


def find(*values):
    """Returns the mapped tensors among nested values."""
    found = []
    _find(values, found)
    return found


def replaced(value, function):
    """Returns nested values with a function applied to each tensor."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[replaced(part, function) for part in value])
    if isinstance(value, (list, tuple)) and not type(value).__name__ == "Size":
        return type(value)([replaced(part, function) for part in value])
    if isinstance(value, dict):
        return {key: replaced(part, function) for key, part in value.items()}
    return value


def rewrapped(value, function):
    """Returns a mapped tensor with a function applied to the tensor with all mapped dimensions."""
    if isinstance(value, Batched):
        return Batched.of(rewrapped(value._value, function), value._level)
    return function(value)


def expanded(value):
    """Returns a tensor that is mapped by every running map."""
    for level in _levels.local.maps:
        value = _with_level(value, level)
    return value


def _with_level(value, level):
    """Returns a tensor that is mapped by one more map, whose slices are all the same."""
    levels, inner = [], value
    while isinstance(inner, Batched):
        if inner._level is level:
            return value
        levels.append(inner._level)
        inner = inner._value
    # Maps that began later are further outside.
    if not isinstance(value, Batched) or value._level.depth < level.depth:
        return Batched.of(value.unsqueeze(0).expand(level.size, *value.shape), level)
    return Batched.of(_with_level(value._value, level), value._level)


def innermost(found):
    """Returns the map that began last among those of mapped tensors."""
    return max((value._level for value in found), key=lambda level: level.depth)


def physical(value, level):
    """Returns a tensor with the mapped dimension of a map first, and whether it has one."""
    if isinstance(value, Batched) and value._level is level:
        return value._value, True
    return value, False


def batch_of(value, level):
    """Returns a tensor with the mapped dimension of a map first: repeated, if the tensor is not mapped."""
    own, is_mapped = physical(value, level)
    return own if is_mapped else own.unsqueeze(0).expand(level.size, *own.shape)


def unwrapped(value, level, place, name):
    """Returns the result of a map."""
    if place is None:
        if isinstance(value, Batched) and value._level is level:
            raise ValueError(f"vmap({name}, ...): `{name}` can not return a BatchedTensor when out_dim is None")
        return value
    whole = batch_of(value, level)
    if not -whole.dim() <= place < whole.dim():
        raise IndexError(f"Dimension out of range (expected to be in range of [{-whole.dim()}, {whole.dim() - 1}], but got {place})")
    return whole.movedim(0, place) if place else whole


# Attributes of one slice, which the tensor has itself.
_OWN = frozenset((
    "shape", "dtype", "device", "ndim", "itemsize", "layout", "is_cuda", "is_meta", "size", "dim", "numel", "nelement", "stride", "element_size",
    "is_floating_point", "is_complex", "storage_offset", "get_device", "is_contiguous", "_version", "is_leaf", "is_cpu", "ndimension", "is_signed",
    "__len__", "is_inference", "is_conj", "is_neg", "names", "__hash__", "nbytes", "is_same_size", "dim_order", "output_nr", "_backward_hooks",
    "result_type", "is_tensor", "has_names", "is_shared", "is_nonzero"))
_READ = {
    "item": "vmap: It looks like you're calling .item() on a Tensor. We don't support vmap over calling .item() on a Tensor, please try to rewrite what "
            "you're doing with other operations. If error is occurring somewhere inside PyTorch internals, please file a bug report.",
    "__bool__": "vmap: It looks like you're attempting to use a Tensor in some data-dependent control flow. We don't support that yet, please shout over "
                "at https://github.com/pytorch/functorch/issues/257 ."}
for _name in ("tolist", "__int__", "__float__", "__index__", "__complex__", "numpy", "__array__"):
    _READ[_name] = _READ["item"].replace(".item()", f".{_name.strip('_')}()")


def called(func, args, kwargs):
    """Returns the result of a function of mapped tensors."""
    name = getattr(func, "__name__", "")
    attribute = _torch_functions.property_name(func)
    if attribute is not None:
        return _property(attribute, func if name == "__set__" else func.__self__, args)
    if name == "size" and isinstance(args[0], Batched):
        shape, dim = _shape(args[0]), args[1] if len(args) > 1 else kwargs.get("dim")
        return shape if dim is None else shape[dim]
    if name in _OWN:
        with _Off():
            return func(*args, **kwargs)
    if name in _READ:
        raise RuntimeError(_READ[name])
    from . import _rules
    own = getattr(func, "__wrapped__", None)
    if name in _rules.RANDOM and (own is None or name in _rules.DRAWN):
        return random(func, name, args, kwargs)
    if own is not None:
        # A function of Python is made of others.
        return own(*args, **kwargs)
    level = innermost(find(args, kwargs))
    return _rules.apply(func, name, args, kwargs, level)


def _shape(value):
    """Returns the shape of a slice, by that of the tensor with all slices, which modes see."""
    return value._value.shape[1:]


def _property(name, func, args):
    """Returns an attribute of a mapped tensor, or sets it."""
    value = args[0]
    if name == "shape":
        return _shape(value)
    if len(args) == 2 and not hasattr(func, "fget") and getattr(func, "__name__", "") == "__set__":
        if name == "requires_grad":
            return setattr(value._value, name, args[1])
        raise RuntimeError(f"vmap: {name} cannot be set on a Tensor that is being vmapped over")
    if name in ("requires_grad", "grad_fn"):
        return getattr(value._value, name)
    if name == "data":
        return value.detach()
    if name == "grad":
        return None if value._value.grad is None else Batched.of(value._value.grad, value._level)
    if name == "T":
        return value.permute(*reversed(range(value.dim())))
    if name in ("mT", "mH"):
        return value.transpose(-2, -1) if name == "mT" or not value.is_complex() else value.transpose(-2, -1).conj()
    if name == "H":
        return value.transpose(0, 1).conj() if value.is_complex() else value.transpose(0, 1)
    if name in ("real", "imag"):
        return Batched.of(getattr(value._value, name), value._level)
    with _Off():
        return func.__get__(value)


# ---- Random functions ----------------------------------------------------------------------------------------------


def _is_certain(name, args, kwargs):
    """Returns whether a call of a random function draws nothing: a dropout of no elements or of all."""
    given = {**dict(zip(("input", "p", "train"), args)), **kwargs}
    return name.rstrip("_").endswith("dropout") and (not given.get("train", True) or given.get("p") in (0, 1))


def random(func, name, args, kwargs, levels=None):
    """Returns the result of a random function inside of maps, by default of all that run. Each map in turn, from the innermost on, says whether its
    slices have the same numbers."""
    levels = _levels.local.maps if levels is None else levels
    if not levels:
        return _outside(func, args, kwargs)
    level, outer, is_certain = levels[-1], levels[:-1], _is_certain(name, args, kwargs)
    if level.randomness == "error" and not is_certain:
        raise RuntimeError("vmap: called random operation while in randomness error mode. Please either use the 'same' or 'different' randomness flags on "
                           "vmap or perform the randomness operation out of vmap")
    is_mapped = any(one._level is level for one in find(args, kwargs))
    if level.randomness == "same" and not is_certain or is_certain and not is_mapped:
        return (_one_for_all(func, name, args, kwargs, levels) if is_mapped else random(func, name, args, kwargs, outer))
    from . import _rules

    def draw(*given, **named):
        return random(func, name, given, named, outer)
    if not is_mapped and name.endswith("_"):
        raise RuntimeError("vmap: Cannot ask for different inplace randomness on an unbatched tensor. This will appear like same randomness. If this is "
                           "necessary for your usage, please file an issue with functorch.")
    if not is_mapped:
        return _rules.wrapped(_rules.stacked([draw(*args, **kwargs) for _ in range(level.size)]), level)
    if is_certain or name in _rules.ELEMENT_RANDOM:
        return _rules.elementwise(draw, name, args, kwargs, level)
    return _rules.by_slices(draw, name, args, kwargs, level)


def _one_for_all(func, name, args, kwargs, levels):
    """Returns the result of a random function of a mapped tensor whose slices have the same numbers."""
    given = dict(kwargs)
    value, rest = (args[0], args[1:]) if args else (given.pop("input", None), ())
    level, is_in_place = levels[-1], name.endswith("_")
    if (is_in_place or name.endswith("_like") or name in ("dropout", "feature_dropout")) and not any(one._level is level for one in find(rest, given)):
        outer = levels[:-1] if is_in_place else []
        blank = _core.ones([*(one.size for one in outer), *value._value.shape[1:]], dtype=value.dtype, device=value.device)
        for one in outer:
            blank = Batched.of(blank, one)
        drawn = random(func, name, (blank, *rest), given, levels[:-1])
        if is_in_place and not name.endswith("dropout_"):
            return value.copy_(drawn)
        if not is_in_place:
            return drawn if name.endswith("_like") else value * drawn
    raise RuntimeError(f"vmap: `{name}` of a Tensor that is being vmapped over is left out with randomness='same'")


def _outside(func, args, kwargs):
    """Returns the result of a function that no map receives."""
    with _Off():
        return func(*args, **kwargs)


# ---- Functions of programs ----------------------------------------------------------------------------------------


def function_called(function, args):
    """Returns the result of an `autograd.Function` of mapped tensors: by its method `vmap`, or slice by slice on its request."""
    from ..autograd.function import Function
    from . import _rules
    name, level = function.__name__, innermost(find(args))
    has_rule = function.vmap is not Function.vmap
    if function.setup_context is Function.setup_context:
        raise RuntimeError("In order to use an autograd.Function with functorch transforms (vmap, grad, jvp, jacrev, ...), it must override the "
                           "setup_context staticmethod. For more details, please see https://pytorch.org/docs/main/notes/extending.func.html")
    if has_rule and function.generate_vmap_rule:
        raise RuntimeError(f"You tried to vmap over {name}, but it has both generate_vmap_rule=True and an overriden vmap staticmethod. Please set "
                           "generate_vmap_rule=False or delete the overriden vmap staticmethod to avoid ambiguity.")
    if function.generate_vmap_rule:
        return _rules.by_slices(function.apply, "apply", args, {}, level)
    if not has_rule:
        raise RuntimeError(f"You tried to vmap over {name}, but it does not have vmap support. Please override and implement the vmap staticmethod or set "
                           "generate_vmap_rule=True.")
    return by_rule(function.vmap, f"The vmap staticmethod of {name}", args, {}, level)


def by_rule(rule, shown, args, kwargs, level):
    """Returns the result of a function of the program for all slices, by the rule that the program gives."""
    def place(value):
        if isinstance(value, (list, tuple)):
            return type(value)([place(part) for part in value])
        return 0 if isinstance(value, Tensor) and physical(value, level)[1] else None

    def mapped(value, dim):
        if isinstance(value, (list, tuple)):
            return type(value)([mapped(*pair) for pair in zip(value, dim if isinstance(dim, (list, tuple)) else [dim] * len(value))])
        return value if dim is None else Batched.of(value.movedim(dim, 0), level)
    values, named = replaced((tuple(args), kwargs), lambda tensor: physical(tensor, level)[0])
    found = rule(VmapInfo(level.size, level.randomness), tuple(place(value) for value in args), *values, **named)
    if not (isinstance(found, tuple) and len(found) == 2):
        raise RuntimeError(f"{shown} must return a tuple of the outputs and their dimensions (output, out_dims)")
    return mapped(*found)


class VmapInfo(collections.namedtuple("VmapInfo", ["batch_size", "randomness"])):
    """The properties of a map that the method `vmap` of a function receives: the number of slices, and the behaviour of
    random functions."""

    __slots__ = ()


# ---- Gradients -----------------------------------------------------------------------------------------------------


def grad(outputs, inputs, starts, create_graph):
    """Returns gradients by mapped tensors: each slice of an output depends on the same slice of an input alone."""
    from .. import autograd
    found = find(outputs, inputs, starts or ())
    if not found:
        return autograd.grad(outputs, inputs, starts, retain_graph=True, create_graph=create_graph, allow_unused=True)
    level = innermost(found)
    if not find_at(outputs, level) and find_at(starts or (), level):
        parts = [grad(outputs, inputs, [batch_of(start, level)[place] for start in starts], create_graph) for place in range(level.size)]
        return [None if any(part is None for part in column) else Batched.of(_core.stack(list(column)), level) for column in zip(*parts)]
    if starts is None:
        starts = [_core.ones_like(output) for output in outputs]
    whole = [(batch_of(output, level), batch_of(start, level)) if physical(output, level)[1] else (output, start)
             for output, start in zip(outputs, starts)]
    given = [physical(value, level) for value in inputs]
    result = grad([one for one, _ in whole], [value for value, _ in given], [start for _, start in whole], create_graph)
    return [Batched.of(value, level) if value is not None and is_mapped else value for value, (_, is_mapped) in zip(result, given)]


def find_at(values, level):
    """Returns whether one of several values is mapped by a map."""
    return any(physical(value, level)[1] for value in values if isinstance(value, Tensor))
