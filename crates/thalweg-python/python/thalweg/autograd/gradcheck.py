"""Checks of gradients against finite differences (`torch.autograd.gradcheck`)."""

import contextlib

from .. import _core


class GradcheckError(RuntimeError):
    """A gradient that is wrong."""


def _listed(outputs):
    listed = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return [value for value in listed if isinstance(value, _core.Tensor)]


@contextlib.contextmanager
def _moved(inputs, tensors):
    """Gives the inputs the values that a function is evaluated at, for as long as it runs: it may use them otherwise than as arguments."""
    formers = []
    try:
        for own, tensor in zip(inputs, tensors):
            # Several elements in one place cannot have values of their own.
            if not own._is_same(tensor) and (own.is_contiguous() or 0 not in own.stride()):
                formers.append((own, own.detach().clone()))
                own.data.copy_(tensor.detach())
        yield
    finally:
        for own, former in formers:
            own.data.copy_(former)


def _check(func, inputs, grad_outputs, tolerances, raise_exception, second):
    inputs = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    places = [place for place, value in enumerate(inputs) if isinstance(value, _core.Tensor)]

    def called(tensors):
        args = list(inputs)
        for place, tensor in zip(places, tensors):
            args[place] = tensor
        with _moved([inputs[place] for place in places], tensors):
            return _listed(func(*args))
    given = None if grad_outputs is None else _listed(grad_outputs)
    wrong = _core._gradcheck(called, [inputs[place] for place in places], given, tolerances, second)
    if wrong is not None and raise_exception:
        raise GradcheckError(wrong)
    return wrong is None


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
    return _check(func, inputs, None, (eps, atol, rtol, nondet_tol), raise_exception, False)


def gradgradcheck(func, inputs, grad_outputs=None, *, eps=1e-6, atol=1e-5, rtol=1e-3, gen_non_contig_grad_outputs=False,
                  raise_exception=True, nondet_tol=0.0, check_undefined_grad=True, check_grad_dtypes=False, check_batched_grad=False,
                  check_fwd_over_rev=False, check_rev_over_rev=True, fast_mode=False, masked=False):
    """Checks the gradients of the gradients of a function against central differences."""
    _accepted(inputs, check_fwd_over_rev, check_rev_over_rev)
    return _check(func, inputs, grad_outputs, (eps, atol, rtol, nondet_tol), raise_exception, True)


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
