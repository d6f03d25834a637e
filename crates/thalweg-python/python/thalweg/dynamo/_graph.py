"""A graph of PyTorch's compiler as the description of a program."""

import collections
import functools
import operator

import torch
from torch.fx.experimental.symbolic_shapes import CallMethodKey, free_unbacked_symbols
from torch.fx.node import map_arg
from torch.utils._pytree import key_get

from thalweg._core import Place

from . import _asked as asked, _calls as calls
from ._calls import PassedOn, takes
from ._casts import lists_of
from ._constants import Constants
from ._description import Description, places
from ._draws import SEEDS
from ._given import is_dense, origins, results
from ._integers import Integers, Unknown, require
from ._losses import CHECKED_CLASSES
from ._nodes import results_read
from ._scalars import by_dtype, in_order, is_a_number, is_beside, moved_of, mover, number_in, tensors_of, tensors_read
from ._streams import is_of_streams, number_of, streams_of
from ._writes import of_batch_norm

__all__ = ["Importer", "takes"]

aten = torch.ops.aten

# Calls without an effect in a compiled graph.
_NOTHING = {aten._assert_tensor_metadata.default, aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default}

# The reason why a call stays PyTorch's while its bisector looks for a wrong one.
_LEFT_OUT = "the bisector of PyTorch's compilers leaves it out"


class _Object:
    """A value that no step computes: a part of the graph, such as the function of a branch."""

    def __init__(self, value):
        self.value = value


class Importer:
    """The import of one graph: values of nodes are numbers, references to slots, lists of them, or objects."""

    def __init__(self, gm, is_left_out=lambda description: False):
        self._is_left_out = is_left_out
        self._gm, self._made, self._values = gm, Description(), {}
        self._integers = Integers(self._made)
        self._bases = {}
        self.taken, self.passed_on = 0, collections.Counter()
        self.device = device_of(gm.graph)
        self._constants, self._on_device = Constants(self.device), {}
        # Scalars of the CPU beside tensors of a GPU: those of the node at hand that are numbers and tensors, the numbers that were read,
        # those that become tensors, and the tensors that they became.
        self._as_numbers, self._as_tensors, self._numbers = set(), set(), {}
        self._scalars, self._moved_scalars = moved_of(gm.graph, self.device), {}
        # What PyTorch reads: results of the graph, whose memory lives on, and arguments of its calls.
        self._lasting = origins(results(gm.graph))
        self._given = self._lasting.union(*(origins(node.all_input_nodes) for node in gm.graph.nodes if self._stays(node)))
        # The stream that steps run on now, and those that have written an input since the stream of the call waited for them.
        self.streams, self.uses_streams = streams_of(self.device), False
        self._stream, self._unjoined = None, set()
        # The streams of the memory of slots, where it is not that of the call.
        self._homes = {}
        # The casts that are computed together, by the node in whose place they are, and the nodes that are computed with another one.
        calls_of_graph = [node for node in gm.graph.nodes if node.op == "call_function"]
        is_on_one = not any(is_of_streams(node.target) or number_of(node) is not None for node in calls_of_graph)
        self._casts, self._done = lists_of(gm.graph, self.device) if is_on_one else ({}, set())

    def description(self):
        """Returns the description."""
        for node in in_order(self._gm.graph, self._scalars):
            if node.op == "call_function" and not is_of_streams(node.target):
                self._switch(number_of(node), node)
            getattr(self, f"_{node.op}")(node)
        return self._made

    # ---- Nodes ----------------------------------------------------------------------------------------------------------

    def _placeholder(self, node):
        slot = self._made.slot()
        self._made.inputs.append(slot)
        self._values[node], self._bases[node] = Place(slot), slot
        value = node.meta.get("val")
        self._note(value, slot)
        is_strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
        is_fixed = is_strided and all(isinstance(number, int) for number in [*value.shape, *value.stride()])
        is_number = value is None or isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))
        if is_number or is_strided and not is_fixed:
            self._made.varying.append(slot)
        if any(is_beside(node, user, self.device) and is_a_number(node, user) for user in node.users if takes(user.target)):
            # Read before the first loop waits, so that nothing is queued early for it.
            self._number(node)

    def _get_attr(self, node):
        value = self._gm
        for part in node.target.split("."):
            value = getattr(value, part)
        if isinstance(value, torch.Tensor):
            self._constants.add(node, value)
            self._constant(node, value)
        else:
            self._values[node] = _Object(value)

    def _constant(self, node, tensor):
        slot = self._made.slot()
        self._made.constants.append((slot, tensor))
        self._values[node], self._bases[node] = Place(slot), slot

    def _output(self, node):
        for number in sorted(self._unjoined):
            self._effect(functools.partial(self.streams.join, number), node)
        self._switch(None, node)
        for result in node.args[0]:
            value = self._values[result] if isinstance(result, torch.fx.Node) else result
            self._made.outputs.append(value.value if isinstance(value, _Object) else value)
            if isinstance(result, torch.fx.Node) and result in self._bases:
                self._keep(self._bases[result])

    def _call_function(self, node):
        value = node.meta.get("val")
        if node.target in _NOTHING or node in self._done:
            return
        if node in self._casts:
            self._cast(self._casts[node])
            return
        if is_of_streams(node.target):
            self._order(node)
            return
        if node.target is operator.getitem and isinstance(self._values[node.args[0]], list):
            self._values[node] = self._values[node.args[0]][node.args[1]]
            if node.args[0] in self._bases:
                self._bases[node] = self._bases[node.args[0]]
            return
        bindings = node.meta.get("unbacked_bindings")
        if isinstance(value, (int, float)) and not bindings:
            self._values[node] = value
            return
        if (computed := self._constants.computed(node)) is not None:
            self._constant(node, computed)
            return
        if isinstance(value, torch.SymInt) and not bindings:
            try:
                self._values[node] = self._integers.of(value)
                return
            except Unknown:
                pass
        expected = self._expected(value, bindings)
        try:
            self._take(node, value)
            self.taken += 1
        except PassedOn as reason:
            self._pass_on(node, value)
            has_tensors = any(isinstance(one, torch.Tensor) for one in [*tensors_of(value), *tensors_read(node)])
            if has_tensors and node.target is not operator.getitem and SEEDS not in node.meta:
                self.passed_on[str(node.target), str(reason)] += 1
        self._check_expected(node, expected)

    def _expected(self, value, bindings):
        """Returns the sizes and numbers that depend on the elements of a call, by their paths in its value, as far as the graph has them
        already: it relies on those that a check of the model has fixed."""
        found = {}
        for path in (bindings or {}).values():
            number = key_get(value, path)
            is_size = len(path) > 1 and path[-2] == CallMethodKey("size")
            if isinstance(number, (int, torch.SymInt)) and (is_size or not path):
                try:
                    found[path] = self._integers.of(number)
                except Unknown:
                    pass
        return found

    def _check_expected(self, node, expected):
        """Adds checks that sizes and numbers are what the graph relies on."""
        for path, number in expected.items():
            found = key_get(self._values[node], path[:-2])
            if path:
                found = self._made.integer("size", [found, path[-1].idx])
            else:
                self._values[node] = number
            slots = []
            wanted = _replaced(number, slots, {})
            check = Function(require, (_Hole(len(slots)), wanted), {})
            self._made.external(check, [*slots, found.number], [], True, [], described(node))

    # ---- Calls of the table -----------------------------------------------------------------------------------------------

    def _take(self, node, value):
        """Adds a call of the table."""
        # PyTorch has no kernels for operators of the backend's own.
        is_own = getattr(node.target, "namespace", None) == "thalweg_graph"
        if not is_own and self._is_left_out(lambda: described(node)):
            raise PassedOn(_LEFT_OUT)
        self._check_tensors(node, value)
        if node.target is aten._native_batch_norm_legit_functional.default:
            self._batch_norm(node, value)
            return
        if node.target is CHECKED_CLASSES:
            self._check_classes(node)
            return
        if self.device.type == "cpu" and node.target in calls.OTHER_ON_CPU:
            raise PassedOn("its results on the CPU differ from those on a GPU")
        name, arguments = calls.entry_of(node.target, node.args, node.kwargs, self._is_number)
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        for place in asked.check(name, arguments, values, results_read(node), self._hint):
            values[place] = None
        writes = self._written(node)
        arguments = [argument if argument is ... else self._argument(argument) for argument in arguments]
        slots = [self._made.slot() for _ in values]
        # What a call writes into keeps its own strides.
        is_computed = not calls.is_view(name)
        strides = [None if writes or is_computed and _is_expanded(one) else self._strides(one) for one in values]
        forms = self._forms(node, values, strides)
        for place, slot in enumerate(slots):
            if (node, place) in self._lasting:
                self._keep(slot)
        self._record(node, slots)
        results = [result if one is not None else None for one, result in zip(values, zip(slots, strides, forms))]
        self._made.call(name, arguments, results, described(node), writes)
        for one, slot in zip(values, slots):
            self._note(one, slot)
        if writes and isinstance(value, torch.Tensor):
            # The result is what is written, with its strides.
            self._values[node] = self._values[node.args[0]]
        else:
            self._values[node] = [Place(slot) for slot in slots] if isinstance(value, (list, tuple)) else Place(slots[0])
        self._note_base(node)

    def _cast(self, nodes):
        """Adds casts of several tensors from one dtype to another as one call."""
        if self._is_left_out(lambda: described(nodes[0])):
            for node in nodes:
                self._pass_on(node, node.meta["val"])
                self.passed_on[str(node.target), _LEFT_OUT] += 1
            return
        values, slots = [node.meta["val"] for node in nodes], [self._made.slot() for _ in nodes]
        strides = [self._strides(one) for one in values]
        given = [(node, 0) in self._given for node in nodes]
        forms = [(list(one.shape), calls.constant(one.dtype), is_given) for one, is_given in zip(values, given)] if any(given) else [None] * len(nodes)
        for node, one, slot in zip(nodes, values, slots):
            if (node, 0) in self._lasting:
                self._keep(slot)
            self._note(one, slot)
            self._values[node] = Place(slot)
        arguments = [[self._values[node.args[0]] for node in nodes], calls.constant(values[0].dtype)]
        self._made.call("thalweg::to_each", arguments, list(zip(slots, strides, forms)), described(nodes[0]))
        self.taken += len(nodes)

    def _stays(self, node):
        """Returns whether a call is PyTorch's because of its operator and its arguments."""
        is_call = node.op == "call_function" and node.target is not operator.getitem and node.target not in _NOTHING
        if not is_call or is_of_streams(node.target) or node.target is aten._native_batch_norm_legit_functional.default:
            return False
        try:
            calls.entry_of(node.target, node.args, node.kwargs, self._is_number)
        except PassedOn:
            return True
        return False

    def _check_classes(self, node):
        """Adds the check of classes, which are the node's value."""
        self._made.call("thalweg::check_classes", [self._argument(argument) for argument in node.args], [None], described(node))
        self._values[node] = self._values[node.args[0]]
        if node.args[0] in self._bases:
            self._bases[node] = self._bases[node.args[0]]

    def _batch_norm(self, node, value):
        """Adds a batch normalization that returns the new running statistics: one that writes the old ones, or copies of them."""
        arguments, slots, line = [self._argument(argument) for argument in node.args], [self._made.slot() for _ in value], described(node)
        forms = self._forms(node, value[:3], [self._strides(one) for one in value[:3]])
        copies, writes = of_batch_norm(node) if self._stream is None else [None, None], []
        for place, copy in enumerate(copies, 3):
            if copy is None:
                self._made.call("clone", [arguments[place]], [(slots[place], None, None)], line)
            else:
                writes.append(self._bases[node.args[place]])
                self._keep(writes[-1])
                slots[place] = writes[-1]
                self._done.add(copy)
        for place, slot in enumerate(slots):
            if (node, place) in self._lasting:
                self._keep(slot)
        self._record(node, slots)
        results = [(slot, self._strides(one), form) for slot, one, form in zip(slots, value, forms)]
        self._made.call("_native_batch_norm_legit", [*arguments[:3], Place(slots[3]), Place(slots[4]), *arguments[5:]], results, line, writes)
        self._values[node] = [Place(slot) for slot in slots]

    def _check_tensors(self, node, value):
        beside = {argument for argument in node.all_input_nodes if is_beside(argument, node, self.device)}
        self._as_numbers = {one for one in beside if is_a_number(one, node, self._constants.of(one) is not None)}
        self._as_tensors = {one for one in beside - self._as_numbers if self._constants.of(one) is None}
        read_nodes = [one for one in node.all_input_nodes if one not in beside and self._constants.of(one) is None]
        read = [one for argument in read_nodes for one in tensors_of(argument.meta.get("val"))]
        for one in [*read, *tensors_of(value)]:
            if one.layout is not torch.strided:
                raise PassedOn(f"a tensor has the layout {one.layout}")
            if one.device != self.device:
                raise PassedOn(f"a tensor is on {one.device}, and the graph on {self.device}")
            calls.constant(one.dtype)

    def _written(self, node):
        """Returns the slots of the tensors that a call writes."""
        schema = node.target._schema
        if not schema.is_mutable:
            return []
        places = [place for place, parameter in enumerate(schema.arguments) if parameter.alias_info is not None and parameter.alias_info.is_write]
        if len(places) != 1 or places[0] >= len(node.args) or node.args[places[0]] not in self._bases:
            raise PassedOn("it writes something other than one input")
        slot = self._bases[node.args[places[0]]]
        self._keep(slot)
        if self._stream is not None:
            self._unjoined.add(self._stream)
        return [slot]

    def _keep(self, slot):
        """Keeps an input to the end of a call, since results are views of it, or since it is written."""
        self._made.kept.append(slot)
        self._made.lasting.append(slot)

    def _argument(self, argument):
        if isinstance(argument, torch.fx.Node):
            if argument in self._as_numbers:
                return self._number(argument)
            if argument in self._as_tensors:
                return self._scalar(argument)
            if self._constants.of(argument) is not None:
                return self._moved(argument)
            value = self._values[argument]
            if isinstance(value, _Object):
                raise PassedOn("an argument is a part of the graph")
            return value
        if isinstance(argument, (list, tuple)):
            return [self._argument(element) for element in argument]
        return calls.constant(argument)

    def _hint(self, node):
        """Returns a number of the kind that a scalar of the CPU counts as, if it does."""
        if node not in self._as_numbers:
            return None
        dtype = node.meta["val"].dtype
        return True if dtype is torch.bool else 1.0 if dtype.is_floating_point else 1j if dtype.is_complex else 1

    def _number(self, node):
        """Returns the number in a scalar of the CPU."""
        if self._constants.of(node) is not None:
            return self._constants.number(node)
        if node not in self._numbers:
            slots = []
            _replaced(self._values[node], slots, {})
            result = self._made.slot()
            self._made.kept += slots
            self._made.external(number_in, slots, [result], True, [], described(node))
            self._numbers[node] = Place(result)
        return self._numbers[node]

    def _scalar(self, node):
        """Returns a scalar of the CPU on the graph's device; all others that are known are moved with the first one."""
        if node not in self._moved_scalars:
            known = [one for one in self._scalars if isinstance(self._values.get(one), Place) and one not in self._moved_scalars and self._constants.of(one) is None]
            for scalars in by_dtype(known):
                slots, results = [self._values[one].number for one in scalars], [self._made.slot() for _ in scalars]
                self._made.kept += slots
                self._made.external(mover(self.device), slots, results, False, [], described(node))
                self._moved_scalars |= {one: Place(slot) for one, slot in zip(scalars, results)}
        return self._moved_scalars[node]

    def _moved(self, node):
        """Returns a constant on the CPU, such as a list of indices, on the graph's device."""
        if node not in self._on_device:
            slot = self._made.slot()
            self._made.constants.append((slot, self._constants.moved(node)))
            self._on_device[node] = Place(slot)
        return self._on_device[node]

    def _is_number(self, argument):
        if isinstance(argument, torch.fx.Node):
            return argument in self._as_numbers or not isinstance(argument.meta.get("val"), torch.Tensor)
        return isinstance(argument, (int, float, complex))

    def _strides(self, value):
        """Returns the strides of a result that later nodes rely on, or None if they cannot be computed."""
        if not isinstance(value, torch.Tensor):
            return None
        try:
            return [self._integers.of(stride) for stride in value.stride()]
        except Unknown:
            return None

    def _forms(self, node, values, strides):
        """Returns the forms of a call's results, if one of them is written into memory of PyTorch's and all may be."""
        given = [(node, place) in self._given for place in range(len(values))]
        try:
            if not any(given) or node.meta.get("unbacked_bindings") or not all(is_dense(one) for one in values) or None in strides:
                return [None] * len(values)
            return [([self._integers.of(size) for size in one.shape], calls.constant(one.dtype), is_given) for one, is_given in zip(values, given)]
        except Unknown:
            return [None] * len(values)

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

    # ---- Streams --------------------------------------------------------------------------------------------------------

    def _effect(self, function, node):
        self.uses_streams, self._made.may_repeat = True, False
        self._made.external(function, [], [], True, [], described(node))

    def _record(self, node, results):
        """Notes that a call on the current stream makes these results, and uses values of other streams."""
        used = [slot for argument in node.all_input_nodes for slot in places(self._values.get(argument))]
        away = [slot for slot in used if self._homes.get(slot) != self._stream]
        if away:
            self._made.may_repeat = False
            self._made.record(away, described(node))
        self._homes |= dict.fromkeys(results, self._stream)

    def _switch(self, number, node):
        """Lets the next steps run on a stream."""
        if number != self._stream:
            self._effect(functools.partial(self.streams.switch, number), node)
            self._stream = number

    def _order(self, node):
        """Adds an operator that switches or orders streams."""
        name, target, arguments = calls.name_of(node.target).removeprefix("streams::").partition(".")[0], node.target, node.args
        if name == "sync_dealloc":
            # Memory of ours waits for all streams that use it, so only the order is left.
            target, arguments = torch.ops.streams.wait_event.default, arguments[:2]
        if name == "record_stream":
            # What PyTorch has allocated is one of its tensors; the rest is memory of ours.
            if self.streams.is_simulated or self._bases.get(arguments[0]) is None:
                return
            slot, number = self._bases[arguments[0]], arguments[1]
            self._keep(slot)
            self._made.external(Function(target, (_Hole(0), number), {}), [slot], [], True, [], described(node))
            return
        self._effect(functools.partial(self.streams.call, target, *arguments), node)
        if name in ("fork", "join"):
            self._stream = arguments[1]
        waited = {"record_event": arguments[1], "wait_stream": arguments[1]}.get(name)
        self._unjoined.discard(waited)

    # ---- Calls of PyTorch -------------------------------------------------------------------------------------------------

    def _pass_on(self, node, value):
        """Adds a call of PyTorch's own function."""
        slots, numbers = [], {}

        def hole(argument):
            held = self._values[argument]
            return _replaced(held, slots, numbers)

        args, kwargs = map_arg(node.args, hole), map_arg(node.kwargs, hole)
        is_one = not isinstance(value, (list, tuple))
        results = [self._made.slot() for _ in ([value] if is_one else value)]
        changes = self._changes(node)
        self._made.kept += slots
        self._made.may_repeat &= not free_unbacked_symbols(tensors_of(value))
        self._record(node, results)
        bases = [slot for base, place in origins(node.all_input_nodes) & self._given for slot in places(self._values.get(base))[place : place + 1]]
        self._made.external(Function(node.target, args, kwargs), slots, results, is_one, changes, described(node), bases)
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


def _is_expanded(value):
    """Returns whether elements of a tensor share memory, as those of a view may that is computed here, such as the conjugate of an expanded
    tensor."""
    sizes = zip(value.shape, value.stride()) if isinstance(value, torch.Tensor) else ()
    return any(isinstance(stride, int) and stride == 0 and size != 1 for size, stride in sizes)


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


def _has_holes(value):
    if isinstance(value, slice):
        return _has_holes([value.start, value.stop, value.step])
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return isinstance(value, _Hole) or any(map(_has_holes, parts))


def _filled(value, values):
    if isinstance(value, _Hole):
        return values[value.place]
    if isinstance(value, (list, tuple)):
        return type(value)(_filled(one, values) for one in value) if type(value) in (list, tuple) else [_filled(one, values) for one in value]
    if isinstance(value, dict):
        return {name: _filled(one, values) for name, one in value.items()}
    return slice(*(_filled(one, values) for one in (value.start, value.stop, value.step))) if isinstance(value, slice) else value


class Function:
    """A function that calls the target of a node with the values of its holes."""

    def __init__(self, target, args, kwargs):
        self._target, self._args, self._kwargs = target, args, kwargs
        # The places of the holes, if only arguments by position are or have holes, and no list has any.
        rest = [one for one in args if not isinstance(one, _Hole)]
        self._holes = [place for place, one in enumerate(args) if isinstance(one, _Hole)] if not _has_holes([rest, kwargs]) else None

    def __call__(self, *values):
        if self._holes is None:
            return self._target(*_filled(self._args, values), **_filled(self._kwargs, values))
        args = list(self._args)
        for place in self._holes:
            args[place] = values[args[place].place]
        return self._target(*args, **self._kwargs)

    def __repr__(self):
        return f"PyTorch's {self._target}"

    def __reduce__(self):
        return _function_by_names, tuple(_named(part) for part in (self._target, self._args, self._kwargs))


class _Name:
    """The stored form of an operator of PyTorch: the names that lead to it."""

    def __init__(self, *names):
        self.names = names


def _each(value, change):
    """Returns a value with all that it contains changed."""
    if isinstance(value, (list, tuple)):
        return type(value)(_each(one, change) for one in value) if type(value) in (list, tuple) else value
    return {name: _each(one, change) for name, one in value.items()} if isinstance(value, dict) else change(value)


def _named(value):
    """Returns a value with the names of operators instead of the operators."""

    def change(one):
        if isinstance(one, torch._ops.OpOverload):
            return _Name(*one._schema.name.split("::"), one._overloadname)
        if isinstance(one, torch._ops.HigherOrderOperator):
            return _Name("higher_order", one.__name__)
        return one

    return _each(value, change)


def _function_by_names(*parts):
    """Returns the function with a stored name."""
    return Function(*(_each(part, lambda one: functools.reduce(getattr, one.names, torch.ops) if isinstance(one, _Name) else one) for part in parts))


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
