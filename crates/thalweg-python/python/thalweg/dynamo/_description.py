"""Descriptions of programs, from which `_core.Program` is made."""

from thalweg._core import Place


class Description:
    """The steps of a program, with the slots of its values.

    A step is a tuple of its kind (`call`, `integer`, `record`, `external`), the parts of the kind, and its node of the graph.
    """

    def __init__(self):
        self.steps, self.reads, self.slots = [], [], 0
        self.inputs, self.outputs, self.constants = [], [], []
        # The slots whose objects of PyTorch are needed after their first use, and those that live to the end of a call.
        self.kept, self.lasting = [], []
        # The inputs whose sizes may differ between calls.
        self.varying = []
        # The inputs that nothing else needs once a call has begun.
        self.given_away = []
        # Whether what a call does depends on numbers, sizes and settings alone, and happens on one stream.
        self.may_repeat = True

    def slot(self):
        """Returns a new slot."""
        self.slots += 1
        return self.slots - 1

    def call(self, operator, arguments, results, node, writes=()):
        """Adds a call of an operator. Each result is None, or a slot, its strides, and its form: sizes, dtype, and whether it is
        written into memory of PyTorch's. Strides and forms may be None. `writes` are the slots of tensors that it writes."""
        numbers = [number for result in results if result for part in (result[1], result[2] and result[2][0]) for number in part or ()]
        self._add("call", (operator, arguments, results, list(writes)), places(arguments) + places(numbers), node)

    def integer(self, name, operands):
        """Adds a computation with integers, and returns its result."""
        slot = self.slot()
        self.add_integer(name, list(operands), slot)
        return Place(slot)

    def add_integer(self, name, operands, slot):
        """Adds a computation with integers, whose result is in a slot."""
        self._add("integer", (name, operands, slot), places(operands), f"an integer ({name})")

    def external(self, function, arguments, results, is_one, changes, node, bases=()):
        """Adds a call of a function of PyTorch. `arguments` are slots, of views of the values of `bases` or of others."""
        self._add("external", (function, arguments, results, is_one, changes), [*arguments, *bases], node)

    def record(self, slots, node):
        """Adds the use of values on the current stream, which is a different one than that of their memory."""
        self._add("record", (slots,), slots, node)

    def _add(self, kind, parts, reads, node):
        self.steps.append((kind, parts, node))
        self.reads.append(reads)

    def parts(self):
        """Returns steps, slots, inputs and outputs as `_core.Program` takes them."""
        kept = {*self.lasting, *places(self.outputs)}
        last = [[] for _ in self.steps]
        for number in reversed(range(len(self.steps))):
            kind, parts, _ = self.steps[number]
            for slot in [*self.reads[number], *results_of(kind, parts)]:
                if slot not in kept:
                    kept.add(slot)
                    last[number].append(slot)
        steps = [(kind, parts, dead, node) for (kind, parts, node), dead in zip(self.steps, last)]
        return steps, self.slots, self.inputs, self.outputs


def results_of(kind, parts):
    """Returns the slots that a step writes."""
    if kind == "integer":
        return [parts[2]]
    if kind == "record":
        return []
    if kind == "external":
        return [slot for slot in parts[2] if slot is not None]
    return [result[0] for result in parts[2] if result]


def places(value):
    """Returns the slots that a value refers to."""
    if isinstance(value, Place):
        return [value.number]
    if isinstance(value, (list, tuple)):
        return [slot for element in value for slot in places(element)]
    return []
