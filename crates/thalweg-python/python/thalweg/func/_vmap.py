"""Maps of functions over a dimension of their arguments (`torch.func.vmap`)."""

import functools

from .. import _core
from ..utils._pytree import _broadcast_to_and_flatten, tree_flatten, tree_unflatten
from .. import _transform_levels as _levels

Tensor = _core.Tensor
_RANDOM = frozenset((
    "bernoulli", "bernoulli_", "cauchy_", "dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "exponential_", "geometric_",
    "log_normal_", "multinomial", "native_dropout", "normal", "normal_", "poisson", "rand", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "random_", "randperm", "rrelu", "rrelu_", "uniform_", "binomial", "dropout_", "alpha_dropout_", "feature_dropout_", "_standard_gamma",
    "_sample_dirichlet"))
# Those of them that are written in Python.
_DRAWN = frozenset(("poisson", "binomial", "_standard_gamma", "_sample_dirichlet"))


def _is_container(value):
    """Returns whether a value is a library's container of tensors, which adds and removes the mapped dimension itself."""
    return hasattr(type(value), "_add_batch_dim") and not isinstance(value, Tensor)


def _prepared(in_dims, args, name):
    """Returns the leaves of arguments, the mapped dimension of each, and their structure."""
    if not isinstance(in_dims, (int, tuple, list)):
        raise ValueError(f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): expected `in_dims` to be int or a (potentially nested) tuple matching the "
                         f"structure of inputs, got: {type(in_dims)}.")
    if not args:
        raise ValueError(f"vmap({name})(<inputs>): got no inputs. Maybe you forgot to add inputs, or you are trying to vmap over a function with no "
                         "inputs. The latter is unsupported.")
    leaves, spec = tree_flatten(args, is_leaf=_is_container)
    dims = _broadcast_to_and_flatten(tuple(in_dims) if isinstance(in_dims, list) else in_dims, spec)
    if dims is None:
        raise ValueError(f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): in_dims is not compatible with the structure of `inputs`. in_dims has "
                         f"structure {tree_flatten(in_dims)[1]} but inputs has structure {spec}.")
    for place, (leaf, dim) in enumerate(zip(leaves, dims)):
        if dim is None:
            continue
        if not isinstance(dim, int):
            raise ValueError(f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): Got in_dim={dim} for an input but in_dim must be either an integer "
                             "dimension or None.")
        if not isinstance(leaf, Tensor) and not _is_container(leaf):
            raise ValueError(f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): Got in_dim={dim} for an input but the input is of type {type(leaf)}. We "
                             "cannot vmap over non-Tensor arguments, please use None as the respective in_dim")
        if not -leaf.dim() <= dim < leaf.dim():
            raise ValueError(f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): Got in_dim={dim} for some input, but that input is a Tensor of "
                             f"dimensionality {leaf.dim()} so expected in_dim to satisfy -{leaf.dim()} <= in_dim < {leaf.dim()}.")
        dims[place] = dim % leaf.dim()
    return leaves, dims, spec


def _size(leaves, dims):
    sizes = {leaf.shape[dim] for leaf, dim in zip(leaves, dims) if dim is not None}
    if not sizes:
        raise ValueError("vmap: at least one input must be mapped over: all in_dims are None")
    if len(sizes) > 1:
        listed = [leaf.shape[dim] for leaf, dim in zip(leaves, dims) if dim is not None]
        raise ValueError(f"vmap: Expected all tensors to have the same size in the mapped dimension, got sizes {listed} for the mapped dimension")
    return sizes.pop()


class _Randomness:
    """Receives the random functions that are called without mapped tensors."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        from . import _batching
        if _batching.find(args, kwargs):
            return _batching.called(func, args, kwargs)
        name, own = getattr(func, "__name__", ""), getattr(func, "__wrapped__", None)
        if name in _RANDOM and (own is None or name in _DRAWN):
            return _batching.random(func, name, args, kwargs)
        if own is None:
            return func(*args, **kwargs)
        # A function of Python is made of others, which may be random.
        with _RandomRegion():
            return own(*args, **kwargs)


class _RandomRegion:
    """A region in which random functions are received."""

    def __enter__(self):
        from .. import _torch_functions
        _torch_functions.activate()
        self._stack = _torch_functions.modes()
        self._stack.append(_Randomness())
        _core._set_function_modes(len(self._stack))

    def __exit__(self, *_):
        self._stack.pop()
        _core._set_function_modes(len(self._stack))


def _mapped(func, leaves, dims, spec, out_dims, randomness, kwargs, size, name):
    from ._batching import Batched, unwrapped
    with _levels.Map(size, randomness) as level, _RandomRegion():
        given = [leaf if dim is None else leaf._add_batch_dim(in_dim=dim, vmap_level=level) if _is_container(leaf)
                 else Batched.of(leaf.movedim(dim, 0) if dim else leaf, level) for leaf, dim in zip(leaves, dims)]
        result = func(*tree_unflatten(given, spec), **kwargs)
        results, result_spec = tree_flatten(result, is_leaf=_is_container)
        for one in results:
            if not isinstance(one, Tensor) and not _is_container(one):
                raise ValueError(f"vmap({name}, ...): `{name}` must only return Tensors, got type {type(one)}. Did you mean to set out_dims= to None "
                                 "for output?")
        if isinstance(out_dims, int) or out_dims is None:
            places = [out_dims] * len(results)
        else:
            places = _broadcast_to_and_flatten(tuple(out_dims) if isinstance(out_dims, list) else out_dims, result_spec)
            if places is None and isinstance(out_dims, tuple) and len(out_dims) == 1 and isinstance(result, Tensor):
                places = list(out_dims)
        if places is None or not all(place is None or isinstance(place, int) for place in places):
            raise ValueError(f"vmap({name}, ..., out_dims={out_dims}): out_dims is not compatible with the structure of `outputs`. out_dims has "
                             f"structure {tree_flatten(out_dims)[1]} but outputs has structure {result_spec}.")
        made = [one._maybe_remove_batch_dim(name, vmap_level=level, batch_size=size, out_dim=place) if _is_container(one)
                else unwrapped(one, level, place, name) for one, place in zip(results, places)]
    return tree_unflatten(made, result_spec)


def vmap(func, in_dims=0, out_dims=0, randomness="error", *, chunk_size=None):
    """Returns a function that maps another over a dimension of its arguments. Operators compute with the whole dimension at once where
    a rule is known (`_rules.py`), and otherwise for one slice after another."""
    if randomness not in ("error", "different", "same"):
        raise RuntimeError(f"Only allowed values for randomness are 'error', 'different', or 'same'. Got {randomness}")
    if not (chunk_size is None or chunk_size > 0):
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")
    name = getattr(func, "__name__", repr(func))

    @functools.wraps(func)
    def mapped(*args, **kwargs):
        leaves, dims, spec = _prepared(in_dims, args, name)
        size = _size(leaves, dims)
        if chunk_size is None or chunk_size >= size:
            return _mapped(func, leaves, dims, spec, out_dims, randomness, kwargs, size, name)
        parts = []
        for start in range(0, size, chunk_size):
            count = min(chunk_size, size - start)
            chosen = [leaf if dim is None else leaf.narrow(dim, start, count) for leaf, dim in zip(leaves, dims)]
            parts.append(_mapped(func, chosen, dims, spec, out_dims, randomness, kwargs, count, name))
        flat, result_spec = zip(*(tree_flatten(part) for part in parts))
        places = [out_dims] * len(flat[0]) if isinstance(out_dims, int) else _broadcast_to_and_flatten(out_dims, result_spec[0])
        return tree_unflatten([_core.cat(list(column), place) for column, place in zip(zip(*flat), places)], result_spec[0])
    return mapped


def chunk_vmap(func, in_dims=0, out_dims=0, randomness="error", chunks=2):
    """Returns a function that maps another over a dimension of its arguments, in a number of chunks."""
    @functools.wraps(func)
    def mapped(*args, **kwargs):
        leaves, dims, _ = _prepared(in_dims, args, getattr(func, "__name__", repr(func)))
        return vmap(func, in_dims, out_dims, randomness, chunk_size=max(-(-_size(leaves, dims) // chunks), 1))(*args, **kwargs)
    return mapped


