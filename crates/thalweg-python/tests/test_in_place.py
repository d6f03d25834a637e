"""In-place writes: versions, assigned numbers, memory, and random numbers in captures."""

import pickle

import thalweg as th
from support import close, raises


def test_data_has_a_version_of_its_own():
    weight = th.tensor([2.0, -3.0], requires_grad=True)
    loss = (weight * weight).sum()
    weight.data.clamp_(-1, 1)  # weight clipping of a WGAN, between forward and backward
    loss.backward()
    # The backward pass reads the current elements.
    assert weight.tolist() == [1, -1] and weight.grad.tolist() == [2, -2]

    x = th.ones(3, requires_grad=True)
    y = x * 2
    z = y * y
    detached = y.detach()
    detached.mul_(3)
    with raises(RuntimeError, "modified by an inplace operation"):
        z.sum().backward()
    assert y._version == detached._version == 1
    apart = y.data
    assert apart._version == 1
    apart.add_(1)
    apart[0].zero_()
    assert (y._version, apart._version) == (1, 3) and y.tolist() == [0, 7, 7]
    with raises(AttributeError):
        y._version = 0


def test_versions_count_writes():
    x = th.zeros(4)
    for count, write in enumerate((lambda: x.add_(1), lambda: x.fill_(2), lambda: x.normal_(), lambda: x.copy_(th.ones(4)),
                                   lambda: x[1:].mul_(2), lambda: th.add(x, 1, out=x), lambda: x.cumsum_(0), lambda: x.zero_(),
                                   lambda: x.masked_fill_(x == 0, 1), lambda: x.__setitem__(0, 5)), 1):
        write()
        assert x._version == count, (count, x._version)


def test_numbers_are_assigned_in_captures():
    def assign(x, mask, index):
        x[0] = 5.0
        x[1, 1:3] = True
        x[mask] = -1
        x[:, index] = 7
        x[2, mask[2]] = 0.5
    def operands():
        x = th.arange(12.0).reshape(3, 4)
        return x, x > 9, th.tensor([3, 0])
    expected, mask, index = operands()
    assign(expected, mask, index)
    assert expected.tolist() == [[7, 5, 5, 7], [7, 1, 1, 7], [7, 9, 0.5, 0.5]]
    x, mask, index = operands()
    graph = th.cuda.CUDAGraph()
    with th.cuda.graph(graph):
        x[0] = 5.0
        x[1, 1:3] = True
        x[mask] = -1
        x[:, index] = 7
    mask.logical_not_()
    graph.replay()
    assert x.tolist() == [[7, -1, -1, 7], [7, -1, -1, 7], [7, -1, 10, 7]]


def test_masked_assignment_is_a_fill():
    x = th.zeros(2, 3, dtype=th.int64)
    x[th.tensor([True, False])] = 4
    x[:, th.tensor([False, False, True])] = th.tensor([[9]])
    assert x.tolist() == [[4, 4, 9], [0, 0, 9]]
    value = th.tensor(2.0, requires_grad=True)
    y = th.zeros(4)
    y[th.tensor([True, False, True, True])] = value
    y.sum().backward()
    assert value.grad.item() == 3 and y.tolist() == [2, 0, 2, 2]
    with raises(IndexError, "mask"):
        x[th.tensor([True, False, True])] = 1
    for dtype, number in ((th.uint8, 300), (th.int8, -129), (th.int32, 2 ** 40), (th.float32, 1e300)):
        narrow = th.zeros(2, dtype=dtype)
        with raises(RuntimeError, "without overflow"):
            narrow[0] = number
        assert narrow.tolist() == [0, 0]
    whole = th.zeros(1, dtype=th.int64)
    whole[0] = 2.7
    assert whole.tolist() == [2]


def peak(run):
    run()
    th.cuda.synchronize()
    th.cuda.reset_peak_memory_stats()
    before = th.cuda.memory_allocated()
    run()
    th.cuda.synchronize()
    return th.cuda.max_memory_allocated() - before


def test_forms_in_place_take_no_memory():
    size = 1 << 16
    x, out = th.rand(size), th.empty(size)
    half, whole = th.rand(size).half(), th.zeros(size, dtype=th.int64)
    mask, index = x > 0.5, th.arange(0, size, 3)
    matrix = th.rand(256, 256)
    init = th.nn.init
    for run in (lambda: x.fill_(1), lambda: x.normal_(), lambda: x.uniform_(-1, 1), lambda: x.masked_fill_(mask, 2),
                lambda: x.cumsum_(0), lambda: th.add(x, 1, out=out), lambda: th.exp(x, out=out), lambda: x.bernoulli_(),
                lambda: x.bernoulli_(0.25), lambda: x.exponential_(), lambda: matrix.index_fill_(0, index[:8], 1), lambda: x.random_(),
                lambda: whole.random_(3, 9), lambda: half.exponential_(), lambda: half.cauchy_(), lambda: x.log_normal_(),
                lambda: whole.geometric_(0.5), lambda: th.mm(matrix, matrix, out=out.view(256, 256)),
                lambda: matrix.addmm_(matrix.new_zeros(256, 1), matrix.new_zeros(1, 256)), lambda: init.uniform_(matrix),
                lambda: init.xavier_normal_(matrix), lambda: init.kaiming_uniform_(matrix), lambda: init.trunc_normal_(matrix),
                lambda: init.eye_(matrix), lambda: init.constant_(matrix, 3), 
                lambda: x.copy_(half), lambda: x.square_(), lambda: x.divide_(2), lambda: x[:100].add_(x[100:200]), lambda: th.cumsum(x, 0, out=out)):
        assert peak(run) <= 8192, (run.__code__.co_names, peak(run))


def test_a_tensor_without_elements_takes_the_result():
    x = th.rand(1 << 16)
    assert peak(lambda: th.exp(x, out=th.empty(0))) <= x.nbytes + 8192
    out = th.empty(0)
    view = out.view(0)
    assert th.exp(x, out=out) is out and close(out, x.exp().tolist()) is None and view.shape == (0,)
    out.fill_(1)
    assert th.as_strided(view, (3,), (1,)).tolist() == [1, 1, 1], "views see the memory that has come"


def test_what_is_read_is_read_before_it_is_written():
    x = th.arange(6.0)
    th.add(x[:5], x[1:], out=x[:5].clone())
    x[1:].add_(x[:-1])
    assert x.tolist() == [0, 1, 3, 5, 7, 9]
    matrix = th.arange(9.0).reshape(3, 3)
    matrix.add_(matrix.t())
    assert matrix.tolist() == [[0, 4, 8], [4, 8, 12], [8, 12, 16]]
    product = th.arange(4.0).reshape(2, 2)
    th.mm(product, product, out=product)
    assert product.tolist() == [[2, 3], [6, 11]]
    x = th.arange(4.0)
    x.scatter_add_(0, th.tensor([0, 1]), x[2:])
    assert x.tolist() == [2, 4, 2, 3]


def test_bernoulli():
    th.manual_seed(3)
    x = th.full((4000,), 0.9)
    assert abs(x.clone().bernoulli_().mean().item() - 0.5) < 0.05
    assert abs(x.clone().bernoulli_(0.25).mean().item() - 0.25) < 0.05
    assert abs(x.clone().bernoulli_(p=th.tensor(0.75)).mean().item() - 0.75) < 0.05
    assert abs(th.bernoulli(x).mean().item() - 0.9) < 0.05
    assert abs(th.bernoulli(x, p=0.1).mean().item() - 0.1) < 0.05
    assert abs(th.bernoulli(x, 0.6).mean().item() - 0.6) < 0.05
    assert th.empty(50, dtype=th.int32).bernoulli_(1).sum().item() == 50
    with raises(RuntimeError, "expects p to be in"):
        x.bernoulli_(1.5)


def test_random_integers():
    for dtype, end in ((th.int8, 128), (th.uint8, 256), (th.bool, 2), (th.float16, 2049), (th.bfloat16, 257)):
        drawn = th.empty(5000, dtype=dtype).random_().double()
        assert 0 <= drawn.min().item() and end * 0.9 < drawn.max().item() + 1 <= end, dtype
    x = th.empty(1000).random_(-3, 4)
    assert sorted(set(x.tolist())) == [-3, -2, -1, 0, 1, 2, 3]
    assert th.empty(9).random_(1).tolist() == [0] * 9
    with raises(RuntimeError, "expects 'from' to be less than 'to'"):
        x.random_(4, 4)


def test_generators_are_pickled():
    generator = th.Generator().manual_seed(2 ** 63 + 5)
    th.rand(7, generator=generator)
    copy = pickle.loads(pickle.dumps(generator))
    assert copy.initial_seed() == generator.initial_seed() and copy.device == generator.device
    assert th.rand(5, generator=copy).tolist() == th.rand(5, generator=generator).tolist()


def test_the_first_draw_may_be_captured():
    def program():
        # A check has its own devices, on which nothing has been drawn yet.
        x, graph = th.empty(64), th.cuda.CUDAGraph()
        with th.cuda.graph(graph):
            x.uniform_()
            generator = th.Generator()
            y = th.rand(8, generator=generator)
        rounds = []
        for _ in range(3):
            graph.replay()
            rounds.append(x.tolist() + y.tolist())
        assert rounds[0] != rounds[1] != rounds[2]
    th.testing.check(program, seeds=2)


def test_draws_of_graphs_and_streams_are_ordered():
    def program():
        graphs, results = [], []
        for _ in range(2):
            graph = th.cuda.CUDAGraph()
            with th.cuda.graph(graph):
                results.append(th.rand(16))
            graphs.append(graph)
        streams = [th.cuda.Stream(), th.cuda.Stream()]
        for stream, graph in zip(streams, graphs):
            with th.cuda.stream(stream):
                graph.replay()
        with th.cuda.stream(streams[0]):
            eager = th.rand(16)
        th.cuda.synchronize()
        drawn = [result.tolist() for result in results] + [eager.tolist()]
        assert len({number for numbers in drawn for number in numbers}) > 40, "no number is drawn twice"
        th.manual_seed(4)
        expected = th.rand(16).tolist()
        th.manual_seed(4)
        graphs[1].replay()
        assert results[1].tolist() == expected
    th.testing.check(program, seeds=4)


def saved_by(program):
    """Returns the addresses of the tensors that a program saves for its backward pass, and its result."""
    saved = []

    def pack(tensor):
        saved.append(tensor.data_ptr())
        return tensor
    with th.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        return saved, program()


def test_a_recorded_loop_in_place_needs_no_copy():
    for name in ("relu_", "sigmoid_", "tanh_", "exp_"):
        x = th.randn(3, 5, requires_grad=True)
        saved, y = saved_by(lambda: getattr(x * 1.0, name)())
        assert saved[-1:] == [y.data_ptr()], f"{name} saves its result, which is the tensor itself"
        expected = getattr(th, name[:-1])(x)
        weights = th.randn(3, 5)
        (found,) = th.autograd.grad((y * weights).sum(), x)
        (wanted,) = th.autograd.grad((expected * weights).sum(), x)
        close(y.tolist(), expected.tolist())
        close(found.tolist(), wanted.tolist())


def test_a_recorded_loop_in_place_keeps_the_rules_of_autograd():
    x = th.randn(4, requires_grad=True)
    y = x * 1.0
    y.sigmoid_()
    y.add_(1)
    with raises(RuntimeError, "modified by an inplace operation"):
        y.sum().backward()  # The gradient of the sigmoid reads its result.
    y = x * 1.0
    y.mul_(y.detach())
    with raises(RuntimeError, "modified by an inplace operation"):
        y.sum().backward()
    with raises(RuntimeError, "a leaf Variable that requires grad"):
        x.relu_()
    y = x * 2.0
    before = y._version
    with raises(RuntimeError, "doesn't match the broadcast shape"):
        y.add_(th.ones(3, 4))
    assert y._version == before
    y.retain_grad()
    y.relu_()
    y.sum().backward()
    assert y.grad.tolist() == [1.0] * 4 and "Relu" in str(y.grad_fn)
    base = x * 1.0
    base[:2].tanh_()
    base.sum().backward()
    # A mask or a factor of another dtype: the result is rounded as it is written, and the gradient has the factor's dtype.
    factor = th.ones(4, requires_grad=True)
    half = th.ones(4, dtype=th.float16)
    half.add_(factor)
    half.sum().backward()
    assert factor.grad.dtype == th.float32 and factor.grad.tolist() == [1.0] * 4


def test_casts_keep_the_order_of_dimensions():
    x = th.randn(2, 8, 4, 4).contiguous(memory_format=th.channels_last).requires_grad_()
    layer = th.nn.Conv2d(8, 8, 3, bias=False).to(memory_format=th.channels_last)
    saved = []

    def pack(tensor):
        saved.append(tensor.is_contiguous(memory_format=th.channels_last))
        return tensor
    with th.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), th.autocast("cuda", dtype=th.bfloat16):
        y = layer(x)
    assert len(saved) >= 2 and all(saved) and y.is_contiguous(memory_format=th.channels_last)
    y.float().sum().backward()
    assert layer.weight.grad.is_contiguous(memory_format=th.channels_last)


def test_memory_that_is_assigned_keeps_the_tensors_place_in_the_graph():
    seen = []
    x, w = th.tensor([1.0, 2.0]), th.tensor([3.0, 4.0])
    x.requires_grad_(), w.requires_grad_()
    w.register_hook(lambda gradient: seen.append(gradient.tolist()))
    w.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf is w))
    y = x * w
    w.data = th.tensor([5.0, 6.0])
    y.sum().backward()
    assert w.grad.tolist() == [1.0, 2.0] and seen == [[1.0, 2.0], True]
    (w * w).sum().backward()
    assert w.grad.tolist() == [11.0, 14.0]

    # The result of an operator keeps its history.
    x.grad = None
    y = x * 2
    y.retain_grad()
    y.data = th.tensor([7.0, 8.0])
    assert not y.is_leaf
    (y * y).sum().backward()
    assert x.grad.tolist() == [28.0, 32.0] and y.grad.tolist() == [14.0, 16.0]

    # Memory of another size between the passes: the gradient of the former one arrives.
    w.grad = None
    y = (w * 2).sum()
    w.data = th.zeros(3)
    y.backward()
    assert w.grad.tolist() == [2.0, 2.0] and w.tolist() == [0.0] * 3
    x.detach_()
    assert x.grad is not None and not x.requires_grad


def test_a_view_made_without_gradients_is_written_without_them():
    x = th.ones(4, requires_grad=True)
    with th.no_grad():
        view = x[:2]
        view.mul_(3)
    with raises(RuntimeError, "A view was created in no_grad mode and is being modified inplace with grad mode enabled"):
        view.mul_(2)
    with raises(RuntimeError, "A view was created in no_grad mode"):
        view[0] = 1
    assert x.tolist() == [3, 3, 1, 1]
    with th.no_grad():
        plain = th.ones(4)[:2]
    assert plain.mul_(2).tolist() == [2, 2]


def test_a_product_keeps_a_factor_only_for_the_gradient_of_the_other():
    def product(function, wanted):
        factors = [th.full((2, 2), 2.0, requires_grad=place == wanted) for place in (0, 1)]
        result = function(*factors)
        with th.no_grad():
            factors[wanted].zero_()
        result.sum().backward()
        return factors[wanted].grad.tolist()

    functions = [lambda a, b: a @ b, lambda a, b: th.addmm(a.detach(), a, b, alpha=0.5) * 2, lambda a, b: th.bmm(a[None], b[None]),
                 lambda a, b: th.nn.functional.linear(a, b)]
    for function in functions:
        assert [product(function, wanted) for wanted in (0, 1)] == [[[4.0, 4.0]] * 2] * 2
