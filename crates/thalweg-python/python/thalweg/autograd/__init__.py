"""Automatic differentiation (`torch.autograd`)."""

import warnings

from .. import _core, _external
from .. import _transform_levels as _levels
from .._core import is_inference_mode_enabled  # noqa: F401
from .._left_out import attributes as _attributes
from .._profiler_events import DeviceType  # noqa: F401
from .anomaly_mode import detect_anomaly, set_detect_anomaly  # noqa: F401
from .grad_mode import (  # noqa: F401
    _unsafe_preserve_version_counter, enable_grad, inference_mode, is_multithreading_enabled, no_grad, set_grad_enabled, set_multithreading_enabled)


def kineto_available():
    """Returns False: timelines are Thalweg's own, in Kineto's format."""
    return False


def _listed(value):
    """Returns a sequence of tensors and graph edges as a list. A single one counts as a list of one."""
    return [value] if isinstance(value, (_core.Tensor, graph.GradientEdge)) or value is None else list(value)


def _place(value):
    """Returns a tensor, or the node and the result number of a `GradientEdge`."""
    return value if isinstance(value, _core.Tensor) else (value[0], value[1])


def _described(output):
    """Returns the shape, dtype and device of an output, or None for a graph edge for which they are not known."""
    return output if isinstance(output, _core.Tensor) else output.ownership_token


def _is_mapped(gradient):
    from ..func import _batching
    return isinstance(gradient, _batching.Batched)


def _started(place, output, gradient, is_batched):
    """Returns the gradient with which a pass starts at an output."""
    known = _described(output)
    if gradient is None:
        if known is None or known.numel() != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        if not known.dtype.is_floating_point:
            raise RuntimeError(f"grad can be implicitly created only for real scalar outputs but got {known.dtype}")
        if _external.is_wrapper(known):
            return _core.ones_like(known)
        return _core.ones(known.shape, dtype=known.dtype, device=known.device)
    if _levels.local.maps and _is_mapped(gradient):
        raise NotImplementedError("backward() with a gradient that `vmap` maps is left out: call `torch.autograd.grad`, which returns the gradients")
    if not isinstance(gradient, _core.Tensor):
        raise TypeError(f"gradients can be either Tensors or None, but got {type(gradient).__name__}")
    if known is None:
        return gradient
    found = gradient.shape[1:] if is_batched else gradient.shape
    if is_batched and (gradient.dim() == 0 or tuple(found) != tuple(known.shape)):
        raise RuntimeError(
            "If `is_grads_batched=True`, we interpret the first dimension of each grad_output as the batch dimension. The sizes of the "
            f"remaining dimensions are expected to match the shape of corresponding output, but a mismatch was detected: grad_output[{place}] "
            f"has a shape of {gradient.shape} and output[{place}] has a shape of {known.shape}. If you only want some tensors in `grad_output` "
            "to be considered batched, consider using vmap.")
    if tuple(found) != tuple(known.shape):
        raise RuntimeError(f"Mismatch in shape: grad_output[{place}] has a shape of {gradient.shape} and output[{place}] has a shape of {known.shape}.")
    if known.dtype.is_complex != gradient.dtype.is_complex:
        raise RuntimeError(
            f"For complex Tensors, both grad_output and output are required to have the same dtype. Mismatch in dtype: grad_output[{place}] has a "
            f"dtype of {gradient.dtype} and output[{place}] has a dtype of {known.dtype}.")
    if gradient.device != known.device:
        raise RuntimeError(f"grad_output[{place}] is on {gradient.device} and output[{place}] on {known.device}: move the gradient there")
    return gradient if gradient.dtype is known.dtype else gradient.to(known.dtype)


def _roots(outputs, gradients, is_batched=False):
    """Returns the outputs from which a pass starts, each with its gradient."""
    if len(gradients) != len(outputs):
        raise RuntimeError(f"got {len(outputs)} tensors and {len(gradients)} gradients")
    found = []
    for place, (output, gradient) in enumerate(zip(map(_external.in_graph, outputs), map(_external.in_graph, gradients))):
        if isinstance(output, _core.Tensor) and not output.requires_grad:
            raise RuntimeError(f"element {place} of tensors does not require grad and does not have a grad_fn")
        found.append((_place(output), _started(place, output, gradient, is_batched)))
    return found


def grad(outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False, only_inputs=True, allow_unused=None,
         is_grads_batched=False, materialize_grads=False):
    """Returns the gradients of `inputs`, from gradients of `outputs`. The default gradient of an output of one element is 1."""
    if not only_inputs:
        warnings.warn("only_inputs argument is deprecated and is ignored now (defaults to True). To accumulate gradient for other parts of the "
                      "graph, please use torch.autograd.backward.", FutureWarning, stacklevel=2)
    if materialize_grads and allow_unused is False:
        raise ValueError("Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False.")
    outputs, inputs = _listed(outputs), _listed(inputs)
    if not inputs:
        raise ValueError("grad requires non-empty inputs.")
    given = [None] * len(outputs) if grad_outputs is None else _listed(grad_outputs)
    if _levels.local.maps:
        found = _by_slices(outputs, inputs, given, dict(
            retain_graph=create_graph if retain_graph is None else retain_graph, create_graph=create_graph, allow_unused=allow_unused,
            is_grads_batched=is_grads_batched, materialize_grads=materialize_grads))
        if found is not None:
            return found
    roots = _roots(outputs, given, is_grads_batched)
    for place, one in enumerate(inputs):
        if isinstance(one, _core.Tensor) and not one.requires_grad:
            raise RuntimeError(f"One of the differentiated Tensors does not require grad (input {place})")
    retain = create_graph if retain_graph is None else retain_graph
    targets = [_place(_external.in_graph(one)) for one in inputs]
    if is_grads_batched:
        found = _batched(roots, targets, retain, create_graph)
    else:
        found = _core._run_backward(roots, targets, False, bool(retain), bool(create_graph))
    found = [_external.gradient_of(one, gradient) for one, gradient in zip(inputs, found)]
    if materialize_grads:
        if any(gradient is None and not isinstance(one, _core.Tensor) for gradient, one in zip(found, inputs)):
            raise RuntimeError("materialize_grads cannot be used when the given input is a GradientEdge")
        found = [_core.zeros_like(one, requires_grad=create_graph) if gradient is None else gradient for gradient, one in zip(found, inputs)]
    elif not allow_unused and any(gradient is None for gradient in found):
        raise RuntimeError(
            "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True if this is the "
            "desired behavior.")
    return tuple(found)


def _by_slices(outputs, inputs, gradients, options):
    """Returns the gradients of the inputs for output gradients that `vmap` maps over, by one pass per slice. Returns
    None if none of the output gradients is mapped."""
    from ..func import _batching
    mapped = _batching.find(gradients)
    if not mapped:
        return None
    level, retain = _batching.innermost(mapped), options.pop("retain_graph")
    slices = [None if one is None else _batching.batch_of(one, level) for one in gradients]
    rows = [grad(outputs, inputs, [None if one is None else one[place] for one in slices], retain_graph=bool(retain or place + 1 < level.size), **options)
            for place in range(level.size)]
    return tuple(None if parts[0] is None else _batching.Batched.of(_core.stack(parts), level) for parts in zip(*rows))


def _batched(roots, targets, retain_graph, create_graph):
    """Returns the results of one pass for each of several gradients, stacked along a new first dimension."""
    counts = {gradient.shape[0] for _, gradient in roots}
    if len(counts) != 1 or 0 in counts:
        raise RuntimeError(f"is_grads_batched=True needs gradients of one first extent of 1 or more, not of {sorted(counts)}")
    count = counts.pop()
    each = [_core._run_backward([(output, gradient[place]) for output, gradient in roots], targets, False,
                                bool(retain_graph or place + 1 < count), bool(create_graph)) for place in range(count)]
    return [None if rows[0] is None else _core.stack(rows) for rows in zip(*each)]


def backward(tensors, grad_tensors=None, retain_graph=None, create_graph=False, grad_variables=None, inputs=None):
    """Computes the gradients of the leaves that tensors depend on, or only of `inputs`, and adds them to their `grad`."""
    if grad_variables is not None:
        warnings.warn("`grad_variables` is deprecated. Use `grad_tensors` instead.", FutureWarning, stacklevel=2)
        if grad_tensors is not None:
            raise RuntimeError("`grad_tensors` and `grad_variables` (deprecated) arguments both passed to `backward()`. Please only use `grad_tensors`.")
        grad_tensors = grad_variables
    tensors = _listed(tensors)
    if inputs is not None:
        inputs = _listed(inputs)
        if not inputs:
            raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    given = [None] * len(tensors) if grad_tensors is None else _listed(grad_tensors)
    roots = _roots(tensors, given)
    for place, one in enumerate(inputs or ()):
        if not isinstance(one, _core.Tensor):
            continue
        if not one.requires_grad:
            raise RuntimeError(f"One of the differentiated Tensors does not require grad (input {place})")
        if not one.is_leaf:
            one.retain_grad()
    if create_graph:
        warnings.warn(
            "Using backward() with create_graph=True will create a reference cycle between the parameter and its gradient which can cause a memory "
            "leak. We recommend using autograd.grad when creating the graph to avoid this. If you have to use this function, make sure to reset the "
            ".grad fields of your parameters to None after use to break the cycle and avoid the leak.", stacklevel=3)
    retain = create_graph if retain_graph is None else retain_graph
    targets = None if inputs is None else [_place(_external.in_graph(one)) for one in inputs]
    _core._run_backward(roots, targets, True, bool(retain), bool(create_graph))


from . import _functions, function, functional, gradcheck as _gradcheck, graph, variable  # noqa: E402
from .function import Function  # noqa: E402,F401
from .gradcheck import GradcheckError, gradcheck, gradgradcheck  # noqa: E402,F401
from .variable import Variable  # noqa: E402,F401

SavedTensor = _core._SavedTensor


def _is_checkpoint_valid():
    """Returns True: checkpointed functions run in every backward pass."""
    return True


_LEFT_OUT = {

    "NestedIOFunction": "arguments are passed one by one",
}

__getattr__ = _attributes(__name__, _LEFT_OUT)
