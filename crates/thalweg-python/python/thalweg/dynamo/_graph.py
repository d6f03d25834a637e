"""A graph of PyTorch's compiler as the description of a program."""

import collections
import operator

import torch
from torch.fx.node import map_arg

from thalweg._core import Place

from . import Refused, _calls as calls
from ._calls import PassedOn, takes
from ._description import Description
from ._integers import Integers, Unknown

__all__ = ["Importer", "takes"]

aten = torch.ops.aten

# Calls without an effect in a compiled graph.
_NOTHING = {aten._assert_tensor_metadata.default, aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default}


class _Object:
    """A value that no step computes: a part of the graph, such as the function of a branch."""

    def __init__(self, value):
        self.value = value


class Importer:
    """The import of one graph: values of nodes are numbers, references to slots, lists of them, or objects."""

    def __init__(self, gm):
        self._gm, self._made, self._values = gm, Description(), {}
        self._integers = Integers(self._made)
        self._bases = {}
        self.taken, self.passed_on = 0, collections.Counter()
        self.device = device_of(gm.graph)

    def description(self):
        """Returns the description."""
        for node in self._gm.graph.nodes:
            check_stream(node)
            getattr(self, f"_{node.op}")(node)
        return self._made

    # ---- Nodes ----------------------------------------------------------------------------------------------------------

    def _placeholder(self, node):
        slot = self._made.slot()
        self._made.inputs.append(slot)
        self._values[node], self._bases[node] = Place(slot), slot
        self._note(node.meta.get("val"), slot)

    def _get_attr(self, node):
        value = self._gm
        for part in node.target.split("."):
            value = getattr(value, part)
        if isinstance(value, torch.Tensor):
            slot = self._made.slot()
            self._made.constants.append((slot, value))
            self._values[node], self._bases[node] = Place(slot), slot
        else:
            self._values[node] = _Object(value)

    def _output(self, node):
        for result in node.args[0]:
            value = self._values[result] if isinstance(result, torch.fx.Node) else result
            self._made.outputs.append(value.value if isinstance(value, _Object) else value)
            if isinstance(result, torch.fx.Node) and result in self._bases:
                self._keep(self._bases[result])

    def _call_function(self, node):
        value = node.meta.get("val")
        if node.target in _NOTHING:
            return
        if node.target is operator.getitem and isinstance(self._values[node.args[0]], list):
            self._values[node] = self._values[node.args[0]][node.args[1]]
            return
        if isinstance(value, int) and not isinstance(value, bool):
            self._values[node] = value
            return
        if isinstance(value, torch.SymInt):
            try:
                self._values[node] = self._integers.of(value)
                return
            except Unknown:
                pass
        try:
            self._take(node, value)
            self.taken += 1
        except PassedOn as reason:
            self._pass_on(node, value)
            has_tensors = any(isinstance(one, torch.Tensor) for one in [*tensors_of(value), *_tensors_read(node)])
            if has_tensors and node.target is not operator.getitem:
                self.passed_on[str(node.target), str(reason)] += 1

    # ---- Calls of the table -----------------------------------------------------------------------------------------------

    def _take(self, node, value):
        """Adds a call of the table."""
        self._check_tensors(node, value)
        if self.device.type == "cpu" and node.target in calls.OTHER_ON_CPU:
            raise PassedOn("its results on the CPU differ from those on a GPU")
        name, arguments = calls.entry_of(node.target, node.args, node.kwargs, self._is_number)
        writes = self._written(node)
        arguments = [argument if argument is ... else self._argument(argument) for argument in arguments]
        values = value if isinstance(value, (list, tuple)) else [value]
        slots = [self._made.slot() for _ in values]
        # What a call writes into keeps its own strides.
        strides = [None if writes is not None else self._strides(one) for one in values]
        self._made.call(name, arguments, list(zip(slots, strides)), described(node), writes)
        for one, slot in zip(values, slots):
            self._note(one, slot)
        self._values[node] = [Place(slot) for slot in slots] if isinstance(value, (list, tuple)) else Place(slots[0])
        self._note_base(node)

    def _check_tensors(self, node, value):
        for one in [*_tensors_read(node), *tensors_of(value)]:
            if one.layout is not torch.strided:
                raise PassedOn(f"a tensor has the layout {one.layout}")
            if one.device != self.device:
                raise PassedOn(f"a tensor is on {one.device}, and the graph on {self.device}")
            calls.constant(one.dtype)

    def _written(self, node):
        """Returns the slot of the tensor that a call writes."""
        schema = node.target._schema
        if not schema.is_mutable:
            return None
        places = [place for place, parameter in enumerate(schema.arguments) if parameter.alias_info is not None and parameter.alias_info.is_write]
        if len(places) != 1 or places[0] >= len(node.args) or node.args[places[0]] not in self._bases:
            raise PassedOn("it writes something other than one input")
        slot = self._bases[node.args[places[0]]]
        self._keep(slot)
        return slot

    def _keep(self, slot):
        """Keeps an input to the end of a call, since results are views of it, or since it is written."""
        self._made.kept.append(slot)
        self._made.lasting.append(slot)

    def _argument(self, argument):
        if isinstance(argument, torch.fx.Node):
            value = self._values[argument]
            if isinstance(value, _Object):
                raise PassedOn("an argument is a part of the graph")
            return value
        if isinstance(argument, (list, tuple)):
            return [self._argument(element) for element in argument]
        return calls.constant(argument)

    def _is_number(self, argument):
        if isinstance(argument, torch.fx.Node):
            return not isinstance(argument.meta.get("val"), torch.Tensor)
        return isinstance(argument, (int, float, complex))

    def _strides(self, value):
        """Returns the strides of a result that later nodes rely on, or None if they cannot be computed."""
        if not isinstance(value, torch.Tensor):
            return None
        try:
            return [self._integers.of(stride) for stride in value.stride()]
        except Unknown:
            return None

    def _note(self, value, slot):
        """Notes the numbers that a result defines."""
        if isinstance(value, torch.SymInt):
            self._integers.define(value, Place(slot))
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
            self._integers.note_sizes(value, slot)

    def _note_base(self, node):
        """Notes the input that a view is a part of, which results of the program may be views of."""
        returns = node.target._schema.returns if isinstance(node.target, torch._ops.OpOverload) else []
        is_view = any(one.alias_info is not None for one in returns)
        if is_view and node.args and isinstance(node.args[0], torch.fx.Node) and node.args[0] in self._bases:
            self._bases[node] = self._bases[node.args[0]]

    # ---- Calls of PyTorch -------------------------------------------------------------------------------------------------

    def _pass_on(self, node, value):
        """Adds a call of PyTorch's own function."""
        slots, places = [], {}

        def hole(argument):
            held = self._values[argument]
            return _replaced(held, slots, places)

        args, kwargs = map_arg(node.args, hole), map_arg(node.kwargs, hole)
        is_one = not isinstance(value, (list, tuple))
        results = [self._made.slot() for _ in ([value] if is_one else value)]
        changes = self._changes(node)
        self._made.kept += slots
        self._made.external(_function(node.target, args, kwargs), slots, results, is_one, changes, described(node))
        for one, slot in zip([value] if is_one else value, results):
            self._note(one, slot)
        self._values[node] = Place(results[0]) if is_one else [Place(slot) for slot in results]

    def _changes(self, node):
        """Returns the slots of the tensors that a call of PyTorch writes."""
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            return []
        named = dict(zip((parameter.name for parameter in schema.arguments), node.args)) | node.kwargs
        written = [named.get(parameter.name) for parameter in schema.arguments if parameter.alias_info is not None and parameter.alias_info.is_write]
        nodes = [one for each in written for one in (each if isinstance(each, (list, tuple)) else [each]) if isinstance(one, torch.fx.Node)]
        return [self._values[one].number for one in nodes if isinstance(self._values[one], Place)]


def check_stream(node):
    """Refuses a node that is on another stream than the graph's, or that orders streams."""
    is_stream = getattr(node.target, "namespace", None) == "streams" or (node.meta.get("custom") or {}).get("stream")
    if is_stream:
        raise Refused(f'the backend "thalweg" does not support streams in a graph yet: {described(node)}; use `torch._dynamo.graph_break()` around them')


class _Hole:
    """The place of an argument that is a value of the program."""

    def __init__(self, place):
        self.place = place


def _replaced(held, slots, places):
    """Returns a node's value with holes for its slots, which are added to the list."""
    if isinstance(held, list):
        return [_replaced(one, slots, places) for one in held]
    if isinstance(held, _Object):
        return held.value
    if not isinstance(held, Place):
        return held
    if held.number not in places:
        places[held.number] = len(slots)
        slots.append(held.number)
    return _Hole(places[held.number])


def _filled(value, values):
    if isinstance(value, _Hole):
        return values[value.place]
    if isinstance(value, (list, tuple)):
        return type(value)(_filled(one, values) for one in value) if type(value) in (list, tuple) else [_filled(one, values) for one in value]
    if isinstance(value, dict):
        return {name: _filled(one, values) for name, one in value.items()}
    return slice(*(_filled(one, values) for one in (value.start, value.stop, value.step))) if isinstance(value, slice) else value


def _function(target, args, kwargs):
    """Returns a function that calls the target of a node with the values of its holes."""

    def call(*values):
        return target(*_filled(args, values), **_filled(kwargs, values))

    return call


def tensors_of(value):
    """Returns the tensors of a node's value."""
    return [one for one in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(one, torch.Tensor)]


def _tensors_read(node):
    return [one for argument in node.all_input_nodes for one in tensors_of(argument.meta.get("val"))]


def device_of(graph):
    """Returns the device of a graph: a GPU if a tensor is on one, else the CPU."""
    devices = [one.device for node in graph.nodes for one in tensors_of(node.meta.get("val"))]
    return next((device for device in devices if device.type == "cuda"), torch.device("cpu"))


def described(node):
    """Returns a node, its operator, and its line in the model."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    at = next((place for place in reversed(range(len(lines))) if lines[place].startswith("File ")), None)
    modules = [f"module {path} ({getattr(kind, '__name__', kind)})" for path, kind in (node.meta.get("nn_module_stack") or {}).values()]
    where = ", ".join(lines[at : at + 2]) if at is not None else (modules or ["no line is known"])[-1]
    return f"node `{node.name}` of {node.target}, {where}"
