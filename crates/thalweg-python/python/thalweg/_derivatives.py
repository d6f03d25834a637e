"""Gradients of operators on instances of classes without elements of their own (`_make_wrapper_subclass`).

Such a class computes each operator itself, below autograd. So its gradients are functions of tensors as well, which the class computes: a rule
names, for each argument that has a gradient, the function that computes it from the gradient of the result.
"""

import math

from . import _core, _external, ops
from .autograd.function import BackwardCFunction

Tensor = _core.Tensor


class Arguments:
    """The arguments of a call by name, its result and the name of the operator."""

    def __init__(self, overload, args, kwargs, result):
        self._given = {}
        for place, argument in enumerate(overload._schema.arguments):
            value = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
            self._given[argument.name] = value
        self.result = result

    def __getattr__(self, name):
        try:
            found = self._given[name]
        except KeyError:
            raise AttributeError(name) from None
        if found is None and name == "self":
            raise RuntimeError("one of the variables needed for gradient computation has been modified by an inplace operation: the tensor that an operator "
                               "has written is needed as it was before")
        return found

    def listed(self):
        """Returns the tensors among the arguments, each with the name of its parameter and its place in a list."""
        found = []
        for name, value in self._given.items():
            if isinstance(value, Tensor):
                found.append((name, None, value))
            elif isinstance(value, (list, tuple)):
                found += [(name, place, one) for place, one in enumerate(value) if isinstance(one, Tensor)]
        return found


def _in_shape_of(gradient, shape, dtype):
    """Returns a gradient in the shape and the dtype of its argument, summed where that was broadcast."""
    shape = tuple(shape)
    if tuple(gradient.shape) != shape:
        extra = gradient.dim() - len(shape)
        dims = [*range(extra), *(extra + dim for dim, extent in enumerate(shape) if extent == 1 and gradient.shape[extra + dim] != 1)]
        if dims:
            gradient = gradient.sum(dims, True)
        gradient = gradient.reshape(shape) if tuple(gradient.shape) != shape else gradient
    return gradient if gradient.dtype == dtype else gradient.to(dtype)


def _number(value, default=1):
    return default if value is None else value


def _dims(dim, rank):
    if dim is None or dim == [] or dim == ():
        return list(range(rank))
    return [one % rank if rank else 0 for one in ([dim] if isinstance(dim, int) else dim)]


def _spread(c, gradient):
    """Returns the gradient of a reduction for each element that was reduced."""
    x, dim = c.self, getattr(c, "dim", None)
    if not getattr(c, "keepdim", False):
        for one in sorted(_dims(dim, x.dim())):
            gradient = gradient.unsqueeze(one)
    return gradient.expand(x.shape)


def _mean(c, g):
    count = math.prod(c.self.shape[one] for one in _dims(getattr(c, "dim", None), c.self.dim()))
    return {"self": lambda: _spread(c, g) / count}


def _add(c, g):
    alpha = _number(getattr(c, "alpha", None))
    return {"self": lambda: g, "other": lambda: g if alpha == 1 else g * alpha}


def _sub(c, g):
    return {"self": lambda: g, "other": lambda: g * -_number(getattr(c, "alpha", None))}


def _rsub(c, g):
    return {"self": lambda: g * -_number(getattr(c, "alpha", None)), "other": lambda: g}


def _addmm(c, g):
    def scaled(value, by):
        return value if by == 1 else value * by
    first, second = (c.mat1, c.mat2) if "mat1" in c._given else (c.batch1, c.batch2)
    names = ("mat1", "mat2") if "mat1" in c._given else ("batch1", "batch2")
    return {"self": lambda: scaled(g, _number(c.beta)), names[0]: lambda: scaled(g @ second.transpose(-2, -1), _number(c.alpha)),
            names[1]: lambda: scaled(first.transpose(-2, -1) @ g, _number(c.alpha))}


def _product(c, g):
    return {"self": lambda: g @ c.mat2.transpose(-2, -1), "mat2": lambda: c.self.transpose(-2, -1) @ g}


def _power(c, g):
    exponent = c.exponent
    return {"self": lambda: g * (exponent * c.self ** (exponent - 1)),
            "exponent": lambda: g * c.result * c.self.log()}


def _permute(c, g):
    order = [dim % c.self.dim() for dim in c.dims]
    return {"self": lambda: g.permute([order.index(dim) for dim in range(len(order))])}


def _cat(c, g):
    dim = c.dim % g.dim()
    extents = [one.shape[dim] for one in c.tensors]
    return {"tensors": lambda place: g.narrow(dim, sum(extents[:place]), extents[place])}


def _in_zeros(c, g, write):
    """Returns zeros in the shape of the argument with the gradient written into a part of them."""
    zeros = g.new_zeros(c.self.shape)
    write(zeros).copy_(g)
    return zeros


def _softmax(c, g):
    return {"self": lambda: c.result * (g - (g * c.result).sum(c.dim, True))}


def _log_softmax(c, g):
    return {"self": lambda: g - c.result.exp() * g.sum(c.dim, True)}


def _gelu(c, g):
    x = c.self
    if c.approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        bent = inner.tanh()
        return {"self": lambda: g * (0.5 * (1 + bent) + 0.5 * x * (1 - bent * bent) * (math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)))}
    return {"self": lambda: g * (0.5 * (1 + (x * math.sqrt(0.5)).erf()) + x * (-0.5 * x * x).exp() / math.sqrt(2 * math.pi))}


def _silu(c, g):
    share = c.self.sigmoid()
    return {"self": lambda: g * share * (1 + c.self * (1 - share))}


def _clamp(c, g):
    is_inside = c.self == c.self
    for bound, compare in ((c.min, Tensor.ge), (c.max, Tensor.le)):
        is_inside = is_inside if bound is None else is_inside & compare(c.self, bound)
    return {"self": lambda: g * is_inside.to(g.dtype)}


def _where(c, g):
    return {"self": lambda: g.masked_fill(~c.condition, 0), "other": lambda: g.masked_fill(c.condition, 0)}


def _embedding(c, g):
    def rows():
        flat = c.indices.reshape(-1)
        values = g.reshape(flat.numel(), *c.weight.shape[1:])
        if c.padding_idx is not None and c.padding_idx >= 0:
            values = values * (flat != c.padding_idx).to(values.dtype).unsqueeze(-1)
        return values.new_zeros(c.weight.shape).index_add(0, flat, values)
    return {"weight": rows}


def _mse(c, g):
    scale = 2 / max(c.self.numel(), 1) if c.reduction in (None, 1) else 2
    return {"self": lambda: g * (c.self - c.target) * scale, "target": lambda: g * (c.target - c.self) * scale}


def _nll(c, g):
    def rows():
        target = c.target
        is_counted = (target != c.ignore_index).to(c.self.dtype)
        picked = _core.zeros(list(c.self.shape), dtype=c.self.dtype, device=c.self.device).scatter(
            -1, (target * (target != c.ignore_index)).unsqueeze(-1), -1.0) * is_counted.unsqueeze(-1)
        if c.weight is not None:
            picked = picked * c.weight
        if c.reduction == 1:
            return picked * g / (-picked.sum())
        return picked * (g if c.reduction == 2 else g.unsqueeze(-1))
    return {"self": rows}


def _of_one(function):
    """Returns the rule of a function of one tensor by its derivative, of the arguments with the result."""
    return lambda c, g: {"self": lambda: g * function(c)}


def _same(change):
    """Returns the rule of a function that only places elements, by the change that puts a gradient back."""
    return lambda c, g: {"self": lambda: change(c, g)}


_SHAPED = _same(lambda c, g: g.reshape(c.self.shape))
_RULES = {
    "add": _add, "sub": _sub, "rsub": _rsub, "mul": lambda c, g: {"self": lambda: g * c.other, "other": lambda: g * c.self},
    "div": lambda c, g: {"self": lambda: g / c.other, "other": lambda: -g * c.result / c.other},
    "neg": lambda c, g: {"self": lambda: -g}, "pow": _power, "mm": _product, "bmm": _product, "addmm": _addmm, "baddbmm": _addmm,
    "mv": lambda c, g: {"self": lambda: g.unsqueeze(-1) * c.vec, "vec": lambda: c.self.t() @ g},
    "dot": lambda c, g: {"self": lambda: g * c.tensor, "tensor": lambda: g * c.self},
    "t": _same(lambda c, g: g.t()), "transpose": _same(lambda c, g: g.transpose(c.dim0, c.dim1)), "permute": _permute, "view": _SHAPED, "reshape": _SHAPED,
    "_unsafe_view": _SHAPED, "flatten": _SHAPED, "squeeze": _SHAPED, "unsqueeze": _SHAPED, "view_as": _SHAPED, "expand": _same(lambda c, g: g),
    "select": _same(lambda c, g: _in_zeros(c, g, lambda zeros: zeros.select(c.dim, c.index))),
    "slice": _same(lambda c, g: _in_zeros(c, g, lambda zeros: ops.overload("slice.Tensor")(zeros, c.dim, c.start, c.end, c.step))),
    "narrow": _same(lambda c, g: _in_zeros(c, g, lambda zeros: zeros.narrow(c.dim, c.start, c.length))),
    "sum": _same(lambda c, g: _spread(c, g)), "mean": _mean, "clone": _same(lambda c, g: g), "alias": _same(lambda c, g: g),
    "contiguous": _same(lambda c, g: g), "_to_copy": _same(lambda c, g: g), "to": _same(lambda c, g: g),
    "relu": _of_one(lambda c: (c.result > 0).to(c.result.dtype)), "sigmoid": _of_one(lambda c: c.result * (1 - c.result)),
    "tanh": _of_one(lambda c: 1 - c.result * c.result), "exp": _of_one(lambda c: c.result), "log": _of_one(lambda c: c.self.reciprocal()),
    "sqrt": _of_one(lambda c: 0.5 / c.result), "rsqrt": _of_one(lambda c: -0.5 * c.result * c.result * c.result), "abs": _of_one(lambda c: c.self.sign()),
    "square": _of_one(lambda c: 2 * c.self), "reciprocal": _of_one(lambda c: -c.result * c.result), "sin": _of_one(lambda c: c.self.cos()),
    "cos": _of_one(lambda c: -c.self.sin()), "erf": _of_one(lambda c: 2 / math.sqrt(math.pi) * (-c.self * c.self).exp()),
    "log1p": _of_one(lambda c: (1 + c.self).reciprocal()), "softplus": _of_one(lambda c: c.self.sigmoid()),
    "gelu": _gelu, "silu": _silu, "softmax": _softmax, "_softmax": _softmax, "log_softmax": _log_softmax, "_log_softmax": _log_softmax, "clamp": _clamp,
    "cat": _cat, "stack": lambda c, g: {"tensors": lambda place: g.select(c.dim, place)}, "where": _where,
    "masked_fill": lambda c, g: {"self": lambda: g.masked_fill(c.mask, 0), "value": lambda: g.masked_fill(~c.mask, 0).sum()}, "embedding": _embedding,
    "mse_loss": _mse, "nll_loss": _nll, "copy": lambda c, g: {"src": lambda: g}}


# Operators whose nodes need no tensor, and may run again.
_KEEPING_NOTHING = frozenset("""add sub rsub neg t transpose permute view reshape _unsafe_view flatten squeeze unsqueeze view_as expand select slice narrow sum
    mean clone alias contiguous _to_copy to cat stack copy""".split())

_USING_RESULTS = frozenset("div pow softmax _softmax log_softmax _log_softmax relu sigmoid tanh exp sqrt rsqrt reciprocal".split())


class WrapperBackward(BackwardCFunction):
    """The node of an operator on instances of classes."""


def _gradients(call, saved, rule, described, gradients):
    """Returns the gradients of the arguments of a call from those of its result."""
    saved.check()
    gradient, *_ = gradients
    if gradient is None:
        return [None] * len(described)
    found, results = rule(call, gradient), []
    for parameter, place, shape, dtype, is_wanted in described:
        if not is_wanted or parameter not in found:
            results.append(None)
            continue
        made = found[parameter]() if place is None else found[parameter](place)
        results.append(_in_shape_of(made, shape, dtype))
    return results


def is_recorded(args, kwargs):
    """Returns whether a call with these arguments is recorded."""
    def wanted(values):
        return any(value.requires_grad if isinstance(value, Tensor) else isinstance(value, (list, tuple)) and wanted(value) for value in values)
    return _core.is_grad_enabled() and wanted((*args, *kwargs.values()))


def record(overload, args, kwargs, result):
    """Returns the result of a call as a part of the graph."""
    name = overload._schema.name.partition("::")[2]
    is_constant = name == "detach" or name.endswith("_like") or name.startswith("new_")
    if is_constant or not isinstance(result, Tensor) or not (result.is_floating_point() or result.is_complex()):
        return result
    is_written = name.endswith("_") and not name.endswith("__")
    if not is_written and any(result is value for value in args):
        return result
    rule = _RULES.get(name.rstrip("_") if is_written else name)
    if rule is None:
        def rule(c, g):
            raise NotImplementedError(f"the gradient of {overload} is left out for instances of {_kinds(c)}: write a torch.autograd.Function for it")
    base = name.rstrip("_") if is_written else name
    # The result is kept outside the graph, so that it does not keep its own node.
    call = Arguments(overload, args, kwargs, result.detach() if base in _USING_RESULTS else None)
    found = call.listed()
    inputs = [value for _, _, value in found]
    if is_written:
        call._given["self"] = None
    described = [(parameter, place, tuple(value.shape), value.dtype, value.requires_grad) for parameter, place, value in found]
    saved = _core._SavedTensors([] if base in _KEEPING_NOTHING else inputs[:1], [])

    def backward(gradients):
        return _gradients(call, saved, rule, described, gradients)
    title = "".join(word.capitalize() for word in name.strip("_").split("_"))
    (made,), _ = _core._record_function(f"{title}Backward0", backward, saved, inputs, [result], WrapperBackward, call)
    if type(result) is Tensor and not is_written:
        return made
    result._take_history(made)
    return result


def _kinds(call):
    return ", ".join(sorted({type(value).__name__ for _, _, value in call.listed() if type(value) is not Tensor}))
