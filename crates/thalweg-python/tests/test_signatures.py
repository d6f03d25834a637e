"""Signatures of public functions, methods and constructors are PyTorch's: names, order, defaults, keyword-only parameters, result
fields.

`signatures/torch.txt` has PyTorch's signatures, written by `tools/signatures.py`; `signatures/differences.txt` has the
differences with reasons.
"""

import collections
import fnmatch
import inspect
import pathlib
import re

import thalweg as th
import thalweg.signal.windows  # noqa: F401

FOLDER = pathlib.Path(__file__).parent / "signatures"
# Defaults with the same meaning that PyTorch's stubs write differently.
SAME = {"pin_memory": ("None",), "layout": ("None",), "dtype": ("int64",), "memory_format": ("None",), "stride": ("None",)}
Parameter = collections.namedtuple("Parameter", "name kind default")
# The kinds of parameters: positional or keyword, keyword-only, any number of positional ones, any keywords.
PLACE, NAMED, PLACES, NAMES = "place", "named", "places", "names"
KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: PLACE, inspect.Parameter.POSITIONAL_OR_KEYWORD: PLACE, inspect.Parameter.KEYWORD_ONLY: NAMED,
    inspect.Parameter.VAR_POSITIONAL: PLACES, inspect.Parameter.VAR_KEYWORD: NAMES}


def read_line(line):
    """Returns the name, parameters and results of a line."""
    line = line.replace("(cls, ", "(self, ")
    name, inner, results = re.fullmatch(r"([\w.]+)\((.*)\)(?: -> ([\w,]+))?", line).groups()
    parameters, is_named = [], False
    for part in re.findall(r"(?:[^,(]|\([^)]*\))+", inner):
        part, _, default = part.strip().partition("=")
        if part == "*":
            is_named = True
        elif part.startswith("**"):
            parameters.append(Parameter(part[2:], NAMES, None))
        elif part.startswith("*"):
            parameters.append(Parameter(part[1:], PLACES, None))
            is_named = True
        else:
            parameters.append(Parameter(part, NAMED if is_named else PLACE, default or None))
    return name, parameters, results


def normal(default):
    """Returns a default's text in canonical form: `(1,)` becomes 1, and numbers become floats."""
    if default is None:
        return None
    text = default.strip("'\"").removeprefix("torch.").replace(",)", ")").replace(", ", ",")
    inner = text.removeprefix("(").removesuffix(")").strip(",")
    if text.startswith("(") and len(set(inner.replace(" ", "").split(","))) <= 1:
        text = inner.partition(",")[0] or "()"
    try:
        return str(float(text))
    except ValueError:
        return text.lower() if text.lower() in ("mean", "sum") else text


def text_of(value):
    if isinstance(value, (th.dtype, th.memory_format)):
        return str(value).removeprefix("torch.")
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    return repr(tuple(value)) if isinstance(value, (tuple, list)) else getattr(value, "__name__", type(value).__name__)


def running(value):
    """Returns the parameters of a Python function."""
    return [Parameter(one.name, KINDS[one.kind], None if one.default is one.empty else text_of(one.default))
            for one in inspect.signature(value).parameters.values()]


def of_table(overload, is_method):
    """Returns the parameters of an overload of the table."""
    found = []
    for place, one in enumerate(overload["parameters"]):
        # A parameter whose name is a Python keyword is also accepted with `_` appended.
        name = "from_" if one["name"] == "from" else one["name"]
        if place == overload["receiver"]:
            name = "self" if is_method else "input"
        found.append(Parameter(name, NAMED if one["keyword_only"] else PLACE, one["default"]))
    if is_method and overload["receiver"]:
        found.insert(0, found.pop(overload["receiver"]))
    if any(one["name"] == "pin_memory" for one in overload["parameters"]):
        found.append(Parameter("requires_grad", NAMED, "False"))
    if overload["generator"]:
        found.append(Parameter("generator", NAMED, "None"))
    if not is_method:
        found.append(Parameter("out", NAMED, "None"))
    return found


TABLE = collections.defaultdict(list)
for _overload in th._core._table():
    TABLE[_overload["function"]].append(_overload)


def ours(name):
    """Returns the object with a name in this package, and its signatures with their results; None if there is none."""
    value = th
    for part in name.removeprefix("torch.").split("."):
        # Names that a module creates on access count as well.
        value = inspect.getattr_static(value, part, None) if isinstance(value, type) else getattr(value, part, None)
        # Names that are left out are objects that raise when they are called.
        if value is None or hasattr(type(value), "_refusal") or type(value).__name__ == "_LeftOut":
            return None
    # A wrapper of an operator accepts the arguments of the operator.
    value = inspect.unwrap(getattr(value, "__func__", value))
    kind = type(value).__name__
    overloads = TABLE.get(getattr(value, "__name__", ""), [])
    if kind in ("builtin_function_or_method", "method_descriptor") and overloads:
        return [(of_table(one, kind == "method_descriptor" and name.startswith("Tensor.")), one) for one in overloads]
    return [(running(value), None)]


def results_differ(overload, results):
    """Returns whether an operator returns one tensor where PyTorch returns a tuple, or a tuple with other fields."""
    if overload is None or results is None:
        return False
    own = overload["results"]
    fields = ",".join(overload["result_names"]) if len(overload["result_names"]) > 1 and all(overload["result_names"]) else None
    is_tuple = len(own) > 1 or any(is_list for _, is_list in own)
    return (fields or ("tuple" if is_tuple else None)) != results


def difference(wanted, own, is_method, others):
    """Returns how a signature refuses a call that PyTorch accepts, or accepts it differently; None if it does not."""
    if own and own[0].name == "input":
        # Both names are accepted. PyTorch's stubs have the second one if a number may be passed as the tensor.
        wanted = [one._replace(name="input") if one.name == "self" else one for one in wanted] if not is_method else wanted
    named = {one.name: one for one in own if one.kind in (PLACE, NAMED)}
    places = [one for one in own if one.kind == PLACE]
    has_names = any(one.kind == NAMES for one in own)
    has_places = any(one.kind == PLACES for one in own)
    if is_method and places:
        # The first parameter of a method has no name that callers can use.
        own = [places[0]._replace(name="self"), *own[1:]]
        named["self"] = places[0] = own[0]
    for place, one in enumerate(one for one in wanted if one.kind == PLACE):
        if place >= len(places):
            return f"{one.name} is not taken by its place"
        if places[place].name != one.name:
            return f"{one.name} is {places[place].name}"
    for one in wanted:
        if one.kind == PLACES:
            lists = [other for other in places[1 if places and places[0].name == "self" else 0:] if other.name == one.name]
            if not has_places and not lists:
                return f"*{one.name} is missing"
        elif one.kind == NAMES:
            if not has_names:
                return f"**{one.name} is missing"
        elif one.name not in named:
            # A stub may combine two overloads: its optional parameter is in the other overload here.
            if one.default is None or one.name not in others:
                return f"{one.name} is missing"
        elif one.default not in (None, "...") and normal(named[one.name].default) not in (normal(one.default), *SAME.get(one.name, ())):
            return f"the default of {one.name} is {named[one.name].default}, not {one.default}"
    known = {one.name for one in wanted}
    more = [one.name for one in own if one.kind in (PLACE, NAMED) and one.default is None and one.name not in known]
    if more:
        return f"{more[0]} is required"
    loose = [one for one in own if one.kind in (PLACES, NAMES) and one.kind not in {one.kind for one in wanted}]
    return f"takes any {loose[0].kind}" if loose else None


def differences():
    """Yields each of PyTorch's lines without a match here, with the difference."""
    for line in (FOLDER / "torch.txt").read_text().splitlines():
        # Some Python functions declare that they accept any arguments.
        if "(?)" in line or "(*args, **kwargs)" in line:
            continue
        name, wanted, results = read_line(line)
        try:
            found = ours(name)
        except ValueError:
            yield line, "has no signature"
            continue
        if found is None:
            yield line, "missing"
            continue
        others = {one.name for own, _ in found for one in own}
        ways = [difference(wanted, own, name.startswith("Tensor."), others) or ("gives other results" if results_differ(overload, results) else None)
                for own, overload in found]
        if None not in ways:
            yield line, min(ways, key=len) if len(set(ways)) > 1 else ways[0]


def test_signatures_are_pytorchs():
    reasons = {}
    for line in (FOLDER / "differences.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern, _, reason = line.partition(" | ")
            assert reason, line
            reasons[pattern] = reason
    found = list(differences())
    used = set()
    for line, way in found:
        pattern = next((one for one in reasons if fnmatch.fnmatchcase(line, one) or fnmatch.fnmatchcase(line.partition("(")[0], one)), None)
        assert pattern, f"{line}: {way}"
        used.add(pattern)
    assert not set(reasons) - used, f"these do not differ any more: {sorted(set(reasons) - used)}"
