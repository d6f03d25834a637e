"""Faults that users of compilers met, each as a test. docs/compile.md lists them by number, with those that are tested elsewhere."""

import copy
import threading

import thalweg as torch
from support import raises
from thalweg import nn
from thalweg.nn import functional as F


def counted(function):
    """Returns the result of a call, and the counters that it increased: loops, segments, kernels, programs, and loops
    that waited while other commands were queued."""
    before = torch._core._compile_counters()
    result = function()
    return result, [after - former for after, former in zip(torch._core._compile_counters(), before)]


def same(one, other):
    assert one.shape == other.shape and one.dtype == other.dtype and one.stride() == other.stride()
    assert torch.equal(one.nan_to_num(), other.nan_to_num()), (one, other)


def block(x):
    return F.softmax((x * 2 + 1).tanh(), -1) * x


def test_t1_t2_a_new_size_is_planned_and_nothing_is_traced():
    runs = []

    @torch.compile
    def function(x):
        runs.append(x.shape)
        return block(x)
    sizes = [(1, length) for length in range(1, 101)] + [(batch, 7) for batch in range(1, 65)]
    for size in sizes:
        x = torch.randn(*size)
        _, (loops, segments, kernels, programs, _) = counted(lambda: function(x))
        assert segments == 1 and programs <= 1 and kernels < loops
        same(function(x), block(x))
    assert len(runs) == 2 * len(sizes)
    # A size that was planned is found.
    _, (_, _, _, programs, _) = counted(lambda: [function(torch.randn(*size)) for size in sizes])
    assert programs == 0


def test_t3_t6_parameters_of_many_shapes_and_numbers_that_change():
    torch.manual_seed(0)
    shapes = [(1 + number % 20, 1 + number // 20) for number in range(200)]
    plain = [torch.randn(*shape) for shape in shapes]
    other = [one.clone() for one in plain]

    def update(parameters, rate, beta):
        for parameter in parameters:
            parameter.mul_(1 - rate * beta).add_(parameter.sign() * rate)
    compiled = torch.compile(update)
    for step in range(4):
        rate, beta = 0.1 / (step + 1), torch.tensor(0.9 ** step)
        update(plain, rate, beta)
        _, (loops, _, kernels, programs, _) = counted(lambda: compiled(other, rate, beta))
        assert kernels < loops and (step == 0 or programs == 0), (step, programs)
    for one, two in zip(plain, other):
        same(one, two)


def test_t3_t6_optimizers_with_rates_that_change():
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))]
    models.append(copy.deepcopy(models[0]))
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.8, 0.9)) for model in models]
    step = torch.compile(optimizers[1].step)
    for number in range(6):
        x = torch.randn(3, 6)
        for model in models:
            model.zero_grad()
            model(x).square().sum().backward()
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
        optimizers[0].step()
        _, (_, _, _, programs, _) = counted(step)
        assert number < 2 or programs == 0
        for one, two in zip(*[model.parameters() for model in models]):
            same(one, two)


def test_t4_two_handles_of_a_function_are_independent():
    function = torch.compile(block)
    other = torch.compile(block, mode="reduce-overhead")
    x = torch.randn(3, 4)
    for _ in range(3):
        with torch.no_grad():
            same(function(x), other(x))
    assert function._captured is None and other._captured is not None and function._torchdynamo_orig_callable is block


def test_t5_t9_identical_layers_are_planned_once():
    layers = [(torch.randn(8), torch.randn(8)) for _ in range(32)]

    @torch.compile
    def stack(x, layers):
        for scale, shift in layers:
            x = F.layer_norm(x, [8], scale, shift).relu() @ torch.eye(8)
        return x
    x = torch.randn(4, 8)
    _, (_, segments, _, programs, _) = counted(lambda: stack(x, layers))
    assert segments >= 32 and programs <= 4, (segments, programs)
    # Shards of eight sizes.
    _, (_, _, _, programs, _) = counted(lambda: [stack(torch.randn(rows, 8), layers) for rows in range(5, 13)])
    assert programs <= 8 * 4


@torch.no_grad()
def test_t7_t8_decoding_with_strides_and_masks_that_grow():
    cache = torch.zeros(2, 40, 4)

    def step(cache, query, length):
        keys, mask = cache[:, :length], torch.arange(length) <= length - 1
        scores = (keys * query[:, None]).sum(-1)
        return scores.masked_fill(~mask, float("-inf")).softmax(-1)
    compiled = torch.compile(step)
    for length in range(1, 41):
        query = torch.randn(2, 4)
        cache[:, length - 1] = query
        (result, (loops, segments, kernels, programs, _)) = counted(lambda: compiled(cache, query, length))
        assert programs <= segments and kernels < loops
        same(result, step(cache, query, length))
        grown = cache.transpose(0, 1)[:length]
        same(torch.compile(block)(grown), block(grown))


def test_t10_the_work_of_a_long_chain_is_linear():
    def fibonacci(x, count):
        one, two = x, x + 1
        for _ in range(count):
            one, two = two, one + two
        return two
    compiled = torch.compile(fibonacci)
    x = torch.ones(5, dtype=torch.float64)
    for count in (1, 10, 100, 200):
        result, (loops, segments, kernels, programs, _) = counted(lambda: compiled(x, count))
        same(result, fibonacci(x, count))
        assert loops == count + 1 and kernels <= 2 + count // 8 and segments <= 1 + loops // 60, (count, kernels, segments)


def test_t12_kernels_are_found_wherever_the_folder_is():
    # No kernel is compiled for a simulated GPU; on a GPU there are some.
    saved = torch.compiler.save_cache_artifacts()
    if saved is not None:
        again = torch.compiler.save_cache_artifacts()
        assert again[0] == saved[0]
        assert torch.compiler.load_cache_artifacts(saved[0]).artifacts == saved[1].artifacts
    assert torch.compiler.load_cache_artifacts(b"nothing") is None


def test_t20_results_that_were_wrong_elsewhere():
    def repeated(x, y):
        y[x] += y[x]
        return y

    def sliced(x):
        y = torch.zeros(4, 4)
        y[1:3, 1:3] = x * 2
        y[:2] += y[2:]
        return (y * y).sum()

    def scanned(x):
        return torch.cumsum(x, 0), torch.cumsum(x > 0, 0)

    def signed(x, y):
        return torch.copysign(x, y), torch.copysign(torch.ones(3), y - y)

    def masked(x, w):
        scores = x @ w
        return torch.where(scores > scores.mean(), scores, scores.new_zeros(())).softmax(-1)

    def summed(x, w):
        return torch.einsum("bij,bkj->bik", x, w).tanh() + torch.einsum("bij->ji", x).sum()
    half = torch.bfloat16
    cases = [
        (repeated, lambda: (torch.tensor([0, 0, 1]), torch.arange(4.0))),
        (sliced, lambda: (torch.randn(2, 2, requires_grad=True),)),
        (scanned, lambda: (torch.randn(7).to(half),)),
        (scanned, lambda: (torch.arange(7, dtype=torch.int32),)),
        (signed, lambda: (torch.tensor([1.0, 2.0, 0.0]), torch.tensor([-0.0, 0.0, -1.0]))),
        (masked, lambda: (torch.randn(4, 8).to(half), torch.randn(8, 8).to(half))),
        (summed, lambda: (torch.randn(2, 3, 4), torch.randn(2, 5, 4))),
    ]
    for function, inputs in cases:
        outcomes = []
        for run in (function, torch.compile(function)):
            torch.manual_seed(1)
            given = inputs()
            results = run(*given)
            results = results if isinstance(results, tuple) else (results,)
            if results[0].requires_grad:
                results[0].sum().backward()
                results = (*results, given[0].grad)
            outcomes.append([*results, *given])
        for one, other in zip(*outcomes):
            same(one.detach(), other.detach())
            assert torch.equal(torch.signbit(one.detach()), torch.signbit(other.detach()))


def test_t24_streams():
    side, other = torch.cuda.Stream(), torch.cuda.Stream()

    @torch.compile
    def function(x, total):
        current = torch.cuda.current_stream()
        y = x * 2 + 1
        ready = torch.cuda.Event()
        ready.record()
        with torch.cuda.stream(side):
            side.wait_event(ready)
            total.add_(y).mul_(2)
            noise = torch.rand_like(y) * 0
            done = side.record_event()
        with torch.cuda.stream(other):
            other.wait_event(ready)
            z = y.exp() + 1
        current.wait_event(done)
        current.wait_stream(other)
        return y + z + noise, total * 1
    for size in (10, 1000):
        x, total = torch.randn(size), torch.zeros(size)
        result, copied = function(x, total)
        # The write of the other stream is complete for the caller.
        same(total, (x * 2 + 1) * 2)
        same(copied, total)
        same(result, (x * 2 + 1) + ((x * 2 + 1).exp() + 1))


def test_t27_random_numbers_are_those_of_eager_and_of_recomputed_parts():
    from thalweg.utils.checkpoint import checkpoint

    def function(x):
        return checkpoint(lambda x: F.dropout(x.tanh(), 0.5) * 2, x, use_reentrant=False).sum() + torch.randn(3).sum()
    outcomes = []
    for run in (function, torch.compile(function)):
        torch.manual_seed(2)
        x = torch.linspace(-1, 1, 50, requires_grad=True)
        loss = run(x)
        loss.backward()
        outcomes.append((loss.detach(), x.grad))
    for one, other in zip(*outcomes):
        same(one, other)


def test_t28_backward_twice_and_gradients_of_gradients():
    def function(x):
        return ((x * 2).tanh() * x).sum()
    for run in (function, torch.compile(function)):
        x = torch.linspace(-1, 1, 9, requires_grad=True)
        loss = run(x)
        loss.backward(retain_graph=True)
        once = x.grad.clone()
        loss.backward()
        same(x.grad, once * 2)
        gradient, = torch.autograd.grad(run(x), x, create_graph=True)
        second, = torch.autograd.grad(gradient.square().sum(), x)
        if run is function:
            expected = once, second
        same(once, expected[0])
        same(second, expected[1])
    loss = torch.compile(function)(x)
    loss.backward()
    with raises(RuntimeError, "second time"):
        loss.backward()


def test_t29_threads_compile_at_the_same_time():
    failures = []

    def work(number):
        try:
            for index in range(20):
                function = torch.compile(lambda x, index=index: (x * (index + 1)).exp().sum(0) + number)
                x = torch.full((3, 1 + index), 0.1)
                same(function(x), (x * (index + 1)).exp().sum(0) + number)
        except Exception as error:
            failures.append(error)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_t31_errors_name_the_operator_and_the_line():
    @torch.compile
    def function(x, y):
        return (x * 2).exp() + y
    with raises(RuntimeError, "must match the size"):
        function(torch.ones(3), torch.ones(4))
    same(function(torch.ones(3), torch.ones(3)), (torch.ones(3) * 2).exp() + 1)


@torch.no_grad()
def test_t32_t33_no_function_takes_more_kernels_than_it_has_loops():
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    expected = model(x)
    compiled = torch.compile(model)
    result, (loops, _, kernels, _, _) = counted(lambda: compiled(x))
    same(result, expected)
    assert kernels <= loops
    captured = torch.compile(model, mode="reduce-overhead")
    for _ in range(4):
        same(captured(x), expected)
