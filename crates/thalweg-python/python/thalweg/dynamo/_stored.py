"""Programs as JSON, so that graphs of PyTorch run where PyTorch is not installed."""

import math

import thalweg
from thalweg import _core

from ._description import Description

Place = _core.Place


def encoded(value):
    """Returns a part of a description as JSON's values."""
    if isinstance(value, Place):
        return {"slot": value.number}
    if value is ...:
        return {"default": True}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (list, tuple)):
        return [encoded(one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    name = str(value).removeprefix("torch.")
    if getattr(thalweg, name, None) is value:
        return {"name": name}
    raise TypeError(f"{value!r} cannot be stored")


def decoded(value):
    """Returns a part of a description from JSON's values."""
    if isinstance(value, list):
        return [decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    readers = {"slot": Place, "default": lambda _: ..., "float": float, "complex": lambda parts: complex(*parts), "name": lambda name: getattr(thalweg, name)}
    return readers[kind](held)


def as_json(description):
    """Returns a description as JSON's values. Calls of PyTorch cannot be stored."""
    external = [node for kind, _, node in description.steps if kind == "external"]
    if external:
        raise TypeError(f"a program with calls of PyTorch cannot be stored: {external[0]}")
    return {
        "slots": description.slots,
        "inputs": description.inputs + [slot for slot, _ in description.constants],
        "outputs": encoded(description.outputs),
        "lasting": description.lasting,
        "steps": [[kind, encoded(parts), node.partition(",")[0]] for kind, parts, node in description.steps],
    }


def from_json(stored, device, exchange=None, given_away=()):
    """Returns a stored program, whose inputs and results are tensors of Thalweg on a device, or of another front end. The inputs at some places
    may be given away."""
    made = Description()
    made.slots, made.inputs, made.outputs = stored["slots"], stored["inputs"], decoded(stored["outputs"])
    made.lasting = stored["lasting"]
    for kind, parts, node in stored["steps"]:
        parts = decoded(parts)
        if kind == "call":
            made.call(parts[0], parts[1], [result and (*result[:2], None) for result in parts[2]], node, parts[3])
        else:
            made.add_integer(*parts)
    kept = [*made.inputs, *made.lasting] if exchange else []
    return _core.Program(*made.parts(), device=device, constants=[], kept=kept, exchange=exchange, varying=made.inputs, given_away=[made.inputs[place] for place in given_away])
