"""Calls of modules with other parameters (`torch.func.functional_call`)."""

import contextlib


@contextlib.contextmanager
def _replaced(module, values, tie_weights, strict):
    """Returns a region in which a module has other tensors as parameters and buffers, by name."""
    names = {name: value for source in (module.named_parameters, module.named_buffers) for name, value in source(remove_duplicate=False)}
    differing = {"Unexpected": sorted(set(values) - set(names)), "Missing": sorted(set(names) - set(values))}
    if strict and any(differing.values()):
        lines = [f"\n\t{kind} key(s): {', '.join(map(repr, found))}." for kind, found in differing.items() if found]
        raise RuntimeError(f"Error(s) in reparametrizing for {type(module).__name__}:{''.join(lines)}")
    if tie_weights:
        given = {id(names[name]): value for name, value in values.items() if name in names}
        values = {**{name: given[id(value)] for name, value in names.items() if id(value) in given}, **values}
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
