"""Forward-mode differentiation (`torch.autograd.forward_ad`): tensors with tangents.

Operators record backward passes alone. The tangent of a result is the product of the Jacobian with the tangents, which is found by
differentiating a backward pass by the gradients that it starts from. So a dual tensor requires gradients, and results made in
`no_grad` have no tangents.
"""

import collections

from .. import _core, _transform_levels
from . import enable_grad, grad

__all__ = ["UnpackedDualTensor", "dual_level", "enter_dual_level", "exit_dual_level", "make_dual", "unpack_dual"]

Tensor = _core.Tensor
# The duals of each open level: tensors in the graph, with their tangents.
_levels = []
_current_level = -1
UnpackedDualTensor = collections.namedtuple("UnpackedDualTensor", ["primal", "tangent"])
UnpackedDualTensor.__doc__ = "A tensor and its tangent, which may be None."


def enter_dual_level():
    """Begins a level, in which tensors can have tangents, and returns its number."""
    global _current_level
    if _levels:
        raise RuntimeError("Nested forward mode AD is not supported at the moment")
    _levels.append([])
    _current_level = 0
    return 0


def exit_dual_level(*, level=None):
    """Ends the level. Its tangents are dropped."""
    global _current_level
    if level is None:
        level = _current_level
    if level != _current_level or not _levels:
        raise RuntimeError("Trying to exit a forward AD level that was not the last one that was created. This is not supported.")
    for made, _ in _levels.pop():
        if made.is_leaf:
            made.requires_grad_(False)
    _current_level = -1


class dual_level:
    """A region in which tensors can have tangents."""

    def __enter__(self):
        return enter_dual_level()

    def __exit__(self, *_):
        exit_dual_level()


def _check(tensor, tangent):
    for name, value in (("Primal", tensor), ("Tangent", tangent)):
        if not (value.is_floating_point() or value.is_complex()):
            raise ValueError(f"Expected {name.lower()} to be floating point or complex, but got: {value.dtype}")
    if tensor.shape != tangent.shape:
        raise RuntimeError("Trying to set a forward gradient that has a different size than that of the original Tensor, this is not supported. Tensor is "
                           f"of size {list(tensor.shape)} while the given forward gradient is of size {list(tangent.shape)}.")


def make_dual(tensor, tangent, *, level=None):
    """Returns a view of a tensor that has a tangent."""
    if (_current_level if level is None else level) < 0 or not _levels:
        raise RuntimeError("Trying to create a dual Tensor for forward AD but no level exists, make sure to enter_dual_level() first.")
    _check(tensor, tangent)
    known = _dual(tensor)
    if known is not None:
        raise RuntimeError("make_dual: the tensor has a tangent already")
    with enable_grad():
        made = tensor.view_as(tensor) if tensor.requires_grad else tensor.detach().requires_grad_()
    _levels[-1].append((made, tangent))
    return made


def _dual(tensor):
    return next((pair for pair in _levels[-1] if pair[0] is tensor), None)


def _leads_outside(tensor, own):
    """Returns whether a tensor depends on other tensors that require gradients than duals."""
    from .graph import get_gradient_edge
    seen, waiting = {get_gradient_edge(dual).node for dual in own if dual.is_leaf}, [get_gradient_edge(tensor).node]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        if node.name().endswith("AccumulateGrad"):
            return True
        seen.add(node)
        waiting.extend(following for following, _ in node.next_functions if following is not None)
    return False


def unpack_dual(tensor, *, level=None):
    """Returns a tensor without its tangent, and the tangent, None if it has none."""
    if (_current_level if level is None else level) < 0 or not _levels:
        return UnpackedDualTensor(tensor, None)
    duals = [dual for dual, _ in _levels[-1]]
    if not tensor.requires_grad or not duals:
        return UnpackedDualTensor(tensor, None)
    needed = _leads_outside(tensor, duals) or any(tangent.requires_grad for _, tangent in _levels[-1])
    with enable_grad():
        start = _core.zeros_like(tensor).detach().requires_grad_()
        with _transform_levels.Forward():
            found = grad([tensor], duals, [start], create_graph=True, retain_graph=True, allow_unused=True)
        pairs = [(one, tangent) for one, (_, tangent) in zip(found, _levels[-1]) if one is not None and one.requires_grad]
        if not pairs:
            return UnpackedDualTensor(tensor, None)
        own, tangents = zip(*pairs)
        tangent, = grad(own, [start], tangents, create_graph=needed, retain_graph=True, allow_unused=True)
    return UnpackedDualTensor(tensor if needed else tensor.detach(), _core.zeros_like(tensor) if tangent is None else tangent)


def _is_fwd_grad_enabled():
    """Returns True."""
    return True


class _set_fwd_grad_enabled:
    """A region that changes nothing: tangents follow from the graph."""

    def __init__(self, mode):
        self.prev = True

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass
