"""Control flow as functions (`torch.cond`, `torch.while_loop`, and the scans of `torch._higher_order_ops`), which run as the loops and branches of
Python do."""

from . import _core

__all__ = ["cond", "while_loop"]


def _answer(value, name):
    """Returns a condition as a bool."""
    if isinstance(value, _core.Tensor):
        if value.numel() != 1:
            raise RuntimeError(f"{name} must be a bool or a tensor of one element, but has the shape {tuple(value.shape)}")
    elif not isinstance(value, (bool, int, float)):
        raise RuntimeError(f"{name} must be a bool or a tensor of one element, but is of type {type(value).__name__}")
    return bool(value)


def _require_callable(**functions):
    for name, function in functions.items():
        if not callable(function):
            raise RuntimeError(f"{name} must be callable, but is of type {type(function).__name__}")


def cond(pred, true_fn, false_fn, operands=()):
    """Returns `true_fn(*operands)` or `false_fn(*operands)`. The host reads a condition that is a tensor."""
    _require_callable(true_fn=true_fn, false_fn=false_fn)
    if not isinstance(operands, (tuple, list)):
        raise RuntimeError(f"operands must be a tuple or a list, but are of type {type(operands).__name__}")
    return (true_fn if _answer(pred, "pred") else false_fn)(*operands)


def while_loop(cond_fn, body_fn, carried_inputs):
    """Returns `carried_inputs` after `body_fn` has replaced them as long as `cond_fn` of them is true. The host reads each condition."""
    _require_callable(cond_fn=cond_fn, body_fn=body_fn)
    if not isinstance(carried_inputs, (tuple, list)):
        raise RuntimeError(f"carried_inputs must be a tuple or a list, but are of type {type(carried_inputs).__name__}")
    carried = tuple(carried_inputs)
    while _answer(cond_fn(*carried), "the result of cond_fn"):
        following = body_fn(*carried)
        following = tuple(following) if isinstance(following, (tuple, list)) else (following,)
        if len(following) != len(carried):
            raise RuntimeError(f"body_fn must return {len(carried)} values, as many as are carried, but returned {len(following)}")
        carried = following
    return carried


def _map(function, *trees):
    from .utils import _pytree
    return _pytree.tree_map(function, *trees)


def _length(xs, dim):
    """Returns the length of the dimension that is scanned."""
    from .utils import _pytree
    lengths = {leaf.shape[dim] for leaf in _pytree.tree_leaves(xs)}
    if len(lengths) != 1:
        raise RuntimeError(f"the tensors of xs must have one length in dimension {dim}, but have {sorted(lengths)}")
    return lengths.pop()


def scan(combine_fn, init, xs, *, dim=0, reverse=False):
    """Returns the last carry and all outputs, stacked in dimension 0, of `carry, output = combine_fn(carry, x)` over the slices `x` of `xs`."""
    _require_callable(combine_fn=combine_fn)
    places = range(_length(xs, dim))
    carry, outputs = init, []
    for place in reversed(places) if reverse else places:
        carry, output = combine_fn(carry, _map(lambda x: x.select(dim, place), xs))
        outputs.append(output)
    return carry, _map(lambda *parts: _core.stack(parts[::-1] if reverse else parts), *outputs)


def associative_scan(combine_fn, xs, dim, reverse=False, combine_mode="pointwise"):
    """Returns `xs` with each slice combined with all before it, or after it with `reverse`, by an associative function of two slices."""
    from .func import vmap
    _require_callable(combine_fn=combine_fn)
    if combine_mode not in ("pointwise", "generic"):
        raise ValueError(f"Combine_mode must either 'pointwise' or 'generic', but got {combine_mode}")
    _length(xs, dim)
    turned = _map(lambda x: (x.flip(dim) if reverse else x).movedim(dim, 0), xs)
    result = _combined(vmap(combine_fn), turned)
    return _map(lambda x: x.movedim(0, dim).flip(dim) if reverse else x.movedim(0, dim), result)


def _combined(combine, xs):
    """Returns the scan along dimension 0. A scan of pairs of neighbours has every second result, and each of the others
    is one step from it."""
    count = _length(xs, 0)
    if count < 2:
        return xs
    odd = _combined(combine, combine(_map(lambda x: x[:count - 1:2], xs), _map(lambda x: x[1::2], xs)))
    if count == 2:
        return _map(lambda x, later: _core.cat([x[:1], later]), xs, odd)
    even = combine(_map(lambda x: x[:(count - 1) // 2], odd), _map(lambda x: x[2::2], xs))
    even = _map(lambda x, later: _core.cat([x[:1], later]), xs, even)
    return _map(_woven, even, odd)


def _woven(even, odd):
    """Returns the slices of two tensors in alternation."""
    pairs = _core.stack([even[:odd.shape[0]], odd], 1).flatten(0, 1)
    return pairs if even.shape[0] == odd.shape[0] else _core.cat([pairs, even[-1:]])


def map(f, xs, *args):
    """Returns the results of `f(x, *args)` over the slices `x` of `xs` in dimension 0, stacked."""
    results = [f(_map(lambda x: x[place], xs), *args) for place in range(_length(xs, 0))]
    return _map(lambda *parts: _core.stack(parts), *results)
