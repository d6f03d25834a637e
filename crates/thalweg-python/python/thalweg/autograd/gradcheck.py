"""Checks of gradients against finite differences (`torch.autograd.gradcheck`).

Real and imaginary parts of complex outputs are checked separately, each as the gradient of a real function.
"""

import math
import warnings

from .. import _core
from .._c_functions import UndefinedGrad


class GradcheckError(RuntimeError):
    """The error for a wrong gradient."""


def _listed(outputs):
    listed = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return [value for value in listed if isinstance(value, _core.Tensor)]


def _differentiable(outputs):
    return [value for value in _listed(outputs) if value.requires_grad]


def _is_wanted(value):
    return isinstance(value, _core.Tensor) and value.requires_grad


def _check_inputs(inputs):
    """Refuses inputs whose derivatives cannot be computed by perturbing their elements."""
    if not any(_is_wanted(value) for value in inputs):
        raise ValueError("gradcheck expects at least one input tensor to require gradient, but none of the them have requires_grad=True.")
    for place, value in enumerate(inputs):
        if not _is_wanted(value):
            continue
        if value.dtype not in (_core.float64, _core.complex128):
            warnings.warn(f"Input #{place} requires gradient and is not a double precision floating point or complex. This check will likely fail if all "
                          "the inputs are not of double precision floating point or complex. ", stacklevel=4)
        if any(stride == 0 and size > 1 for stride, size in zip(value.stride(), value.shape)):
            raise RuntimeError(f"The {place}th input has a dimension with stride 0. gradcheck only supports inputs that are non-overlapping to be able to "
                               "compute the numerical gradients correctly. You should call .contiguous on the input before passing it to gradcheck.")


def _unraveled(place, shape):
    """Returns the multi-dimensional index of a flat index."""
    index = []
    for size in reversed(shape):
        place, last = divmod(place, size)
        index.append(last)
    return tuple(reversed(index))


def _parts(output):
    """Returns the real and imaginary parts of an output, flattened. The second is None for a real output."""
    output = output.detach().clone().reshape(-1)
    if not output.dtype.is_complex:
        return output.to(_core.float64), None
    parts = _core.view_as_real(output.contiguous())
    return parts.select(1, 0).to(_core.float64), parts.select(1, 1).to(_core.float64)


def _moved(func, tensor, index, step, eps):
    """Returns the slopes of all parts of the outputs when an element of a tensor is moved by ± `eps`."""
    data, former = tensor.data, tensor.data[index].item()
    sides = []
    for moved in (former + step, former - step):
        with _no_grad():
            data[index] = moved
        outputs = _listed(func())
        sides.append([(output.shape, output.dtype, _parts(output)) for output in outputs])
    with _no_grad():
        data[index] = former
    for (one, one_dtype, _), (other, other_dtype, _) in zip(*sides):
        if one != other:
            raise AssertionError(f"Expects `fn` to return outputs with the same shape when inputs are perturbed, but got: {one} and {other}")
        if one_dtype is not other_dtype:
            raise AssertionError("Expects `fn` to return outputs with the same dtype when inputs are perturbed, but got: "
                                 f"{one_dtype} and {other_dtype}")
    return [[None if above is None else (above - below) / (2 * eps) for above, below in zip(one, other)] for (_, _, one), (_, _, other) in zip(*sides)]


def _no_grad():
    from . import no_grad
    return no_grad()


def _numerical(func, tensor, eps):
    """Returns, for each output and part, the derivatives by central differences, with one row for each element of the tensor. The
    derivative by a complex element is the one by its real part plus `i` times the one by its imaginary part, as in gradients."""
    rows = []
    for place in range(tensor.numel()):
        index = _unraveled(place, tensor.shape)
        by_real = _moved(func, tensor, index, eps, eps)
        if tensor.dtype.is_complex:
            by_imaginary = _moved(func, tensor, index, eps * 1j, eps)
            by_real = [[None if one is None else _core.complex(one, other) for one, other in zip(*pair)] for pair in zip(by_real, by_imaginary)]
        rows.append(by_real)
    if not rows:
        return None
    return [[None if part[0] is None else _core.stack(list(part)) for part in zip(*output)] for output in zip(*rows)]


def _analytical(output, targets, is_imaginary):
    """Returns the derivatives of an output, or of its imaginary part, by each target, with one pass for each element of the
    output."""
    from . import grad
    columns = [[] for _ in targets]
    flat = _core.zeros_like(output).detach().reshape(-1)
    for place in range(output.numel()):
        start = flat.clone()
        start[place] = 1j if is_imaginary else 1
        found = grad([output], targets, [start.reshape(output.shape)], retain_graph=True, allow_unused=True)
        for column, gradient, target in zip(columns, found, targets):
            column.append(_core.zeros_like(target).detach() if gradient is None else gradient.detach())
    wide = [_core.complex128 if target.dtype.is_complex else _core.float64 for target in targets]
    return [_core.stack([one.reshape(-1).to(dtype) for one in column], 1) if column else None for column, dtype in zip(columns, wide)]


def _is_close(one, other, rtol, atol):
    """Returns whether two matrices are close. Infinities and NaN must be the same in both."""
    is_same = (one == other) | ((one != one) & (other != other))
    return bool((((one - other).abs() <= atol + rtol * other.abs()) | is_same).all())


def _compare(outputs, targets, places, numerical, tolerances):
    """Raises an error if the gradients of outputs are wrong."""
    _, atol, rtol, nondet_tol = tolerances
    for number, output in enumerate(outputs):
        if not output.requires_grad:
            continue
        for part in (1, 0) if output.dtype.is_complex else (0,):
            found, again = (_analytical(output, targets, part == 1) for _ in range(2))
            for place, of_input, analytical in zip(places, numerical, found):
                if of_input is None or analytical is None:
                    continue
                if not _is_close(analytical, of_input[number][part], rtol, atol):
                    which = ("real", "imaginary")[part]
                    prefix = f"While considering the {which} part of complex outputs only, " if output.dtype.is_complex else ""
                    raise GradcheckError(f"{prefix}Jacobian mismatch for output {number} with respect to input {place},\n"
                                         f"numerical:{of_input[number][part]}\nanalytical:{analytical}\n")
            for one, other in zip(found, again):
                if one is not None and one.numel() and not (one - other).abs().max().item() <= nondet_tol and not _is_same(one, other):
                    raise GradcheckError(
                        "Backward is not reentrant, i.e., running backward with same input and grad_output multiple times gives different values, although "
                        f"analytical gradient matches numerical gradient. The tolerance for nondeterminism was {nondet_tol}.")


def _is_same(one, other):
    return _is_close(one, other, 0, 0)


def _check_undefined(func, inputs):
    """Calls the backward function of outputs with missing gradients for some of them."""
    from . import grad
    warnings.warn("Backwards compatibility: New undefined gradient support checking feature is enabled by default, but it may break existing callers of "
                  "this function. If this is true for you, you can call this function with \"check_undefined_grad=False\" to disable the feature",
                  stacklevel=4)
    targets, undefined = [value for value in inputs if _is_wanted(value)], UndefinedGrad()
    count = len(_differentiable(func()))
    for chosen in [None, *(range(count) if count > 1 else ())]:
        outputs = [undefined(output) if chosen in (None, place) else output for place, output in enumerate(_differentiable(func()))]
        try:
            found = grad(outputs, targets, [_core.zeros_like(output).detach() for output in outputs], allow_unused=True)
        except RuntimeError as error:
            raise GradcheckError("Expected backward function to handle undefined output grads. Please look at \"Notes about undefined output gradients\" "
                                 "in \"tools/autograd/derivatives.yaml\"") from error
        if any(gradient is not None and gradient.numel() and gradient.abs().max().item() != 0 for gradient in found):
            raise GradcheckError("Expected all input grads to be undefined or zero when all output grads are undefined or zero. Please look at \"Notes about "
                                 "undefined output gradients\" in \"tools/autograd/derivatives.yaml\"")


def _check_dtypes(outputs, targets):
    """Refuses gradients whose dtypes differ from those of their inputs."""
    from . import grad
    for output in outputs:
        for target, gradient in zip(targets, grad([output], targets, [_core.zeros_like(output).detach()], retain_graph=True, allow_unused=True)):
            if gradient is not None and gradient.dtype is not target.dtype:
                raise GradcheckError("Gradient has dtype mismatch")


def _directions(tensors):
    """Returns a vector of length 1 with positive elements for each tensor."""
    generator = _core.Generator("cpu").manual_seed(1)
    drawn = [_core.rand(list(tensor.shape), dtype=_core.float64, generator=generator).to(tensor.device) for tensor in tensors]
    return [(numbers / numbers.norm()).to(tensor.dtype) for numbers, tensor in zip(drawn, tensors)]


def _moved_along(func, tensor, way, step):
    """Returns a function's results when a tensor is moved along a direction."""
    former = tensor.detach().clone()
    tensor.data.copy_(former + step * way)
    try:
        return [output.detach().clone() for output in _listed(func())]
    finally:
        tensor.data.copy_(former)


def _is_right_along_directions(func, outputs, targets, tolerances):
    """Returns whether the derivative along one direction of each input, weighted by one direction of each output, agrees with
    differences."""
    from . import grad
    eps, atol, rtol, nondet_tol = tolerances
    if not all(value.is_floating_point() and value.numel() for value in (*targets, *outputs)) or not all(output.requires_grad for output in outputs):
        return False
    ways, weights = _directions(targets), _directions(outputs)
    slopes = []
    for output, weight in zip(outputs, weights):
        first, again = (grad([output], targets, [weight], retain_graph=True, allow_unused=True) for _ in range(2))
        if any(one is not None and not bool(((one - other).abs() <= nondet_tol).all()) for one, other in zip(first, again)):
            return False
        slopes.append([0.0 if found is None else (found * way).sum().item() for found, way in zip(first, ways)])
    for place, (target, way) in enumerate(zip(targets, ways)):
        above, below = (_moved_along(func, target, way, step) for step in (eps, -eps))
        for found, weight, one, other in zip(slopes, weights, above, below):
            if one.shape != other.shape or one.dtype is not other.dtype:
                return False
            slope = (((one - other) / (2 * eps)) * weight).sum().item()
            if not abs(found[place] - slope) <= atol * (way.sum() * weight.sum()).item() + rtol * abs(slope):
                return False
    return True


def _check_each(func, outputs, inputs, targets, tolerances):
    """Raises an error if any derivative of a function is wrong."""
    places = [place for place, value in enumerate(inputs) if _is_wanted(value)]
    numerical = [_numerical(func, target, tolerances[0]) for target in targets]
    for number, output in enumerate(outputs):
        flat = [part for found in numerical if found is not None for part in found[number] if part is not None]
        if not output.requires_grad and any(part.numel() and part.abs().max().item() != 0 for part in flat):
            raise GradcheckError("Numerical gradient for function expected to be zero")
    _compare(outputs, targets, places, numerical, tolerances)


def _check(func, inputs, tolerances, check_undefined_grad, check_grad_dtypes, fast_mode):
    """Raises an error if the gradients of a function are wrong."""
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    _check_inputs(inputs)

    def called():
        return func(*inputs)
    outputs = _listed(called())
    targets = [value for value in inputs if _is_wanted(value)]
    if not (fast_mode and _is_right_along_directions(called, outputs, targets, tolerances)):
        _check_each(called, outputs, inputs, targets, tolerances)
    if check_grad_dtypes:
        _check_dtypes(_differentiable(outputs), targets)
    if check_undefined_grad and _differentiable(outputs):
        _check_undefined(called, inputs)
    return True


def _check_tangents(func, inputs, tolerances):
    """Raises an error if the tangents of real outputs along one direction of each input are wrong."""
    from .forward_ad import dual_level, make_dual, unpack_dual
    eps, atol, rtol, _ = tolerances
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    places = [place for place, value in enumerate(inputs) if _is_wanted(value) and value.is_floating_point() and value.numel()]
    ways = dict(zip(places, _directions([inputs[place] for place in places])))
    for place, way in ways.items():
        with dual_level():
            moved = [make_dual(value.detach(), way) if number == place else value for number, value in enumerate(inputs)]
            found = [unpack_dual(output).tangent for output in _listed(func(*moved))]
        above, below = (_moved_along(lambda: func(*inputs), inputs[place], way, step) for step in (eps, -eps))
        for number, (tangent, one, other) in enumerate(zip(found, above, below)):
            if not one.is_floating_point():
                continue
            slope = (one - other) / (2 * eps)
            tangent = _core.zeros_like(slope) if tangent is None else tangent
            if not _is_close(tangent.detach(), slope, rtol, atol):
                raise GradcheckError(f"Jacobian computed with forward mode mismatch for output {number} with respect to input {place},\nnumerical:{slope}\n"
                                     f"analytical:{tangent}\n")


def _accepted(check_forward_ad, check_backward_ad):
    """Refuses options by which nothing is checked, with PyTorch's message."""
    if not check_forward_ad and not check_backward_ad:
        raise AssertionError("Expected at least one of check_forward_ad or check_backward_ad to be True")


def _answered(check, raise_exception):
    try:
        return check()
    except GradcheckError:
        if raise_exception:
            raise
        return False


def gradcheck(func, inputs, *, eps=1e-6, atol=1e-5, rtol=1e-3, raise_exception=True, nondet_tol=0.0, check_undefined_grad=True,
              check_grad_dtypes=False, check_batched_grad=False, check_batched_forward_grad=False, check_forward_ad=False,
              check_backward_ad=True, fast_mode=False, masked=None):
    """Checks the gradients of a function against central differences: returns True, or raises `GradcheckError`.

    Inputs have double precision. With `fast_mode`, derivatives are checked along one direction, and individually only if these
    are wrong. Batched gradients are computed one after another (`is_grads_batched`), so `check_batched_grad` adds no check.
    """
    if check_batched_forward_grad and not check_forward_ad:
        raise AssertionError("Setting check_batched_forward_grad=True requires check_forward_ad to be True")
    _accepted(check_forward_ad, check_backward_ad)
    tolerances = eps, atol, rtol, nondet_tol

    def check():
        if check_backward_ad:
            _check(func, inputs, tolerances, check_undefined_grad, check_grad_dtypes, fast_mode)
        if check_forward_ad:
            _check_tangents(func, inputs, tolerances)
        return True
    return _answered(check, raise_exception)


def gradgradcheck(func, inputs, grad_outputs=None, *, eps=1e-6, atol=1e-5, rtol=1e-3, gen_non_contig_grad_outputs=False,
                  raise_exception=True, nondet_tol=0.0, check_undefined_grad=True, check_grad_dtypes=False, check_batched_grad=False,
                  check_fwd_over_rev=False, check_rev_over_rev=True, fast_mode=False, masked=False):
    """Checks the gradients of the gradients of a function against central differences."""
    from . import enable_grad, grad
    _accepted(check_fwd_over_rev, check_rev_over_rev)
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    if grad_outputs is None:
        given = [_start(output) for output in _differentiable(func(*inputs))]
    else:
        given = list(grad_outputs) if isinstance(grad_outputs, (tuple, list)) else [grad_outputs]
    count = len(given)

    def first(*values):
        values, starts = values[:len(values) - count], values[len(values) - count:]
        with enable_grad():
            found = grad(_differentiable(func(*values)), [value for value in values if _is_wanted(value)], list(starts), create_graph=True, allow_unused=True)
        return tuple(gradient for gradient in found if gradient is not None)
    tolerances = eps, atol, rtol, nondet_tol

    def check():
        if check_rev_over_rev:
            _check(first, (*inputs, *given), tolerances, check_undefined_grad, check_grad_dtypes, fast_mode)
        if check_fwd_over_rev:
            _check_tangents(first, (*inputs, *given), tolerances)
        return True
    return _answered(check, raise_exception)


def _start(output):
    """Returns a random gradient for an output, from -1 to 1."""
    parts = [_core.rand(output.shape, dtype=_core.float64, device=output.device) * 2 - 1 for _ in range(2 if output.dtype.is_complex else 1)]
    drawn = _core.complex(*parts) if len(parts) == 2 else parts[0]
    return drawn.to(output.dtype).detach().requires_grad_()


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
        matrices = _numerical(lambda: fn(inputs), tensor, eps)
        found.append([real if imaginary is None else _core.complex(real, imaginary) for real, imaginary in matrices])
    return found


def _private(name, grad_out):
    warnings.warn(f"{name} was part of PyTorch's private API and not meant to be exposed. We are deprecating {name} and it will be removed in a future "
                  "version of PyTorch. If you have a specific use for this or feature request for this to be a stable API, please file us an issue at "
                  "https://github.com/pytorch/pytorch/issues/new", stacklevel=3)
    if not math.isclose(grad_out, 1.0):
        raise ValueError(f"Expected grad_out to be 1.0. {name} no longer supports values of grad_out != 1.0.")


def get_numerical_jacobian(fn, inputs, target=None, eps=1e-3, grad_out=1.0):
    """Returns the derivatives of the first output of a function by central differences: a matrix for each input that requires grad."""
    _private("get_numerical_jacobian", grad_out)
    return tuple(matrices[0] for matrices in _get_numerical_jacobian(fn, inputs, None, target, eps))


def get_analytical_jacobian(inputs, output, nondet_tol=0.0, grad_out=1.0):
    """Returns the derivatives of an output by its gradients, whether a second pass gives the same, and whether their sizes and
    dtypes are right."""
    _private("get_analytical_jacobian", grad_out)
    targets = list(_iter_tensors(inputs, only_requiring_grad=True))
    found, again = (_analytical(output, targets, False) for _ in range(2))
    is_same = all((one - other).abs().max().item() <= nondet_tol for one, other in zip(found, again))
    return tuple(found), is_same, True, True
