"""Checks of gradients against finite differences (`torch.autograd.gradcheck`)."""

from .. import _core


class GradcheckError(RuntimeError):
    """A gradient that is wrong."""


def _listed(outputs):
    listed = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return [value for value in listed if isinstance(value, _core.Tensor)]


def _check(func, inputs, grad_outputs, tolerances, raise_exception, second):
    inputs = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    places = [place for place, value in enumerate(inputs) if isinstance(value, _core.Tensor)]

    def called(tensors):
        args = list(inputs)
        for place, tensor in zip(places, tensors):
            args[place] = tensor
        return _listed(func(*args))
    given = None if grad_outputs is None else _listed(grad_outputs)
    wrong = _core._gradcheck(called, [inputs[place] for place in places], given, tolerances, second)
    if wrong is not None and raise_exception:
        raise GradcheckError(wrong)
    return wrong is None


def gradcheck(func, inputs, *, eps=1e-6, atol=1e-5, rtol=1e-3, raise_exception=True, nondet_tol=0.0):
    """Checks the gradients of a function against central differences: returns True, or raises `GradcheckError`. Inputs are float64."""
    return _check(func, inputs, None, (eps, atol, rtol, nondet_tol), raise_exception, False)


def gradgradcheck(func, inputs, grad_outputs=None, *, eps=1e-6, atol=1e-5, rtol=1e-3, raise_exception=True, nondet_tol=0.0):
    """Checks the gradients of the gradients of a function against central differences."""
    return _check(func, inputs, grad_outputs, (eps, atol, rtol, nondet_tol), raise_exception, True)
