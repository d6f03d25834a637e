"""Operators that are calls of vendors' libraries: recurrent networks, Fourier transforms, decompositions. On the simulated GPU they
are host functions."""

import cmath
import math
import random

import thalweg as th
import thalweg.nn as nn
from support import close, raises


class _Composed:
    """Networks that are composed of operators."""

    def __enter__(self):
        self.former = th.backends.cudnn.enabled
        th.backends.cudnn.enabled = False

    def __exit__(self, *_):
        th.backends.cudnn.enabled = self.former


def _flat(result):
    output, state = result
    return [output.data if hasattr(output, "batch_sizes") else output, *(state if isinstance(state, tuple) else (state,))]


def _step(net, inputs, leaves):
    for tensor in [*leaves, *net.parameters()]:
        tensor.grad = None
    results = _flat(net(*[make() for make in inputs]))
    sum((result * result).sum() for result in results).backward()
    return results + [tensor.grad for tensor in [*leaves, *net.parameters()]]


def _network(draw):
    kind = draw.choice((nn.LSTM, nn.GRU, nn.RNN))
    options = dict(num_layers=draw.randint(1, 3), bidirectional=draw.random() < 0.5, bias=draw.random() < 0.7, batch_first=draw.random() < 0.5)
    if kind is nn.RNN:
        options["nonlinearity"] = draw.choice(("tanh", "relu"))
    hidden = draw.randint(2, 6)
    if kind is nn.LSTM and draw.random() < 0.5:
        options["proj_size"] = draw.randint(1, hidden - 1)
    return kind(draw.randint(1, 5), hidden, dtype=th.float64, **options)


def test_networks_are_those_of_their_steps():
    for seed in range(24):
        draw = random.Random(seed)
        net = _network(draw)
        length, batch = draw.randint(1, 5), draw.randint(1, 4)
        x = th.randn(*((batch, length) if net.batch_first else (length, batch)), net.input_size, dtype=th.float64, requires_grad=True)
        layers = net.num_layers * (2 if net.bidirectional else 1)
        sizes = [net.proj_size or net.hidden_size] + ([net.hidden_size] if isinstance(net, nn.LSTM) else [])
        states = [th.randn(layers, batch, size, dtype=th.float64, requires_grad=True) for size in sizes]
        inputs = [lambda: x]
        if draw.random() < 0.5:
            lengths = [draw.randint(1, length) for _ in range(batch)]
            lengths[0] = length
            inputs = [lambda: nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=net.batch_first, enforce_sorted=False)]
        if draw.random() < 0.7:
            inputs.append(lambda: tuple(states) if len(states) == 2 else states[0])
        else:
            states = []
        mine = _step(net, inputs, [x, *states])
        with _Composed():
            theirs = _step(net, inputs, [x, *states])
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs):
            assert one.shape == other.shape, seed
            close(one.flatten(), other.flatten().tolist(), 1e-9)


def test_networks_have_gradients_of_gradients():
    net = nn.LSTM(3, 4, 2, bidirectional=True, dtype=th.float64)
    x = th.randn(3, 2, 3, dtype=th.float64, requires_grad=True)

    def second():
        slope, = th.autograd.grad((net(x)[0] ** 2).sum(), x, create_graph=True)
        return th.autograd.grad((slope * slope).sum(), [x, net.weight_hh_l1])
    mine = second()
    with _Composed():
        theirs = second()
    for one, other in zip(mine, theirs):
        close(one.flatten(), other.flatten().tolist(), 1e-9)


def test_a_graph_of_a_network_is_gone_through_twice():
    net = nn.GRU(3, 4)
    x = th.randn(3, 2, 3, requires_grad=True)
    total = net(x)[0].sum()
    first, = th.autograd.grad(total, x, retain_graph=True)
    again, = th.autograd.grad(total, x)
    assert first.tolist() == again.tolist()


def test_networks_under_autocast_and_with_dropout():
    net = nn.LSTM(3, 4, 2, dropout=0.5)
    x = th.randn(5, 2, 3, requires_grad=True)
    with th.autocast("cuda", dtype=th.bfloat16):
        output, (hidden, cell) = net(x)
    assert output.dtype == hidden.dtype == cell.dtype == th.bfloat16
    output.float().sum().backward()
    assert net.weight_ih_l0.grad.dtype == th.float32 and x.grad.dtype == th.float32
    th.manual_seed(1)
    one = net(x)[0]
    th.manual_seed(1)
    assert one.tolist() == net(x)[0].tolist()
    th.manual_seed(2)
    assert one.tolist() != net(x)[0].tolist()
    net.eval()
    assert net(x)[0].tolist() == net(x)[0].tolist()


def test_networks_under_their_names():
    net = nn.LSTM(3, 4, 2, bidirectional=True)
    x, h, c = th.randn(5, 2, 3), th.randn(4, 2, 4), th.randn(4, 2, 4)
    expected = net(x, (h, c))
    found = th.lstm(x, (h, c), net._flat_weights, True, 2, 0.0, False, True, False)
    assert found[0].tolist() == expected[0].tolist() and found[2].tolist() == expected[1][1].tolist()
    direct = th._cudnn_rnn(x, net._flat_weights, 4, None, h, c, 2, 4, 0, 2, False, 0.0, True, True, [], None)
    assert direct[0].tolist() == expected[0].tolist() and direct[4].numel() == sum(p.numel() for p in net.parameters())
    rnn = nn.RNN(3, 4, nonlinearity="relu")
    assert th.rnn_relu(x, h[:1], rnn._flat_weights, True, 1, 0.0, False, False, False)[0].tolist() == rnn(x, h[:1])[0].tolist()
    with raises(RuntimeError, "incorrect number of RNN parameters"):
        th.gru(x, h[:1], net._flat_weights[:3], True, 1, 0.0, False, False, False)


def _transformed(line, forward=True):
    """Returns a transform by its definition."""
    size, sign = len(line), -1 if forward else 1
    roots = [cmath.exp(sign * 2j * cmath.pi * turn / size) for turn in range(size)]
    return [sum(number * roots[t * k % size] for t, number in enumerate(line)) for k in range(size)]


def _drawn(draw, *shape, dtype=th.float64):
    return th.tensor([draw.uniform(-1, 1) for _ in range(math.prod(shape))], dtype=dtype).reshape(*shape)


def _near(found, expected, tolerance):
    assert len(found) == len(expected)
    assert all(abs(one - other) <= tolerance for one, other in zip(found, expected)), (found, expected)


def test_transforms_of_any_size_and_layout():
    draw = random.Random(3)
    factors = {None: (lambda n: 1, lambda n: 1 / n), "ortho": (lambda n: n ** -0.5,) * 2, "forward": (lambda n: 1 / n, lambda n: 1)}
    for size in (1, 2, 3, 4, 6, 7, 16, 30, 61, 67, 101, 128, 134):
        dtype = draw.choice((th.float32, th.float64))
        tolerance = 1e-3 if dtype == th.float32 else 1e-9
        x, y = (_drawn(draw, 2, size, 2, dtype=dtype) for _ in range(2))
        norm = draw.choice((None, "ortho", "forward"))
        z, half = th.complex(x, y), th.fft.rfft(x, dim=1, norm=norm)
        for row, column in ((0, 0), (1, 1)):
            for forward, name in ((True, "fft"), (False, "ifft")):
                scale = factors[norm][not forward](size)
                expected = [scale * number for number in _transformed(z[row, :, column].tolist(), forward)]
                _near(getattr(th.fft, name)(z, dim=1, norm=norm)[row, :, column].tolist(), expected, tolerance)
            scale = factors[norm][0](size)
            expected = [scale * number for number in _transformed(x[row, :, column].tolist())][:size // 2 + 1]
            _near(half[row, :, column].tolist(), expected, tolerance)
        _near(th.fft.irfft(half, n=size, dim=1, norm=norm).flatten().tolist(), x.flatten().tolist(), tolerance)
    x = _drawn(draw, 2, 3, 4, 5, 3)
    for dims in ((0,), (1, 3), (4, 0, 2), (0, 1, 2, 3), (3, 1, 4, 0, 2)):
        whole = x.to(th.complex128)
        for dim in dims:
            lines = whole.movedim(dim, -1)
            moved = [_transformed(line) for line in lines.reshape(-1, x.shape[dim]).tolist()]
            whole = th.tensor(moved, dtype=th.complex128).reshape(lines.shape).movedim(-1, dim)
        _near(th.fft.fftn(x, dim=dims).flatten().tolist(), whole.flatten().tolist(), 1e-9)
        half = th.fft.rfftn(x, dim=dims)
        _near(half.flatten().tolist(), whole.narrow(dims[-1], 0, x.shape[dims[-1]] // 2 + 1).flatten().tolist(), 1e-9)
        _near(th.fft.irfftn(half, s=[x.shape[dim] for dim in dims], dim=dims).flatten().tolist(), x.flatten().tolist(), 1e-9)
    # Strided views: transposed, every other element, broadcast.
    whole = _drawn(draw, 6, 8).to(th.complex128)
    for view in (whole.T, whole[::2, 1::2], whole[0].expand(3, 8), whole[:, 3]):
        expected = [number for line in view.reshape(-1, view.shape[-1]).tolist() for number in _transformed(line)]
        _near(th.fft.fft(view).flatten().tolist(), expected, 1e-9)


def test_an_inverse_leaves_its_input_alone():
    x = th.fft.rfft(th.randn(4, 10))
    before = x.tolist()
    th.fft.irfft(x, n=10)
    assert x.tolist() == before


def test_decompositions_of_batches():
    draw = random.Random(2)
    for batch, rows, columns in ((1, 3, 3), (3, 4, 4), (40, 3, 3), (2, 5, 3), (2, 3, 5)):
        a = _drawn(draw, batch, rows, columns)
        for mode in ("reduced", "complete"):
            q, r = th.linalg.qr(a, mode=mode)
            close((q @ r).flatten(), a.flatten().tolist(), 1e-9)
            close((q.mT @ q).flatten(), th.eye(q.shape[-1], dtype=th.float64).expand(batch, -1, -1).flatten().tolist(), 1e-9)
        u, s, v = th.linalg.svd(a, full_matrices=False)
        close(((u * s.unsqueeze(-2)) @ v).flatten(), a.flatten().tolist(), 1e-9)
        lu, pivots = th.linalg.lu_factor(a)
        p, lower, upper = th.lu_unpack(lu, pivots)
        close((p @ lower @ upper).flatten(), a.flatten().tolist(), 1e-9)
        if rows == columns:
            values, vectors = th.linalg.eigh(a + a.mT)
            close(((vectors * values.unsqueeze(-2)) @ vectors.mT).flatten(), (a + a.mT).flatten().tolist(), 1e-9)
            positive = a @ a.mT + th.eye(rows, dtype=th.float64)
            factor = th.linalg.cholesky(positive)
            close((factor @ factor.mT).flatten(), positive.flatten().tolist(), 1e-9)
            close((positive @ th.linalg.inv(positive)).flatten(), th.eye(rows).expand(batch, -1, -1).flatten().tolist(), 1e-9)
            x = th.linalg.solve(positive, a)
            close((positive @ x).flatten(), a.flatten().tolist(), 1e-9)
            x = th.linalg.solve_triangular(factor.mT, a, upper=True)
            close((factor.mT @ x).flatten(), a.flatten().tolist(), 1e-9)
    with raises(th.linalg.LinAlgError, "singular"):
        th.linalg.inv(th.zeros(2, 2, 2))


def test_spectra_of_complex_matrices():
    draw = random.Random(4)
    for batch, rows, columns in ((2, 4, 4), (1, 5, 3), (2, 3, 5), (1, 1, 1)):
        a = th.complex(_drawn(draw, batch, rows, columns), _drawn(draw, batch, rows, columns))
        for full in (False, True):
            u, s, v = th.linalg.svd(a, full_matrices=full)
            least = min(rows, columns)
            product = (u[..., :least] * s.unsqueeze(-2)) @ v[:, :least]
            _near(product.flatten().tolist(), a.flatten().tolist(), 1e-9)
            for basis in (u, v.mH):
                n = basis.shape[-1]
                _near((basis.mH @ basis).flatten().tolist(), th.eye(n, dtype=th.complex128).expand(batch, n, n).flatten().tolist(), 1e-9)
        if rows == columns:
            hermitian = a + a.mH
            values, vectors = th.linalg.eigh(hermitian)
            _near(((vectors * values.unsqueeze(-2)) @ vectors.mH).flatten().tolist(), hermitian.flatten().tolist(), 1e-9)
            b = th.complex(_drawn(draw, batch, rows, 2), _drawn(draw, batch, rows, 2))
            for upper in (False, True):
                for unit in (False, True):
                    x = th.linalg.solve_triangular(a, b, upper=upper, unitriangular=unit)
                    whole = a.triu(int(unit)) if upper else a.tril(-int(unit))
                    whole = whole + th.eye(rows, dtype=th.complex128) if unit else whole
                    _near((whole @ x).flatten().tolist(), b.flatten().tolist(), 1e-8)
    # Equal eigenvalues, and a matrix without full rank.
    same = th.eye(3, dtype=th.complex128)
    _near((th.linalg.eigh(same)[1].mH @ th.linalg.eigh(same)[1]).flatten().tolist(), same.flatten().tolist(), 1e-9)
    u, s, v = th.linalg.svd(th.zeros(3, 2, dtype=th.complex128), full_matrices=False)
    assert s.tolist() == [0.0, 0.0]
    _near((v @ v.mH).flatten().tolist(), th.eye(2, dtype=th.complex128).flatten().tolist(), 1e-9)


def test_factors_of_complex_matrices():
    draw = random.Random(6)
    for batch, rows, columns in ((2, 4, 4), (1, 5, 3), (3, 2, 5), (1, 1, 1)):
        a = th.complex(_drawn(draw, batch, rows, columns), _drawn(draw, batch, rows, columns))
        numbers = a.flatten().tolist()
        _near(th.lu_unpack(*th.linalg.lu_factor(a))[0].sum(-1).flatten().tolist(), [1] * (batch * rows), 0)
        p, lower, upper = th.linalg.lu(a)
        _near((p @ lower @ upper).flatten().tolist(), numbers, 1e-9)
        # Pivots are the largest by the sum of the absolute values of both parts, as LAPACK's.
        assert max(abs(number) for number in lower.flatten().tolist()) < 2**0.5 + 1e-9, "the largest pivots were chosen"
        inverse = th.linalg.pinv(a)
        _near((a @ inverse @ a).flatten().tolist(), numbers, 1e-8)
        _near((inverse @ a).mH.flatten().tolist(), (inverse @ a).flatten().tolist(), 1e-8)
        assert th.linalg.matrix_rank(a).tolist() == [min(rows, columns)] * batch
        b = th.complex(_drawn(draw, batch, rows, 2), _drawn(draw, batch, rows, 2))
        x = th.linalg.lstsq(a, b).solution
        _near((a.mH @ (a @ x - b)).flatten().tolist(), [0] * (batch * columns * 2), 1e-8)
        if rows == columns:
            positive = a @ a.mH + th.eye(rows, dtype=th.complex128)
            for upper in (False, True):
                factor = th.linalg.cholesky(positive, upper=upper)
                _near((positive @ th.cholesky_solve(b, factor, upper=upper)).flatten().tolist(), b.flatten().tolist(), 1e-8)
                eye = th.eye(rows, dtype=th.complex128).expand(batch, -1, -1)
                _near((positive @ th.cholesky_inverse(factor, upper=upper)).flatten().tolist(), eye.flatten().tolist(), 1e-8)
                for transpose in (False, True):
                    x, _ = th.triangular_solve(b, a, upper=upper, transpose=transpose)
                    whole = a.triu() if upper else a.tril()
                    _near(((whole.mT if transpose else whole) @ x).flatten().tolist(), b.flatten().tolist(), 1e-7)
    x = th.complex(_drawn(draw, 2, 2), _drawn(draw, 2, 2)).requires_grad_()
    assert th.autograd.gradcheck(lambda x: th.linalg.lu_factor(x)[0], x)
    assert th.autograd.gradcheck(lambda x: th.linalg.pinv(x), x)
    assert th.autograd.gradcheck(lambda x: th.linalg.svdvals(x), x)
