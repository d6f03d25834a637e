"""Derivatives of functions (`torch.func.grad`, `vjp`, `jvp`, `jacrev`, `jacfwd`, `hessian`).

All are made of backward passes. The forward-mode ones differentiate a backward pass by the gradients that it starts from, which it
depends on linearly: that is the product of the Jacobian with a vector.
"""

import functools

from .. import _core, autograd
from ..utils._pytree import tree_flatten, tree_map, tree_unflatten
from .. import _transform_levels as _levels

Tensor = _core.Tensor


# ---- Leaves and graphs ---------------------------------------------------------------------------------------------


def _batched():
    from . import _batching
    return _batching


def _is_batched(value):
    return _levels.local.maps and isinstance(value, _batched().Batched)


def _raw(value):
    """Returns the tensor with all mapped dimensions."""
    while _is_batched(value):
        value = value._value
    return value


def _leaf(value, name):
    """Returns a tensor with the elements of another, by which the derivative is taken."""
    if not isinstance(value, Tensor):
        raise RuntimeError(f"{name}: Expected all inputs to be tensors, got {type(value)}")
    if _levels.local.maps:
        value = _batched().expanded(value)

    def made(raw):
        if raw.requires_grad:
            return raw.view_as(raw)
        leaf = raw.detach()
        if not (leaf.is_floating_point() or leaf.is_complex()):
            raise RuntimeError(f"{name}: only Tensors of floating point dtype can require gradients, got {leaf.dtype}")
        leaf.requires_grad_()
        _levels.local.leaves.append(leaf)
        return leaf
    return _batched().rewrapped(value, made) if _is_batched(value) else made(value)


def _leads_outside(values):
    """Returns whether tensors depend on tensors that require gradients and that no transform has made."""
    from ..autograd.graph import get_gradient_edge
    seen = {get_gradient_edge(leaf).node for leaf in _levels.local.leaves}
    waiting = [get_gradient_edge(value).node for value in map(_raw, values) if value.requires_grad]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        if node.name().endswith("AccumulateGrad"):
            return True
        seen.add(node)
        waiting.extend(following for following, _ in node.next_functions if following is not None)
    return False


def _is_recorded(outputs):
    """Returns whether derivatives of outputs are themselves differentiated: by a transform around this one, or later."""
    return _levels.local.is_recorded and (_levels.local.derivatives > 1 or _leads_outside(outputs))


def _gradients(outputs, inputs, grad_outputs=None, create_graph=True, zeros=True):
    """Returns the gradients of inputs, zeros for those that the outputs do not depend on."""
    found = [None] * len(inputs)
    pairs = [(output, None if grad_outputs is None else grad_outputs[place]) for place, output in enumerate(outputs)
             if _raw(output).requires_grad]
    if pairs:
        outputs, starts = zip(*pairs)
        starts = None if grad_outputs is None else starts
        if any(map(_is_batched, (*outputs, *inputs, *(starts or ())))):
            found = _batched().grad(outputs, inputs, starts, create_graph)
        else:
            found = autograd.grad(outputs, inputs, starts, retain_graph=True, create_graph=create_graph, allow_unused=True)
    return [_core.zeros_like(own) if value is None and zeros else value for value, own in zip(found, inputs)]


def _left(values, is_recorded):
    """Returns values as they leave a transform: outside of its graph, unless that is needed."""
    def leave(value):
        return value if is_recorded or not isinstance(value, Tensor) or not _raw(value).requires_grad else value.detach()
    return tree_map(leave, values)


class _Region:
    """A region in which a derivative is computed. Remembers whether the program records gradients around it."""

    def __enter__(self):
        local = _levels.local
        self._recorded = getattr(local, "is_recorded", True)
        local.is_recorded = _core.is_grad_enabled()
        self._derivative, self._grad = _levels.Derivative(), autograd.enable_grad()
        self._derivative.__enter__()
        self._grad.__enter__()
        return self

    def __exit__(self, *error):
        self._grad.__exit__(*error)
        self._derivative.__exit__(*error)
        _levels.local.is_recorded = self._recorded


def _chosen(args, argnums, name):
    """Returns the positions of arguments."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if not all(isinstance(number, int) for number in numbers):
        raise RuntimeError(f"argnums must be int or Tuple[int, ...], got: {argnums}")
    if not numbers:
        raise RuntimeError("argnums must be non-empty")
    for number in numbers:
        if not -len(args) <= number < len(args):
            raise RuntimeError(f"Got argnum={number}, but only {len(args)} positional inputs")
    if len({number % len(args) for number in numbers}) != len(numbers):
        raise RuntimeError(f"argnums elements must be unique, got {argnums}")
    return [number % len(args) for number in numbers]


def _with_leaves(args, argnums, name):
    """Returns arguments in which the chosen ones are leaves, those leaves, and a function that nests results as the chosen ones."""
    numbers = _chosen(args, argnums, name)
    given = tuple(args[number] for number in numbers)
    leaves, spec = tree_flatten(given[0] if isinstance(argnums, int) else given)
    leaves = [_leaf(leaf, name) for leaf in leaves]
    nested = tree_unflatten(leaves, spec)
    args = list(args)
    for number, value in zip(numbers, (nested,) if isinstance(argnums, int) else nested):
        args[number] = value
    return args, leaves, lambda values: tree_unflatten(list(values), spec)


def _split_aux(output, has_aux, name):
    """Returns the output of a function and its auxiliary output."""
    if not has_aux:
        return output, None
    if not (isinstance(output, tuple) and len(output) == 2):
        raise RuntimeError(f"{name}: output of function f should be a tuple: (output, aux) if has_aux is True")
    return output


# ---- Reverse mode --------------------------------------------------------------------------------------------------


def grad_and_value(func, argnums=0, has_aux=False):
    """Returns a function that returns the gradients of a scalar function, and its value."""
    @functools.wraps(func)
    def computed(*args, **kwargs):
        name = "grad_and_value(f)(*args)"
        with _Region():
            args, leaves, nested = _with_leaves(args, argnums, name)
            output, aux = _split_aux(func(*args, **kwargs), has_aux, name)
            if not isinstance(output, Tensor):
                raise RuntimeError(f"{name}: Expected f(*args) to return a tensor, got {type(output)}")
            if output.dim() != 0:
                raise RuntimeError(f"{name}: Expected f(*args) to return a scalar tensor, got tensor with {output.dim()} dims. Maybe you wanted to use "
                                   "the vjp or jacrev APIs instead?")
            is_recorded = _is_recorded([output])
            found = nested(_gradients([output], leaves, create_graph=is_recorded))
            found, output, aux = (_left(value, is_recorded) for value in (found, output, aux))
        return (found, (output, aux)) if has_aux else (found, output)
    return computed


def grad(func, argnums=0, has_aux=False):
    """Returns a function that returns the gradients of a scalar function by chosen arguments."""
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def computed(*args, **kwargs):
        found, value = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found
    return computed


def vjp(func, *primals, has_aux=False):
    """Returns the output of a function, and a function that returns products of gradients with the Jacobian."""
    name = "vjp(f, *primals)"
    with _Region():
        leaves, spec = tree_flatten(primals)
        leaves = [_leaf(leaf, name) for leaf in leaves]
        output, aux = _split_aux(func(*tree_unflatten(leaves, spec)), has_aux, name)
        outputs, out_spec = tree_flatten(output)
        _check_tensors(outputs, output, name)
        is_recorded = _is_recorded(outputs)
        kept = list(_levels.local.leaves)
        shown, aux = _left(output, is_recorded), _left(aux, is_recorded)

    def product(cotangents, retain_graph=True, create_graph=None):
        given, given_spec = tree_flatten(cotangents)
        if given_spec != out_spec:
            raise RuntimeError(f"Expected pytree structure of cotangents to be the same as pytree structure of outputs to the function. cotangents: "
                               f"{given_spec}, primal output: {out_spec}")
        needed = is_recorded or _levels.local.derivatives > 0 or (_core.is_grad_enabled() and any(_raw(value).requires_grad for value in given))
        assert kept is not None
        return tree_unflatten(_gradients(outputs, leaves, given, create_graph=needed), spec)
    return (shown, product, aux) if has_aux else (shown, product)


def _check_tensors(outputs, output, name):
    if not outputs or not all(isinstance(one, Tensor) for one in outputs):
        raise RuntimeError(f"{name}: Expected f to be a function that has non-empty output (got output = {output}) made of Tensors")


def jacrev(func, argnums=0, has_aux=False, *, chunk_size=None, _preallocate_and_copy=False):
    """Returns a function that returns the Jacobian, row by row: one backward pass for each element of the output."""
    if not (chunk_size is None or chunk_size > 0):
        raise ValueError("jacrev: `chunk_size` should be greater than 0.")

    @functools.wraps(func)
    def computed(*args, **kwargs):
        name = "jacrev(f, argnums)(*args)"
        with _Region():
            args, leaves, nested = _with_leaves(args, argnums, name)
            output, aux = _split_aux(func(*args, **kwargs), has_aux, name)
            outputs, spec = tree_flatten(output)
            _check_tensors(outputs, output, name)
            is_recorded = _is_recorded(outputs)
            rows = [_rows(one, leaves, is_recorded) for one in outputs]
            result = tree_unflatten([nested(row) for row in rows], spec)
            result, aux = _left(result, is_recorded), _left(aux, is_recorded)
        return (result, aux) if has_aux else result
    return computed


def _rows(output, leaves, is_recorded):
    """Returns the Jacobians of an output by leaves."""
    shape, count = output.shape, output.numel()
    flat = output.reshape(-1)
    rows = [_gradients([flat[place]], leaves, create_graph=is_recorded) for place in range(count)]
    return [_core.stack([row[place] for row in rows]).reshape([*shape, *leaf.shape]) if rows else leaf.new_zeros((*shape, *leaf.shape))
            for place, leaf in enumerate(leaves)]


# ---- Forward mode --------------------------------------------------------------------------------------------------


def _linear(outputs, leaves):
    """Returns tensors of zeros like the outputs, and the gradients that a backward pass which starts from them finds: those depend
    linearly on them."""
    starts = []
    for output in outputs:
        if not (output.is_floating_point() or output.is_complex()):
            raise RuntimeError(f"jvp: the output has no tangents: it has the dtype {output.dtype}")
        start = _core.zeros_like(output).detach()
        start = _batched().expanded(start) if _levels.local.maps else start
        starts.append(_batched().rewrapped(start, lambda raw: raw.clone().requires_grad_()) if _is_batched(start) else start.requires_grad_())
    _levels.local.leaves.extend(map(_raw, starts))
    with _levels.Forward():
        return starts, _gradients(outputs, leaves, starts, create_graph=True, zeros=False)


def _tangents(starts, found, tangents, create_graph):
    """Returns the products of the Jacobian with tangents."""
    pairs = [(one, tangent) for one, tangent in zip(found, tangents) if one is not None and _raw(one).requires_grad]
    if not pairs:
        return [_core.zeros_like(start) for start in starts]
    return _gradients([one for one, _ in pairs], starts, [tangent for _, tangent in pairs], create_graph=create_graph)


def jvp(func, primals, tangents, *, strict=False, has_aux=False):
    """Returns the output of a function, and the product of its Jacobian with tangents."""
    name = "jvp(f, primals, tangents)"
    if not isinstance(primals, tuple) or not primals:
        raise RuntimeError(f"{name}: Expected primals to be a tuple. E.g. it should be valid to call f(*primals).")
    directions, direction_spec = tree_flatten(tangents)
    given, spec = tree_flatten(primals)
    if direction_spec != spec:
        raise RuntimeError(f"{name}: Expected primals and tangents to have the same python structure. For example, if primals is a tuple of 3 tensors, "
                           f"tangents also must be. Got primals with structure {spec} and tangents with structure {direction_spec}")
    for one, direction in zip(given, directions):
        if not isinstance(one, Tensor) or not isinstance(direction, Tensor):
            raise RuntimeError(f"{name}: Expected all tensors, got {type(one)} and {type(direction)}")
        if one.shape != direction.shape:
            raise RuntimeError(f"Expected primal and tangent to have the same shape, but got {list(one.shape)} and {list(direction.shape)}")
    with _Region():
        leaves = [_leaf(leaf, name) for leaf in given]
        output, aux = _split_aux(func(*tree_unflatten(leaves, spec)), has_aux, name)
        outputs, out_spec = tree_flatten(output)
        _check_tensors(outputs, output, name)
        is_recorded = _is_recorded([*outputs, *directions])
        starts, found = _linear(outputs, leaves)
        products = tree_unflatten(_tangents(starts, found, directions, is_recorded), out_spec)
        result = tuple(_left(value, is_recorded) for value in (output, products, aux))
    return result if has_aux else result[:2]


def linearize(func, *primals):
    """Returns the output of a function, and a function that returns products of its Jacobian there with tangents."""
    name = "linearize(f, *primals)"
    with _Region():
        given, spec = tree_flatten(primals)
        leaves = [_leaf(leaf, name) for leaf in given]
        output = func(*tree_unflatten(leaves, spec))
        outputs, out_spec = tree_flatten(output)
        _check_tensors(outputs, output, name)
        starts, found = _linear(outputs, leaves)
        kept, shown = list(_levels.local.leaves), _left(output, False)

    def product(*tangents):
        directions, direction_spec = tree_flatten(tangents)
        if direction_spec != spec or [one.shape for one in directions] != [one.shape for one in leaves]:
            raise RuntimeError(f"Expected the tangents {direction_spec} to have the same structure and shapes as the primals {spec}")
        assert kept is not None
        return tree_unflatten([value.detach() for value in _tangents(starts, found, directions, False)], out_spec)
    return shown, product


def jacfwd(func, argnums=0, has_aux=False, *, randomness="error", chunk_size=None):
    """Returns a function that returns the Jacobian, column by column: one pass for each element of the inputs."""
    @functools.wraps(func)
    def computed(*args, **kwargs):
        name = "jacfwd(f, argnums)(*args)"
        with _Region():
            args, leaves, nested = _with_leaves(args, argnums, name)
            output, aux = _split_aux(func(*args, **kwargs), has_aux, name)
            outputs, spec = tree_flatten(output)
            _check_tensors(outputs, output, name)
            is_recorded = _is_recorded(outputs)
            starts, found = _linear(outputs, leaves)
            columns = [_columns(starts, one, leaf, is_recorded) for one, leaf in zip(found, leaves)]
            result = tree_unflatten([nested([column[place] for column in columns]) for place in range(len(outputs))], spec)
            result, aux = _left(result, is_recorded), _left(aux, is_recorded)
        return (result, aux) if has_aux else result
    return computed


def _columns(starts, found, leaf, is_recorded):
    """Returns the Jacobians of all outputs by one leaf."""
    count = leaf.numel()
    if found is None or not _raw(found).requires_grad or count == 0:
        return [start.new_zeros((*start.shape, *leaf.shape)) for start in starts]
    flat = found.reshape(-1)
    columns = [_gradients([flat[place]], starts, create_graph=is_recorded) for place in range(count)]
    return [_core.stack([column[place] for column in columns], -1).reshape([*start.shape, *leaf.shape]) for place, start in enumerate(starts)]


def hessian(func, argnums=0):
    """Returns a function that returns the second derivatives of a function."""
    return jacfwd(jacrev(func, argnums), argnums)


def functionalize(func, *, remove="mutations"):
    """Returns the function unchanged: writes in place need not be removed here, as they are recorded."""
    return func
