"""Autograd from Python."""

import gc
import sys
import weakref

import thalweg as th
from support import close, raises
from thalweg.utils.checkpoint import checkpoint


def test_derivatives_of_functions():
    from thalweg.autograd import functional

    x, y = th.tensor([1.0, 2.0]), th.tensor([3.0, 5.0])

    def product(x, y):
        return x * x * y, (x * y).sum()

    (xx, xy), (sx, sy) = functional.jacobian(product, (x, y))
    assert xx.tolist() == [[6.0, 0.0], [0.0, 20.0]] and xy.tolist() == [[1.0, 0.0], [0.0, 4.0]]
    assert sx.tolist() == [3.0, 5.0] and sy.tolist() == [1.0, 2.0] and not sx.requires_grad
    assert functional.jacobian(lambda x: x.exp()[:, None], th.zeros(2)).tolist() == [[[1.0, 0.0]], [[0.0, 1.0]]]
    outputs, found = functional.vjp(product, (x, y), (th.ones(2), th.tensor(2.0)))
    assert outputs[1].item() == 13.0 and found[0].tolist() == [12.0, 30.0] and found[1].tolist() == [3.0, 8.0]
    _, found = functional.jvp(product, (x, y), (th.tensor([1.0, 0.0]), th.tensor([0.0, 1.0])))
    assert found[0].tolist() == [6.0, 4.0] and found[1].item() == 5.0

    def cubes(x, y):
        return (x ** 3 * y).sum()

    (xx, xy), (yx, yy) = functional.hessian(cubes, (x, y))
    assert xx.tolist() == [[18.0, 0.0], [0.0, 60.0]] and xy.tolist() == yx.tolist() == [[3.0, 0.0], [0.0, 12.0]]
    assert yy.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    for product_of in (functional.vhp, functional.hvp):
        value, found = product_of(cubes, (x, y), (th.ones(2), th.zeros(2)))
        assert value.item() == 43.0 and found[0].tolist() == [18.0, 60.0] and found[1].tolist() == [3.0, 12.0]
    assert functional.hessian(lambda x: (x ** 3).sum(), x).tolist() == [[6.0, 0.0], [0.0, 12.0]]
    x.requires_grad_()
    functional.jacobian(lambda x: x ** 3, x, create_graph=True).sum().backward()
    assert x.grad.tolist() == [6.0, 12.0]
    with raises(RuntimeError, "independent of input 1"):
        functional.jacobian(lambda x, y: x * 2, (x, y), strict=True)
    with raises(RuntimeError, "single element"):
        functional.hessian(lambda x: x * x, x)
    with raises(RuntimeError, "invalid size"):
        functional.vjp(lambda x: x * x, x, th.ones(3))


def test_several_gradients_at_once():
    x, unused = th.tensor([1.0, 2.0], requires_grad=True), th.ones(2, requires_grad=True)
    y = x ** 2
    found, none = th.autograd.grad(y, (x, unused), th.eye(2), allow_unused=True, is_grads_batched=True)
    assert found.tolist() == [[2.0, 0.0], [0.0, 4.0]] and none is None
    with raises(RuntimeError, "scalar outputs"):
        th.autograd.grad(x ** 2, x, is_grads_batched=True)


def test_gradients_of_chosen_tensors():
    x, y = th.tensor([1.0, 2.0], requires_grad=True), th.tensor([3.0, 4.0], requires_grad=True)
    z = x * y
    z.sum().backward(inputs=[x], retain_graph=True)
    assert x.grad.tolist() == [3.0, 4.0] and y.grad is None
    z.backward(th.ones(2), inputs=x, retain_graph=True)
    th.autograd.backward([z, z], [th.ones(2)] * 2, inputs=(x, y), retain_graph=True)
    assert x.grad.tolist() == [12.0, 16.0] and y.grad.tolist() == [2.0, 4.0]
    given = th.ones(2)
    x.backward(given, inputs=[x])
    x.grad.zero_()
    assert given.tolist() == [1.0, 1.0]
    z.sum().backward(inputs=[y], create_graph=True)
    assert y.grad.requires_grad
    with raises(RuntimeError, "cannot be empty"):
        z.sum().backward(inputs=[])
    with raises(RuntimeError, "does not require grad"):
        z.sum().backward(inputs=[given])


def test_backward():
    x = th.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = (x * x).sum()
    assert y.requires_grad and not y.is_leaf and x.is_leaf and x.grad_fn is None and y.grad_fn is not None
    y.backward()
    close(x.grad, [2, 4, 6])
    (x.exp()).backward(th.ones(3))
    close(x.grad, [2 + 2.718281828, 4 + 7.389056, 6 + 20.085537])
    x.grad = None
    with raises(RuntimeError, "a second time"):
        y.backward()
    with raises(RuntimeError):
        (x * 2).backward()
    with raises(RuntimeError):
        th.ones(1).backward()


def test_a_second_pass_needs_what_the_first_has_freed():
    x, index = th.arange(1.0, 7.0).view(2, 3), th.tensor([1])
    # As in PyTorch: nodes that kept a tensor, or a number in the place of one, run once; those that kept nothing run again.
    once = [lambda x: x * 2, lambda x: x / 2, lambda x: x * x, lambda x: x.exp(), lambda x: x.mul(3.0).sum(), lambda x: x ** 2, lambda x: x.relu()]
    again = [lambda x: x + 2, lambda x: 2 - x, lambda x: x - x, lambda x: x.sum(0), lambda x: x.mean(), lambda x: x.t(), lambda x: -x, lambda x: x.expand(4, 2, 3),
             lambda x: x.add(x, alpha=3), lambda x: x.lerp(x, 0.5), lambda x: x.index_add(0, index, th.ones(1, 3)), lambda x: th.cat([x, x])]
    for function in once + again:
        y = function(x.requires_grad_())
        share = th.ones_like(y)
        y.backward(share, retain_graph=True)
        y.backward(share)
        if function in again:
            y.backward(share)
            continue
        with raises(RuntimeError, "Trying to backward through the graph a second time"):
            y.backward(share)


def test_grad():
    x, y = th.tensor(2.0, requires_grad=True), th.tensor(3.0, requires_grad=True)
    z = x * x * y
    first, = th.autograd.grad(z, x, create_graph=True)
    second, = th.autograd.grad(first, x)
    assert first.item() == 12 and second.item() == 6 and x.grad is None
    with raises(RuntimeError, "not have been used"):
        th.autograd.grad(x * 2, [y])
    assert th.autograd.grad(x * 2, [y], allow_unused=True) == (None,)
    assert th.autograd.grad(x * 2, [y], materialize_grads=True)[0].item() == 0
    with raises(RuntimeError, "does not require grad"):
        th.autograd.grad(th.ones(1), [x])


def test_modes():
    x = th.ones(2, requires_grad=True)
    with th.no_grad():
        assert not (x * 2).requires_grad and not th.is_grad_enabled()
        with th.enable_grad():
            assert (x * 2).requires_grad
        assert not th.is_grad_enabled()
    assert th.is_grad_enabled()

    @th.no_grad()
    def decorated():
        return x * 2

    @th.no_grad
    def bare():
        return x * 2

    @th.inference_mode()
    def inferred():
        return x * 2
    assert not decorated().requires_grad and not bare().requires_grad and not inferred().requires_grad
    with raises(ZeroDivisionError):
        with th.no_grad():
            1 / 0
    assert th.is_grad_enabled()
    th.set_grad_enabled(False)
    assert not th.is_grad_enabled()
    th.set_grad_enabled(True)
    with th.set_grad_enabled(False):
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad


def test_in_place():
    x = th.ones(3, requires_grad=True)
    with raises(RuntimeError):
        x.add_(1)
    with th.no_grad():
        x.mul_(2)
    y = x * 1
    y[0] = 0
    y.mul_(3)
    y.sum().backward()
    assert x.grad.tolist() == [0, 3, 3]
    z = x.detach()
    assert z.data_ptr() == x.data_ptr() and not z.requires_grad
    x.data = th.zeros(3)
    assert x.tolist() == [0, 0, 0] and x.requires_grad


def test_autocast():
    x = th.ones(4, 4, requires_grad=True)
    with th.autocast("cuda", dtype=th.bfloat16):
        assert th.is_autocast_enabled()
        y = x @ x
        assert y.dtype is th.bfloat16 and y.softmax(-1).dtype is th.float32
        with th.autocast("cuda", enabled=False):
            assert (x @ x).dtype is th.float32
    assert not th.is_autocast_enabled()
    y.float().sum().backward()
    assert x.grad.dtype is th.float32 and x.grad.tolist() == [[8.0] * 4] * 4


def test_what_functions_hold_is_freed():
    class Held:
        pass

    def of_checkpoint(held, x):
        checkpoint(lambda value, held=held: (value * 2).exp(), x, use_reentrant=False).sum().backward()
        return checkpoint(lambda value, held=held: (value * 2).exp(), x, use_reentrant=False)

    def of_hooks(held, x):
        x.register_hook(lambda gradient, held=held: None).remove()
        y = x.exp()
        y.register_hook(lambda gradient, held=held: None)
        y.sum().backward()
        with th.autograd.graph.saved_tensors_hooks(lambda tensor, held=held: (tensor, held), lambda packed: packed[0]):
            return y, x.exp()

    def of_function(held, x):
        class Holding(th.autograd.Function):
            @staticmethod
            def forward(ctx, value):
                ctx.held = held
                result = value * 2
                ctx.save_for_backward(value, result)
                return result

            @staticmethod
            def backward(ctx, gradient):
                return gradient * 2
        Holding.apply(x).sum().backward()
        return Holding.apply(x)

    def of_module(held, x):
        layer = th.nn.Linear(2, 2)
        layer.register_full_backward_hook(lambda module, grad_input, grad_output, held=held: None)
        layer(x).sum().backward()
        return layer(x)
    for function in (of_checkpoint, of_hooks, of_function, of_module):
        x, held = th.ones(1, 2, requires_grad=True), Held()
        watched = weakref.ref(held)
        result = function(held, x)
        del held
        gc.collect()
        assert watched() is not None
        del result
        gc.collect()
        assert watched() is None, function.__name__


def test_backward_without_an_end():
    class Endless(th.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            with th.enable_grad():
                y = Endless.apply(th.ones(1, requires_grad=True))
            y.backward()
            return gradient
    limit = sys.getrecursionlimit()
    for depth in (limit, 100000):
        sys.setrecursionlimit(depth)
        try:
            with raises(RecursionError):
                Endless.apply(th.ones(1, requires_grad=True)).backward()
        finally:
            sys.setrecursionlimit(limit)


def test_leaves_that_are_frozen_after_their_use_get_no_gradients():
    seen = []
    for freeze in (lambda x: x.requires_grad_(False), lambda x: x.detach_()):
        x, w = th.ones(3, requires_grad=True), th.ones(3, requires_grad=True)
        x.register_post_accumulate_grad_hook(seen.append)
        y = (x * w * 2).sum()
        freeze(x)
        y.backward()
        assert x.grad is None and w.grad.tolist() == [2, 2, 2] and not seen
    # A leaf that requires gradients again accumulates them again.
    x.requires_grad_(True)
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3, 3, 3]


def test_what_is_overwritten_has_a_gradient_of_zeros():
    writes = [lambda z: z.zero_(), lambda z: z.copy_(th.ones(2)), lambda z: z.__setitem__(..., 2.0), lambda z: z.uniform_(), lambda z: z.fill_(1.0)]
    for number, write in enumerate(writes):
        x = th.ones(2, requires_grad=True)
        z = x.clone()
        write(z)
        (gradient,) = th.autograd.grad(z.sum(), x, allow_unused=True)
        assert gradient is not None and gradient.tolist() == [0, 0], number
