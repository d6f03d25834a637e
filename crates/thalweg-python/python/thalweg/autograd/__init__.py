"""Automatic differentiation (`torch.autograd`)."""

import functools
import inspect

from .. import _core
from .._core import is_inference_mode_enabled  # noqa: F401
from .._regions import Open
from .._left_out import attributes as _attributes


class _GradMode:
    """A region in which operators record themselves or not: a context manager, and a decorator."""

    _enabled = True

    def __init__(self):
        self._former = Open()

    def __enter__(self):
        self._former.enter(_core._set_grad_enabled(self._enabled))
        return self

    def __exit__(self, *_):
        _core._set_grad_enabled(self._former.leave())

    def __call__(self, function):
        if inspect.isgeneratorfunction(function):
            return self._generator(function)

        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            with type(self)._again(self):
                return function(*args, **kwargs)
        return wrapped

    def _generator(self, function):
        """Returns a function that yields what another yields, of which only the parts between are in the region."""
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            made, go, value = function(*args, **kwargs), "send", None
            while True:
                try:
                    with type(self)._again(self):
                        found = getattr(made, go)(value)
                except StopIteration as end:
                    return end.value
                try:
                    go, value = "send", (yield found)
                except GeneratorExit:
                    with type(self)._again(self):
                        made.close()
                    raise
                except BaseException as error:
                    go, value = "throw", error
        return wrapped

    def _again(self):
        return type(self)()

    def clone(self):
        """Returns another region like this one, which has not begun."""
        return self._again()


def _usable_bare(cls):
    """Lets `@cls` decorate a function as `@cls()` does."""
    former = cls.__new__

    def new(kind, function=None, *args, **kwargs):
        made = object.__new__(kind)
        if callable(function):
            made.__init__()
            return made(function)
        return made
    del former
    cls.__new__ = new
    return cls


@_usable_bare
class no_grad(_GradMode):
    """A region whose operators record nothing."""

    _enabled = False


@_usable_bare
class enable_grad(_GradMode):
    """A region whose operators record themselves, also inside `no_grad`."""


class set_grad_enabled(_GradMode):
    """Sets at once whether operators record themselves; as a context manager, until its end."""

    def __init__(self, mode):
        super().__init__()
        self._enabled = bool(mode)
        self._before = _core._set_grad_enabled(self._enabled)

    def __enter__(self):
        self._former.enter(self._before)
        return self

    def _again(self):
        return set_grad_enabled(self._enabled)

    def __call__(self, function):
        _core._set_grad_enabled(self._before)
        return super().__call__(function)


class inference_mode(_GradMode):
    """A region whose operators record nothing, and whose tensors can never enter graphs; with `mode=False`, a region like its outside."""

    def __new__(cls, mode=True):
        made = object.__new__(cls)
        if callable(mode):
            made.__init__()
            return made(mode)
        return made

    def __init__(self, mode=True):
        super().__init__()
        self.mode = bool(mode)

    def __enter__(self):
        self._former.enter((_core._set_inference_mode(self.mode), _core._set_grad_enabled(not self.mode)))
        return self

    def __exit__(self, *_):
        inference, recorded = self._former.leave()
        _core._set_inference_mode(inference)
        _core._set_grad_enabled(recorded)

    def _again(self):
        return inference_mode(self.mode)


class set_detect_anomaly:
    """Sets at once whether backward passes say which operator of the forward pass failed, and whether a NaN is a failure; as a context
    manager, until its end."""

    def __init__(self, mode, check_nan=True):
        self._former = _core._set_anomaly(bool(mode), bool(check_nan))

    def __enter__(self):
        return None

    def __exit__(self, *_):
        _core._set_anomaly(*self._former)


class detect_anomaly:
    """A region in which a failing backward pass names the operator of the forward pass, and a NaN is a failure."""

    def __init__(self, check_nan=True):
        self._check_nan = check_nan
        self._former = Open()

    def __enter__(self):
        self._former.enter(_core._set_anomaly(True, bool(self._check_nan)))

    def __exit__(self, *_):
        _core._set_anomaly(*self._former.leave())


def _listed(value):
    return [value] if isinstance(value, _core.Tensor) or value is None else list(value)


def grad(outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False, only_inputs=True, allow_unused=None,
         is_grads_batched=False, materialize_grads=False):
    """Returns the gradients of `inputs`, from gradients of `outputs`: 1 where none is given and the output has one element."""
    if not only_inputs:
        raise NotImplementedError("autograd.grad: only_inputs=False is left out")
    outputs, inputs = _listed(outputs), _listed(inputs)
    given = [None] * len(outputs) if grad_outputs is None else _listed(grad_outputs)
    if is_grads_batched:
        return _batched(outputs, inputs, given, create_graph if retain_graph is None else retain_graph, create_graph, allow_unused, materialize_grads)
    for place, (output, gradient) in enumerate(zip(outputs, given)):
        if not output.requires_grad:
            raise RuntimeError(f"element {place} of tensors does not require grad and does not have a grad_fn")
        if gradient is None:
            if output.numel() != 1:
                raise RuntimeError("grad can be implicitly created only for scalar outputs")
            given[place] = _core.ones_like(output).detach()
    for tensor in inputs:
        if not tensor.requires_grad:
            raise RuntimeError("One of the differentiated Tensors does not require grad")
    retain = create_graph if retain_graph is None else retain_graph
    found = _core._gradients(outputs, given, inputs, retain, create_graph)
    if materialize_grads:
        found = [_core.zeros_like(tensor) if gradient is None else gradient for gradient, tensor in zip(found, inputs)]
    elif not allow_unused and any(gradient is None for gradient in found):
        raise RuntimeError(
            "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True if this is the "
            "desired behavior.")
    return tuple(found)


def _batched(outputs, inputs, given, retain_graph, create_graph, allow_unused, materialize_grads):
    """Returns what `grad` gives for each of several gradients, along a new first dimension; one pass for each."""
    counts = {gradient.shape[0] for gradient in given if gradient is not None}
    if not counts:
        raise RuntimeError("grad can be implicitly created only for scalar outputs")
    if len(counts) != 1 or 0 in counts:
        raise RuntimeError(f"is_grads_batched=True needs gradients of one first extent of 1 or more, not of {sorted(counts)}")
    count = counts.pop()
    each = [grad(outputs, inputs, [None if gradient is None else gradient[place] for gradient in given], retain_graph or place + 1 < count,
                 create_graph, True, allow_unused, False, materialize_grads) for place in range(count)]
    return tuple(None if rows[0] is None else _core.stack(rows) for rows in zip(*each))


def _backward_to(tensor, gradient, retain_graph, create_graph, inputs):
    """Adds the gradients of chosen tensors to their `grad`; hooks that run once a leaf has accumulated do not."""
    inputs = _listed(inputs)
    if not inputs:
        raise RuntimeError("'inputs' argument to backward() cannot be empty.")
    found = grad([tensor], inputs, [gradient], retain_graph, create_graph, allow_unused=True)
    with enable_grad() if create_graph else no_grad():
        for chosen, gradient in zip(inputs, found):
            if gradient is not None:
                chosen.grad = gradient.clone() if chosen.grad is None else chosen.grad + gradient


def backward(tensors, grad_tensors=None, retain_graph=None, create_graph=False, inputs=None):
    """Computes the gradients of the leaves that tensors depend on, or of `inputs` alone, and adds them to their `grad`."""
    tensors = _listed(tensors)
    given = [None] * len(tensors) if grad_tensors is None else _listed(grad_tensors)
    for place, (tensor, gradient) in enumerate(zip(tensors, given)):
        keep = bool(retain_graph) or create_graph or place + 1 < len(tensors)
        tensor.backward(gradient, retain_graph=keep, create_graph=create_graph, inputs=inputs)


from . import function, functional, gradcheck as _gradcheck, graph  # noqa: E402
from .function import Function  # noqa: E402,F401
from .gradcheck import GradcheckError, gradcheck, gradgradcheck  # noqa: E402,F401

_LEFT_OUT = {
    "forward_ad": "there is no forward-mode differentiation",
    "NestedIOFunction": "arguments are passed one by one",
}

__getattr__ = _attributes(__name__, _LEFT_OUT)


def Variable(data, requires_grad=False):
    """Returns a tensor, which records itself where asked for: tensors are what variables were."""
    return data.requires_grad_() if requires_grad else data
