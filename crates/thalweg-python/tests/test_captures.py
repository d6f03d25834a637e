"""Captures in the forms that programs use: the captured stream, abandoned captures, pools that graphs share, steps with changing
rates, and graphed modules."""

import gc
import threading

import thalweg as th
from thalweg import testing

from support import close, raises


def ready(x):
    """Loads the kernels of `(x + 1) * 2`, which cannot be loaded during a capture."""
    ((x + 1) * 2).tolist()


def test_the_current_stream_is_captured():
    for fork in ("side", "named", "event"):
        x = th.zeros(4)
        ready(x)
        own, side, graph = th.cuda.Stream(), th.cuda.Stream(), th.cuda.CUDAGraph()
        own.wait_stream(th.cuda.current_stream())
        with th.cuda.stream(own):
            graph.capture_begin()
            assert own.is_capturing() and th.cuda.current_stream() == own
            if fork == "event":
                side.wait_event(own.record_event())
            else:
                side.wait_stream(own)
            with th.cuda.stream(own if fork == "named" else side):
                y = x + 1
            own.wait_stream(side)
            z = y * 2
            graph.capture_end()
        th.cuda.current_stream().wait_stream(own)
        x.fill_(5.0)
        graph.replay()
        assert z.tolist() == [12.0] * 4, fork
    with th.cuda.stream(own), th.cuda.graph(graph):
        assert th.cuda.current_stream() != own


def works_again(x):
    """Captures and replays, and checks that no earlier capture is left."""
    default = th.cuda.default_stream()
    assert th.cuda.current_stream() == default and not th.cuda.is_current_stream_capturing()
    th.cuda.synchronize()
    graph = th.cuda.CUDAGraph()
    with th.cuda.graph(graph):
        y = x + 1
    graph.replay()
    assert y.tolist() == [1.0] * 4


def test_a_capture_ends_with_its_graph():
    x = th.zeros(4)
    ready(x)

    def failing():
        graph = th.cuda.CUDAGraph()
        with th.cuda.stream(th.cuda.Stream()):
            graph.capture_begin()
            x + 1
            raise KeyError("mine")

    with raises(KeyError):
        failing()
    gc.collect()
    works_again(x)
    graph = th.cuda.CUDAGraph()
    graph.capture_begin()
    x + 1
    graph.reset()
    works_again(x)
    graph.capture_begin()
    del graph
    for _ in range(20):
        with raises(RuntimeError, "captures nothing"):
            th.cuda.CUDAGraph().capture_end()
    works_again(x)
    graphs = [th.cuda.CUDAGraph()]
    graphs[0].capture_begin(capture_error_mode="relaxed")
    thread = threading.Thread(target=graphs.clear)
    thread.start()
    thread.join()
    x.is_cuda or th.zeros(1)  # this thread's next call ends the capture
    works_again(x)


def test_graphs_of_one_pool_are_replayed_in_a_loop():
    for made in (lambda: None, th.cuda.graph_pool_handle, th.cuda.MemPool, lambda: keep.id):
        keep = th.cuda.MemPool()
        x, pool, graphs, results = th.zeros(1 << 12), made(), [], []
        ready(x), (x + 1).sum()
        for part in (lambda: (x + 1).sum(), lambda: x * 3, lambda: (x + 1) * 2):
            graphs.append(th.cuda.CUDAGraph())
            with th.cuda.graph(graphs[-1], pool=pool):
                results.append(part())
            pool = graphs[-1].pool() if pool is None else pool
        for value in range(3):
            x.fill_(float(value))
            found = []
            for graph, result in zip(graphs, results):
                graph.replay()
                found.append(result.flatten()[0].item())
            assert found == [(value + 1.0) * (1 << 12), value * 3.0, (value + 1.0) * 2], (made, found)
    with raises(ValueError, "graph_pool_handle"):
        th.cuda.CUDAGraph().capture_begin(pool=(0, 12345678))


def test_what_is_refused_says_so_in_words_of_python():
    x = th.ones(100)
    ready(x)
    graph = th.cuda.CUDAGraph()
    with th.cuda.graph(graph, check_input_liveness=True):
        y = x + 1  # the line
    line = test_what_is_refused_says_so_in_words_of_python.__code__.co_firstlineno + 5
    del x
    try:
        graph.replay()
    except RuntimeError as error:
        text = str(error)
    assert f"add at {__file__}:{line}" in text and ".rs" not in text and "::" not in text, text
    generator = th.Generator()
    for call in (generator.clone_state, generator.get_offset, th.get_rng_state, lambda: th.manual_seed(1)):
        with raises(RuntimeError, "is not possible while the current stream is captured"), th.cuda.graph(th.cuda.CUDAGraph()):
            call()
    for name in ("raw_cuda_graph", "raw_cuda_graph_exec"):
        with raises(NotImplementedError, "left out"):
            getattr(graph, name)()
    assert len(graph.pools()) == 1 and y.numel() == 100


def test_generators_in_graphs():
    generator, other = th.Generator().manual_seed(3), th.Generator().manual_seed(4)
    th.rand(4, generator=generator)
    graph = th.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with th.cuda.graph(graph):
        y = th.rand(4, generator=generator)
    generator.manual_seed(5)
    eager = [th.rand(4, generator=generator).tolist() for _ in range(2)]
    generator.manual_seed(5)
    for expected in eager:
        graph.replay()
        assert y.tolist() == expected
    assert generator.get_offset() == 8
    generator.set_offset(4)
    assert th.rand(4, generator=generator).tolist() == eager[1]
    other.graphsafe_set_state(generator.graphsafe_get_state())
    generator.set_offset(0)
    assert th.rand(4, generator=other).tolist() == eager[0] and generator.get_offset() == 4


def trained(captured, make, rate):
    """Returns a weight after four steps, with the schedule advancing between them."""
    th.manual_seed(0)
    weight, x = th.nn.Parameter(th.ones(2, 2)), th.tensor([[2.0, 1.0], [0.5, 3.0]])
    optimizer = make([weight], lr=rate())
    schedule = th.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.1)

    def step():
        optimizer.zero_grad(set_to_none=True)
        (weight * x).square().sum().backward()
        optimizer.step()

    step(), step()
    if captured:
        graph = th.cuda.CUDAGraph()
        with th.cuda.graph(graph):
            step()
    for _ in range(2):
        graph.replay() if captured else step()
        schedule.step()
    return weight.flatten().tolist()


def test_replays_of_a_captured_step_follow_the_learning_rate():
    for make in (th.optim.SGD, th.optim.AdamW, th.optim.Muon):
        for rate in (lambda: 0.1, lambda: th.tensor(0.1)):
            if make is th.optim.Muon and not isinstance(rate(), th.Tensor):
                continue
            close(trained(True, make, rate), trained(False, make, rate))


def test_graphed_modules_run_as_they_are_in_the_other_mode():
    class Scaled(th.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = th.nn.Linear(4, 4)

        def forward(self, x, y=None, scale=1.0):
            return self.inner(x) * scale if y is None else self.inner(x) + y

    x = th.ones(2, 4)
    net = th.cuda.make_graphed_callables(Scaled(), (x, x))
    with raises(TypeError, "by their places"):
        net(x, scale=2.0)
    net.eval()
    plain = net.inner(x)
    close(net(x, scale=3.0), (plain * 3).tolist())
    close(net(x), plain.tolist())
    close(net(x, x), (plain + x).tolist())
    with th.autocast("cuda", dtype=th.float16), raises(RuntimeError, "cache_enabled=False"):
        th.cuda.make_graphed_callables(th.nn.Linear(4, 4), (x,))


def test_samples_of_graphed_callables_have_any_dense_layout():
    for sample in (th.randn(4, 3).t(), th.randn(2, 3, 4, 4).to(memory_format=th.channels_last)):
        graphed = th.cuda.make_graphed_callables(lambda x: x * 2 + 1, (sample,))
        x = th.randn(*sample.shape)
        close(graphed(x), (x * 2 + 1).tolist())
    for sample in (th.randn(3, 1).expand(3, 4), th.randn(4, 4)[:, ::2]):
        with raises(RuntimeError, "a place of its own for each element"):
            th.cuda.make_graphed_callables(lambda x: x * 2, (sample,))


def test_a_backward_pass_is_captured_behind_one_on_another_stream():
    net, x = th.nn.Linear(8, 8), th.ones(4, 8)
    kept = net(x).square().mean()
    kept.backward()
    expected = net.weight.grad.tolist()
    net.weight.grad = net.bias.grad = None
    graph, side = th.cuda.CUDAGraph(), th.cuda.Stream()
    side.wait_stream(th.cuda.current_stream())
    with th.cuda.graph(graph, stream=side):
        net(x).square().mean().backward()
    graph.replay()
    close(net.weight.grad, expected)


def test_graphed_callables_on_several_streams_raise_no_alarm():
    def program(is_ordered):
        net = th.cuda.make_graphed_callables(th.nn.Linear(4, 4), (th.ones(2, 4, requires_grad=True),))
        current, sides = th.cuda.current_stream(), [th.cuda.Stream(), th.cuda.Stream()]
        for number in range(3):
            side, x = sides[number % 2], th.full((2, 4), number + 1.0, requires_grad=True)
            if is_ordered:
                side.wait_stream(current)
            with th.cuda.stream(side):
                loss = net(x).square().sum()
            x.record_stream(side)
            current.wait_stream(side)
            loss.record_stream(current)
            (loss * 1).backward()
        for side in sides:
            current.wait_stream(side)
            for parameter in net.parameters():
                parameter.record_stream(side)

    testing.check(lambda: program(True), seeds=3)
    with raises(testing.CheckFailed):
        testing.check(lambda: program(False), seeds=3)


def test_graphed_callables_take_floats_of_other_dtypes():
    sample = th.zeros(4, requires_grad=True)
    double = th.cuda.make_graphed_callables(lambda x: x * 2, (sample,))
    x = th.ones(4, dtype=th.float16, requires_grad=True)
    y = double(x)
    assert y.dtype is th.float32 and y.tolist() == [2.0] * 4
    y.sum().backward()
    assert x.grad.dtype is th.float16 and x.grad.tolist() == [2.0] * 4


def successive_graphs(pool_of):
    """Captures graphs, each of which reads memory of the one before it that nothing holds any more."""
    x, current, side = th.ones(100), th.cuda.current_stream(), th.cuda.Stream()
    graphs = [th.cuda.CUDAGraph() for _ in range(3)]
    side.wait_stream(current)
    with th.cuda.stream(side):
        y = x
        for graph in graphs:
            graph.capture_begin(*pool_of(graphs[0]))
            y = (y + 1) * 2
            graph.capture_end()
    current.wait_stream(side)
    for value in (1.0, 2.0):
        x.fill_(value)
        for graph in graphs:
            graph.replay()
            (x + 1).mul_(3)
        assert y.tolist() == [8 * value + 14] * 100
    return graphs, x, y


def test_graphs_read_what_earlier_ones_left():
    handle = th.cuda.graph_pool_handle()
    for pool_of in (lambda first: (), lambda first: (handle,)):
        successive_graphs(pool_of)
    testing.check(lambda: successive_graphs(lambda first: ()) and None, seeds=4)
    # The pool of a graph that is gone stays for those that read it.
    graphs, x, y = successive_graphs(lambda first: ())
    graphs.pop(0).reset()
    th.cuda.empty_cache()
    other = th.cuda.CUDAGraph()
    with th.cuda.graph(other):
        z = x * 0
    other.replay()
    for graph in graphs:
        graph.replay()
    assert y.tolist() == [30.0] * 100 and z.tolist() == [0.0] * 100
