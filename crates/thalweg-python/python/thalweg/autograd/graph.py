"""The recorded graph (`torch.autograd.graph`): its nodes and edges, and hooks of saved tensors."""

import contextlib
import functools
import threading
import weakref
from typing import NamedTuple, Optional

from .. import _core
from .._left_out import attributes as _attributes
from .._regions import Open


class _Nodes(type):
    """The metaclass of `Node`. Every node and every context is an instance of `Node`, and every node class a subclass, without
    inheriting from it."""

    def __instancecheck__(cls, instance):
        from .function import FunctionCtx
        return isinstance(instance, (_core._Node, FunctionCtx))

    def __subclasscheck__(cls, subclass):
        return issubclass(subclass, _core._Node) or subclass is cls or getattr(subclass, "is_class_of_nodes", False)


class Node(metaclass=_Nodes):
    """A recorded operator: `name()`, `next_functions`, `metadata`, `register_hook`, `register_prehook`. Only the graph creates
    nodes."""


class _Known(NamedTuple):
    """The shape, dtype and device of the tensor from which an edge was made."""

    shape: object
    dtype: object
    device: object

    def numel(self):
        """Returns the number of elements."""
        return self.shape.numel()


class GradientEdge(NamedTuple):
    """A place in a graph that a gradient flows to: a node, and the number of its result."""

    node: object
    output_nr: int
    ownership_token: Optional[object] = None


def get_gradient_edge(tensor):
    """Returns the graph edge that a tensor's gradient flows to."""
    edge = tensor._gradient_edge()
    if edge is None:
        raise RuntimeError("It is not possible to get the gradient edge for a Tensor that does not require gradients")
    return GradientEdge(*edge, _Known(tensor.shape, tensor.dtype, tensor.device))


def increment_version(tensor):
    """Counts an in-place write of tensors by the program itself. The backward pass then refuses values of them that were saved
    before."""
    for one in (tensor,) if isinstance(tensor, _core.Tensor) else tensor:
        one._bump_version()


class _Refused(threading.local):
    """The reason why hooks of saved tensors are disabled, per thread."""

    reason = None
    # The number of hook regions that the thread has entered.
    open = 0
    is_copying = False


_refused = _Refused()


def _check_allowed():
    if _refused.reason is not None:
        raise RuntimeError(_refused.reason)


class saved_tensors_hooks:
    """A region whose operators save `pack_hook(tensor)` instead of a tensor. The backward pass calls `unpack_hook` to get the
    tensor back."""

    def __init__(self, pack_hook, unpack_hook):
        for hook in (pack_hook, unpack_hook):
            if not callable(hook):
                raise TypeError(f"a hook is a function, not {type(hook).__name__}")
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook
        self._regions = Open()

    def __enter__(self):
        _check_allowed()
        self._regions.enter(_core._SavedTensorsRegion(self.pack_hook, self.unpack_hook))
        _refused.open += 1

    def __exit__(self, *_):
        self._regions.leave().close()
        _refused.open -= 1


class disable_saved_tensors_hooks(contextlib.ContextDecorator):
    """A region in which hooks of saved tensors raise an error with this text. Entering it within a region of hooks is an error as
    well."""

    def __init__(self, error_message, fail_if_non_empty=True):
        self._reason, self._former, self._is_strict = error_message, Open(), fail_if_non_empty

    def __enter__(self):
        if self._is_strict and _refused.open:
            raise RuntimeError(self._reason)
        self._former.enter(_refused.reason)
        _refused.reason = self._reason

    def __exit__(self, *_):
        _refused.reason = self._former.leave()


class save_on_cpu(saved_tensors_hooks):
    """A region whose operators save tensors in host memory."""

    def __init__(self, pin_memory=False, device_type="cuda"):
        def pack(tensor):
            return tensor.device, tensor.cpu() if tensor._is_on_gpu else tensor.clone()

        def unpack(packed):
            device, tensor = packed
            return tensor.to(device)
        super().__init__(pack, unpack)


class _Claim:
    """The object that a node holds in place of a tensor that it saves."""


class _Copies:
    """The copies of saved tensors that a region has made, as long as nodes may need them."""

    def __init__(self):
        self.cloned, self._is_open = weakref.WeakKeyDictionary(), True

    def clear(self):
        """Drops the copies. Later backward passes through graphs recorded in the region are errors."""
        self.cloned, self._is_open = weakref.WeakKeyDictionary(), False


@contextlib.contextmanager
def allow_mutation_on_saved_tensors():
    """Returns a region in which tensors saved for backward may be written in place. The backward pass reads copies of their values."""
    if _refused.is_copying:
        raise RuntimeError("allow_mutation_on_saved_tensors contexts cannot be nested")
    copies = _Copies()

    def pack(tensor):
        claim = _Claim()
        copies.cloned[claim] = tensor.clone()
        return claim

    def unpack(claim):
        if not copies._is_open or claim not in copies.cloned:
            raise AssertionError("Trying to backward outside of the 'allow_mutation_on_saved_tensors' context in which the graph was originally recorded.")
        return copies.cloned[claim]
    with saved_tensors_hooks(pack, unpack):
        _refused.is_copying = True
        try:
            yield copies
        finally:
            _refused.is_copying = False
            copies.clear()


class _Handles(tuple):
    """Handles of hooks that are removed together."""

    def remove(self):
        """Removes the hooks."""
        for handle in self:
            handle.remove()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()


def register_multi_grad_hook(tensors, fn, *, mode="all"):
    """Registers a hook that a backward pass calls with the gradients of all tensors after it has computed those that it needs
    (`mode="all"`), or with the first gradient (`mode="any"`)."""
    supported = ("all", "any")
    if mode not in supported:
        raise ValueError(f"Expects mode to be one of {supported} but got {mode}")
    tensors = list(tensors)
    return _any_hook(tensors, fn) if mode == "any" else _all_hook(tensors, fn)


def _all_hook(tensors, fn):
    """Registers a hook for the gradients of all tensors."""
    lock, passes = threading.Lock(), {}

    def called(place, gradient):
        number = _core._current_graph_task_id()
        if number == -1:
            raise AssertionError("expected this hook to be called inside a backward call")
        with lock:
            known = passes.get(number)
            if known is None:
                reached = [_core._will_run(tensor) for tensor in tensors]
                known = passes[number] = ([None] * len(tensors), [0, sum(reached)])
                _core._at_pass_end(lambda: passes.pop(number, None))
        gradients, counts = known
        gradients[place] = gradient
        counts[0] += 1
        if counts[0] == counts[1]:
            fn(gradients)
    return _Handles(tensor.register_hook(functools.partial(called, place)) for place, tensor in enumerate(tensors))


def _any_hook(tensors, fn):
    """Registers a hook for the first gradient of several tensors."""
    lock, seen = threading.Lock(), set()

    def called(gradient):
        number = _core._current_graph_task_id()
        if number == -1:
            raise AssertionError("expected this hook to be called inside a backward call")
        with lock:
            is_first = number not in seen
            seen.add(number)
        if is_first:
            _core._at_pass_end(lambda: seen.discard(number))
            fn(gradient)
    return _Handles(tensor.register_hook(called) for tensor in tensors)


_LEFT_OUT = {}

__getattr__ = _attributes(__name__, _LEFT_OUT)
