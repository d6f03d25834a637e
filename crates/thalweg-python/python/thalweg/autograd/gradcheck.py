"""Checks of gradients against finite differences (`torch.autograd.gradcheck`)."""

from .. import _core
from . import enable_grad, grad


class GradcheckError(RuntimeError):
    """A gradient that is wrong."""


def _listed(outputs):
    listed = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return [value for value in listed if isinstance(value, _core.Tensor)]


def _check(func, inputs, tolerances, raise_exception):
    """Checks the gradients of a function by its inputs. These are moved in place, so that a function sees it of those that it has of itself, too:
    of parameters of a module."""
    tensors = [value for value in inputs if isinstance(value, _core.Tensor)]

    def called(given):
        moved = [(own, own.detach().clone(), value) for own, value in zip(tensors, given) if own.data_ptr() != value.data_ptr()]
        if not moved:
            return _listed(func(*inputs))
        for own, _, value in moved:
            own.data.copy_(value)
        try:
            return [output.detach().clone() for output in _listed(func(*inputs))]
        finally:
            for own, former, _ in moved:
                own.data.copy_(former)
    wrong = _core._gradcheck(called, tensors, None, tolerances, False)
    if wrong is not None and raise_exception:
        raise GradcheckError(wrong)
    return wrong is None


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

    Inputs are float64. Every derivative is checked, also with `fast_mode`. Batched gradients are gradients in turn
    (`is_grads_batched`), so `check_batched_grad` asks for nothing more.
    """
    _accepted(inputs, check_forward_ad or check_batched_forward_grad, check_backward_ad)
    return _check(func, _tuple(inputs), (eps, atol, rtol, nondet_tol), raise_exception)


def gradgradcheck(func, inputs, grad_outputs=None, *, eps=1e-6, atol=1e-5, rtol=1e-3, gen_non_contig_grad_outputs=False,
                  raise_exception=True, nondet_tol=0.0, check_undefined_grad=True, check_grad_dtypes=False, check_batched_grad=False,
                  check_fwd_over_rev=False, check_rev_over_rev=True, fast_mode=False, masked=False):
    """Checks the gradients of the gradients of a function against central differences."""
    _accepted(inputs, check_fwd_over_rev, check_rev_over_rev)
    return _check(*_first_gradients(func, _tuple(inputs), grad_outputs), (eps, atol, rtol, nondet_tol), raise_exception)


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
