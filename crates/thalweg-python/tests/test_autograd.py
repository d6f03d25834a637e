"""Autograd from Python."""

import thalweg as th
from support import close, raises


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
