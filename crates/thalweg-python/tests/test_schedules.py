"""Schedules compared with PyTorch's rates (`goldens/make_schedules.py`): step by step, at explicit steps, and from saved
states."""

import copy
import gzip
import io
import json
import pathlib
import pickle
import warnings

import thalweg as th
from schedules import SCHEDULES, WALKS, cases, rates
from support import close, raises

GOLDENS = json.loads(gzip.decompress((pathlib.Path(__file__).parent / "goldens/schedules.json.gz").read_bytes()))


def agree(found, expected):
    assert len(found) == len(expected), (found, expected)
    for one, other in zip(found, expected):
        assert one == other or abs(one - other) <= 1e-12 * max(1.0, abs(other)), (found, expected)


def test_rates():
    assert list(GOLDENS) == [name for name, _ in cases()]
    for name, arguments in cases():
        agree(rates(th, *arguments), GOLDENS[name])


def test_rates_from_saved_states():
    for name in SCHEDULES:
        kind = "Adam" if name in ("cycle", "cyclic") else "SGD"
        for reloaded in (2, 6):
            agree(rates(th, name, kind, WALKS[0], reloaded), GOLDENS[f"{name}; 0"])


def test_a_schedule_within_another_has_its_own_rates():
    """PyTorch 2.11 takes the first step of a sequence or a chain within a sequence twice."""
    for name, schedule in SCHEDULES.items():
        kind = "Adam" if name in ("cycle", "cyclic") else "SGD"
        for steps, expected in ((14, GOLDENS[f"{name}; 0"]), (5, GOLDENS[f"{name}; 0"][:4 * 6])):
            def wrapped(S, o):
                further = [S.ExponentialLR(o, 0.5)] if steps == 5 else []
                return S.SequentialLR(o, [schedule(S, o), *further], [6] * len(further))
            SCHEDULES["wrapped"] = wrapped
            try:
                found = rates(th, "wrapped", kind, [None] * steps)
            finally:
                del SCHEDULES["wrapped"]
            if name not in ("cycle", "three phases", "cyclic", "triangular2", "exp_range", "function"):
                # These schedules set the rate of their first step as the initial rate.
                agree(found, expected)


def made(schedule):
    optimizer = th.optim.SGD([th.nn.Parameter(th.ones(1))], lr=1.0)
    return optimizer, schedule(th.optim.lr_scheduler, optimizer)


def test_states_are_of_values():
    for name in ("step", "three", "chained", "multistep", "restarts"):
        optimizer, schedule = made(SCHEDULES[name]) if name != "chained" else made(
            lambda S, o: S.ChainedScheduler([S.StepLR(o, 2), S.ExponentialLR(o, 0.5)]))
        file = io.BytesIO()
        th.save(schedule.state_dict(), file)
        file.seek(0)
        assert th.load(file) == schedule.state_dict()
        again_of, again = copy.deepcopy((optimizer, schedule))
        assert again.optimizer is again_of
        assert pickle.loads(pickle.dumps(schedule)).get_last_lr() == schedule.get_last_lr()


def test_a_rate_that_is_a_tensor_is_filled():
    rate = th.tensor(1.0)
    optimizer = th.optim.SGD([th.nn.Parameter(th.ones(1))], lr=rate)
    schedule = th.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == 0.5 and schedule.get_last_lr()[0] is not rate


def test_a_refused_step_changes_nothing():
    optimizer, schedule = made(lambda S, o: S.OneCycleLR(o, 1.0, total_steps=1, cycle_momentum=False))
    schedule.step()
    rate = optimizer.param_groups[0]["lr"]
    for _ in range(2):
        with raises(ValueError, "Tried to step 2 times"):
            schedule.step()
        assert optimizer.param_groups[0]["lr"] == rate and schedule.last_epoch == 1


def test_warnings_of_order():
    def warned(before=lambda optimizer: None):
        optimizer, schedule = made(lambda S, o: S.StepLR(o, 2))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            before(optimizer)
            schedule.step()
        return [str(one.message) for one in seen]
    assert "before `optimizer.step()`" in warned()[0]
    assert not warned(lambda optimizer: optimizer.step())

    def overridden(optimizer):
        optimizer.step = lambda: None
    assert "has been overridden" in warned(overridden)[0]


def test_plateaus():
    for options, losses, expected in (
            (dict(factor=0.5, patience=1), [1.0, 1.0, 1.0, 1.0, 0.5], [1.0, 1.0, 0.5, 0.5, 0.5]),
            (dict(mode="max", factor=0.1, patience=0, cooldown=1, threshold=0.1, threshold_mode="abs"), [1.0, 1.05, 1.05, 1.05, 1.2],
             [1.0, 0.1, 0.1, 0.01, 0.01]),
            (dict(factor=0.1, patience=0, min_lr=0.05), [1.0, 1.0, 1.0, 1.0], [1.0, 0.1, 0.05, 0.05])):
        optimizer, schedule = made(lambda S, o: S.ReduceLROnPlateau(o, **options))
        found = []
        for loss in losses:
            schedule.step(loss)
            found.append(optimizer.param_groups[0]["lr"])
        close(found, expected, 1e-12)
