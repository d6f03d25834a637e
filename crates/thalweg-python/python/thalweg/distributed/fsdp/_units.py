"""Parameters that are gathered for a pass and freed after it: a `Unit` is the parameters of one sharded module, and a `Context` is the
units of a model.

A forward pass gathers the parameters of a unit, and the graph saves a `_Note` in place of each part of an entire parameter. So the parameters
are freed after the pass, and the backward pass gathers them when it reads the first note. Both gather the next unit ahead. The gradients of a
unit come together, and each rank gets its rows of their mean while the pass continues.
"""

import collections
import contextlib
import functools
import threading
import weakref

from ... import _core
from ...autograd import no_grad
from ...autograd.function import Function
from ...autograd.variable import Variable
from ...utils import checkpoint
from .._collectives import all_reduce, gathered_together, scattered_together
from .._group import ReduceOp
from ..tensor._placing import padded

# The units that this thread is in, innermost last.
_inside = threading.local()


def _units_inside():
    return _inside.__dict__.setdefault("units", [])


def _is_in_backward():
    """Returns whether a backward pass of this thread runs, which computes something again."""
    return _core._current_graph_task_id() >= 0


class Context:
    """The units of a model: their order, their entire parameters, and the reductions in progress."""

    def __init__(self):
        self.units = weakref.WeakSet()
        # The units of the forward passes since the last backward pass, and those before it, in the order of execution.
        self.order, self.former = [], []
        # The recorded forward passes that have had no backward pass.
        self.recorded = 0
        self.reductions = collections.deque()
        # Each unit with the number of the parameter, by the identity of the storage of an entire parameter.
        self.entire = {}
        self._ends_with_pass = False

    def begin(self, unit):
        """Begins a forward pass of a unit."""
        if _is_in_backward():
            unit.ask()
            return
        if not self.recorded and not any(other.context is self for other in _units_inside()):
            # Parameters that have stayed entire since an earlier pass may be older than this rank's parts.
            for other in list(self.units):
                if not other.is_kept:
                    other.reshard()
            self.former, self.order = self.order, []
            self.reductions.clear()
            self._ends_with_pass = False
        self.order.append(weakref.ref(unit))

    def gather_ahead(self, unit, order, is_needed):
        """Gathers the first unit after this one in an order."""
        others = iter(order)
        for reference in others:
            if reference() is unit:
                break
        for reference in others:
            other = reference()
            if other is not None and other is not unit and is_needed(other):
                other.gather()
                return

    def reduces(self, unit, work, gradients):
        """Keeps a reduction that is in progress, and gives the rows of earlier ones to their parameters."""
        self.reductions.append((unit, work, gradients))
        if not self._ends_with_pass:
            self._ends_with_pass = True
            Variable._execution_engine.queue_callback(self.end)
        while len(self.reductions) > 1:
            Unit.take(*self.reductions.popleft())

    def end(self):
        """Gives the last rows to their parameters."""
        self._ends_with_pass = False
        while self.reductions:
            Unit.take(*self.reductions.popleft())
        for unit in list(self.units):
            if not unit.is_kept and not unit.recorded:
                unit.reshard()


class _Recorded:
    """A recorded forward pass of a unit, which is over when its node has run or is dropped."""

    def __init__(self, unit):
        self._unit, self._is_over = unit, False
        unit.recorded += 1
        unit.context.recorded += 1

    def over(self):
        """Counts the pass as over."""
        if not self._is_over:
            self._is_over = True
            self._unit.recorded -= 1
            self._unit.context.recorded -= 1

    __del__ = over


class _Gather(Function):
    """The node of a unit's entire parameters. Its backward pass reduces their gradients."""

    @staticmethod
    def forward(ctx, unit, entire, parts, *_):
        ctx.unit, ctx.parts, ctx.recorded = unit, parts, _Recorded(unit)
        ctx.set_materialize_grads(False)
        return tuple(entire)

    @staticmethod
    def backward(ctx, *gradients):
        unit = ctx.unit
        ctx.recorded.over()
        unit.reduce(ctx.parts, gradients)
        if unit.reshards_after_backward:
            unit.reshard()
        # The parameters get their gradients when the reduction is complete.
        return (None,) * (3 + len(gradients))


class _Note:
    """The place of a part of an entire parameter, which the graph keeps in place of the part."""

    __slots__ = ("unit", "number", "shape", "strides", "offset")

    def __init__(self, tensor, entire):
        self.unit, self.number = entire[tensor._storage_identity()]
        self.shape, self.strides, self.offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()

    def tensor(self):
        """Returns the part, for work of the current stream."""
        self.unit.ask()
        return self.unit.gathered()[self.number].as_strided(self.shape, self.strides, self.offset)


class _Part:
    """This rank's part of a parameter, and the sizes of the one that the group divides."""

    def __init__(self, parameter, ranks, is_offloaded):
        self.parameter, self.local, self.shape, self.dim = parameter, parameter._local, parameter._shape_in_group, parameter._dim
        self.dtype, self.is_trained, self._storage = self._facts()
        # The device that computes, which has the entire parameter.
        has_moved = is_offloaded and parameter.device_mesh.device_type == "cuda" and not self.local.is_meta
        self.device = _core.get_default_device() if has_moved else self.local.device
        # All ranks' parts have as many rows, the last of which may be beyond the end. Each rank has a parameter without dimensions as a row.
        rows, *rest = self._first(self.shape) if self.shape else [ranks]
        self.rows, self.own = -(-rows // ranks), self.local.shape[self.dim] if self.shape else 1
        self.padded, self.all_padded = [self.rows, *rest], [self.rows * ranks, *rest]
        self.is_whole = self.all_padded == self.shape and self.dim == 0

    def _facts(self):
        return self.parameter.dtype, self.parameter.requires_grad, self.parameter._storage_identity()

    def _first(self, shape):
        """Returns a shape with the divided dimension first."""
        return [shape[self.dim], *shape[:self.dim], *shape[self.dim + 1:]]

    def is_as_it_was(self):
        """Returns whether the parameter was not converted, moved or frozen since this object was made."""
        return self._facts() == (self.dtype, self.is_trained, self._storage)

    def input(self, dtype):
        """Returns this rank's rows for a gather."""
        own = self.local if self.own == self.rows else padded(self.local.detach(), self.dim, self.rows)
        own = own.detach().movedim(self.dim, 0).contiguous() if self.dim else own if self.shape else own.detach().reshape(1)
        dtype = dtype if dtype is not None and own.is_floating_point() else own.dtype
        return own if own.dtype is dtype and own.device == self.device else own.to(device=self.device, dtype=dtype, non_blocking=True)

    def entire(self, gathered):
        """Returns the entire parameter from the rows of all ranks, whose elements `write` puts in their places if they are rows of another
        dimension than the first."""
        if self.dim:
            return gathered.new_empty(self.shape)
        return gathered if self.is_whole else (gathered.narrow(0, 0, self.shape[0]) if self.shape else gathered[0]).detach()

    def write(self, entire, gathered):
        """Copies the rows of all ranks to the entire parameter."""
        entire.copy_(gathered.narrow(0, 0, self.shape[self.dim]).movedim(0, self.dim))

    def gradient(self, gradient, dtype):
        """Returns the gradient of the entire parameter as the rows of all ranks. No gradient is zeros."""
        if gradient is None:
            return _core.zeros(self.all_padded, dtype=dtype, device=self.device)
        if not self.shape:
            return gradient.expand(self.all_padded).contiguous()
        return (gradient if self.is_whole else padded(gradient.movedim(self.dim, 0), 0, self.all_padded[0])).contiguous()

    def take(self, rows):
        """Adds this rank's rows of a reduced gradient to the parameter's gradient."""
        rows = rows if self.own == self.rows else rows.narrow(0, 0, self.own)
        rows = rows.movedim(0, self.dim).contiguous() if self.dim else rows if self.shape else rows[0]
        self.parameter._take_gradient(rows.to(device=self.local.device, dtype=self.dtype))


class Unit:
    """The parameters of a module that are gathered and freed together."""

    def __init__(self, module, group, replicas, policy, reshards, is_offloaded):
        self._module, self.group, self.replicas, self.policy = weakref.ref(module), group, replicas, policy
        self._is_offloaded, self._reshards = is_offloaded, reshards
        self.context, self.is_root, self.is_synchronized, self.reshards_after_backward = Context(), True, True, True
        self.all_reduces, self.ahead_forward, self.ahead_backward, self.is_gathered_back = True, (), (), True
        # The number that sums of gradients are divided by, unless it is that of the ranks; a function of reduced gradients; an event before a gather.
        self.divisor, self.reduced_hook, self.awaited = None, None, None
        self.recorded, self.is_kept = 0, False
        self._entire, self._work, self._home, self._streams, self._is_asked = None, None, None, [], False
        # The entire parameters that wait for the rows of a gather, with these.
        self._unwritten = ()
        self._places, self._parts = None, None
        # The gradients that were not reduced, by the parameters' identities.
        self._accumulated = {}
        self._swapped = None
        self.context.units.add(self)

    def take_in(self, other):
        """Adds a unit within this one's module to the same context."""
        other.is_root, other.context = False, self.context
        self.context.units.add(other)

    @property
    def reshards_after_forward(self):
        """Whether the entire parameters are freed after a forward pass. The outermost unit keeps them: its backward
        pass follows."""
        return not self.is_root if self._reshards is None else self._reshards

    @reshards_after_forward.setter
    def reshards_after_forward(self, value):
        self._reshards = value

    def places(self):
        """Returns the dictionaries, names and parameters of this unit: those that are in no other."""
        if self._swapped is not None:
            return self._swapped
        if self._places is None or any(own.get(name) is not parameter for own, name, parameter in self._places):
            self._places, waiting = [], [self._module()]
            while waiting:
                module = waiting.pop()
                self._places += [(module._parameters, name, parameter) for name, parameter in module._parameters.items()
                                 if getattr(parameter, "_group", None) is self.group]
                waiting += [child for child in module._modules.values() if child is not None and "_unit" not in child.__dict__]
            self._parts = None
        return self._places

    def parts(self):
        """Returns the parts of the parameters, each once."""
        places = self.places()
        if self._parts is None or not all(part.is_as_it_was() for part in self._parts):
            self._parts = [_Part(parameter, self.group.size(), self._is_offloaded) for parameter in {id(one): one for _, _, one in places}.values()]
        return self._parts

    # ---- Entire parameters ----------------------------------------------------------------------------------------

    def gather(self):
        """Begins to gather the parameters, unless they are gathered."""
        if self._entire is not None:
            return
        dtype, parts, awaited, self.awaited = self.policy.param_dtype, self.parts(), self.awaited, None
        if awaited is not None:
            awaited.wait()
        with no_grad():
            inputs = [part.input(dtype) for part in parts]
            outputs = [_core.empty(part.all_padded, dtype=own.dtype, device=part.device) for part, own in zip(parts, inputs)]
            self._work = gathered_together(outputs, inputs, self.group)
            self._entire = [part.entire(output) for part, output in zip(parts, outputs)]
            self._unwritten = [(part, entire, output) for part, entire, output in zip(parts, self._entire, outputs) if part.dim]
        # The streams that use the parameters.
        self._is_asked, self._home, self._streams = False, self._stream(self._entire), []
        for number, tensor in enumerate(self._entire):
            self.context.entire[tensor._storage_identity()] = self, number

    def gathered(self):
        """Returns the entire parameters, for work of the current stream."""
        self.gather()
        stream = self._stream(self._entire)
        if stream not in self._streams:
            self._work.wait()
            if self._streams:
                stream.wait_stream(self._streams[0])
            self._streams.append(stream)
            with no_grad():
                for part, entire, output in self._unwritten:
                    part.write(entire, output)
                    if stream != self._home:
                        output.record_stream(stream)
            self._unwritten = ()
        return self._entire

    @staticmethod
    def _stream(tensors):
        """Returns the current stream of the tensors' GPU; None for other devices."""
        if not tensors or not tensors[0].is_cuda:
            return None
        from ...cuda import current_stream
        return current_stream(tensors[0].device)

    def ask(self):
        """Prepares for the backward pass of this unit, and of the next, when it asks for parameters for the first time."""
        self.gather()
        if not self._is_asked:
            self._is_asked = True
            for other in self.ahead_backward:
                other.gather()
            if not self.ahead_backward:
                self.context.gather_ahead(self, reversed(self.context.order),
                                          lambda other: other.recorded and other._entire is None and other.is_gathered_back)

    def reshard(self):
        """Frees the entire parameters."""
        entire, self._entire, self.is_kept, self._unwritten = self._entire, None, False, ()
        if entire is None:
            return
        if not self._streams:
            # Later writes of this rank's parts follow the gather.
            self._work.wait()
        for tensor in entire:
            self.context.entire.pop(tensor._storage_identity(), None)
            for stream in self._streams:
                if stream != self._home:
                    tensor.record_stream(stream)
        self._work = None

    def _used(self):
        """Returns the entire parameters as the modules use them, with their place in the graph."""
        parts, entire = self.parts(), self.gathered()
        trained = [(part, tensor) for part, tensor in zip(parts, entire) if part.is_trained]
        if not trained or not _core.is_grad_enabled():
            return entire
        parts_trained = [part for part, _ in trained]
        found = iter(_Gather.apply(self, [tensor for _, tensor in trained], parts_trained, *(part.local for part in parts_trained)))
        return [next(found) if part.is_trained else tensor for part, tensor in zip(parts, entire)]

    def swap(self):
        """Gives the modules the entire parameters."""
        if self._swapped is None:
            used = {id(part.parameter): one for part, one in zip(self.parts(), self._used())}
            for one in used.values():
                one._is_param = True
            self._swapped = self.places()
            for own, name, parameter in self._swapped:
                own[name] = used[id(parameter)]

    def swap_back(self):
        """Gives the modules this rank's parts again."""
        places, self._swapped = self._swapped or (), None
        for own, name, parameter in places:
            own[name] = parameter

    # ---- Passes ---------------------------------------------------------------------------------------------------

    def run(self, forward, args, kwargs):
        """Calls a method of the module with entire parameters."""
        if self in _units_inside():
            return forward(*args, **kwargs)
        self.context.begin(self)
        with self._region():
            entire = self.context.entire
            saved = _core._SavedTensorsRegion(lambda tensor: _Note(tensor, entire), _Note.tensor, entire)
            try:
                return forward(*args, **kwargs)
            finally:
                saved.close()
                # A traceback that another thread drops does not hold the region, which belongs to this thread.
                saved = None

    @contextlib.contextmanager
    def _region(self):
        """Returns a region in which the modules have entire parameters."""
        inside = _units_inside()
        self.swap()
        for other in self.ahead_forward:
            other.gather()
        if not self.ahead_forward and not _is_in_backward():
            self.context.gather_ahead(self, self.context.former, lambda other: True)
        inside.append(self)
        try:
            yield
        finally:
            inside.remove(self)
            self.swap_back()
            if self.reshards_after_forward and not _is_in_backward():
                self.reshard()

    def reduce(self, parts, gradients):
        """Begins to reduce the gradients of entire parameters, or keeps them for a later pass."""
        outputs, inputs = [], []
        with no_grad():
            for part, gradient in zip(parts, gradients):
                dtype = self.policy.reduce_dtype or self.policy.param_dtype or part.dtype
                if gradient is not None:
                    gradient = gradient.detach() if gradient.dtype is dtype or not gradient.is_floating_point() else gradient.to(dtype)
                earlier = self._accumulated.pop(id(part.parameter), None)
                gradient = gradient if earlier is None else earlier if gradient is None else earlier + gradient
                if self.is_synchronized:
                    inputs.append(part.gradient(gradient, dtype))
                    outputs.append(_core.empty(part.padded, dtype=inputs[-1].dtype, device=part.device))
                elif gradient is not None:
                    self._accumulated[id(part.parameter)] = gradient
            if outputs:
                self.context.reduces(self, scattered_together(outputs, inputs, self.group), list(zip(parts, outputs)))

    def take(self, work, gradients):
        """Adds reduced gradients to those of the parameters."""
        work.wait()
        is_replicated = self.replicas is not None and self.all_reduces
        ranks = self.group.size() * (self.replicas.size() if is_replicated else 1)
        with no_grad():
            for part, rows in gradients:
                if is_replicated:
                    all_reduce(rows, ReduceOp.AVG, self.replicas)
                if self.divisor is not None:
                    rows.mul_(ranks / self.divisor)
                if self.reduced_hook is not None:
                    self.reduced_hook(rows)
                part.take(rows)


def _again():
    """Returns a function that makes a region with the entire parameters that this thread's modules have now; None if
    there are none."""
    units = list(_units_inside())
    return functools.partial(_regions_of, units) if units else None


@contextlib.contextmanager
def _regions_of(units):
    with contextlib.ExitStack() as regions:
        for unit in units:
            if unit not in _units_inside():
                unit.ask()
                regions.enter_context(unit._region())
        yield


checkpoint.regions_again.append(_again)
