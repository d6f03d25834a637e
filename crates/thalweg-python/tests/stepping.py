"""Optimizers with options, and functions that step them, for the goldens of PyTorch and for their test."""

import random

CASES = [
    ("SGD", {}), ("SGD", {"lr": 0.1, "momentum": 0.9}), ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.5, "dampening": 0.25, "maximize": True}),
    ("Adam", {"lr": 0.1}), ("Adam", {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.1, "decoupled_weight_decay": True, "weight_decay": 0.1}), ("AdamW", {"lr": 0.1}), ("AdamW", {"lr": 0.1, "amsgrad": True}),
    ("Adamax", {}), ("NAdam", {}), ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}), ("RAdam", {}), ("RAdam", {"weight_decay": 0.1}),
    ("Adadelta", {}), ("Adagrad", {"initial_accumulator_value": 0.3, "lr_decay": 0.1}), ("ASGD", {"lr": 0.1, "t0": 2, "lambd": 0.01}),
    ("RMSprop", {}), ("RMSprop", {"centered": True, "momentum": 0.5}), ("Rprop", {}), ("Adafactor", {}), ("Muon", {}),
]
SHAPES = [(3, 4), (2, 5), (2, 2)]


def _numbers(seed, shape):
    source = random.Random(seed)
    return [[source.gauss(0, 1) for _ in range(shape[1])] for _ in range(shape[0])]


def made(library, name, options, starts=None):
    """Returns parameters and an optimizer for them."""
    starts = [_numbers(seed, shape) for seed, shape in enumerate(SHAPES)] if starts is None else starts
    parameters = [library.nn.Parameter(library.tensor(start, dtype=library.float64)) for start in starts]
    return parameters, getattr(library.optim, name)(parameters, **options)


def stepped(library, parameters, optimizer, steps):
    """Takes steps with fixed gradients. The last parameter never has a gradient."""
    for step in steps:
        for number, parameter in enumerate(parameters[:-1]):
            parameter.grad = library.tensor(_numbers(100 * step + number + 10, SHAPES[number]), dtype=library.float64)
        optimizer.step()
    return [parameter.tolist() for parameter in parameters]
