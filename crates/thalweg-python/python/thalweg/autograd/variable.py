"""Variables (`torch.autograd.variable`), which tensors have replaced."""

from .. import _core


class _Engine:
    """The engine of backward passes, for programs that use it directly."""

    def queue_callback(self, callback):
        """Registers a function that is called after the current backward pass has succeeded."""
        _core._queue_callback(callback)

    def run_backward(self, tensors, grad_tensors, keep_graph, create_graph, inputs=(), allow_unreachable=False, accumulate_grad=False):
        """Runs a backward pass. Gradients are accumulated in leaves, or the gradients of `inputs` are returned."""
        from . import _place
        for place, (tensor, gradient) in enumerate(zip(tensors, grad_tensors)):
            if isinstance(tensor, _core.Tensor) and not tensor.requires_grad:
                raise RuntimeError(f"element {place} of tensors does not require grad and does not have a grad_fn")
        roots = [(_place(tensor), gradient) for tensor, gradient in zip(tensors, grad_tensors)]
        targets = [_place(one) for one in inputs]
        if accumulate_grad:
            for one in inputs:
                if isinstance(one, _core.Tensor) and not one.is_leaf:
                    one.retain_grad()
        found = _core._run_backward(roots, targets or None, bool(accumulate_grad) or not targets, bool(keep_graph), bool(create_graph))
        if targets and not accumulate_grad and not allow_unreachable and any(gradient is None for gradient in found):
            raise RuntimeError("One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True if this is the "
                               "desired behavior.")
        return tuple(found)


class _Kind(type):
    """The metaclass of `Variable`: its instances are tensors."""

    def __instancecheck__(cls, instance):
        return isinstance(instance, _core.Tensor)


class Variable(metaclass=_Kind):
    """A tensor, which is recorded if `requires_grad` is true."""

    _execution_engine = _Engine()

    def __new__(cls, data=None, requires_grad=False, volatile=None):
        if data is None:
            data = _core.empty(0)
        if not isinstance(data, _core.Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        found = data.detach()
        return found.requires_grad_() if requires_grad else found
