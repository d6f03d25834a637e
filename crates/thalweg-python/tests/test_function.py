"""Functions with their own backward pass. All assertions also hold for PyTorch."""

import thalweg as th
from support import close, raises


class Cube(th.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return 3 * x * x * gradient


class Exp(th.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0] * gradient


class Scaled(th.autograd.Function):
    @staticmethod
    def forward(x, factor, offset=None):
        return x * factor if offset is None else x * factor + offset

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        assert ctx.needs_input_grad == (True, False, False), ctx.needs_input_grad
        return gradient * ctx.factor, None, None


def test_first_and_second_derivatives():
    x = th.tensor([1.0, 2.0], dtype=th.float64, requires_grad=True)
    y = Cube.apply(x)
    assert y.requires_grad and not y.is_leaf and y.grad_fn.name() == "CubeBackward"
    first, = th.autograd.grad(y.sum(), x, create_graph=True)
    second, = th.autograd.grad(first.sum(), x)
    assert first.tolist() == [3, 12] and second.tolist() == [6, 12]
    assert th.autograd.gradcheck(Cube.apply, (x,)) and th.autograd.gradgradcheck(Cube.apply, (x,))
    assert th.autograd.gradcheck(Exp.apply, (x,)) and th.autograd.gradgradcheck(Exp.apply, (x,))
    close(Exp.apply(x), x.exp().tolist())


def test_contexts():
    x = th.ones(2, requires_grad=True)
    y = Scaled.apply(x, 4.0, th.ones(2))
    assert y.tolist() == [5, 5]
    y.sum().backward()
    assert x.grad.tolist() == [4, 4]
    with th.no_grad():
        assert not Scaled.apply(x, 2.0, None).requires_grad
    assert not Cube.apply(th.ones(2)).requires_grad


def test_several_results():
    seen = []

    class Split(th.autograd.Function):
        materializes = True

        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(Split.materializes)
            place = x.argmax()
            negative = x < 0
            ctx.mark_non_differentiable(negative, place)
            return x * 2, x * 3, negative, place, "text"

        @staticmethod
        def backward(ctx, first, second, *others):
            seen.append((first is None, second is None, len(others)))
            return 0 if first is None and second is None else (first if second is None else first * 2 + second * 3)
    x = th.tensor([1.0, -2.0], requires_grad=True)
    first, second, negative, place, text = Split.apply(x)
    assert negative.tolist() == [False, True] and not negative.requires_grad and not place.requires_grad and text == "text"
    first.sum().backward()
    assert x.grad.tolist() == [2, 2]
    Split.materializes = False
    Split.apply(x)[0].sum().backward()
    assert [one[:2] for one in seen] == [(False, False), (False, True)] and x.grad.tolist() == [3, 3]


def test_marked_results_have_no_gradient():
    class Both(th.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            kept, other = x * 2, x * 3
            ctx.mark_non_differentiable(other)
            return kept, other

        @staticmethod
        def backward(ctx, gradient, other):
            assert other.tolist() == [0, 0]
            return gradient * 2
    x = th.ones(2, requires_grad=True)
    kept, other = Both.apply(x)
    assert kept.requires_grad and not other.requires_grad
    (kept + other).sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_an_input_given_back():
    class Same(th.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, gradient):
            return -gradient
    x = th.ones(2, requires_grad=True)
    y = Same.apply(x)
    assert y is not x and y.data_ptr() == x.data_ptr() and x.is_leaf
    y.sum().backward()
    assert x.grad.tolist() == [-1, -1]


def test_wrong_functions():
    x = th.ones(2, requires_grad=True)

    def made(result, also=None):
        class Wrong(th.autograd.Function):
            @staticmethod
            def forward(ctx, x, y):
                return x * 1

            @staticmethod
            def backward(ctx, gradient):
                return result(gradient)
        return Wrong.apply(x, also).sum()

    def raising(gradient):
        raise KeyError("out of backward")
    for result, kind, part in (
            (lambda gradient: gradient, RuntimeError, "returned an incorrect number of gradients (expected 2, got 1)"),
            (lambda gradient: (gradient, gradient), RuntimeError, "returned a gradient different than None at position 2"),
            (lambda gradient: (th.ones(3), None), RuntimeError, "returned an invalid gradient at index 0 - got [3] but expected shape compatible with [2]"),
            (lambda gradient: (3, None), RuntimeError, "expected Variable or None"),
            (raising, KeyError, "out of backward")):
        with raises(kind, part):
            made(result).backward()
    made(lambda gradient: (th.ones(4, 2), None, None, None)).backward()
    assert x.grad.tolist() == [4, 4]
    with raises(TypeError, "save_for_backward can only save variables"):
        class Number(th.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(3)
                return x * 1
        Number.apply(x)
    with raises(NotImplementedError, "backward"):
        class Half(th.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1
        Half.apply(x).sum().backward()
    with raises(NotImplementedError, "forward"):
        class Empty(th.autograd.Function):
            pass
        Empty.apply(x)


def test_saved_tensors_are_looked_after():
    x = th.ones(2, requires_grad=True)
    y = x * 1
    z = Cube.apply(y)
    y.add_(1)
    with raises(RuntimeError):
        z.sum().backward()
    z = Cube.apply(x)
    z.sum().backward()
    with raises(RuntimeError, "a second time"):
        z.sum().backward()


def test_once_differentiable():
    class Once(th.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @th.autograd.function.once_differentiable
        def backward(ctx, gradient):
            assert not th.is_grad_enabled()
            return 2 * ctx.saved_tensors[0] * gradient
    x = th.tensor([3.0], requires_grad=True)
    Once.apply(x).backward()
    assert x.grad.tolist() == [6]
    first, = th.autograd.grad((Once.apply(x) ** 2).sum(), x, create_graph=True)
    with raises(RuntimeError, "trying to differentiate twice a function that was marked with @once_differentiable"):
        first.sum().backward()


def test_backward_within_backward():
    class Inner(th.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            with th.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                y = (x * x).sum()
            return th.autograd.grad(y, x)[0] * gradient
    x = th.tensor([2.0], requires_grad=True)
    Inner.apply(x).backward()
    assert x.grad.tolist() == [4]


def test_another_name_of_the_backward_pass():
    class Twice(th.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def vjp(ctx, gradient):
            return 2 * gradient

    class Both(Twice):
        @staticmethod
        def backward(ctx, gradient):
            return gradient

    x = th.ones(2, requires_grad=True)
    Twice.apply(x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    with raises(RuntimeError, "only implement one"):
        Both.apply(x).sum().backward()


class Tripled(th.autograd.Function):
    @staticmethod
    def forward(ctx, x, returned=True):
        x.mul_(3.0)
        ctx.mark_dirty(x)
        return x if returned else x.clone()

    @staticmethod
    def backward(ctx, gradient, *_):
        return 3.0 * gradient, None


class Exponential(th.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return y * 2, x

    @staticmethod
    def backward(ctx, of_double, of_power):
        power, = ctx.saved_tensors
        return of_power * power, 2 * of_double


def test_inputs_that_a_function_writes():
    leaf = th.tensor([1.0, 2.0], requires_grad=True)
    x = leaf * 1
    before = x[0]
    assert Tripled.apply(x) is x and x.tolist() == [3.0, 6.0] and before.item() == 3.0
    (x.sum() + before).backward()
    assert leaf.grad.tolist() == [6.0, 3.0]
    # A view: the write is recorded by its base.
    leaf.grad = None
    x = leaf * 1
    Tripled.apply(x[1:])
    assert x.tolist() == [1.0, 6.0]
    (x * x).sum().backward()
    assert leaf.grad.tolist() == [2.0, 36.0]
    # One result is saved, and another one is not written.
    leaf.grad = None
    x = leaf * 1
    double, power = Exponential.apply(x, leaf)
    assert power is x and double is not leaf
    (double.sum() + power.sum()).backward()
    close(leaf.grad, [2.0 + 2.7182818, 2.0 + 7.3890561])
    with th.no_grad():
        x = th.ones(2)
        assert Tripled.apply(x) is x and x.tolist() == [3.0, 3.0]
    with raises(RuntimeError, "leaf"):
        Tripled.apply(leaf)
    with raises(RuntimeError, "were not returned as output"):
        Tripled.apply(leaf * 1, False)


def test_saved_inputs_require_a_gradient_in_backward():
    seen = []

    class Product(th.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx, gradient):
            x, weight = ctx.saved_tensors
            seen.append((x.requires_grad, weight.requires_grad, th.is_grad_enabled()))
            with th.enable_grad():
                # The leaf itself: what was computed of it elsewhere has a gradient for it.
                again, = th.autograd.grad((leaf * 3).sum(), weight)
            return gradient * weight, again
    leaf = th.nn.Parameter(th.ones(2))
    Product.apply(th.ones(2, requires_grad=True), leaf).sum().backward()
    assert seen == [(True, True, False)] and leaf.grad.tolist() == [3.0, 3.0]


class WithTangent(th.autograd.Function):
    """x² times a factor, with a tangent and without a gradient."""

    @staticmethod
    def forward(x, factor):
        return x * x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_forward(inputs[0])
        ctx.factor = inputs[1]

    @staticmethod
    def jvp(ctx, tangent, _):
        return 2 * ctx.saved_tensors[0] * tangent * ctx.factor


def test_tangents_are_those_of_the_function():
    x, tangent = th.tensor([1.0, 2.0]), th.tensor([3.0, 4.0])
    function = lambda x: WithTangent.apply(x, 3.0).sin()  # noqa: E731
    value, found = th.func.jvp(function, (x,), (tangent,))
    expected = (3 * x * x).cos() * 6 * x * tangent
    close(value, (3 * x * x).sin())
    close(found, expected)
    with th.autograd.forward_ad.dual_level():
        dual = th.autograd.forward_ad.make_dual(x, tangent)
        close(th.autograd.forward_ad.unpack_dual(function(dual)).tangent, expected)
    assert not dual.requires_grad
