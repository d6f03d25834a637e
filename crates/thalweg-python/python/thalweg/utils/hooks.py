"""Hooks of modules (`torch.utils.hooks`)."""

import collections
import itertools
import threading
import warnings
import weakref

from .._core import Tensor, is_grad_enabled
from ..autograd.function import Function


class RemovableHandle:
    """A registered hook. `remove` unregisters it."""

    _numbers = itertools.count(1)
    _lock = threading.RLock()

    def __init__(self, hooks_dict, *, extra_dict=None, prepend=False):
        self.hooks_dict_ref = _reference(hooks_dict)
        extra = [] if extra_dict is None else extra_dict if isinstance(extra_dict, list) else [extra_dict]
        self.extra_dict_ref = tuple(map(_reference, extra))
        with RemovableHandle._lock:
            number = next(RemovableHandle._numbers)
        # A hook that is called before the others has a negative number.
        self.id = -number if prepend else number

    def remove(self):
        """Unregisters the hook."""
        for reference in (self.hooks_dict_ref, *self.extra_dict_ref):
            hooks = reference()
            if hooks is not None:
                hooks.pop(self.id, None)

    def __getstate__(self):
        return self.hooks_dict_ref(), self.id, tuple(reference() for reference in self.extra_dict_ref)

    def __setstate__(self, state):
        hooks, self.id, *extra = state
        self.hooks_dict_ref = _reference(collections.OrderedDict() if hooks is None else hooks)
        self.extra_dict_ref = tuple(map(_reference, (extra[0] if extra else None) or ()))
        with RemovableHandle._lock:
            RemovableHandle._numbers = itertools.count(max(next(RemovableHandle._numbers), abs(self.id) + 1))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()


def _reference(hooks):
    """Returns a weak reference to a dictionary of hooks, or a strong one if its class does not support weak references."""
    try:
        return weakref.ref(hooks)
    except TypeError:
        return lambda: hooks


def in_order(hooks):
    """Returns the numbers and entries of hooks in calling order, as a copy, because other threads may add and remove hooks
    meanwhile."""
    return sorted(list(hooks.items()), key=lambda hook: min(hook[0], 0))


class _Boundary(Function):
    """A function that returns its tensors unchanged, as the results of one node."""

    @staticmethod
    def forward(ctx, *tensors):
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx, *gradients):
        return gradients


class BackwardHook:
    """The hooks of a module in the backward pass of one call, with the gradients of its outputs and inputs."""

    def __init__(self, module, hooks, pre_hooks):
        self._module, self._hooks, self._pre_hooks = module, hooks, pre_hooks
        self._grad_outputs = None
        self._inputs, self._arguments = None, 0

    def _bounded(self, values, register):
        """Returns values whose tensors that require a gradient come from one node, with which `register` registers a hook."""
        is_tuple = isinstance(values, tuple)
        listed = list(values) if is_tuple else [values]
        places = [place for place, value in enumerate(listed) if getattr(value, "requires_grad", False) is True]
        if not places or not is_grad_enabled():
            return values, False
        bounded = _Boundary.apply(*(listed[place] for place in places))
        for place, tensor in zip(places, bounded):
            listed[place] = tensor
        register(bounded[0].grad_fn, places, len(listed))
        if not is_tuple:
            return listed[0], True
        # A named tuple keeps its class.
        return (tuple(listed) if type(values) is tuple else type(values)(*listed)), True

    def setup_input_hook(self, args):
        """Returns the arguments of the call, wired so that their gradients are observed."""
        self._arguments = len(args)

        def register(node, places, count):
            self._inputs = True

            def hook(grad_inputs, _):
                if self._grad_outputs is None:
                    # The pass did not arrive through the outputs; a second derivative may arrive this way.
                    return None
                full = self._called(_spread(grad_inputs, places, count))
                return None if full is None else tuple(full[place] for place in places)
            node.register_hook(hook)
        return self._bounded(args, register)[0]

    def setup_output_hook(self, output):
        """Returns the results of the call, wired so that their gradients are observed."""
        if not isinstance(output, (Tensor, tuple)):
            warnings.warn("For backward hooks to be called, module output should be a Tensor or a tuple of Tensors but received "
                          f"{type(output)}", stacklevel=2)

        def register(node, places, count):
            def hook(grads):
                outputs = _spread(grads, places, count)
                changed = False
                for hook in self._pre_hooks:
                    given = hook(self._module, outputs)
                    if given is None:
                        continue
                    given = given if isinstance(given, tuple) else (given,)
                    if len(given) != len(outputs):
                        raise RuntimeError("Backward pre hook returned an invalid number of grad_output, got "
                                           f"{len(given)}, but expected {len(outputs)}")
                    outputs, changed = given, True
                self._grad_outputs = outputs
                if self._inputs is None:
                    # No input requires a gradient: the hooks see nothing more.
                    if self._hooks:
                        warnings.warn("Full backward hook is firing when gradients are computed with respect to module outputs since no inputs "
                                      "require gradients.", stacklevel=2)
                    if self._called((None,) * self._arguments) is not None:
                        raise RuntimeError("Backward hook for Modules where no input requires gradient should always return None or None "
                                           "for all gradients.")
                return tuple(outputs[place] for place in places) if changed else None
            node.register_prehook(hook)
        return self._bounded(output, register)[0]

    def _called(self, grad_inputs):
        """Calls the hooks, and returns the gradients that they returned, if any."""
        changed, grad_outputs, self._grad_outputs = False, self._grad_outputs, None
        for hook in self._hooks:
            given = hook(self._module, grad_inputs, grad_outputs)
            if given is None:
                continue
            given = given if isinstance(given, tuple) else (given,)
            if self._inputs is None:
                if any(gradient is not None for gradient in given):
                    return given
                continue
            if len(given) != len(grad_inputs):
                raise RuntimeError(f"Backward hook returned an invalid number of grad_input, got {len(given)}, but expected "
                                   f"{len(grad_inputs)}")
            grad_inputs, changed = given, True
        return grad_inputs if changed else None


def _spread(gradients, places, count):
    """Returns gradients at their positions among all values, and None at the other positions."""
    spread = [None] * count
    for place, gradient in zip(places, gradients):
        spread[place] = gradient
    return tuple(spread)
