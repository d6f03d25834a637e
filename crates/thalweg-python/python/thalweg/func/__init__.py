"""Transforms of functions (`torch.func`): gradients, Jacobians, maps over a dimension, and calls of modules with other parameters."""

from ._modules import functional_call, replace_all_batch_norm_modules_, stack_module_state
from ._transforms import functionalize, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp
from ._vmap import chunk_vmap, vmap  # noqa: F401

__all__ = [
    "functional_call", "functionalize", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize",
    "replace_all_batch_norm_modules_", "stack_module_state", "vjp", "vmap"]


def debug_unwrap(tensor, *, recurse=True):
    """Returns the tensor that a tensor inside of `vmap` stands for, with the mapped dimension first."""
    from ._batching import Batched
    while isinstance(tensor, Batched):
        tensor = tensor._value
        if not recurse:
            break
    return tensor


