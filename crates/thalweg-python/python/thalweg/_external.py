"""Gradients that are not made of a tensor's elements: sparse tensors, and instances of a program's class (`src/external.rs`).

The extension calls these functions where gradients meet: their sum, and their elements for an operator that computes with them.
"""

from . import _core

# Whether a gradient of this kind may exist. Optimizers look for one only then.
may_exist = False


def expected():
    """Notes that a gradient of this kind may exist from now on."""
    global may_exist
    may_exist = True


def is_sparse(gradient):
    """Returns whether a gradient is a sparse tensor."""
    return type(gradient) is not _core.Tensor and getattr(gradient, "is_sparse", False) is True


def is_wrapper(value):
    """Returns whether a tensor is an instance of a program's class without elements of its own."""
    return type(value) is not _core.Tensor and "_wrapper_device" in getattr(value, "__dict__", ())


def is_own_class(value):
    """Returns whether a value is a tensor without elements in its own memory: an instance of a program's class, or a sparse tensor."""
    return may_exist and isinstance(value, _core.Tensor) and (is_wrapper(value) or is_sparse(value))


def in_graph(value):
    """Returns the tensor that has the place in the graph of a value: this rank's part, for a divided tensor."""
    return value.__dict__["_local"] if may_exist and "_local" in getattr(value, "__dict__", ()) else value


def gradient_of(value, gradient):
    """Returns the gradient of the tensor that has the place in the graph of a value, as a gradient of the value."""
    return value._with_gradient(gradient) if may_exist and gradient is not None and hasattr(value, "_with_gradient") else gradient


def own_gradient(parameter):
    """Returns the gradient of a parameter, of this rank's part for a divided one."""
    own = getattr(type(parameter), "_own_gradient", None) if may_exist else None
    return parameter.grad if own is None else own.__get__(parameter)


def sum_of_gradients(first, second):
    """Returns the sum of two gradients."""
    if is_sparse(first) and is_sparse(second):
        from ._sparse import joined
        return joined(first, second)
    return second + first if is_sparse(first) else first + second


def accumulated(kept, arrived):
    """Returns the sum of the gradient that a leaf has and one that has arrived. A sparse gradient is changed in place,
    so that all references to it see the sum."""
    if is_sparse(kept) and is_sparse(arrived) and not _core.is_grad_enabled():
        return kept._take(sum_of_gradients(kept, arrived))
    return sum_of_gradients(kept, arrived)


def apart(gradients):
    """Returns gradients in which no sparse tensor occurs twice, so that each leaf has one of its own."""
    found = []
    for gradient in gradients:
        is_known = gradient is not None and any(gradient is other for other in found) and is_sparse(gradient)
        found.append(gradient.clone() if is_known else gradient)
    return found


def with_elements(gradient):
    """Returns a gradient as a tensor with elements, for an operator of the table."""
    if is_sparse(gradient):
        from ._sparse import _to_dense
        return _to_dense(gradient)
    if is_wrapper(gradient):
        raise RuntimeError(f"a gradient that is a {type(gradient).__name__} has arrived at an operator on plain tensors: the operator between them must return "
                           "a gradient of the kind of its input")
    return _core.Tensor.as_subclass(gradient, _core.Tensor)


def check_step(optimizer, gradient):
    """Refuses a sparse gradient that the rule of an optimizer does not take, with PyTorch's message."""
    name = type(optimizer).__name__
    if is_sparse(gradient) and getattr(optimizer, "_sparse_step", None) is None:
        hint = ", please consider SparseAdam instead" if name in ("Adam", "AdamW") else ""
        raise RuntimeError(f"{name} does not support sparse gradients{hint}")
