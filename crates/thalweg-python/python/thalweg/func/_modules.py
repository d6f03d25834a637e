"""Calls of modules with other parameters (`torch.func.functional_call`)."""

import contextlib


def _tied(names, values):
    """Returns values by name, where all names of a tensor have the value that is given for one of them."""
    groups = {}
    for name, value in names.items():
        groups.setdefault(id(value), []).append(name)
    tied = dict(values)
    for group in groups.values():
        given = {id(values[name]): values[name] for name in group if name in values}
        if len(given) > 1:
            raise ValueError(f"functional_call got multiple values for keys {sorted(set(group) & set(values))}, which are tied. "
                             "Consider using tie_weights=False")
        tied.update((name, value) for name in group for value in given.values())
    return tied


@contextlib.contextmanager
def _replaced(module, values, tie_weights, strict):
    """Returns a region in which a module has other tensors as parameters and buffers, by name."""
    names = {name: value for source in (module.named_parameters, module.named_buffers) for name, value in source(remove_duplicate=False)}
    values = _tied(names, values) if tie_weights else values
    differing = {"Unexpected": sorted(set(values) - set(names)), "Missing": sorted(set(names) - set(values))}
    if strict and any(differing.values()):
        lines = [f"\n\t{kind} key(s): {', '.join(map(repr, found))}." for kind, found in differing.items() if found]
        raise RuntimeError(f"Error(s) in reparametrizing for {type(module).__name__}:{''.join(lines)}")
    places = []
    for name, value in values.items():
        path, _, last = name.rpartition(".")
        owner = module.get_submodule(path)
        # A name that is neither a parameter's nor a buffer's is that of an attribute.
        table = next((table for table in (owner._parameters, owner._buffers) if last in table), owner.__dict__)
        places.append((table, last, table.get(last, places)))
        table[last] = value
    try:
        yield
    finally:
        for table, last, former in reversed(places):
            if former is places:
                table.pop(last, None)
            else:
                table[last] = former


def functional_call(module, parameter_and_buffer_dicts, args=None, kwargs=None, *, tie_weights=True, strict=False):
    """Returns the result of a module with other tensors as its parameters and buffers."""
    if not isinstance(parameter_and_buffer_dicts, dict):
        if not isinstance(parameter_and_buffer_dicts, (list, tuple)):
            raise ValueError("Expected parameter_and_buffer_dicts to be a dict, or a list/tuple of dicts, but got "
                             f"{type(parameter_and_buffer_dicts)}")
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
    from .. import _core
    models = list(models)
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    parameters = {name: _core.stack([dict(model.named_parameters())[name].detach() for model in models]).requires_grad_(value.requires_grad)
                  for name, value in models[0].named_parameters()}
    buffers = {name: _core.stack([dict(model.named_buffers())[name] for model in models]) for name, _ in models[0].named_buffers()}
    return parameters, buffers


def replace_all_batch_norm_modules_(root):
    """Makes all batch normalizations of a module keep no running statistics, in place, so that the module can be mapped over a dimension.
    Returns the module."""
    from ..nn.layers import _BatchNorm
    for module in root.modules():
        if isinstance(module, _BatchNorm):
            module.running_mean = module.running_var = module.num_batches_tracked = None
            module.track_running_stats = False
    return root
