"""`torch.compile(mode="reduce-overhead")`: calls as graphs, which are never stale. What is not captured is said by name."""

import gc
import random
import time

import thalweg as torch
from support import raises
from thalweg import nn


def captured(function, **options):
    return torch.compile(function, mode="reduce-overhead", **options)


def counters():
    return torch._core._capture_counters()


def same(one, other):
    assert one.shape == other.shape and one.dtype == other.dtype and one.stride() == other.stride()
    assert torch.equal(one.nan_to_num(), other.nan_to_num())


def refusal(function, *args, calls=6):
    """Calls a captured function, compares it with the plain one, and returns why it is not captured."""
    kinds = captured(function)
    for _ in range(calls):
        kinds(*args)
    state = kinds._captured._threads.kinds
    return next((kind.refusal for kind in state.values() if kind.refusal), None)


@torch.no_grad()
def test_calls_are_replayed_and_python_does_not_run():
    runs = []

    def function(x, y):
        return (x @ y).relu() * 2, x + 1
    fast, before = captured(function), counters()
    x, y = torch.randn(4, 8), torch.randn(8, 3)
    for call in range(6):
        x = torch.randn(4, 8)
        for one, other in zip(fast(x, y), function(x, y)):
            same(one, other)
    after = counters()
    assert after["recordings"] - before["recordings"] <= 2 and after["replays"] - before["replays"] >= 4, after
    assert after["eager"] == before["eager"] and not runs


@torch.no_grad()
def test_results_that_are_held_stay_as_they_are():
    # Also: f and g alternate, the one takes the other's results, and a function takes its own.
    f, g = captured(lambda x: x * 2 + 1), captured(lambda x: x.exp() - 1)
    x = torch.randn(5)
    for _ in range(4):
        y1, y2 = f(x), f(x + 1)
        same(y1, x * 2 + 1)
        same(y2, (x + 1) * 2 + 1)
        same(g(f(x)), (x * 2 + 1).exp() - 1)
        same(f(g(x)), (x.exp() - 1) * 2 + 1)
        z = x
        for _ in range(3):
            z = f(z)
        same(z, ((x * 2 + 1) * 2 + 1) * 2 + 1)
    kept = [f(x + number) for number in range(10)]
    for number, one in enumerate(kept):
        same(one, (x + number) * 2 + 1)


class Attention(nn.Module):
    """A cache that is written by index, keys that are turned in place, and statistics."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(16, 4))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x, place):
        key = self.norm(x)
        key[:, :2].mul_(0.5)
        self.cache.index_copy_(0, place, key)
        return self.cache @ x.t()


@torch.no_grad()
def test_written_inputs_caches_and_statistics_are_captured():
    torch.manual_seed(0)
    plain = Attention()
    other = Attention()
    other.load_state_dict(plain.state_dict())
    fast, before = captured(other), counters()
    total, others = torch.zeros(3), torch.zeros(3)
    add = captured(lambda total, x: total.add_(x).mul(2))
    for step in range(7):
        x, place = torch.randn(3, 4), torch.tensor([step, step + 1, step + 2])
        same(fast(x, place), plain(x, place))
        same(add(total, x[:, 0]), others.add_(x[:, 0]).mul(2))
        same(total, others)
    for one, two in zip(plain.buffers(), other.buffers()):
        same(one, two)
    after = counters()
    assert after["replays"] - before["replays"] >= 8 and after["eager"] == before["eager"], after


@torch.no_grad()
def test_a_cache_that_grows_takes_no_more_memory_than_it_has():
    grow = captured(lambda cache, x: torch.cat([cache, x]))
    cache = torch.zeros(1, 4)
    for step in range(200):
        cache = grow(cache, torch.full((1, 4), float(step)))
    assert cache.shape == (201, 4)
    assert torch.equal(cache[1:, 0], torch.arange(200.0))


@torch.no_grad()
def test_many_sizes_share_one_pool():
    torch.compiler.reset()
    gc.collect()

    def function(x):
        return x.softmax(-1).cumsum(0) @ x.t()
    fast = captured(function)
    sizes = list(range(1, 51)) * 3
    random.Random(3).shuffle(sizes)
    for size in sizes:
        x = torch.randn(size, 64)
        same(fast(x), function(x))
    all_sizes = counters()["pool_bytes"]
    torch.compiler.reset()
    gc.collect()
    largest = captured(function)
    for _ in range(4):
        largest(torch.randn(50, 64))
    assert all_sizes <= counters()["pool_bytes"] * 1.1 + (2 << 20), (all_sizes, counters())


class Config:
    scale = 2.0

    def __init__(self):
        self.shift, self.shared = 1.0, [1.0]


CONFIG, FACTOR = Config(), 3.0


def helper(x):
    return x * FACTOR + CONFIG.shift * Config.scale + CONFIG.shared[0]


@torch.no_grad()
def test_what_is_read_is_watched():
    global FACTOR
    x, model, switch = torch.randn(3), nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).eval(), {"negative": False}

    def function(x):
        y = model(helper(x))
        return -y if switch["negative"] else y
    fast, before = captured(function), counters()["replays"]

    def check():
        for _ in range(4):
            same(fast(x), function(x))
    check()
    FACTOR = 4.0
    check()
    CONFIG.shift = 2.0
    check()
    Config.scale = 3.0
    check()
    CONFIG.shared[0] = 5.0
    check()
    switch["negative"] = True
    check()
    model[0].weight.mul_(2)
    check()
    model[0].weight = nn.Parameter(torch.randn(3, 3))
    check()
    model[0].bias.data = torch.randn(3)
    check()
    model[0].load_state_dict({"weight": torch.randn(3, 3), "bias": torch.ones(3)})
    check()
    assert counters()["replays"] - before >= 9
    model[0].register_forward_hook(lambda module, args, output: output + 1)
    check()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        check()


@torch.no_grad()
def test_what_has_effects_is_refused_by_name():
    x, seen, log = torch.randn(3), [], {"calls": 0}
    numbers = iter(range(100))

    def appends(x):
        seen.append(1)
        return x + len(seen)

    def counts(x):
        log["calls"] += 1
        return x + log["calls"]

    def reads_a_clock(x):
        return x + time.time()

    def draws(x):
        return x + random.random()

    def prints(x):
        print("", end="")
        return x + 1

    def iterates(x):
        return x + next(numbers)

    def branches(x):
        return x + 1 if x.sum() > 0 else x - 1

    def keeps(x, state):
        state["x"], state["calls"][0] = x + 1, state["calls"][0] + 1
        return x * 2
    assert "argument" in refusal(keeps, x, {"x": None, "calls": [0]})
    fast, state = captured(keeps), {"x": x, "calls": [0]}
    for call in range(1, 6):
        fast(x + call, state)
        same(state["x"], x + call + 1)
        assert state["calls"] == [call]
    assert "seen" in refusal(appends, x)
    assert "calls" in refusal(counts, x)
    assert "time.time" in refusal(reads_a_clock, x) and "test_compile_captured.py" in refusal(reads_a_clock, x)
    assert "random" in refusal(draws, x)
    assert "print" in refusal(prints, x)
    assert "numbers, an iterator" in refusal(iterates, x)
    assert refusal(branches, x) is not None
    fast = captured(branches)
    for _ in range(3):
        same(fast(x), branches(x))
        same(fast(-x), branches(-x))


def test_a_function_that_must_be_one_graph_names_the_read():
    with torch.no_grad():
        x = torch.ones(3)

        @torch.compile(mode="reduce-overhead", fullgraph=True)
        def reads(x):
            y = x * 2
            return y + y.sum().item()
        with raises(RuntimeError, "test_compile_captured.py"):
            for _ in range(4):
                reads(x)
        whole = torch.compile(lambda x: x * 2, mode="reduce-overhead", fullgraph=True)
        for _ in range(4):
            same(whole(x), x * 2)
    # Gradients are recorded: it runs compiled, without a graph.
    w = torch.ones(3, requires_grad=True)
    for _ in range(3):
        whole(w).sum().backward()
    same(w.grad, torch.full((3,), 6.0))


@torch.no_grad()
def test_random_numbers_are_drawn_anew():
    def function(x):
        return nn.functional.dropout(x, 0.5) + torch.rand_like(x)
    x = torch.ones(50)
    torch.manual_seed(5)
    expected = [function(x) for _ in range(6)]
    torch.manual_seed(5)
    fast = captured(function)
    for one in expected:
        same(fast(x), one)


@torch.no_grad()
def test_streams_within_a_capture_are_joined():
    side = torch.cuda.Stream()

    def forks(x):
        current = torch.cuda.current_stream()
        y = x * 2
        side.wait_stream(current)
        with torch.cuda.stream(side):
            z = y.exp() + torch.rand_like(y) * 0
        current.wait_stream(side)
        return y + z
    fast = captured(forks)
    for _ in range(5):
        x = torch.randn(100)
        same(fast(x), x * 2 + (x * 2).exp())


@torch.no_grad()
def test_stances_and_options():
    fast = torch.compile(lambda x: x + 1, options={"triton.cudagraphs": True})
    x, before = torch.ones(2), counters()["replays"]
    for _ in range(5):
        same(fast(x), x + 1)
    assert counters()["replays"] > before
    with torch.compiler.set_stance("fail_on_recompile"):
        same(fast(x), x + 1)
        with raises(RuntimeError, "Detected recompile"):
            fast(torch.ones(3))
    with torch.compiler.set_stance("eager_on_recompile"):
        same(fast(torch.ones(3)), torch.full((3,), 2.0))
    with raises(RuntimeError, "invalid torch.compile stance"):
        torch.compiler.set_stance("fast")
    torch.compiler.cudagraph_mark_step_begin()
    with raises(RuntimeError, "options are a dictionary"):
        torch.compile(lambda x: x, options=3)


@torch.no_grad()
def test_results_are_views_of_what_they_would_be_views_of():
    model = nn.Linear(3, 3)

    def function(x):
        y = x[1:, ::2]
        return y, y.t(), x, model.weight, model.weight[0], y * 2
    fast = captured(function)
    for _ in range(6):
        x = torch.randn(3, 4)
        for one, other in zip(fast(x), function(x)):
            same(one, other)
        results = fast(x)
        assert results[2] is x and results[3] is model.weight
        results[0].zero_()
        assert x[1:, ::2].abs().sum() == 0


@torch.no_grad()
def test_arguments_of_all_kinds():
    def function(x, *, scale=1.0, extra=None, pair=(1, 2)):
        y = x * scale + pair[0]
        return {"y": y, "same": x, "rest": [y + 1, None, "text"], "twice": (y, y)} if extra is None else y + extra["bias"]
    fast, x = captured(function), torch.randn(4)
    for _ in range(5):
        x = torch.randn(4)
        result, expected = fast(x, scale=2.0), function(x, scale=2.0)
        same(result["y"], expected["y"])
        same(result["rest"][0], expected["rest"][0])
        assert result["same"] is x and result["rest"][1:] == [None, "text"] and result["twice"][0] is result["twice"][1]
        same(fast(x, extra={"bias": x}), function(x, extra={"bias": x}))
        same(fast(x, pair=(3, 4))["y"], x + 3)
        same(fast(x[::2])["y"], x[::2] + 1)
        turned = torch.randn(2, 3).t()
        same(fast(turned)["y"], function(turned)["y"])


@torch.no_grad()
def test_calls_in_turn_are_those_of_their_own_kinds():
    def function(x, y, scale=1, name="sum", *, shift=0):
        return x * scale + y + shift if name == "sum" else x * scale - y

    class Marked:
        pass
    fast, before = captured(function), counters()
    one, two, wide, double = torch.randn(3), torch.randn(3), torch.randn(6)[::2], torch.randn(3, dtype=torch.float64)
    calls = [((one, two), {}), ((one, one), {}), ((two, one, 2), {}), ((two, one, 2.0), {}), ((one, two, True), {}), ((wide, two), {}),
             ((double, two), {}), ((one, two, -0.0), {}), ((one, two, 0.0), {}), ((one, two), {"shift": 3}), ((one, two, 1, "difference"), {}),
             ((one, two, 1), {"name": "difference"}), ((one.reshape(3, 1), two), {})]
    for _ in range(6):
        for args, kwargs in calls:
            same(fast(*args, **kwargs), function(*args, **kwargs))
    marked = torch.randn(3)
    marked.mark = Marked()
    for _ in range(4):
        same(fast(marked, two), function(marked, two))
    for _ in range(4):
        same(fast(one, two), function(one, two))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            same(fast(one, two), function(one, two))
    assert counters()["replays"] - before["replays"] >= 4 * len(calls)


@torch.no_grad()
def test_a_function_that_is_dropped_takes_its_graphs_along():
    x = torch.randn(3)
    captured(lambda x: x + 5)(x)
    before = counters()["graphs"]
    for number in range(10):
        fast = captured(lambda x, number=number: x + number)
        for _ in range(4):
            same(fast(x), x + number)
    del fast
    gc.collect()
    last = captured(lambda x: x * 2)
    for _ in range(4):
        last(x)
    assert counters()["graphs"] <= before + 2, (before, counters())


def test_weights_that_are_trained_between_replays_are_read_anew():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).eval()
    fast, before = captured(model), counters()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for phase in range(4):
        for _ in range(4):
            x = torch.randn(4, 8)
            with torch.no_grad():
                same(fast(x), model(x))
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    same(fast(x), model(x))
        if phase % 2:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                model(torch.randn(4, 8)).float().square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.5)
    after = counters()
    assert after["replays"] - before["replays"] >= 20 and after["eager"] == before["eager"], after


@torch.no_grad()
def test_streams_captures_and_resets():
    fast = captured(lambda x: x.exp() + 1)
    side = torch.cuda.Stream()
    for call in range(8):
        x, current = torch.randn(5), torch.cuda.current_stream()
        if call % 2:
            side.wait_stream(current)
            with torch.cuda.stream(side):
                result = fast(x)
            current.wait_stream(side)
        else:
            result = fast(x)
        same(result, x.exp() + 1)
    graph, x = torch.cuda.CUDAGraph(), torch.ones(5)
    with torch.cuda.graph(graph):
        result = fast(x)
    x.fill_(3)
    graph.replay()
    same(result, x.exp() + 1)
    held = fast(x)
    torch.compiler.reset()
    fast(x + 1)
    same(held, x.exp() + 1)


@torch.no_grad()
def test_objects_numbers_and_failures():
    model = nn.Linear(8, 8)

    def function(model, x, number, mode):
        if x.shape[0] == 3:
            raise KeyError("three rows")
        return model(x) * number if mode == "product" else model(x) + number
    fast = captured(function)
    for _ in range(5):
        x = torch.randn(2, 8)
        for number, mode in ((1, "product"), (1.0, "product"), (True, "sum"), (2, "sum"), (float("nan"), "sum")):
            same(fast(model, x, number, mode), function(model, x, number, mode))
        with raises(KeyError, "three rows"):
            fast(model, torch.ones(3, 8), 1, "sum")
