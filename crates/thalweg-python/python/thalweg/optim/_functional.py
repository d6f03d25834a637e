"""The steps of optimizers as functions of lists (`torch.optim._functional`, `torch.optim.adam.adam`): parameters, gradients and states are
passed one list after another, and those that the step changes are written in place."""

from . import _composing, rules

# The states that each function takes as lists, in order, after parameters and gradients.
_LISTS = {
    "Adam": "exp_avg exp_avg_sq max_exp_avg_sq step", "AdamW": "exp_avg exp_avg_sq max_exp_avg_sq step", "SGD": "momentum_buffer",
    "Adagrad": "sum step", "Adadelta": "square_avg acc_delta step", "Adamax": "exp_avg exp_inf step", "NAdam": "exp_avg exp_avg_sq mu_product step",
    "RAdam": "exp_avg exp_avg_sq step", "RMSprop": "square_avg grad_avg momentum_buffer step", "Rprop": "prev step_size step",
    "ASGD": "ax mu eta step", "SparseAdam": "exp_avg exp_avg_sq step"}
# Options that are pairs, by the names that the functions have for their parts.
_PAIRS = {"betas": ("beta1", "beta2"), "etas": ("etaminus", "etaplus"), "step_sizes": ("step_size_min", "step_size_max")}


def _unscaled(gradient, grad_scale):
    return gradient if grad_scale is None else gradient / grad_scale.to(gradient.device)


def functional(optimizer):
    """Returns the step of a class of optimizers as a function of lists."""
    names = _LISTS[optimizer.__name__].split()
    title = optimizer.__name__.lower()

    def step(params, grads, *lists, grad_scale=None, found_inf=None, **options):
        if len(lists) < len(names):
            raise TypeError(f"{title}() takes lists of {', '.join(['params', 'grads', *names])}, not {2 + len(lists)} lists")
        if found_inf is not None and found_inf.item():
            return
        group = {"maximize": False, "decoupled_weight_decay": optimizer is rules.AdamW, **options}
        for pair, parts in _PAIRS.items():
            if parts[0] in options:
                group[pair] = tuple(options[part] for part in parts)
        for number, (parameter, gradient) in enumerate(zip(params, grads)):
            if gradient is None:
                continue
            state = {name: states[number] for name, states in zip(names, lists) if len(states) > number and states[number] is not None}
            _composing.step(optimizer, group, parameter, _unscaled(gradient, grad_scale), state)
            for name, states in zip(names, lists):
                # A first momentum is made by the step.
                if len(states) > number and states[number] is None and name in state:
                    states[number] = state[name]
    step.__name__ = step.__qualname__ = title
    step.__doc__ = f"Steps parameters as `{optimizer.__name__}` does. The lists are {', '.join(names)}, after parameters and gradients."
    return step


adam, adamw, sgd, adagrad, adadelta, adamax, nadam, radam, rmsprop, rprop, asgd = map(functional, (
    rules.Adam, rules.AdamW, rules.SGD, rules.Adagrad, rules.Adadelta, rules.Adamax, rules.NAdam, rules.RAdam, rules.RMSprop, rules.Rprop, rules.ASGD))
sparse_adam = functional(rules.SparseAdam)
