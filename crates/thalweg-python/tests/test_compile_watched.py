"""Values that captured functions read, in all the ways in which Python can: a change of them is never missed."""

import contextvars
import dataclasses
import datetime
import enum
import functools
import os
import types

import thalweg as torch
from thalweg import nn

STATE, TABLE, FACTORS, VARIABLE = {"scale": 1}, {"run": lambda x: x * FACTORS[0]}, [1.0], contextvars.ContextVar("variable", default=1.0)
TENSOR, NUMBER = torch.ones(3), 1.0


@dataclasses.dataclass
class Settings:
    scale: float = 1.0


class Mode(enum.Enum):
    PLAIN = 1
    TURNED = 2


class Doubler:
    def __init__(self):
        self.value = 1.0

    @property
    def double(self):
        return self.value * 2

    def __call__(self, x):
        return x * self.double


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.factors, self.settings, self.function = [1.0], Settings(), lambda x: x * STATE["scale"]
        self.layers = nn.ModuleList([nn.Linear(3, 3)])

    def forward(self, x):
        return self.function(self.layers[0](x)) * self.factors[0] + self.settings.scale + optional(self.settings)


SETTINGS, MODES, DOUBLER, MODEL = Settings(), [Mode.PLAIN], Doubler(), Model()


def optional(settings):
    return settings.shift if hasattr(settings, "shift") else 0.0


@functools.lru_cache
def cached():
    return NUMBER


def number():
    return NUMBER


def with_default(x, factors=[1.0]):  # noqa: B006
    return x * factors[0]


def nested(x):
    def inner(y):
        return y * STATE["scale"] + number()
    return inner(x)


def set_global(name, value):
    globals()[name] = value


READS = [
    (lambda x: x * VARIABLE.get(), lambda: VARIABLE.set(VARIABLE.get() + 1)),
    (lambda x: x * SETTINGS.scale, lambda: setattr(SETTINGS, "scale", SETTINGS.scale + 1)),
    (lambda x: x * getattr(SETTINGS, "scale"), lambda: setattr(SETTINGS, "scale", SETTINGS.scale + 1)),
    (lambda x: x if MODES[0] is Mode.PLAIN else -x, lambda: MODES.__setitem__(0, Mode.TURNED)),
    (with_default, lambda: with_default.__defaults__[0].__setitem__(0, with_default.__defaults__[0][0] + 1)),
    (lambda x: x * float(os.environ.get("THALWEG_NOTHING", "1")), lambda: os.environ.__setitem__("THALWEG_NOTHING", "2")),
    (lambda x: TABLE["run"](x), lambda: FACTORS.__setitem__(0, FACTORS[0] + 1)),
    (nested, lambda: set_global("NUMBER", NUMBER + 1)),
    (lambda x: x * cached(), lambda: cached.cache_clear() or set_global("NUMBER", NUMBER + 1)),
    (lambda x: x * TENSOR, lambda: set_global("TENSOR", TENSOR + 1)),
    (lambda x: x * TENSOR, lambda: TENSOR.add_(1)),
    (lambda x: x * TENSOR, lambda: setattr(TENSOR, "data", TENSOR.data + 1)),
    (DOUBLER, lambda: setattr(DOUBLER, "value", DOUBLER.value + 1)),
    (DOUBLER.__call__, lambda: setattr(DOUBLER, "value", DOUBLER.value + 1)),
    (functools.partial(lambda scale, x: x * scale[0], FACTORS), lambda: FACTORS.__setitem__(0, FACTORS[0] + 1)),
    (lambda x: x * STATE.setdefault("lazy", 3.0), lambda: STATE.pop("lazy")),
    (MODEL, lambda: MODEL.factors.__setitem__(0, MODEL.factors[0] + 1)),
    (MODEL, lambda: setattr(MODEL.settings, "scale", MODEL.settings.scale + 1)),
    (MODEL, lambda: setattr(MODEL.settings, "shift", 5.0)),
    (MODEL, lambda: STATE.__setitem__("scale", STATE["scale"] + 1)),
    (MODEL, lambda: MODEL.layers.__setitem__(0, nn.Linear(3, 3))),
    (MODEL, lambda: MODEL.layers[0].weight.mul_(2)),
    (MODEL, lambda: MODEL.layers[0].bias.copy_(torch.randn(3))),
]


@torch.no_grad()
def test_a_change_of_what_is_read_is_never_missed():
    x, before = torch.randn(3), torch._core._capture_counters()["replays"]
    for place, (function, change) in enumerate(READS):
        fast = torch.compile(function, mode="reduce-overhead")
        for call in range(12):
            found, expected = fast(x), function(x)
            assert torch.equal(found, expected), (place, call, found, expected)
            if call % 4 == 3:
                change()
    assert torch._core._capture_counters()["replays"] - before > len(READS)


@torch.no_grad()
def test_what_arguments_become_is_what_they_would_become():
    def moves(x):
        x.data = x * 2
        return x + 1

    def turns(x):
        x.unsqueeze_(0)
        return x + 1

    def reads_an_attribute(x):
        return x * x.scale

    def returns_it(x):
        return x.mul_(2)

    def writes_another(x, y):
        x.add_(1)
        return x + y
    for function in (moves, turns, reads_an_attribute, returns_it, writes_another):
        fast, kept = torch.compile(function, mode="reduce-overhead"), [torch.ones(3), torch.ones(3)]
        for call in range(6):
            found, expected = kept if function is returns_it else (torch.ones(3), torch.ones(3))
            found.scale = expected.scale = float(call)
            if function is returns_it:
                del found.scale, expected.scale
            more = [(one[:],) if function is writes_another else () for one in (found, expected)]
            results = fast(found, *more[0]), function(expected, *more[1])
            assert torch.equal(*results) and torch.equal(found, expected), (function.__name__, call, results)
            assert (results[0] is found) == (results[1] is expected)


@torch.no_grad()
def test_effects_happen_each_time():
    seen = []

    def counts(x):
        STATE["calls"] = STATE.get("calls", 0) + 1
        return x * STATE["calls"]

    def notes(x):
        seen.append(datetime.datetime.now())
        return x
    fast, other, x = torch.compile(counts, mode="reduce-overhead"), torch.compile(notes, mode="reduce-overhead"), torch.ones(2)
    assert [fast(x)[0].item() for _ in range(8)] == [float(number) for number in range(1, 9)]
    for _ in range(8):
        other(x)
    assert len(seen) == 8 and seen == sorted(seen)


def programs_with_state():
    """Yields functions that change state that they read, each in a different way."""
    holder, name, row, raw, seen = types.SimpleNamespace(n=1), "n", [1], bytearray(b"\1"), {"n": 1}
    module, append, length, update, view = types.ModuleType("own"), row.append, row.__len__, seen.update, memoryview(raw)
    module.n, numbers, tensor = 1, iter(range(100)), torch.ones(3)
    tensor.n = 1

    class Next:
        def __get__(self, owner, kind):
            return next(numbers)

    class Owner:
        n = Next()

        def __getattr__(self, word):
            self.__dict__["calls"] = self.__dict__.get("calls", 0) + 1
            return self.__dict__["calls"]
    owner = Owner()

    def by_name(x):
        setattr(holder, name, getattr(holder, name) + 1)
        return x * getattr(holder, name)

    def by_dictionary(x):
        holder.__dict__[name] += 1
        return x * vars(holder)[name]

    def of_a_module(x):
        setattr(module, name, getattr(module, name) + 1)
        return x * getattr(module, name)

    def of_a_function(x):
        of_a_function.n += 1
        return x * of_a_function.n
    of_a_function.n = 1

    def of_a_tensor(x):
        tensor.n += 1
        return x * tensor.n

    def of_bytes(x):
        raw[0] += 1
        return x * raw[0]

    def of_a_view(x):
        view[0] += 1
        return x * view[0]

    def bound(x):
        append(1)
        return x * length()

    def updated(x):
        update(n=seen["n"] + 1)
        return x * seen["n"]

    def described(x):
        return x * owner.n

    def unknown(x):
        return x * owner.missing
    yield from (by_name, by_dictionary, of_a_module, of_a_function, of_a_tensor, of_bytes, of_a_view, bound, updated, described, unknown)


@torch.no_grad()
def test_functions_that_change_what_they_read():
    x = torch.ones(3)
    for plain, other in zip(programs_with_state(), programs_with_state()):
        fast = torch.compile(other, mode="reduce-overhead")
        for call in range(6):
            assert torch.equal(fast(x + call), plain(x + call)), (plain.__name__, call)


@torch.no_grad()
def test_names_in_a_program_leave_other_attributes_unwatched():
    holder = types.SimpleNamespace(n=1.0, steps=0)

    def function(x):
        return x * getattr(holder, "n", 2.0) + (1 if hasattr(holder, "shift") else 0)
    fast, before = torch.compile(function, mode="reduce-overhead"), torch._core._capture_counters()["replays"]
    for call in range(20):
        holder.steps += 1
        assert torch.equal(fast(torch.ones(3) * call), torch.ones(3) * call)
    assert torch._core._capture_counters()["replays"] > before + 10
