"""How operators compute with tensors inside of `vmap`.

Most rules follow from an operator's entry in the table: a loop over elements is broadcast, and dimensions in arguments are counted
from the mapped one on. Products, convolutions, subscripts and a few others have rules here. What is left is computed slice by slice
(`by_slices`).
"""

import functools
import re

from .. import _core, _torch_functions, ops
from ._batching import Batched, _dummy, batch_of, by_rule, find, physical, replaced
from ._vmap import _DRAWN as DRAWN, _RANDOM as RANDOM

Tensor = _core.Tensor
ELEMENT_RANDOM = RANDOM - {"multinomial", "randperm", "feature_dropout", "feature_alpha_dropout", "feature_dropout_"}

# Composite operators that are broadcast like loops.
_ELEMENTWISE = frozenset((
    "masked_fill", "clip", "square", "divide", "multiply", "subtract", "true_divide", "negative", "absolute", "arccos", "arccosh", "arcsin", "arcsinh",
    "arctan", "arctan2", "arctanh", "isclose", "nan_to_num", "float_power", "logit", "isreal", "conj", "complex", "polar", "sgn", "gcd", "lcm",
    "nextafter", "ldexp", "positive", "isposinf", "greater", "greater_equal", "less", "less_equal", "not_equal", "xlogy", "expit", "fix", "rsub",
    "mvlgamma", "polygamma", "clone", "contiguous", "detach", "detach_", "zeros_like", "ones_like", "full_like", "empty_like", "requires_grad_", "to",
    "float", "double", "half", "bfloat16", "long", "int", "short", "bool", "char", "byte", "cpu", "cuda", "type_as", "resolve_conj", "resolve_neg",
    "copy_", "fill_", "zero_", "alias", "erfcx", "logical_and", "frexp", "igamma", "igammac", "conj_physical", "__and__", "__or__", "__xor__",
    "__lshift__", "__rshift__", "__rsub__", "__rtruediv__", "__rpow__", "__floordiv__", "__rfloordiv__", "__rmod__", "__iand__", "__ior__", "__ixor__",
    "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__", "cfloat", "cdouble", "view_as_complex", "view_as_real", "type", "triu", "tril", "matrix_exp",
    "inverse", "logdet", "det", "slogdet", "cholesky", "linalg_inv", "linalg_det", "linalg_slogdet", "linalg_cholesky", "linalg_qr", "linalg_svd",
    "linalg_svdvals", "linalg_eigh", "linalg_eigvalsh", "linalg_eig", "linalg_eigvals", "linalg_pinv", "linalg_matrix_exp", "linalg_matrix_power",
    "matrix_power", "adjoint", "glu", "pin_memory", "retain_grad"))
_DIMS = frozenset(("dim", "dims", "dim0", "dim1", "dim2", "start_dim", "end_dim", "dimension", "source", "destination", "axis0", "axis1", "axes"))
# Operators whose tensors all have one rank, with a dimension.
_SAME_RANK = frozenset(("gather", "scatter", "scatter_add", "scatter_reduce", "take_along_dim", "cross", "linalg_cross", "linalg_vecdot"))
# Operators of images or sequences with channels, whose batch may be any.
_FOLDED = frozenset(
    [f"{kind}{dims}d" for kind in ("avg_pool", "max_pool", "adaptive_avg_pool", "adaptive_max_pool") for dims in (1, 2, 3)]
    + [f"max_pool{dims}d_with_indices" for dims in (1, 2, 3)])
# Operators that reduce all dimensions but one.
_ALL_BUT_ONE = frozenset(("renorm", "norm_except_dim", "_weight_norm", "_weight_norm_interface"))
_LOSSES = frozenset(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div",
                     "soft_margin_loss"))
@functools.cache
def _entries():
    """Returns the entries of the operator table, by name with overload."""
    return {entry["name"]: entry for entry in ops.table()}


def wrapped(result, level):
    """Returns a result with the mapped dimension first, as slices."""
    return replaced(result, lambda tensor: Batched.of(tensor, level))


def apply(func, name, args, kwargs, level):
    """Returns the result of a function of tensors that a map maps."""
    registered = getattr(getattr(_torch_functions.plain(func), "_operator", None), "_vmap", None)
    if registered is not None:
        return by_rule(registered, f"The vmap rule of {func}", args, kwargs, level)
    rule = RULES.get(name) or (elementwise if name in _ELEMENTWISE else None)
    if rule is None and name in _FOLDED:
        rule = _folded
    if rule is None and name in _LOSSES:
        rule = _loss
    if rule is not None:
        result = rule(func, name, args, kwargs, level)
        return by_slices(func, name, args, kwargs, level) if result is NotImplemented else result
    result = _derived(func, name, args, kwargs, level)
    return by_slices(func, name, args, kwargs, level) if result is NotImplemented else result


def by_slices(func, name, args, kwargs, level):
    """Returns the result of a function that is called for one slice after another."""
    def at(place):
        return lambda value: value._value[place] if isinstance(value, Batched) and value._level is level else value
    results = [func(*replaced(args, at(place)), **replaced(kwargs, at(place))) for place in range(level.size)]
    if not results:
        raise RuntimeError(f"vmap: `{name}` has no rule for a mapped dimension of size 0")
    if name.endswith("_") and not name.endswith("__"):
        return args[0]
    return wrapped(stacked(results), level)


def stacked(results):
    """Returns the results of the slices as one result."""
    if not results:
        raise RuntimeError("vmap: there is no rule for a mapped dimension of size 0")
    first = results[0]
    if isinstance(first, Tensor):
        return _core.stack(results)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*[stacked(list(column)) for column in zip(*results)])
    if isinstance(first, (list, tuple)):
        return type(first)([stacked(list(column)) for column in zip(*results)])
    return first


# ---- Rules that follow from entries --------------------------------------------------------------------------------


def _derived(func, name, args, kwargs, level):
    """Returns the result of an operator whose entry says how, or `NotImplemented`."""
    full, _ = _torch_functions.overload_of(name, args, kwargs)
    entry = _entries().get(full)
    if entry is None:
        return NotImplemented
    base = entry
    if name.endswith("_"):
        base = _entries().get(full.replace("_.", ".", 1) if "." in full else full[:-1], entry)
    if base["computed_by"].startswith("one loop") or name.startswith("special_"):
        return elementwise(func, name, args, kwargs, level)
    bound = _bound(entry, args, kwargs)
    tensors = [one["name"] for one in entry["parameters"] if one["kind"] == "Tensor"]
    dims = [one for one in entry["parameters"] if one["name"] in _DIMS and one["kind"] == "int"]
    if bound is None or not dims or any(one["kind"] == "Tensor" and one["list"] for one in entry["parameters"]):
        return NotImplemented
    first = entry["parameters"][0]["name"]
    rank = bound[first].dim() if isinstance(bound.get(first), Tensor) else 0
    # A tensor without dimensions takes 0 and -1 as dimensions.
    is_scalar = rank == 0 and any(bound.get(one["name"], _default(one)) not in (None, [], ()) for one in dims)
    if name.rstrip("_") in _ALL_BUT_ONE or (is_scalar and name not in ("unsqueeze", "unsqueeze_")):
        return NotImplemented
    mapped = [key for key in tensors if isinstance(bound.get(key), Tensor) and physical(bound[key], level)[1]]
    if len(tensors) > 1 and name.rstrip("_") not in _SAME_RANK and mapped != ["self"]:
        return NotImplemented
    if name.rstrip("_") in _SAME_RANK and len({bound[key].dim() for key in tensors if isinstance(bound.get(key), Tensor)}) > 1:
        return NotImplemented
    for key in tensors:
        if isinstance(bound.get(key), Tensor):
            bound[key] = batch_of(bound[key], level) if name.rstrip("_") in _SAME_RANK else physical(bound[key], level)[0]
    for one in dims:
        value = bound.get(one["name"], _default(one))
        shifted = _shifted(value, one["optional"])
        if shifted is NotImplemented:
            return _over_all(func, name, args, kwargs, level, bound, rank)
        bound[one["name"]] = shifted
    places = [bound.pop(first)] if first in bound else []
    result = func(*places, **bound)
    if not name.endswith("_"):
        return wrapped(result, level)
    if args[0].shape != args[0]._value.shape[1:]:
        # A view that was changed in place.
        Tensor._share(args[0], _dummy(args[0]._value))
    return args[0]


def _default(parameter):
    """Returns the default of a parameter, as far as it is a number or a list of numbers."""
    import ast
    text = parameter["default"]
    return None if text is None else ast.literal_eval(text)


_ALIASES = {"input": "self", "axis": "dim", "keepdims": "keepdim"}


def _bound(entry, args, kwargs):
    """Returns the arguments of a call by the names of parameters, or None."""
    parameters = entry["parameters"]
    names = [one["name"] for one in parameters if not one["keyword_only"]]
    if len(args) > len(names):
        # A list that is passed number by number.
        last = parameters[len(names) - 1]
        if not last["list"]:
            return None
        args = (*args[:len(names) - 1], list(args[len(names) - 1:]))
    bound = dict(zip(names, args))
    for key, value in kwargs.items():
        bound[_ALIASES.get(key, key)] = value
    return bound


def _shifted(value, is_optional):
    """Returns dimensions of a slice as those of the whole, or `NotImplemented` for all dimensions."""
    if value is None or (isinstance(value, (list, tuple)) and not len(value)):
        return NotImplemented
    if isinstance(value, (list, tuple)):
        return [dim + 1 if dim >= 0 else dim for dim in value]
    return value + 1 if value >= 0 else value


def _over_all(func, name, args, kwargs, level, bound, rank):
    """Returns a reduction over all dimensions of a slice."""
    value = bound["self"]
    others = {key: part for key, part in bound.items() if key not in ("self", "dim", "dims") and part is not None}
    if name in ("sum", "mean", "amax", "amin", "logsumexp", "nansum", "nanmean", "std", "var", "std_mean", "var_mean", "linalg_vector_norm",
                "count_nonzero", "any", "all") and rank:
        return wrapped(func(value, dim=list(range(1, rank + 1)), **others), level)
    if rank == 0 and name in ("sum", "mean", "amax", "amin", "nansum", "nanmean", "prod"):
        return wrapped(func(value.unsqueeze(-1), dim=-1, **others), level)
    if name in ("prod", "argmax", "argmin", "any", "all", "linalg_vector_norm") and not others.get("keepdim"):
        others.pop("keepdim", None)
        return wrapped(func(value.reshape(level.size, -1), dim=1, **others), level)
    return NotImplemented


def _aligned(value, rank, level):
    """Returns a tensor of which a slice has more dimensions of extent 1, to be broadcast with others."""
    own, is_mapped = physical(value, level)
    missing = rank - value.dim()
    return own.reshape(level.size, *(1,) * missing, *value.shape) if is_mapped and missing > 0 else own


def elementwise(func, name, args, kwargs, level):
    """Returns the result of an operator that is broadcast."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    rank = max(value.dim() for value in tensors)
    if name.endswith("_") and not name.endswith("__") and not physical(args[0], level)[1]:
        raise RuntimeError(f"vmap: inplace arithmetic(self, *extra_args) is not possible because there exists a Tensor `other` in extra_args that has more "
                           f"elements than `self`. This happened due to `other` being vmapped over but `self` not being vmapped over in a vmap: {name}. "
                           "Please try to use out-of-place operators instead of inplace arithmetic.")
    dtypes = {value.dtype for value in tensors}
    wanted = None
    if len(dtypes) > 1 and len(tensors) == 2 and any(value.dim() == 0 and physical(value, level)[1] for value in tensors) and rank:
        from .._functions import result_type
        wanted = result_type(*[_plain(value) for value in tensors])

    def one(value):
        own = _aligned(value, rank, level)
        return own.to(wanted) if wanted is not None and value.dim() == 0 and own.dtype is not wanted else own
    result = func(*[one(value) if isinstance(value, Tensor) else value for value in args],
                  **{key: one(value) if isinstance(value, Tensor) else value for key, value in kwargs.items()})
    is_own = name.endswith("_") and not name.endswith("__")
    return args[0] if is_own else wrapped(result, level)


def _plain(value):
    return _core.empty(value.shape, dtype=value.dtype, device="meta")


def _loss(func, name, args, kwargs, level):
    """Returns a loss that is the mean or the sum of the losses of elements."""
    bound = _bound(_entries()[_torch_functions.overload_of(name, args, kwargs)[0] or name], args, kwargs)
    reduction = bound.pop("reduction", 1) if bound is not None else 1
    if bound is None or not isinstance(bound.get("target"), Tensor):
        return NotImplemented
    first, target = bound.pop("self"), bound.pop("target")
    losses = elementwise(lambda *given, **named: func(*given, reduction=0, **named), name, (first, target), bound, level)
    return losses if reduction == 0 else losses.mean() if reduction == 1 else losses.sum()


# ---- Shapes --------------------------------------------------------------------------------------------------------


def _sizes(args):
    sizes = args[0] if len(args) == 1 and not isinstance(args[0], int) else args
    return [size if isinstance(size, int) else int(size) for size in sizes]


def _reshape(func, name, args, kwargs, level):
    value = physical(args[0], level)[0]
    if kwargs.get("dtype") is not None or (len(args) == 2 and isinstance(args[1], _core.dtype)):
        return wrapped(func(value, *args[1:], **kwargs), level)
    shape = kwargs.get("shape", kwargs.get("size"))
    sizes = _sizes((shape,) if shape is not None else args[1:])
    return wrapped(func(value, [level.size, *sizes]), level)


def _expand(func, name, args, kwargs, level):
    sizes = _sizes((kwargs["size"],) if "size" in kwargs else args[1:])
    value = args[0]
    own = _aligned(value, len(sizes), level)
    return wrapped(own.expand(level.size, *sizes), level)


def _like_other(func, name, args, kwargs, level):
    other = args[1] if len(args) > 1 else kwargs["other"]
    return getattr(args[0], name.removesuffix("_as"))(other.shape)


def _repeat(func, name, args, kwargs, level):
    sizes = _sizes(args[1:] or tuple(kwargs.values()))
    if len(sizes) < args[0].dim():
        sizes = [1] * (args[0].dim() - len(sizes)) + sizes
    return wrapped(_aligned(args[0], len(sizes), level).repeat(1, *sizes), level)


def _permute(func, name, args, kwargs, level):
    dims = kwargs.get("dims")
    dims = _sizes((dims,) if dims is not None else args[1:])
    return wrapped(physical(args[0], level)[0].permute(0, *[dim % len(dims) + 1 for dim in dims]), level)


def _transposed(func, name, args, kwargs, level):
    value = args[0]
    return value if value.dim() < 2 else value.transpose(0, 1)


def _reversed_dims(func, name, args, kwargs, level):
    return args[0].permute(*reversed(range(args[0].dim())))


def _matrix_transposed(func, name, args, kwargs, level):
    return args[0].transpose(-2, -1)


def _squeeze(func, name, args, kwargs, level):
    value, dims = args[0], args[1] if len(args) > 1 else kwargs.get("dim")
    if dims is None:
        dims = [dim for dim in range(value.dim()) if value.shape[dim] == 1]
    elif value.dim() == 0:
        return NotImplemented
    dims = [dims] if isinstance(dims, int) else list(dims)
    return wrapped(func(physical(value, level)[0], [dim + 1 if dim >= 0 else dim for dim in dims]), level) if dims else value


def _new(func, name, args, kwargs, level):
    sizes = _sizes((kwargs.pop("size"),) if "size" in kwargs else args[1:] if name != "new_full" else args[1:2])
    rest = args[2:] if name == "new_full" else ()
    return wrapped(func(physical(args[0], level)[0], [level.size, *sizes], *rest, **kwargs), level)


def _iterated(func, name, args, kwargs, level):
    return iter(args[0].unbind(0))


def _of_list(func, name, args, kwargs, level):
    """Returns tensors joined along a dimension of a slice."""
    tensors = list(args[0] if args else kwargs.get("tensors"))
    dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
    return wrapped(func([batch_of(value, level) for value in tensors], dim + 1 if dim >= 0 else dim), level)


# ---- Subscripts ----------------------------------------------------------------------------------------------------


def _subscripts(value, index):
    """Returns the parts of a subscript, without an ellipsis."""
    parts = list(index) if isinstance(index, tuple) else [index]
    parts = [_core.tensor(part, device=value.device) if isinstance(part, (list, range)) else part for part in parts]
    used = sum((part.dim() if isinstance(part, Tensor) and part.dtype is getattr(_core, "bool") else 1) for part in parts
               if part is not None and part is not ... and not isinstance(part, bool))
    place = next((place for place, part in enumerate(parts) if part is ...), None)
    whole = [slice(None)] * (value.dim() - used)
    return [*parts, *whole] if place is None else [*parts[:place], *whole, *parts[place + 1:]]


def _getitem(func, name, args, kwargs, level):
    value, index = args
    parts = _subscripts(value, index)
    advanced = [place for place, part in enumerate(parts) if isinstance(part, Tensor)]
    if any(parts[place].dtype is getattr(_core, "bool") for place in advanced) and find(index):
        return NotImplemented
    own = physical(value, level)[0]
    if not advanced:
        return wrapped(own[(slice(None), *parts)], level)
    is_apart = advanced != list(range(advanced[0], advanced[-1] + 1))
    rank = max(parts[place].dim() for place in advanced)
    if not find(index):
        picked = own[(slice(None), *parts)]
        return wrapped(picked.movedim(rank, 0) if is_apart else picked, level)
    own = batch_of(value, level)
    at = _core.arange(level.size, device=own.device).reshape(level.size, *(1,) * rank)
    picked = own[(at, *(_aligned(part, rank, level) if isinstance(part, Tensor) else part for part in parts))]
    before = 0 if is_apart else sum(part is None or isinstance(part, slice) for part in parts[:advanced[0]])
    return wrapped(picked.movedim(list(range(1, rank + 1)), list(range(before + 1, before + rank + 1))) if before and rank else picked, level)


def _setitem(func, name, args, kwargs, level):
    value, index, new = args
    if not physical(value, level)[1]:
        raise RuntimeError("vmap: a Tensor that is not being vmapped over cannot be written by one that is: expand it first, or use out-of-place operators")
    parts = _subscripts(value, index)
    if find(index) or any(isinstance(part, Tensor) for part in parts):
        return NotImplemented
    target = value._value[(slice(None), *parts)]
    target.copy_(_aligned(new, target.dim() - 1, level) if isinstance(new, Tensor) else target.new_tensor(new))
    return None


def _index_select(func, name, args, kwargs, level):
    value, dim, index = args if len(args) == 3 else (args[0], kwargs.get("dim", args[1] if len(args) > 1 else None), kwargs.get("index"))
    if value.dim() == 0:
        return NotImplemented
    dim = dim % value.dim()
    if not physical(index, level)[1]:
        return wrapped(physical(value, level)[0].index_select(dim + 1, index), level)
    return value[(slice(None),) * dim + (index,)]


def _embedding(func, name, args, kwargs, level):
    weight, index = args[:2]
    if physical(weight, level)[1]:
        return weight[index]
    return wrapped(func(weight, physical(index, level)[0], *args[2:], **kwargs), level)


# ---- Products ------------------------------------------------------------------------------------------------------


def _matmul(func, name, args, kwargs, level):
    first, second = args if len(args) == 2 else (args[0], *kwargs.values())
    return wrapped(_product(first, second, level), level)


def _product(first, second, level):
    """Returns the product of matrices or vectors with the mapped dimension first."""
    rank = max(first.dim(), second.dim(), 2)
    one = _aligned(first.unsqueeze(-2) if first.dim() == 1 else first, rank, level)
    other = _aligned(second.unsqueeze(-1) if second.dim() == 1 else second, rank, level)
    result = _core.matmul(one, other)
    if first.dim() == 1:
        result = result.squeeze(-2)
    return result.squeeze(-1) if second.dim() == 1 else result


def _linear(func, name, args, kwargs, level):
    bias = args[2] if len(args) > 2 else kwargs.get("bias")
    input, weight = args[0], args[1] if len(args) > 1 else kwargs["weight"]
    if not physical(weight, level)[1] and (bias is None or not physical(bias, level)[1]):
        return wrapped(func(physical(input, level)[0], weight, bias), level)
    result = input.matmul(weight.transpose(0, 1) if weight.dim() == 2 else weight)
    return result if bias is None else result + bias


def _added_product(func, name, args, kwargs, level):
    added, first, second = args[:3]
    beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
    product = first.matmul(second)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else (added if beta == 1 else added * beta) + product


def _outer(func, name, args, kwargs, level):
    return args[0].unsqueeze(-1) * args[1].unsqueeze(-2)


def _einsum(func, name, args, kwargs, level):
    equation, operands = args[0], list(args[1]) if len(args) == 2 and isinstance(args[1], (list, tuple)) else list(args[1:])
    equation = equation.replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    if not arrow:
        letters = inputs.replace(",", "").replace("...", "")
        output = ("..." if "..." in inputs else "") + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    free = next(letter for letter in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in equation)
    parts = [(free if physical(operand, level)[1] else "") + part for part, operand in zip(inputs.split(","), operands)]
    result = _core.einsum(f"{','.join(parts)}->{free}{output}", [physical(operand, level)[0] for operand in operands])
    return wrapped(result, level)


def _attention(func, name, args, kwargs, level):
    if any(isinstance(value, Tensor) for value in args[3:]) or any(isinstance(value, Tensor) for value in kwargs.values()):
        return NotImplemented
    if len({value.dim() for value in args[:3]}) > 1:
        return NotImplemented
    return wrapped(func(*[batch_of(value, level) for value in args[:3]], *args[3:], **kwargs), level)


# ---- Networks ------------------------------------------------------------------------------------------------------


def _folded(func, name, args, kwargs, level):
    """Returns the result of an operator of images, whose batch contains all slices."""
    value = args[0]
    dims = int(re.search(r"(\d)d", name).group(1))
    own = physical(value, level)[0]
    if value.dim() == dims + 1:
        return wrapped(func(own, *args[1:], **kwargs), level)
    result = func(own.reshape(-1, *value.shape[1:]), *args[1:], **kwargs)
    return wrapped(replaced(result, lambda tensor: tensor.reshape(level.size, value.shape[0], *tensor.shape[1:])), level)


def _convolution(func, name, args, kwargs, level):
    dims = int(name[-2])
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = {**dict(zip(names, args)), **kwargs}
    input, weight, bias = given.pop("input"), given.pop("weight"), given.pop("bias", None)
    is_single, groups, size = input.dim() == dims + 1, given.pop("groups", 1), level.size
    if is_single:
        input = input.unsqueeze(0)
    if not physical(weight, level)[1] and (bias is None or not physical(bias, level)[1]):
        own = physical(input, level)[0]
        result = func(own.reshape(-1, *input.shape[1:]), weight, bias, groups=groups, **given)
        result = result.reshape(size, input.shape[0], *result.shape[1:])
    else:
        # Each slice is a group of its own.
        own = batch_of(input, level).transpose(0, 1)
        weights = batch_of(weight, level)
        result = func(own.reshape(input.shape[0], -1, *input.shape[2:]), weights.reshape(-1, *weight.shape[1:]),
                      None if bias is None else batch_of(bias, level).reshape(-1), groups=groups * size, **given)
        result = result.reshape(input.shape[0], size, -1, *result.shape[2:]).transpose(0, 1)
    result = wrapped(result, level)
    return result.squeeze(0) if is_single else result


def _layer_norm(func, name, args, kwargs, level):
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    given = {**dict(zip(names, args)), **kwargs}
    input, weight, bias = given["input"], given.get("weight"), given.get("bias")
    if not physical(input, level)[1]:
        result = func(input, given["normalized_shape"], None, None, given.get("eps", 1e-5))
    elif not find(weight, bias):
        return wrapped(func(physical(input, level)[0], given["normalized_shape"], weight, bias, given.get("eps", 1e-5)), level)
    else:
        result = wrapped(func(physical(input, level)[0], given["normalized_shape"], None, None, given.get("eps", 1e-5)), level)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


def _cross_entropy(func, name, args, kwargs, level):
    names = ("self", "target", "weight", "reduction", "ignore_index", "label_smoothing")
    given = {**dict(zip(names, args)), **kwargs}
    input, target = given.get("self", given.get("input")), given["target"]
    if given.get("weight") is not None or given.get("label_smoothing") or target.is_floating_point():
        return NotImplemented
    dim = 0 if input.dim() == 1 else 1
    logs = input.log_softmax(dim) if name == "cross_entropy_loss" else input
    ignored = target == given.get("ignore_index", -100)
    losses = -logs.gather(dim, target.masked_fill(ignored, 0).unsqueeze(dim)).squeeze(dim)
    losses, reduction = losses.masked_fill(ignored, 0), given.get("reduction", 1)
    return losses if reduction == 0 else losses.sum() if reduction == 2 else losses.sum() / (~ignored).sum()


def _pad(func, name, args, kwargs, level):
    if (args[2] if len(args) > 2 else kwargs.get("mode", "constant")) != "constant":
        return NotImplemented
    return wrapped(func(physical(args[0], level)[0], *args[1:], **kwargs), level)


RULES = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "unsafe_view"), _reshape), "expand": _expand, "broadcast_to": _expand,
    **dict.fromkeys(("view_as", "reshape_as", "expand_as"), _like_other), "repeat": _repeat, "tile": _repeat, "permute": _permute, "t": _transposed,
    "numpy_T": _reversed_dims, "mT": _matrix_transposed, "squeeze": _squeeze,
    **dict.fromkeys(("new_zeros", "new_ones", "new_empty", "new_full"), _new), "__iter__": _iterated,
    **dict.fromkeys(("cat", "stack", "concat", "concatenate"), _of_list), "__getitem__": _getitem, "__setitem__": _setitem,
    "index_select": _index_select, "embedding": _embedding,
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot", "__matmul__", "linalg_matmul"), _matmul), "linear": _linear,
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), _added_product), **dict.fromkeys(("outer", "ger"), _outer), "einsum": _einsum,
    "scaled_dot_product_attention": _attention, **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution), "layer_norm": _layer_norm,
    **dict.fromkeys(("cross_entropy_loss", "nll_loss", "nll_loss_nd"), _cross_entropy), "pad": _pad, "constant_pad_nd": _pad,
}
