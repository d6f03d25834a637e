"""Derivatives of functions (`torch.autograd.functional`): Jacobians, Hessians, and their products with vectors.

Inputs and outputs are tensors or tuples of tensors; results have the same structure. With `strict`, an output that does not
depend on an input is an error; otherwise its derivative is zero.
"""

from . import _core, enable_grad, grad


def _tuple(value, whose, function):
    """Returns tensors as a tuple, and whether they already were a tuple."""
    is_tuple = isinstance(value, (tuple, list)) if whose == "v" else isinstance(value, tuple)
    listed = tuple(value) if is_tuple else (value,)
    for place, one in enumerate(listed):
        if not isinstance(one, _core.Tensor):
            found = f"the value at index {place}" if is_tuple else f"the given {whose}"
            raise TypeError(f"The {whose} given to {function} must be either a Tensor or a tuple of Tensors but {found} has type {type(one)}.")
    return listed, is_tuple


def _like(listed, is_tuple):
    return tuple(listed) if is_tuple else listed[0]


def _entered(value, create_graph):
    """Returns an input for which gradients are computed: a view of the caller's own tensor if the results are to be
    differentiated."""
    return value.view_as(value) if create_graph and value.requires_grad else value.detach().requires_grad_()


def _started(func, inputs, create_graph, function, strict):
    """Returns inputs for which gradients are computed, whether they were a tuple, the outputs of the function, and whether these
    are a tuple."""
    inputs, many_in = _tuple(inputs, "inputs", function)
    inputs = [_entered(one, create_graph) for one in inputs]
    outputs, many_out = _tuple(func(*inputs), "outputs of the user-provided function", function)
    for place, output in enumerate(outputs):
        if strict and not output.requires_grad:
            raise RuntimeError(f"Output {place} of the user-provided function does not require gradients. The outputs must be computed in a "
                               "differentiable manner from the input when running in strict mode.")
    return inputs, many_in, outputs, many_out


def _gradients(outputs, inputs, vectors, create_graph, strict=None):
    """Returns the gradients of inputs, with zeros for missing ones. If `strict` is a description, a missing gradient is an error.
    The graph is retained."""
    chosen = [(output, vector) for output, vector in zip(outputs, vectors) if output.requires_grad]
    found = [None] * len(inputs)
    if chosen:
        found = grad([output for output, _ in chosen], inputs, [vector for _, vector in chosen], True, create_graph, allow_unused=True)
    for place, gradient in enumerate(found):
        if strict is not None and gradient is None:
            raise RuntimeError(strict.format(place))
    return [_core.zeros_like(one) if gradient is None else gradient for one, gradient in zip(inputs, found)]


_OUTPUT = "The output of the user-provided function is independent of input {}. This is not allowed in strict mode."
_JACOBIAN = ("While computing the hessian, found that the jacobian of the user-provided function with respect to input {} is independent of the input. "
             "This is not allowed in strict mode. You should ensure that your function is twice differentiable and that the jacobian depends on the inputs "
             "(this would be violated by a linear function for example).")
_GRAPH = "The jacobian of the user-provided function is independent of input {}. This is not allowed in strict mode when create_graph=True."


def _checked(found, inputs, create_graph, strict, text):
    """Refuses derivatives that do not depend on any input, in strict mode, if they are to be differentiated."""
    for place, one in enumerate(found):
        if strict and create_graph and not one.requires_grad:
            raise RuntimeError(text.format(place))
    return found


def _vectors(v, of, whose, function):
    """Returns the vectors of a product. The default for a tensor of one element is 1."""
    if v is None:
        if len(of) != 1 or of[0].numel() != 1:
            raise RuntimeError(f"The vector v can only be None if {whose} a single Tensor with a single element.")
        return [_core.ones_like(of[0]).detach()]
    listed, is_tuple = _tuple(v, "v", function)
    if len(listed) != len(of):
        if len(of) == 1:
            raise RuntimeError("The given v should contain a single Tensor.")
        raise RuntimeError(f"v is a tuple of invalid length: should be {len(of)} but got {len(listed)}.")
    for place, (vector, one) in enumerate(zip(listed, of)):
        if vector.shape != one.shape:
            entry = f"Entry {place} in " if is_tuple else ""
            raise RuntimeError(f"{entry}v has invalid size: should be {one.shape} but got {vector.shape}.")
    return list(listed)


_RETURNS, _TAKES = "the user-provided function returns", "the input to the user-provided function is"


def _finished(listed, is_tuple, create_graph):
    return _like(listed if create_graph else [one.detach() for one in listed], is_tuple)


def vjp(func, inputs, v=None, create_graph=False, strict=False):
    """Returns the outputs of a function, and the product of a vector with its Jacobian."""
    with enable_grad():
        inputs, many_in, outputs, many_out = _started(func, inputs, create_graph, "vjp", strict)
        found = _gradients(outputs, inputs, _vectors(v, outputs, _RETURNS, "vjp"), create_graph, _OUTPUT if strict else None)
        _checked(found, inputs, create_graph, strict, _GRAPH)
    return _finished(outputs, many_out, create_graph), _finished(found, many_in, create_graph)


def jvp(func, inputs, v=None, create_graph=False, strict=False):
    """Returns the outputs of a function, and the product of its Jacobian with a vector, by the gradient of a gradient."""
    with enable_grad():
        listed, _ = _tuple(inputs, "inputs", "jvp")
        v = _vectors(v, listed, _TAKES, "jvp")
        inputs, _, outputs, many_out = _started(func, inputs, create_graph, "jvp", strict)
        weights = [_core.zeros_like(output).detach().requires_grad_() for output in outputs]
        linear = _gradients(outputs, inputs, weights, True, _OUTPUT if strict else None)
        _checked(linear, inputs, True, strict, "The jacobian of the user-provided function is independent of input {}. This is not allowed in strict mode.")
        found = _gradients(linear, weights, v, create_graph)
        _checked(found, inputs, create_graph, strict, _GRAPH)
    return _finished(outputs, many_out, create_graph), _finished(found, many_out, create_graph)


def _accepted(function, strict, vectorize, strategy, create_graph):
    """Refuses combinations of settings that PyTorch refuses."""
    if strategy not in ("forward-mode", "reverse-mode"):
        raise AssertionError('Expected strategy to be either "forward-mode" or "reverse-mode". Hint: If your function has more outputs than inputs, '
                             '"forward-mode" tends to be more performant. Otherwise, prefer to use "reverse-mode".')
    if strategy == "forward-mode":
        if create_graph:
            raise NotImplementedError(f'torch.autograd.functional.{function}: `create_graph=True` and `strategy="forward-mode"` are not supported '
                                      'together (yet). Please either set `create_graph=False` or `strategy="reverse-mode"`.')
        if strict:
            raise RuntimeError(f'torch.autograd.functional.{function}: `strict=True` and `strategy="forward-mode"` are not supported together (yet). '
                               'Please either set `strict=False` or `strategy="reverse-mode"`.')
        if not vectorize:
            raise NotImplementedError("Computing Jacobian using forward-AD or forward-over-reverse Hessian is only implemented for `vectorize=True`.")
    if strict and vectorize:
        raise RuntimeError(f"torch.autograd.functional.{function}: `strict=True` and `vectorized=True` are not supported together. Please either set "
                           "`strict=False` or `vectorize=False`.")


def jacobian(func, inputs, create_graph=False, strict=False, vectorize=False, strategy="reverse-mode"):
    """Returns the derivatives of each element of the outputs by each element of the inputs. There is one pass for each element of
    the outputs; `vectorize` and `strategy` request other ways to the same numbers and are ignored."""
    _accepted("jacobian", strict, vectorize, strategy, create_graph)
    return _jacobian(func, inputs, create_graph, strict, "Output {{}} of the user-provided function is independent of input {}. This is not allowed in "
                     "strict mode.", "jacobian")


def _jacobian(func, inputs, create_graph, strict, text, function):
    with enable_grad():
        inputs, many_in, outputs, many_out = _started(func, inputs, create_graph, function, strict)
        rows = []
        for number, output in enumerate(outputs):
            elements = output.reshape(-1)
            refused = text.replace("{{}}", str(number)) if strict else None
            each = []
            for place in range(output.numel()):
                one = _core.ones_like(elements[place]).detach()
                each.append(_checked(_gradients([elements[place]], inputs, [one], create_graph, refused), inputs, create_graph, strict, _GRAPH))
            columns = zip(*each) if each else [[] for _ in inputs]
            rows.append([_core.stack(list(column)).reshape([*output.shape, *one.shape]) if column
                         else _core.zeros([*output.shape, *one.shape], dtype=output.dtype, device=output.device)
                         for one, column in zip(inputs, columns)])
    return _like([_finished(row, many_in, create_graph) for row in rows], many_out)


def _scalar(func, whose):
    """Returns a function that calls another and checks that its result has one element."""
    def checked(*inputs):
        outputs, many = _tuple(func(*inputs), "outputs of the user-provided function", whose)
        if many or len(outputs) != 1:
            raise RuntimeError(f"The function given to {whose} should return a single Tensor")
        if outputs[0].numel() != 1:
            raise RuntimeError(f"The Tensor returned by the function given to {whose} should contain a single element")
        return outputs[0].reshape([])
    return checked


def hessian(func, inputs, create_graph=False, strict=False, vectorize=False, outer_jacobian_strategy="reverse-mode"):
    """Returns the second derivatives of a scalar function by each pair of elements of the inputs."""
    listed, many_in = _tuple(inputs, "inputs", "hessian")
    _accepted("hessian", strict, vectorize, outer_jacobian_strategy, create_graph)
    scalar = _scalar(func, "hessian")

    def first(*inner):
        output = scalar(*inner)
        if strict and not output.requires_grad:
            raise RuntimeError("Output 0 of the user-provided function does not require gradients. The outputs must be computed in a differentiable "
                               "manner from the input when running in strict mode.")
        found = _gradients([output], list(inner), [_core.ones_like(output).detach()], True, _JACOBIAN if strict else None)
        return tuple(_checked(found, inner, True, strict, _JACOBIAN))
    found = _jacobian(first, listed, create_graph, strict, _JACOBIAN, "hessian")
    return found if many_in else found[0][0]


def _second(func, inputs, v, create_graph, strict, whose):
    """Returns the output of a function, and the product of its Hessian, which is symmetric, with a vector."""
    with enable_grad():
        listed, _ = _tuple(inputs, "inputs", whose)
        v = _vectors(v, listed, _TAKES, whose)
        inputs, many_in, outputs, _ = _started(_scalar(func, whose), inputs, create_graph, whose, strict)
        ones = [_core.ones_like(output).detach() for output in outputs]
        first = _checked(_gradients(outputs, inputs, ones, True, _OUTPUT if strict else None), inputs, True, strict, _JACOBIAN)
        found = _gradients(first, inputs, v, create_graph, _JACOBIAN if strict else None)
        _checked(found, inputs, create_graph, strict, "The hessian of the user-provided function with respect to input {} is independent of the input. "
                 "This is not allowed in strict mode. You should ensure that your function is thrice differentiable and that the hessian depends on the "
                 "inputs.")
    return _finished(outputs, False, create_graph), _finished(found, many_in, create_graph)


def vhp(func, inputs, v=None, create_graph=False, strict=False):
    """Returns the output of a scalar function, and the product of a vector with its Hessian."""
    return _second(func, inputs, v, create_graph, strict, "vhp")


def hvp(func, inputs, v=None, create_graph=False, strict=False):
    """Returns the output of a scalar function, and the product of its Hessian with a vector."""
    return _second(func, inputs, v, create_graph, strict, "hvp")


def _construct_standard_basis_for(tensors, tensor_numels):
    """Returns, for each tensor, its rows of an identity matrix over the elements of all tensors, in its dtype and on its
    device."""
    total, start, found = sum(tensor_numels), 0, []
    for tensor, count in zip(tensors, tensor_numels):
        part = _core.zeros([total, count], dtype=tensor.dtype, device=tensor.device)
        part.diagonal(-start).fill_(1)
        found.append(part)
        start += count
    return tuple(found)
