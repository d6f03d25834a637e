"""Schedules of all kinds and their rates, for the goldens of PyTorch and for their test."""

import itertools
import warnings


def _optimizer(library, kind):
    nn, options = library.nn, {"momentum": 0.9} if kind == "SGD" else {}
    first, second = nn.Parameter(library.zeros(2)), nn.Parameter(library.zeros(1))
    return getattr(library.optim, kind)([{"params": [first]}, {"params": [second], "lr": 0.3}], lr=0.5, **options)


# Constructors of each schedule, from the module of schedules and an optimizer with two groups.
SINGLE = {
    "lambda": lambda S, o: S.LambdaLR(o, [lambda step: 0.95**step, lambda step: 1 / (1 + step)]),
    "multiplicative": lambda S, o: S.MultiplicativeLR(o, lambda step: 0.9 + 0.01 * step),
    "step": lambda S, o: S.StepLR(o, 3, 0.3),
    "multistep": lambda S, o: S.MultiStepLR(o, [2, 5, 5, 9], 0.5),
    "constant": lambda S, o: S.ConstantLR(o, 0.1, 4),
    "linear": lambda S, o: S.LinearLR(o, 0.2, 0.9, 6),
    "exponential": lambda S, o: S.ExponentialLR(o, 0.8),
    "polynomial": lambda S, o: S.PolynomialLR(o, 7, 2.0),
    "cosine": lambda S, o: S.CosineAnnealingLR(o, 5, 0.01),
    "restarts": lambda S, o: S.CosineAnnealingWarmRestarts(o, 3, 2, 0.01),
    "cycle": lambda S, o: S.OneCycleLR(o, 1.0, total_steps=20),
    "three phases": lambda S, o: S.OneCycleLR(o, [1.0, 2.0], total_steps=25, three_phase=True, anneal_strategy="linear", pct_start=0.4),
    "cyclic": lambda S, o: S.CyclicLR(o, 0.1, 1.0, 4, 6),
    "triangular2": lambda S, o: S.CyclicLR(o, 0.1, 1.0, 4, mode="triangular2"),
    "exp_range": lambda S, o: S.CyclicLR(o, 0.1, [1.0, 2.0], 4, mode="exp_range", gamma=0.97, cycle_momentum=False),
    "function": lambda S, o: S.CyclicLR(o, 0.1, 1.0, 4, scale_fn=lambda x: 0.5**x),
}


def _sequence(*names, milestones):
    return lambda S, o: S.SequentialLR(o, [SCHEDULES[name](S, o) for name in names], list(milestones))


SCHEDULES = {
    **SINGLE,
    **{f"{first}, {second}": _sequence(first, second, milestones=[4]) for first, second in itertools.product(
        ("constant", "linear", "exponential", "restarts", "step", "cosine"),
        ("step", "multistep", "exponential", "cosine", "linear", "polynomial", "constant", "restarts", "lambda", "multiplicative", "exp_range"))},
    "chained": lambda S, o: S.ChainedScheduler([SINGLE[name](S, o) for name in ("constant", "exponential", "cosine")]),
    "three": _sequence("constant", "exponential", "step", milestones=[3, 8]),
}
# Explicit steps, and steps that follow the previous one.
WALKS = ([None] * 14, [5, None, None, 2, None, 0, None], [1, 3, 7, 12])


def rates(library, name, kind, walk, reloaded=None):
    """Returns the rates and momenta of both groups after each step of a walk, up to a refusal, whose class is the last entry.
    After the step `reloaded`, a new schedule with a new optimizer continues from the states of the old ones."""
    schedules = library.optim.lr_scheduler
    optimizer = _optimizer(library, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schedule, found = SCHEDULES[name](schedules, optimizer), []

        def note():
            for group, last in zip(optimizer.param_groups, schedule.get_last_lr()):
                found.extend([group["lr"], group["momentum"] if kind == "SGD" else group["betas"][0]])
                assert group["lr"] == last
        note()
        for place, step in enumerate(walk):
            try:
                schedule.step() if step is None else schedule.step(step)
            except (TypeError, ValueError) as error:
                return [*found, type(error).__name__]
            note()
            if place == reloaded:
                states = schedule.state_dict(), optimizer.state_dict()
                optimizer = _optimizer(library, kind)
                schedule = SCHEDULES[name](schedules, optimizer)
                schedule.load_state_dict(states[0])
                optimizer.load_state_dict(states[1])
    return found


def cases():
    """Yields the name of each case with its arguments for `rates`."""
    for name in SCHEDULES:
        for number, walk in enumerate(WALKS):
            yield f"{name}; {number}", (name, "Adam" if name in ("cycle", "cyclic") else "SGD", walk)
