"""Calls of modules with other parameters (`torch.func`). Function transforms are left out, except for those that autograd has."""

import contextlib

from ._left_out import placeholder

_REASON = "transforms of functions are left out"


@contextlib.contextmanager
def _replaced(module, values, tie_weights, strict):
    """A region in which a module has other tensors as parameters and buffers, by their names."""
    names = {name: value for source in (module.named_parameters, module.named_buffers) for name, value in source(remove_duplicate=False)}
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise KeyError(f"the module has no parameter or buffer {unknown[0]!r}")
    if strict and set(names) - set(values):
        raise RuntimeError(f"Missing key(s): {', '.join(sorted(set(names) - set(values)))}.")
    if tie_weights:
        given = {id(names[name]): value for name, value in values.items()}
        values = {**{name: given[id(value)] for name, value in names.items() if id(value) in given}, **values}
    places = []
    for name, value in values.items():
        path, _, last = name.rpartition(".")
        owner = module.get_submodule(path)
        table = owner._parameters if last in owner._parameters else owner._buffers
        places.append((table, last, table[last]))
        table[last] = value
    try:
        yield
    finally:
        for table, last, former in reversed(places):
            table[last] = former


def functional_call(module, parameter_and_buffer_dicts, args=None, kwargs=None, *, tie_weights=True, strict=False):
    """Returns the result of a module with other tensors as its parameters and buffers."""
    if not isinstance(parameter_and_buffer_dicts, dict):
        merged = {}
        for part in parameter_and_buffer_dicts:
            if set(part) & set(merged):
                raise ValueError(f"{sorted(set(part) & set(merged))} appeared in multiple dictionaries; behavior of functional call is ambiguous")
            merged |= part
        parameter_and_buffer_dicts = merged
    args = () if args is None else args if isinstance(args, tuple) else (args,)
    with _replaced(module, parameter_and_buffer_dicts, tie_weights, strict):
        return module(*args, **(kwargs or {}))


def stack_module_state(models):
    """Returns the parameters and buffers of identical modules, each stacked along a new first dimension."""
    from . import _core
    models = list(models)
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    parameters = {name: _core.stack([dict(model.named_parameters())[name].detach() for model in models]).requires_grad_(value.requires_grad)
                  for name, value in models[0].named_parameters()}
    buffers = {name: _core.stack([dict(model.named_buffers())[name] for model in models]) for name, _ in models[0].named_buffers()}
    return parameters, buffers


def grad_and_value(func, argnums=0, has_aux=False):
    """Returns a function that returns the gradients of a scalar function, and its value."""
    def computed(*args, **kwargs):
        from . import autograd
        numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        args = list(args)
        for number in numbers:
            leaf = args[number].detach()
            args[number] = (leaf if not args[number].requires_grad else args[number]).requires_grad_()
        with autograd.enable_grad():
            value = func(*args, **kwargs)
            value, *aux = value if has_aux else (value,)
            found = autograd.grad(value, [args[number] for number in numbers], create_graph=autograd.is_grad_enabled(), allow_unused=False)
        found = found[0] if isinstance(argnums, int) else tuple(found)
        return (found, (value, aux[0])) if has_aux else (found, value)
    return computed


def _taken(value, dim, place):
    """Returns one slice of the arguments that are mapped over, for each part."""
    if dim is None:
        return value
    if isinstance(dim, (tuple, list)) or isinstance(value, (tuple, list, dict)):
        if isinstance(value, dict):
            return {key: _taken(part, dim[key] if isinstance(dim, dict) else dim, place) for key, part in value.items()}
        dims = dim if isinstance(dim, (tuple, list)) else [dim] * len(value)
        return type(value)(_taken(part, one, place) for part, one in zip(value, dims))
    return value.select(dim, place)


def _sizes(value, dim):
    """Yields the sizes of the mapped dimensions."""
    if dim is None:
        return
    if isinstance(value, (tuple, list, dict)):
        parts = value.values() if isinstance(value, dict) else value
        dims = dim.values() if isinstance(dim, dict) else dim if isinstance(dim, (tuple, list)) else [dim] * len(value)
        for part, one in zip(parts, dims):
            yield from _sizes(part, one)
    else:
        yield value.shape[dim]


def _stacked(results, dim):
    """Returns results, one for each slice, stacked part by part."""
    from . import _core
    first = results[0]
    if isinstance(first, (tuple, list)):
        dims = dim if isinstance(dim, (tuple, list)) else [dim] * len(first)
        return type(first)(_stacked([result[part] for result in results], one) for part, one in zip(range(len(first)), dims))
    if isinstance(first, dict):
        return {key: _stacked([result[key] for result in results], dim) for key in first}
    if not isinstance(first, _core.Tensor):
        raise ValueError(f"vmap: the function must only return Tensors, got type {type(first)}")
    return first if dim is None else _core.stack(results, dim)


def vmap(func, in_dims=0, out_dims=0, randomness="error", *, chunk_size=None):
    """Returns a function that maps another over a dimension of its arguments, by calling it for one slice after another."""
    def mapped(*args, **kwargs):
        dims = in_dims if isinstance(in_dims, (tuple, list)) else [in_dims] * len(args)
        if len(dims) != len(args):
            raise ValueError(f"vmap: in_dims has {len(dims)} entries for {len(args)} arguments")
        sizes = {size for arg, dim in zip(args, dims) for size in _sizes(arg, dim)}
        sizes |= {size for value in kwargs.values() for size in _sizes(value, 0)}
        if len(sizes) != 1:
            raise ValueError("vmap: at least one dimension must be mapped over, and all must have one size" if not sizes else
                             f"vmap: Expected all tensors to have the same size in the mapped dimension, got sizes {sorted(sizes)}")
        count, = sizes
        if count == 0:
            raise ValueError("vmap over a dimension of size 0 is left out: the shape of the results is not known")
        results = [func(*(_taken(arg, dim, place) for arg, dim in zip(args, dims)), **{
            name: _taken(value, 0, place) for name, value in kwargs.items()}) for place in range(count)]
        return _stacked(results, out_dims)
    return mapped


for _name in ("vjp", "jvp", "jacrev", "jacfwd", "hessian", "functionalize", "linearize", "grad", "chunk_vmap", "debug_unwrap"):
    globals()[_name] = placeholder(f"{__name__}.{_name}", _REASON)
