"""Calls that the table takes: each is tried on the meta device before it becomes a part of a program. PyTorch computes what the table
refuses, such as complex numbers or indices of another dtype, and what would have another dtype or other sizes than PyTorch's result."""

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from thalweg._core import Place, _asked

from ._calls import PassedOn, constant, entry_of
from ._nodes import results_read


class _NotKnown(Exception):
    """The exception for a value whose sizes are not known before a call."""


def check(name, arguments, results, read, number_of):
    """Checks that the table takes a call of these arguments, whose nodes have values of PyTorch's trace, and that the results that are read are
    those of the trace. `number_of(node)` is the number that a scalar counts as, if it does. Returns the places of the results that differ."""
    values = []

    def placed(argument):
        if isinstance(argument, torch.fx.Node):
            number = number_of(argument)
            values.append(_form_of(argument.meta.get("val") if number is None else number))
            return Place(len(values) - 1)
        if isinstance(argument, (list, tuple)):
            return [placed(element) for element in argument]
        return argument if argument is ... else constant(argument)

    try:
        expected = [_form_of(one) for one in results]
        answers = _asked(name, [placed(argument) for argument in arguments], values)
    except _NotKnown:
        return set()
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as reason:
        raise PassedOn(f"the table refuses it: {' '.join(str(reason).split()).replace(' on meta:0', '')}") from reason
    differ = set()
    for place, (answer, form) in enumerate(zip(answers or (), expected)):
        if answer is not None and isinstance(form, tuple) and (list(answer[0]), answer[1]) != (form[0], form[2]):
            differ.add(place)
            if place in read:
                raise PassedOn(f"the table's result would be of {answer[1]} and {answer[0]}, and not of {form[2]} and {form[0]}")
    return differ


def is_refused(node):
    """Returns whether a call stays PyTorch's, or will once it has these arguments and results."""
    value = node.meta.get("val")

    def is_number(one):
        return isinstance(one, (int, float, complex)) or isinstance(one, torch.fx.Node) and not isinstance(one.meta.get("val"), torch.Tensor)

    try:
        name, arguments = entry_of(node.target, node.args, node.kwargs, is_number)
        check(name, arguments, value if isinstance(value, (list, tuple)) else [value], results_read(node), lambda one: None)
    except PassedOn:
        return True
    return False


def _form_of(value):
    """Returns a tensor's sizes, strides and dtype, or a number, as they were when the graph was traced."""
    if isinstance(value, torch.Tensor):
        return [_hint(size) for size in value.shape], [_hint(stride) for stride in value.stride()], constant(value.dtype)
    return _hint(value)


def _hint(number):
    """Returns the number that a symbolic one had when the graph was traced."""
    if not isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return number
    if free_unbacked_symbols(number) or not number.node.has_hint():
        raise _NotKnown
    return number.node.hint
