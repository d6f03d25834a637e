"""Transforms of functions: each against the same function without the transform, slice by slice."""

import thalweg as th
from support import close, raises
from thalweg import nn
from thalweg.autograd import forward_ad
from thalweg.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, stack_module_state, vjp, vmap
from thalweg.nn import functional as F

# Functions of one slice, which are compared with a loop over slices: rules that are derived, rules of their own, and loops.
ONE = {
    "sum": lambda x: x.sum(), "mean of a dimension": lambda x: x.mean(-1, keepdim=True), "max": lambda x: x.max(1)[0], "all of it": lambda x: x.max(),
    "std": lambda x: x.std(), "softmax": lambda x: x.softmax(0), "sorted": lambda x: x.sort(0)[0], "prod": lambda x: x.prod(),
    "view": lambda x: x.view(2, -1).t().reshape(-1)[1:], "permute": lambda x: x.permute(1, 0).unsqueeze(1).squeeze(1),
    "flip": lambda x: x.flip(0).flatten(), "expand": lambda x: x[0].expand(2, 3, 4), "repeat": lambda x: x.repeat(2, 1, 1), "slices": lambda x: x[..., 1:, None],
    "cumsum": lambda x: x.cumsum(0), "where": lambda x: th.where(x > 0, x, 0.0), "in place": lambda x: x.clone().add_(1).mul_(x),
    "product": lambda x: x @ x.T, "einsum": lambda x: th.einsum("ij,kj->ik", x, x), "layer norm": lambda x: F.layer_norm(x, (4,)),
    "pool": lambda x: F.avg_pool1d(x.unsqueeze(0), 2), "joined": lambda x: th.cat([x, th.zeros(1, 4)]), "inverse": lambda x: th.linalg.inv(x @ x.T + th.eye(3)),
    "chosen": lambda x: x[th.tensor([2, 0]), 1:3], "split": lambda x: x.split(2, 1)[1] * x.chunk(2, 1)[0], "norm": lambda x: x.norm(),
    "no rule": lambda x: th.histc(x, 4, -3, 3), "type": lambda x: (x > 0).to(th.int64).argmax(1), "T": lambda x: x.T.contiguous().float(),
    "cross entropy": lambda x: F.cross_entropy(x, th.tensor([0, 1, 3])), "loss": lambda x: F.mse_loss(x, th.ones(3, 4)), "pad": lambda x: F.pad(x, (1, 2)),
}
TWO = {
    "add": lambda x, y: x + y * 2, "row": lambda x, y: x + y[0], "product": lambda x, y: x.matmul(y.transpose(0, 1)), "vector": lambda x, y: x @ y[1],
    "dot": lambda x, y: th.dot(x[0], y[2]), "outer": lambda x, y: th.outer(x[0], y[1]), "gathered": lambda x, y: x.gather(1, y.argsort(1)),
    "indexed": lambda x, y: x[y.argmax(0) % 3], "linear": lambda x, y: F.linear(x, y), "einsum": lambda x, y: th.einsum("ij,ij->", x, y),
    "convolution": lambda x, y: F.conv1d(x.unsqueeze(0), y[:, None, :2].expand(3, 3, 2), padding=1), "comparison": lambda x, y: th.maximum(x, y) - x.lerp(y, 0.3),
    "embedding": lambda x, y: F.embedding(y.argmax(1), x.repeat(2, 1)), "addmm": lambda x, y: th.addmm(x[:, :3], x, y.T, alpha=2, beta=3),
}


def test_rules_agree_with_loops():
    th.manual_seed(0)
    x, y = th.randn(5, 3, 4), th.randn(5, 3, 4)
    for name, function in ONE.items():
        expected = th.stack([function(part) for part in x])
        for dims, given in ((0, x), (2, x.movedim(0, 2))):
            found = vmap(function, dims)(given)
            assert found.dtype == expected.dtype and th.allclose(found.double(), expected.double(), atol=1e-4), name
    for name, function in TWO.items():
        assert th.allclose(vmap(function)(x, y), th.stack([function(*pair) for pair in zip(x, y)]), atol=1e-5), name
        for dims, given in (((0, None), (x, y[0])), ((None, 0), (x[0], y))):
            pairs = [(one, y[0]) for one in x] if dims[0] == 0 else [(x[0], one) for one in y]
            assert th.allclose(vmap(function, dims)(*given), th.stack([function(*pair) for pair in pairs]), atol=1e-5), (name, dims)
    assert vmap(lambda part: part * 2, out_dims=1)(x).shape == (3, 5, 4) and vmap(th.sin, chunk_size=2)(x).allclose(x.sin())
    nested = vmap(vmap(vmap(lambda i, j: i >= j, (None, 0)), (0, None)))(th.arange(6).view(2, 3), th.arange(8).view(2, 4))
    assert nested.tolist() == [[[i >= j for j in row] for i in column] for column, row in (((0, 1, 2), range(4)), ((3, 4, 5), range(4, 8)))]


def test_what_vmap_refuses():
    x = th.randn(3, 4)
    for call, kind, text in (
            (lambda: vmap(lambda part: part.sum().item())(x), RuntimeError, "calling .item()"), (lambda: vmap(lambda part: part if part.sum() > 0 else -part)(x),
                                                                                              RuntimeError, "data-dependent control flow"),
            (lambda: vmap(lambda part: part + th.rand(4))(x), RuntimeError, "randomness error mode"), (lambda: vmap(th.add)(x, th.ones(2)), ValueError, "same size"),
            (lambda: vmap(lambda part: 1.0)(x), ValueError, "must only return Tensors"), (lambda: vmap(th.sin, 2)(x), ValueError, "in_dim"),
            (lambda: vmap(lambda part: th.zeros(4).add_(part))(x), RuntimeError, "out-of-place")):
        with raises(kind, text):
            call()
    assert vmap(lambda part: th.rand(4) + 0 * part, randomness="different")(x).std(0).min() > 0
    assert vmap(lambda part: th.rand(4) + 0 * part, randomness="same")(x).std(0).max() < 1e-6


def test_derivatives():
    x = th.randn(3)
    cube = lambda value: (value ** 3).sum()  # noqa: E731
    assert grad(cube)(x).allclose(3 * x**2) and not grad(cube)(x).requires_grad and hessian(cube)(x).allclose(th.diag(6 * x))
    assert grad(lambda value: grad(cube)(value).sum())(x).allclose(6 * x) and jacrev(th.sin)(x).allclose(jacfwd(th.sin)(x))
    value, product = vjp(th.sin, x)
    assert value.allclose(x.sin()) and product(th.ones(3))[0].allclose(x.cos()) and linearize(th.sin, x)[1](th.ones(3)).allclose(x.cos())
    assert jvp(th.sin, (x,), (2 * th.ones(3),))[1].allclose(2 * x.cos())
    found, (value, aux) = grad_and_value(lambda pair: (pair["a"].sum() * pair["b"], "aux"), has_aux=True)({"a": x, "b": th.tensor(2.0)})
    assert aux == "aux" and found["a"].tolist() == [2.0] * 3 and found["b"].allclose(x.sum())
    # What a program differentiates around a transform stays in its graph.
    w = th.randn(3, requires_grad=True)
    assert grad(lambda value: (value * w).sum())(x).requires_grad and th.autograd.grad(grad(cube)(w).sum(), w)[0].allclose(6 * w.detach())
    with th.no_grad():
        assert not grad(cube)(w).requires_grad
    assert vmap(grad(cube))(th.eye(3)).allclose(3 * th.eye(3)) and vmap(jacrev(th.sin))(th.eye(3)).allclose(th.diag_embed(th.eye(3).cos()))
    with raises(RuntimeError, "scalar tensor"):
        grad(th.sin)(x)


def test_gradients_of_samples_and_ensembles():
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.LayerNorm(3), nn.Linear(3, 2))
    parameters = {name: value.detach() for name, value in net.named_parameters()}
    x, y = th.randn(3, 4), th.tensor([0, 1, 1])

    def loss(parameters, one, target):
        return F.cross_entropy(functional_call(net, parameters, (one.unsqueeze(0),)), target.unsqueeze(0))
    found = vmap(grad(loss), (None, 0, 0))(parameters, x, y)
    for name, value in found.items():
        assert value.allclose(th.stack([grad(loss)(parameters, *pair)[name] for pair in zip(x, y)]), atol=1e-5), name
    models = [nn.Linear(4, 3) for _ in range(3)]
    stacked, buffers = stack_module_state(models)
    results = vmap(lambda own, other, value: functional_call(models[0], (own, other), (value,)), (0, 0, None))(stacked, buffers, x)
    close(results, th.stack([model(x) for model in models]).tolist())


def test_tangents():
    x, direction = th.randn(3), th.randn(3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, direction)
        value, tangent = forward_ad.unpack_dual(dual.sin() * 2)
        assert tangent.allclose(2 * x.cos() * direction) and not value.requires_grad
        assert forward_ad.unpack_dual(x).tangent is None and forward_ad.unpack_dual(dual).tangent.allclose(direction)
        with raises(RuntimeError, "different size"):
            forward_ad.make_dual(x, th.ones(2))
    with raises(RuntimeError, "no level exists"):
        forward_ad.make_dual(x, direction)


def test_gradients_for_mapped_gradients():
    x = th.tensor([1.0, 2.0], requires_grad=True)
    outputs = [(x * x).sum(), (x * x * x).sum(), (3 * x).sum()]
    wanted = [[2.0, 4.0], [3.0, 12.0], [3.0, 3.0]]

    def pulled(gradients):
        return th.autograd.grad(outputs, [x], gradients, retain_graph=True)[0]
    rows = list(th.eye(3))
    for size in (None, 1, 2):
        assert th.vmap(pulled, chunk_size=size)(rows).tolist() == wanted
    scaled = th.vmap(lambda a: th.vmap(lambda g: th.autograd.grad(outputs[1], x, g * a, retain_graph=True)[0])(th.tensor([1.0, 2.0])))(th.tensor([1.0, 10.0]))
    assert scaled.tolist() == [[[3.0, 12.0], [6.0, 24.0]], [[30.0, 120.0], [60.0, 240.0]]]
    again = th.vmap(lambda g: th.autograd.grad(outputs[1], x, g, create_graph=True)[0])(th.tensor([1.0, 2.0]))
    assert th.autograd.grad(again.sum(), x)[0].tolist() == [18.0, 36.0]
    with raises(NotImplementedError, "call `torch.autograd.grad`"):
        th.vmap(lambda g: th.autograd.backward(outputs[0], g))(th.tensor([1.0, 2.0]))


def test_branches_and_loops_as_functions():
    from thalweg._higher_order_ops import associative_scan, scan
    x = th.randn(7, 3, requires_grad=True)
    assert th.equal(th.cond(x.sum() > 100, th.sin, th.cos, (x,)), x.cos()) and th.cond(True, lambda: 1, lambda: 2) == 1
    count, doubled = th.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (th.tensor(0), x))
    assert count.item() == 3 and th.autograd.grad(doubled.sum(), x)[0].unique().tolist() == [8.0]
    keep, new, h, wanted = th.rand(6, 2), th.rand(6, 2), th.zeros(2), []
    for place in range(6):
        h = keep[place] * h + new[place]
        wanted.append(h)
    for dim, reverse in ((0, False), (1, True)):
        parts = [(part.T if dim else part).flip(dim) if reverse else part for part in (keep, new)]
        found = associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), tuple(parts), dim, reverse=reverse)[1]
        assert ((found.flip(dim).T if reverse else found) - th.stack(wanted)).abs().max() < 1e-6
    last, sums = scan(lambda carry, y: (carry + y, carry + y), th.zeros(3), x, reverse=True)
    assert (sums - x.flip(0).cumsum(0).flip(0)).abs().max() < 1e-5
    assert th.equal(last, sums[0])
    with raises(RuntimeError, "a tensor of one element"):
        th.cond(x > 0, th.sin, th.cos, (x,))
    with raises(RuntimeError, "must return 2 values"):
        th.while_loop(lambda i, y: i < 3, lambda i, y: i + 1, (0, x))


def test_slices_without_dimensions_and_what_draws_nothing():
    numbers, rows = th.tensor([1.0, -2.0, 3.0]), th.arange(24.0).reshape(2, 4, 3) / 7 - 1
    for function in (lambda x: x.sum(0), lambda x: x.softmax(-1), lambda x: x.squeeze(0), lambda x: x.max(0)[0]):
        assert vmap(function)(numbers).tolist() == [function(number).item() for number in numbers]
    # All dimensions but one are reduced, and those of one slice only.
    for function in (lambda x: x.renorm(2, 0, 1.0), lambda x: th.norm_except_dim(x, 2, 1), lambda x: F.dropout(x, 0.5, training=False), lambda x: F.dropout(x, 0.0)):
        close(vmap(function)(rows), th.stack([function(row) for row in rows]))
    close(vmap(vmap(lambda x: th.trapezoid(x, dim=0)))(rows), th.trapezoid(rows, dim=2))


def test_calls_with_values_of_attributes():
    class Scaled(th.nn.Linear):
        scale = 2.0

        def forward(self, x):
            return super().forward(x) * self.scale
    net = Scaled(1, 1, bias=False)
    weight, x = th.ones(1, 1), th.ones(1, 1)
    assert functional_call(net, {"weight": weight, "scale": 3.0}, x).item() == 3 and functional_call(net, {"weight": weight}, x).item() == 2
    assert "scale" not in vars(net)
    with raises(RuntimeError, "Unexpected key(s): 'scale'"):
        functional_call(net, {"weight": weight, "scale": 3.0}, x, strict=True)


def test_calls_with_values_of_tied_parameters():
    class Tied(th.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))
    net, x, one, other = Tied(), th.ones(1, 2), th.ones(2, 2), th.full((2, 2), 2.0)
    for name in ("first.weight", "second.weight"):
        assert functional_call(net, {name: one}, x, strict=True).tolist() == [[4.0, 4.0]]
        with raises(RuntimeError, "Missing key(s): "):
            functional_call(net, {name: one}, x, tie_weights=False, strict=True)
    both = {"first.weight": one, "second.weight": other}
    assert functional_call(net, both, x, tie_weights=False).tolist() == [[8.0, 8.0]]
    with raises(ValueError, "multiple values for keys ['first.weight', 'second.weight'], which are tied"):
        functional_call(net, both, x)
    assert functional_call(net, {**both, "second.weight": one}, x).tolist() == [[4.0, 4.0]]


def test_each_map_says_whether_numbers_are_the_same():
    x = th.zeros(3, 2, 50)
    for outer, inner in (("same", "different"), ("different", "same"), ("different", "different"), ("same", "same")):
        for draw in (th.rand_like, lambda a: th.rand(50), lambda a: a.clone().normal_(), lambda a: F.dropout(th.ones(50)), lambda a: F.dropout(a + 1),
                     lambda a: th.distributions.Normal(a, 1.0).sample(), lambda a: th._standard_gamma(th.ones(50)), lambda a: th.poisson(th.ones(50) * 90)):
            found = vmap(vmap(draw, randomness=inner), randomness=outer)(x)
            assert found.shape == x.shape
            assert th.equal(found[0], found[1]) == (outer == "same") and th.equal(found[0, 0], found[0, 1]) == (inner == "same"), (outer, inner)
    found = vmap(lambda a: th.binomial(a, th.full((50,), 0.5)), randomness="different")(th.tensor([1000.0, 10.0]))
    assert found.shape == (2, 50) and 400 < found[0].mean() < 600 and 3 < found[1].mean() < 7
    with raises(RuntimeError, "randomness error mode"):
        vmap(lambda a: F.dropout(th.ones(5)) + a)(x)
    assert vmap(lambda a: F.dropout(th.ones(5), training=False) + a.sum())(x).shape == (3, 5)
