"""Nodes and edges of recorded graphs, passes between them, and hooks of several tensors. All assertions also hold for PyTorch."""

import warnings

import thalweg as th
from support import close, raises
from thalweg.autograd import Function, grad, graph


class Twice(Function):
    """Returns twice its input, which it saves."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.note = "kept"
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_nodes():
    x = th.ones(2, requires_grad=True)
    y = x.exp()
    node = y.grad_fn
    assert type(node).__name__ == "ExpBackward0" and node is y.grad_fn and isinstance(node, graph.Node)
    node.metadata["a"] = 1
    del node
    assert y.grad_fn.metadata == {"a": 1} and y.output_nr == 0
    first, second = x.unbind()
    assert (first.output_nr, second.output_nr) == (0, 1) and first.grad_fn is second.grad_fn
    close(y.grad_fn(th.ones(2)), y.tolist())
    with raises(TypeError, "expected 1 arguments, got 2 instead"):
        y.grad_fn(th.ones(2), th.ones(2))


def test_nodes_of_functions():
    x = th.ones(2, requires_grad=True)
    y = Twice.apply(x)
    assert type(y.grad_fn) is Twice._backward_cls and y.grad_fn.note == "kept" and y.grad_fn.name() == "TwiceBackward"
    assert y.grad_fn.saved_tensors[0].tolist() == [1, 1] and len(y.grad_fn._raw_saved_tensors) == 1
    y.sum().backward()
    with raises(RuntimeError, "after they have already been freed"):
        y.grad_fn.saved_tensors


def test_results_that_share_memory_with_inputs():
    class Whole(Function):
        @staticmethod
        def forward(ctx, x):
            return x.view(-1)

        @staticmethod
        def backward(ctx, gradient):
            return gradient.view(2, 1)
    y = Whole.apply(th.ones(2, 1, requires_grad=True).clone())
    with raises(RuntimeError, "This view was created inside a custom Function"):
        y.add_(1)


def test_results_that_are_not_tensors():
    class Mixed(Function):
        @staticmethod
        def forward(ctx, x):
            return "text", x * 2, None, x.new_ones(2, dtype=th.int64)

        @staticmethod
        def backward(ctx, *gradients):
            seen.append([None if one is None else one.tolist() for one in gradients])
            return gradients[1] * 2
    seen, x = [], th.ones(2, requires_grad=True)
    Mixed.apply(x)[1].sum().backward()
    assert seen == [[None, [1, 1], None, [0, 0]]] and x.grad.tolist() == [2, 2]


def test_saved_tensors_of_nodes():
    x = th.tensor([2.0, 3.0], requires_grad=True)
    y, z = x * x, x.exp()
    assert y.grad_fn._saved_self.tolist() == [2, 3] and z.grad_fn._saved_result.tolist() == z.tolist()
    z.grad_fn._raw_saved_result.register_hooks(lambda tensor: tensor * 2, lambda tensor: tensor / 2 * 10)
    with raises(RuntimeError, "hooks have already been set"):
        z.grad_fn._raw_saved_result.register_hooks(lambda tensor: tensor, lambda tensor: tensor)
    z.sum().backward()
    close(x.grad, (z * 10).tolist())
    with raises(RuntimeError, "Specify retain_graph=True"):
        z.grad_fn._saved_result
    with raises(AttributeError, "_saved_other_name"):
        y.grad_fn._saved_other_name


def test_edges():
    x = th.tensor([1.0, 2.0], requires_grad=True)
    inner = x.sin()
    edge = graph.get_gradient_edge(inner)
    inner.mul_(2)
    found = grad(inner.sum(), (edge, inner, graph.get_gradient_edge(x)), retain_graph=True)
    close(found[0], [2, 2])
    close(found[1], [1, 1])
    close(found[2], (x.detach().cos() * 2).tolist())
    close(grad(edge, x, th.ones(2), retain_graph=True)[0], x.detach().cos().tolist())
    with raises(RuntimeError, "Mismatch in shape: grad_output[0]"):
        grad(edge, x, th.ones(3))
    with raises(RuntimeError, "implicitly created only for scalar outputs"):
        grad(edge, x)
    with raises(RuntimeError, "materialize_grads cannot be used"):
        grad(inner.sum(), graph.get_gradient_edge(x.clone()), allow_unused=True, materialize_grads=True)


def test_passes_from_several_tensors():
    x = th.ones(2, requires_grad=True)
    inner, calls = x * 2, []
    inner.register_hook(lambda gradient: calls.append(gradient.tolist()))
    th.autograd.backward([(inner * 3).sum(), (inner * 4).sum()])
    assert calls == [[7, 7]] and x.grad.tolist() == [14, 14]


def test_backward_to_inputs():
    x, other = th.ones(2, requires_grad=True), th.ones(2, requires_grad=True)
    order = []
    x.register_post_accumulate_grad_hook(lambda leaf: order.append(leaf.grad.tolist()))
    inner = x * other
    inner.grad_fn.register_prehook(lambda gradients: order.append("before"))
    inner.sum().backward(inputs=[x, inner])
    assert order == ["before", [1, 1]] and other.grad is None and inner.grad.tolist() == [1, 1] and inner.retains_grad


def test_gradients_that_are_converted():
    x = th.ones(2, dtype=th.float64, requires_grad=True)
    (x * 2).backward(th.ones(2))
    assert x.grad.dtype is th.float64 and x.grad.tolist() == [2, 2]
    found, = grad(x * 2, x, th.arange(3).reshape(3, 1).expand(3, 2), is_grads_batched=True)
    assert found.tolist() == [[0, 0], [2, 2], [4, 4]]


def test_hooks_of_several_tensors():
    x, y, unused = (th.ones(1, requires_grad=True) for _ in range(3))
    seen = []
    handle = graph.register_multi_grad_hook((x, y, unused), lambda gradients: seen.append([one if one is None else one.tolist() for one in gradients]))
    (x * 2 + y * 3).sum().backward()
    assert seen == [[[2], [3], None]]
    (x * 2 + y * 3).sum().backward(inputs=[y])
    assert seen[1:] == [[None, [3], None]]
    handle.remove()
    (x * 2).sum().backward()
    assert len(seen) == 2
    graph.register_multi_grad_hook((x, y), lambda gradient: seen.append(gradient.tolist()), mode="any")
    (x * 5 + y * 5).sum().backward()
    assert seen[2:] == [[5]]


def test_hooks_see_results_without_gradients():
    x = th.ones(2, requires_grad=True)
    first, second = x.unbind()
    seen = []
    first.register_hook(lambda gradient: seen.append(gradient))
    second.backward()
    assert seen == [None] and x.grad.tolist() == [0, 1]


def test_callbacks_of_passes():
    x, order = th.ones(1, requires_grad=True), []
    engine = th.autograd.Variable._execution_engine
    x.register_hook(lambda gradient: engine.queue_callback(lambda: order.append(x.grad.tolist())))
    (x * 2).backward()
    assert order == [[2]]
    with raises(RuntimeError, "during backward pass"):
        engine.queue_callback(print)


def test_refused_hooks_of_saved_tensors():
    with graph.disable_saved_tensors_hooks("not here"):
        with raises(RuntimeError, "not here"):
            with graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
                pass
    with graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        pass


def test_writes_of_saved_tensors():
    def program(x):
        y = x.clone()
        square = (y ** 2).sum()
        y.sin_()
        return grad(square, x)[0]
    x = th.tensor([1.0, 2.0], requires_grad=True)
    with raises(RuntimeError, "modified by an inplace operation"):
        program(x)
    with graph.allow_mutation_on_saved_tensors():
        close(program(x), [2, 4])
        late = (x ** 2).sum()
    with raises(AssertionError, "Trying to backward outside of the 'allow_mutation_on_saved_tensors' context"):
        late.backward()
    y = x * x
    graph.increment_version(x)
    with raises(RuntimeError, "modified by an inplace operation"):
        y.sum().backward()


def test_gradients_of_results():
    y = th.ones(1, requires_grad=True) * 2
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert y.grad is None and len(seen) == 1
        y.retain_grad()
        assert y.grad is None and len(seen) == 1


def test_complex_gradients_are_checked():
    z = th.tensor([1 + 2j, 3 - 1j], dtype=th.complex128, requires_grad=True)
    assert th.autograd.gradcheck(lambda value: (value * value, value.abs()), (z,))

    class Wrong(Function):
        @staticmethod
        def forward(ctx, value):
            return value * 1j

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 1j
    with raises(th.autograd.GradcheckError, "part of complex outputs only, Jacobian mismatch for output 0"):
        th.autograd.gradcheck(Wrong.apply, (z,))
