"""Checks of gradients against finite differences (`torch.autograd.gradcheck`)."""

import contextlib

from .. import _core
from . import enable_grad, grad


class GradcheckError(RuntimeError):
    """A gradient that is wrong."""


def _listed(outputs):
    listed = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return [value for value in listed if isinstance(value, _core.Tensor)]


@contextlib.contextmanager
def _moved(pairs):
    """Returns a region in which tensors have other elements. They are moved in place, so that a function sees it of those that it has of itself,
    too: of parameters of a module."""
    former = [(tensor, tensor.detach().clone()) for tensor, _ in pairs]
    for tensor, value in pairs:
        tensor.data.copy_(value)
    try:
        yield
    finally:
        for tensor, value in former:
            tensor.data.copy_(value)


def _results(func, inputs, pairs):
    """Returns copies of a function's results at moved inputs."""
    with _moved(pairs):
        return [output.detach().clone() for output in _listed(func(*inputs))]


def _check(func, inputs, tolerances, raise_exception, fast_mode):
    """Checks the gradients of a function by its inputs: one derivative after the other, unless those along a direction are right already."""
    if fast_mode and _is_right_along_directions(func, inputs, *tolerances):
        return True
    tensors = [value for value in inputs if isinstance(value, _core.Tensor)]

    def called(given):
        # Several elements in one place cannot have values of their own.
        pairs = [(own, value) for own, value in zip(tensors, given)
                 if own.data_ptr() != value.data_ptr() and (own.is_contiguous() or 0 not in own.stride())]
        return _results(func, inputs, pairs) if pairs else _listed(func(*inputs))
    wrong = _core._gradcheck(called, tensors, None, tolerances, False)
    if wrong is not None and raise_exception:
        raise GradcheckError(wrong)
    return wrong is None


def _directions(tensors):
    """Returns a vector of length 1 for each tensor, all of whose elements are above 0."""
    generator = _core.Generator("cpu").manual_seed(1)
    drawn = [_core.rand(list(tensor.shape), dtype=_core.float64, generator=generator).to(tensor.device) for tensor in tensors]
    return [(numbers / numbers.norm()).to(tensor.dtype) for numbers, tensor in zip(drawn, tensors)]


def _is_right_along_directions(func, inputs, eps, atol, rtol, nondet_tol):
    """Returns whether the derivative along one direction of each input, weighted by one of each output, is that of differences."""
    targets = [value for value in inputs if isinstance(value, _core.Tensor) and value.requires_grad]
    outputs = _listed(func(*inputs))
    is_plain = all(value.is_floating_point() and value.numel() and 0 not in value.stride() for value in (*targets, *outputs))
    if not is_plain or not all(output.requires_grad for output in outputs):
        return False
    ways, weights = _directions(targets), _directions(outputs)
    slopes = []
    for output, weight in zip(outputs, weights):
        first, again = (grad([output], targets, [weight], retain_graph=True, allow_unused=True) for _ in range(2))
        if any(one is not None and not bool(((one - other).abs() <= nondet_tol).all()) for one, other in zip(first, again)):
            return False
        slopes.append([0.0 if found is None else (found * way).sum().item() for found, way in zip(first, ways)])
    for place, (target, way) in enumerate(zip(targets, ways)):
        above, below = (_results(func, inputs, [(target, target.detach() + step * way)]) for step in (eps, -eps))
        for found, weight, one, other in zip(slopes, weights, above, below):
            slope = (((one - other) / (2 * eps)) * weight).sum().item()
            if not abs(found[place] - slope) <= atol * (way.sum() * weight.sum()).item() + rtol * abs(slope):
                return False
    return True


def _tuple(inputs):
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


def _drawn(outputs):
    """Returns a gradient from -1 to 1 for each output, the same ones every time."""
    generator = _core.Generator("cpu").manual_seed(0)
    drawn = [_core.rand(list(output.shape), dtype=_core.float64, generator=generator).to(output.device) for output in outputs]
    return [(numbers * 2 - 1).to(output.dtype) for numbers, output in zip(drawn, outputs)]


def _first_gradients(func, inputs, grad_outputs):
    """Returns the function of the gradients of another one, and its inputs: those of the other, and gradients of its outputs."""
    def recorded(*args):
        return [output for output in _listed(func(*args)) if output.requires_grad]
    starts = _drawn(recorded(*inputs)) if grad_outputs is None else [tensor.detach() for tensor in _listed(grad_outputs)]

    def first(*args):
        own, given = args[:len(inputs)], args[len(inputs):]
        targets = [value for value in own if isinstance(value, _core.Tensor) and value.requires_grad]
        with enable_grad():
            found = grad(recorded(*own), targets, given, create_graph=True, allow_unused=True)
        return tuple(gradient for gradient in found if gradient is not None)
    return first, (*inputs, *(start.requires_grad_() for start in starts))


_FORWARD = "there is no forward-mode differentiation: leave out check_forward_ad"


def _accepted(inputs, check_forward_ad, check_backward_ad):
    """Refuses what cannot be checked, in PyTorch's words where it refuses it, too."""
    if check_forward_ad:
        raise NotImplementedError(f"gradcheck: {_FORWARD}")
    if not check_backward_ad:
        raise AssertionError("Expected at least one of check_forward_ad or check_backward_ad to be True")
    listed = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    if not any(isinstance(value, _core.Tensor) and value.requires_grad for value in listed):
        raise ValueError("gradcheck expects at least one input tensor to require gradient, but none of the them have requires_grad=True.")


def gradcheck(func, inputs, *, eps=1e-6, atol=1e-5, rtol=1e-3, raise_exception=True, nondet_tol=0.0, check_undefined_grad=True,
              check_grad_dtypes=False, check_batched_grad=False, check_batched_forward_grad=False, check_forward_ad=False,
              check_backward_ad=True, fast_mode=False, masked=None):
    """Checks the gradients of a function against central differences: returns True, or raises `GradcheckError`.

    Inputs are float64. With `fast_mode` derivatives along one direction are checked, and every one only where these are wrong. Batched gradients are gradients in turn
    (`is_grads_batched`), so `check_batched_grad` asks for nothing more.
    """
    _accepted(inputs, check_forward_ad or check_batched_forward_grad, check_backward_ad)
    return _check(func, _tuple(inputs), (eps, atol, rtol, nondet_tol), raise_exception, fast_mode)


def gradgradcheck(func, inputs, grad_outputs=None, *, eps=1e-6, atol=1e-5, rtol=1e-3, gen_non_contig_grad_outputs=False,
                  raise_exception=True, nondet_tol=0.0, check_undefined_grad=True, check_grad_dtypes=False, check_batched_grad=False,
                  check_fwd_over_rev=False, check_rev_over_rev=True, fast_mode=False, masked=False):
    """Checks the gradients of the gradients of a function against central differences."""
    _accepted(inputs, check_fwd_over_rev, check_rev_over_rev)
    return _check(*_first_gradients(func, _tuple(inputs), grad_outputs), (eps, atol, rtol, nondet_tol), raise_exception, fast_mode)


def _iter_tensors(x, only_requiring_grad=False):
    """Yields the tensors of nested lists, or those of them that require grad."""
    if isinstance(x, _core.Tensor):
        if x.requires_grad or not only_requiring_grad:
            yield x
    elif isinstance(x, (list, tuple)):
        for part in x:
            yield from _iter_tensors(part, only_requiring_grad)


def _get_numerical_jacobian(fn, inputs, outputs=None, target=None, eps=1e-3, is_forward_ad=False):
    """Returns the derivatives of a function by central differences: for each input that requires grad, a matrix for each output."""
    found = []
    for tensor in _iter_tensors(inputs if target is None else target, only_requiring_grad=True):
        elements, columns = tensor.data.reshape(-1), []
        for place in range(tensor.numel()):
            former = elements[place].item()
            sides = []
            for moved in (former + eps, former - eps):
                tensor.data.view(-1)[place] = moved
                sides.append([output.detach().clone().reshape(-1) for output in _listed(fn(inputs))])
            tensor.data.view(-1)[place] = former
            columns.append([(one - other) / (2 * eps) for one, other in zip(*sides)])
        found.append([_core.stack(list(rows)) for rows in zip(*columns)])
    return found
