"""Functions and methods of the table with random arguments: wrong types, hostile shapes, numbers out of range. The interpreter
must survive every call, and an exception must be that of a bad call, not of a bug.

    THALWEG_FUZZ_SECONDS=600 python3 tests/run.py fuzz      with new calls each time, for that many seconds; `THALWEG_FUZZ_SEED`
    sets the first seed
"""

import faulthandler
import os
import random
import sys
import time

import thalweg as th

CALLS = 3000
# These may wait for ever, change defaults for all later tests, or allocate as much as a number requests.
LEFT_OUT = {"set_default_device", "_cufft_set_plan_cache_max_size"}
DTYPES = [getattr(th, name) for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool", "complex64")]
SHAPES = [(), (0,), (1,), (3,), (2, 3), (3, 2), (0, 3), (1, 1, 1), (2, 1, 3), (4, 4), (2, 3, 4, 5), (1,) * 9, (33,)]
INTS = [0, 1, -1, 2, 3, -3, 7, 64, -65, 2**31 - 1, -2**31, 2**40, 2**63 - 1, -2**63, 2**64, 10**30]
NUMBERS = [0.0, -0.0, 0.5, -1.5, 1e300, float("nan"), float("inf"), -float("inf"), 1j, complex("nan"), True, False]
TEXTS = ["", "mean", "sum", "none", "ij,jk->ik", "floor", "\0", "ü" * 300, "cuda", "meta", "sim:7", "fro"]


class Hostile:
    """An object whose every protocol raises."""

    def __getattr__(self, name):
        raise ValueError("hostile")

    def __index__(self):
        raise KeyError("hostile")

    def __iter__(self):
        raise OSError("hostile")


def tensor(source):
    shape, dtype = source.choice(SHAPES), source.choice(DTYPES)
    made = th.zeros(shape, dtype=dtype) if source.random() < 0.3 else (th.rand(shape) * 5 - 1).to(dtype)
    change = source.random()
    if change < 0.15 and len(shape) > 1:
        made = made.transpose(0, 1)
    elif change < 0.25 and shape and shape[0] > 1:
        made = made[1:]
    elif change < 0.35 and dtype.is_floating_point:
        made = made.requires_grad_()
    elif change < 0.4:
        made = made.expand((2, *shape))
    return made


def argument(source, depth=0):
    kind = source.randrange(12)
    if kind < 5:
        return tensor(source)
    if kind < 7:
        return source.choice(INTS)
    if kind == 7:
        return source.choice(NUMBERS)
    if kind == 8 and depth < 2:
        return [argument(source, depth + 1) if source.random() < 0.4 else source.choice(INTS[:8]) for _ in range(source.randrange(5))]
    if kind == 9:
        return source.choice(TEXTS)
    if kind == 10:
        return source.choice([None, th.float32, th.int64, th.device("sim:0"), th.device("meta"), th.strided, slice(None), ..., b"", {}, object()])
    return source.choice([Hostile(), Hostile, (), (1, 2), (None,), range(3), lambda: 1])


def likely(source, parameter):
    """Returns an argument of the kind that a schema's parameter requires."""
    kind = parameter.split("=")[0].rsplit(" ", 1)[0]
    if kind.startswith("Tensor["):
        return [tensor(source) for _ in range(source.randrange(4))]
    if kind.startswith("Tensor"):
        return tensor(source)
    if kind.startswith(("int[", "SymInt[")):
        return [source.choice(INTS) if source.random() < 0.3 else source.randrange(-2, 4) for _ in range(source.randrange(4))]
    if kind.startswith(("int", "SymInt")):
        return source.choice(INTS) if source.random() < 0.3 else source.randrange(-2, 4)
    if kind.startswith(("float", "Scalar")) and not kind.startswith("ScalarType"):
        return source.choice(NUMBERS)
    if kind.startswith("bool"):
        return source.random() < 0.5
    if kind.startswith("ScalarType"):
        return source.choice(DTYPES)
    return source.choice(TEXTS) if kind.startswith("str") else argument(source)


def calls(source):
    """Yields names, functions and arguments endlessly."""
    table = [overload for overload in th._core._table() if overload["function"] not in LEFT_OUT]
    while True:
        overload = source.choice(table)
        name, schema = overload["function"], overload["schema"]
        inside = schema[schema.index("(") + 1:schema.rindex(") ->")]
        parameters = [one for one in inside.split(", ") if one and one != "*"]
        places = [likely(source, one) if source.random() < 0.85 else argument(source) for one in parameters]
        places = places[:source.randrange(len(places) + 1)] if source.random() < 0.1 else places
        names = {}
        if source.random() < 0.3 and parameters:
            names = {source.choice([one.split("=")[0].rsplit(" ", 1)[-1] for one in parameters] + ["out", "dtype", "nonsense"]): argument(source)}
        if source.random() < 0.3 and places:
            place = source.randrange(len(places))
            names[parameters[place].split("=")[0].rsplit(" ", 1)[-1]] = places.pop(place)
        if overload["receiver"] is not None and source.random() < 0.4 or not hasattr(th, name):
            receiver = tensor(source)
            yield name, lambda *places, **names: getattr(receiver, name)(*places, **names), places[1:], names
        else:
            yield name, getattr(th, name), places, names


def own_functions():
    """Returns the Python functions and methods outside of the table, by name. None of them changes the behaviour of later
    calls."""
    spaces = [(th.nn.functional, "nn.functional."), (th.nn.init, "nn.init."), (th.nn.utils, "nn.utils.")]
    found = {f"{prefix}{name}": value for space, prefix in spaces for name, value in vars(space).items() if name[0] != "_"}
    own = [name for name in th._functions.__all__ if not name.startswith(("set_", "use_"))]
    found.update({name: getattr(th, name) for name in (*own, *th._aliases._ALIASES, *th._aliases._FUNCTIONS, *th._aliases._IN_PLACE)})
    found.update({f"Tensor.{name}": value for name, value in vars(th.Tensor).items() if type(value).__name__ == "function" and name[0] != "_"})
    return {name: value for name, value in found.items() if callable(value) and not isinstance(value, type)}


def own_calls(source):
    """Yields names, functions and arguments endlessly, for the package's Python functions. Numbers are small, because they may be
    the lengths of Python loops."""
    functions = sorted(own_functions().items())
    while True:
        name, function = source.choice(functions)
        places = [tensor(source)] if source.random() < 0.7 else []
        for _ in range(source.randrange(4)):
            one = argument(source, depth=2)
            places.append(source.randrange(-3, 9) if isinstance(one, int) and not isinstance(one, bool) else one)
        yield name, function, places, {}


def run(seed, count=None, seconds=None, calls=calls):
    """Makes calls starting from a seed. Returns the number of calls that succeeded, and the bugs."""
    source, begin, good, bugs = random.Random(seed), time.monotonic(), 0, {}
    for number, (name, function, places, names) in enumerate(calls(source)):
        if number == count or seconds is not None and time.monotonic() - begin > seconds:
            return number, good, bugs
        try:
            result = function(*places, **names)
            if isinstance(result, th.Tensor) and result.requires_grad and source.random() < 0.5:
                result.sum().backward()
            repr(result) if isinstance(result, th.Tensor) and result.numel() < 100 else None
            good += 1
        except Exception as error:
            if "a bug of Thalweg" in str(error):
                bugs.setdefault(name, f"call {number} of seed {seed}: {name}({', '.join(map(describe, places))}, {names.keys()}): {error}")


def describe(value):
    return f"{value.dtype}{tuple(value.shape)}" if isinstance(value, th.Tensor) else type(value).__name__ if isinstance(value, Hostile) else repr(value)[:60]


def test_no_call_ends_the_interpreter():
    fuzz(calls)


def test_no_call_of_what_is_in_python_ends_the_interpreter():
    fuzz(own_calls)


def fuzz(calls):
    seconds = float(os.environ.get("THALWEG_FUZZ_SECONDS", 0))
    seed = int(os.environ.get("THALWEG_FUZZ_SEED", time.time() if seconds else 0))
    # After a crash, the log contains the line that led to it.
    faulthandler.enable()
    th.manual_seed(seed)
    made, good, bugs = run(seed, seconds=seconds, calls=calls) if seconds else run(seed, count=CALLS, calls=calls)
    print(f"{made} calls from seed {seed}, {good} without an exception, {len(bugs)} bugs", file=sys.stderr)
    assert not bugs, "\n".join(bugs.values())
    assert good > made // 20, f"{good} of {made} calls went well: the arguments are too hostile to say much"
