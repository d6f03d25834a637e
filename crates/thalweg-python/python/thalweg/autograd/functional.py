"""Derivatives of functions (`torch.autograd.functional`): Jacobians, Hessians, and their products with vectors.

Inputs and outputs are tensors or tuples of tensors; results have the same structure. With `strict`, an output that does not depend on an input is an error;
otherwise its derivative is zeros.
"""

from . import _core, enable_grad, grad


def _tuple(value, whose):
    """Returns tensors as a tuple, and whether they were one."""
    listed = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for place, one in enumerate(listed):
        if not isinstance(one, _core.Tensor):
            raise TypeError(f"The {whose} must be either a Tensor or a tuple of Tensors but the value at index {place} has type {type(one)}.")
    return listed, isinstance(value, (tuple, list))


def _like(listed, is_tuple):
    return tuple(listed) if is_tuple else listed[0]


def _started(func, inputs, create_graph):
    """Returns inputs that gradients flow to, whether they were a tuple, the outputs of the function, and whether these are one."""
    inputs, many_in = _tuple(inputs, "inputs given to the function")
    inputs = [one.view_as(one) if create_graph and one.requires_grad else one.detach().requires_grad_() for one in inputs]
    outputs, many_out = _tuple(func(*inputs), "outputs of the user-provided function")
    return inputs, many_in, outputs, many_out


def _gradients(outputs, inputs, vectors, create_graph, strict):
    """Returns the gradients of inputs, with zeros where there is none. What was saved is kept."""
    chosen = [(output, vector) for output, vector in zip(outputs, vectors) if output.requires_grad]
    found = [None] * len(inputs)
    if chosen:
        found = grad([output for output, _ in chosen], inputs, [vector for _, vector in chosen], True, create_graph, allow_unused=True)
    for place, gradient in enumerate(found):
        if strict and gradient is None:
            raise RuntimeError(f"The output of the user-provided function is independent of input {place}. This is not allowed in strict mode.")
    return [_core.zeros_like(one) if gradient is None else gradient for one, gradient in zip(inputs, found)]


def _vectors(v, of, whose):
    """Returns the vectors of a product: ones where none are given and there is one element."""
    if v is None:
        if len(of) != 1 or of[0].numel() != 1:
            raise RuntimeError(f"The vector v can only be None if {whose} is a single Tensor with a single element")
        return [_core.ones_like(of[0]).detach()]
    listed, _ = _tuple(v, "vector v")
    if len(listed) != len(of):
        raise RuntimeError(f"v is a tuple of invalid length: should be {len(of)} but got {len(listed)}.")
    for place, (vector, one) in enumerate(zip(listed, of)):
        if vector.shape != one.shape:
            raise RuntimeError(f"Entry {place} in v has invalid size: should be {one.shape} but got {vector.shape}.")
    return list(listed)


def _finished(listed, is_tuple, create_graph):
    return _like(listed if create_graph else [one.detach() for one in listed], is_tuple)


def vjp(func, inputs, v=None, create_graph=False, strict=False):
    """Returns the outputs of a function, and the product of a vector with its Jacobian."""
    with enable_grad():
        inputs, many_in, outputs, many_out = _started(func, inputs, create_graph)
        found = _gradients(outputs, inputs, _vectors(v, outputs, "the user-provided function returns"), create_graph, strict)
    return _finished(outputs, many_out, create_graph), _finished(found, many_in, create_graph)


def jvp(func, inputs, v=None, create_graph=False, strict=False):
    """Returns the outputs of a function, and the product of its Jacobian with a vector, by the gradient of a gradient."""
    with enable_grad():
        inputs, _, outputs, many_out = _started(func, inputs, create_graph)
        v = _vectors(v, inputs, "the input to the user-provided function")
        weights = [_core.zeros_like(output).detach().requires_grad_() for output in outputs]
        linear = _gradients(outputs, inputs, weights, True, strict)
        found = _gradients(linear, weights, v, create_graph, False)
    return _finished(outputs, many_out, create_graph), _finished(found, many_out, create_graph)


def jacobian(func, inputs, create_graph=False, strict=False, vectorize=False, strategy="reverse-mode"):
    """Returns the derivatives of each element of the outputs by each element of the inputs: a pass for each element of the outputs."""
    if strategy != "reverse-mode":
        raise NotImplementedError("jacobian(strategy='forward-mode') is left out: there is no forward-mode differentiation")
    with enable_grad():
        inputs, many_in, outputs, many_out = _started(func, inputs, create_graph)
        rows = []
        for output in outputs:
            elements = output.reshape(-1)
            each = [_gradients([elements[place]], inputs, [None], create_graph, strict) for place in range(output.numel())]
            columns = zip(*each) if each else [[] for _ in inputs]
            rows.append([_core.stack(list(column)).reshape([*output.shape, *one.shape]) if column
                         else _core.zeros([*output.shape, *one.shape], dtype=output.dtype, device=output.device)
                         for one, column in zip(inputs, columns)])
    return _like([_finished(row, many_in, create_graph) for row in rows], many_out)


def _scalar(func, whose):
    """Returns a function that checks that another gives one element."""
    def checked(*inputs):
        output = func(*inputs)
        if not isinstance(output, _core.Tensor) or output.numel() != 1:
            raise RuntimeError(f"The function given to {whose} should return a single Tensor with a single element")
        return output.reshape([])
    return checked


def hessian(func, inputs, create_graph=False, strict=False, vectorize=False, outer_jacobian_strategy="reverse-mode"):
    """Returns the second derivatives of a function of one element by each pair of elements of the inputs."""
    listed, many_in = _tuple(inputs, "inputs given to the function")

    def first(*inner):
        return jacobian(_scalar(func, "hessian"), inner, create_graph=True, strict=strict)
    found = jacobian(first, listed, create_graph, strict, strategy=outer_jacobian_strategy)
    return found if many_in else found[0][0]


def _second(func, inputs, v, create_graph, strict, whose):
    """Returns the output of a function, and the product of its Hessian with a vector, which is the same on either side."""
    with enable_grad():
        inputs, many_in, outputs, _ = _started(_scalar(func, whose), inputs, create_graph)
        v = _vectors(v, inputs, "the input to the user-provided function")
        first = _gradients(outputs, inputs, [None], True, strict)
        found = _gradients(first, inputs, v, create_graph, strict)
    return _finished(outputs, False, create_graph), _finished(found, many_in, create_graph)


def vhp(func, inputs, v=None, create_graph=False, strict=False):
    """Returns the output of a function of one element, and the product of a vector with its Hessian."""
    return _second(func, inputs, v, create_graph, strict, "vhp")


def hvp(func, inputs, v=None, create_graph=False, strict=False):
    """Returns the output of a function of one element, and the product of its Hessian with a vector."""
    return _second(func, inputs, v, create_graph, strict, "hvp")
