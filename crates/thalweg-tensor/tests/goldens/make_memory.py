"""Writes memory_in_pytorch.txt: the memory that PyTorch takes on the CPU for the forms of memory_of_forms.txt, in units of what they write,
for ../it/memory_of_forms.rs. Forms that PyTorch does not have are left out. Needs PyTorch, no GPU:

    python3 make_memory.py > memory_in_pytorch.txt
"""
import pathlib

import torch
from torch.profiler import ProfilerActivity, profile

EXTENT = 64
COUNT = EXTENT * EXTENT


def number(seed):
    values = [((at * 7 + seed) % 97) / 100 + 0.01 for at in range(COUNT)]
    return torch.tensor(values).reshape(EXTENT, EXTENT)


NUMBERS = [number(1), number(2), number(3)]
INDEX = torch.tensor([at * 5 % EXTENT for at in range(COUNT)]).reshape(EXTENT, EXTENT)
ROW = INDEX[0].clone()


def argument(place, parameter, is_row):
    """Returns the argument that ../it/memory_of_forms.rs has for a parameter."""
    name, kind = parameter.name, str(parameter.type)
    if parameter.has_default_value():
        return parameter.default_value
    if kind.startswith("List[Optional[Tensor"):
        return [ROW]
    if kind == "List[Tensor]":
        return NUMBERS
    if kind == "Tensor":
        if name.startswith("ind"):
            return ROW if is_row else INDEX
        if name in ("mask", "condition"):
            return NUMBERS[0] > 0.5
        if name.startswith("vec"):
            return NUMBERS[place % 3][0]
        return NUMBERS[place % 3].unsqueeze(0) if name.startswith("batch") else NUMBERS[place % 3]
    if kind == "List[int]":
        return [1] if "dim" in name else [EXTENT] * 2
    if kind == "int":
        return EXTENT if name in ("n", "m") else 1
    return {"number": 0.5, "float": 0.5, "bool": False}.get(kind)


def peak(call):
    """Returns the peak memory in bytes of a second call."""
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    current = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        current += event.nbytes()
        most = max(most, current)
    return most


def size(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def arguments(schema, is_row):
    given = [(p, argument(place, p, is_row)) for place, p in enumerate(schema.arguments) if not p.is_out]
    listed = [value for parameter, value in given if not parameter.kwarg_only]
    named = {parameter.name: value for parameter, value in given if parameter.kwarg_only}
    if listed and isinstance(listed[0], torch.Tensor):
        listed[0] = listed[0].clone()
    return listed, named


def in_place(form, is_row):
    listed, named = arguments(form._schema, is_row)
    if "decimals" in [parameter.name for parameter in form._schema.arguments]:
        named["decimals"] = 1
    return peak(lambda: form(*listed, **named)) / size(listed[:1])


def with_out(packet, form, is_row):
    def inputs(schema):
        options = ("dtype", "layout", "device", "pin_memory")
        return [(p.name, str(p.type)) for p in schema.arguments if not p.is_out and p.name not in options]

    forms = [getattr(packet, overload) for overload in packet.overloads()]
    writes = [other for other in forms if any(p.is_out for p in other._schema.arguments)]
    other = next(other for other in writes if inputs(other._schema) == inputs(form._schema))
    listed, named = arguments(other._schema, is_row)
    results = form(*listed, **named)
    results = results if isinstance(results, (tuple, list)) else (results,)
    targets = [parameter.name for parameter in other._schema.arguments if parameter.is_out]
    out = {name: torch.empty(r.shape, dtype=r.dtype) for name, r in zip(targets, results)}
    return peak(lambda: other(*listed, **named, **out)) / size(out.values())


for line in (pathlib.Path(__file__).parent / "memory_of_forms.txt").read_text().splitlines():
    name = line.split(":")[0]
    base, _, overload = name.removesuffix(" out=").partition(".")
    for is_row in (False, True):
        try:
            packet = getattr(torch.ops.aten, base)
            form = getattr(packet, overload or "default")
            share = with_out(packet, form, is_row) if name.endswith("out=") else in_place(form, is_row)
        except Exception:
            # There is no such form, or it takes other indices.
            continue
        print(f"{name}: {share:.2f}")
        break
