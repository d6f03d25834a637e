"""Names of `torch._C._functions` and `torch._C._autograd` that programs use: classes of nodes and of saved tensors."""

import sys
import types
import weakref

from . import _core
from ._left_out import rest


class _OfTitle(type):
    """The metaclass of a node class that is identified by its name."""

    def __instancecheck__(cls, instance):
        return isinstance(instance, _core._Node) and type(instance).__name__ == cls.__name__


class AccumulateGrad(metaclass=_OfTitle):
    """The node of a leaf, which accumulates the leaf's gradient."""

    is_class_of_nodes = True


class UndefinedGrad:
    """A function that passes tensors through and returns no gradients."""

    is_class_of_nodes = True

    def __call__(self, *tensors):
        from .autograd import Function

        class Undefined(Function):
            """Passes a tensor through and returns no gradient."""

            @staticmethod
            def forward(ctx, tensor):
                return tensor.view_as(tensor)

            @staticmethod
            def backward(ctx, gradient):
                return None
        found = tuple(Undefined.apply(tensor) for tensor in tensors)
        return found[0] if len(found) == 1 else found


class DelayedError:
    """A function that passes tensors through and raises in the backward pass."""

    is_class_of_nodes = True

    def __init__(self, message, count):
        self._message = message

    def __call__(self, *tensors):
        from .autograd import Function

        class Error(Function):
            """Passes tensors through and raises in the backward pass."""

            @staticmethod
            def forward(ctx, message, *tensors):
                ctx.message = message
                return tuple(tensor.detach() for tensor in tensors)

            @staticmethod
            def backward(ctx, *gradients):
                raise RuntimeError(ctx.message)
        found = Error.apply(self._message, *tensors)
        return found[0] if len(found) == 1 else found


class _WeakTensorRef:
    """A reference that does not keep a tensor alive."""

    def __init__(self, tensor):
        self._reference = weakref.ref(tensor)

    def expired(self):
        """Returns whether the tensor has been freed."""
        return self._reference() is None


def _saved_tensors_hooks_is_enabled():
    """Returns whether hooks of saved tensors may be used."""
    from .autograd import graph
    return graph._refused.reason is None


def _unsafe_set_version_counter(tensors, versions):
    """Sets the versions of tensors, which hides in-place writes from the backward pass."""
    for tensor, version in zip(tensors, versions):
        if version < 0:
            raise RuntimeError("Cannot set a version_counter to a negative value")
        tensor._set_version(version)


def _add_batch_dim(tensor, in_dim, level):
    """Returns a tensor as one slice of itself, inside of a map over one of its dimensions."""
    from .func._batching import Batched
    return Batched.of(tensor.movedim(in_dim, 0), level)


def _remove_batch_dim(tensor, level, batch_size, out_dim):
    """Returns the tensor of all slices of a map, which are along a dimension."""
    from .func._batching import unwrapped
    return unwrapped(tensor, level, out_dim, "vmap")


def is_batchedtensor(tensor):
    """Returns whether a tensor is one slice inside of a map."""
    from .func._batching import Batched
    return isinstance(tensor, Batched)


def install(package):
    """Creates the modules below a package."""
    for name, given in (("_functions", {
            "AccumulateGrad": AccumulateGrad, "UndefinedGrad": UndefinedGrad, "DelayedError": DelayedError}), ("_autograd", {
            "SavedTensor": _core._SavedTensor, "_saved_tensors_hooks_is_enabled": _saved_tensors_hooks_is_enabled,
            "_unsafe_set_version_counter": _unsafe_set_version_counter, "Node": _core._Node}), ("_functorch", {
            "_add_batch_dim": _add_batch_dim, "_remove_batch_dim": _remove_batch_dim, "is_batchedtensor": is_batchedtensor})):
        module = types.ModuleType(f"{package}.{name}", f"What programs ask of `torch._C.{name}`.")
        module.__dict__.update(given)
        module.__getattr__ = rest(module.__name__)
        sys.modules[module.__name__] = module
        yield name, module
