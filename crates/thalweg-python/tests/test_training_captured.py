"""`torch.compile(mode="reduce-overhead")` of functions that record gradients: forward and backward passes as graphs."""

import copy
import gc
import threading

import thalweg as torch
from support import raises
from thalweg import nn
from thalweg.nn import functional as F


def captured(function, **options):
    return torch.compile(function, mode="reduce-overhead", **options)


def counters():
    return torch._core._capture_counters()


def same(one, other):
    assert one.shape == other.shape and one.dtype == other.dtype
    assert torch.equal(one.detach(), other.detach()), (one - other).abs().max()


def close(one, other):
    assert (one is None) == (other is None)
    assert one is None or torch.allclose(one, other, rtol=1e-5, atol=1e-6), (one - other).abs().max()


def same_gradients(one, other):
    for (name, left), right in zip(one.named_parameters(), other.parameters()):
        close(left.grad, right.grad)


class Net(nn.Module):
    """Saved inputs, results and statistics, dropout, and a parameter that nothing reads."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.unused, self.dropout = nn.Linear(2, 2), dropout

    def forward(self, x):
        h = F.dropout(F.gelu(self.norm(self.first(x))), self.dropout, self.training)
        return self.last(h.sigmoid() * h)


def pair(*args):
    torch.manual_seed(1)
    plain = Net(*args)
    return plain, copy.deepcopy(plain)


def refusal(function):
    calls = getattr(function, "forward", function)._captured
    return next((kind.refusal for kind in calls._threads.kinds.values() if kind.refusal), None)


def test_steps_are_replayed():
    plain, other = pair()
    fast, before = captured(other), counters()
    optimizers = [torch.optim.AdamW(one.parameters(), lr=0.01) for one in (plain, other)]
    for step in range(9):
        x, target = torch.randn(6, 8), torch.randint(0, 4, (6,))
        losses = []
        for model, optimizer in zip((plain, fast), optimizers):
            loss = F.cross_entropy(model(x), target)
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss.backward()
            optimizer.step()
            losses.append(loss)
        close(*losses)
    for one, two in zip(plain.state_dict().values(), other.state_dict().values()):
        close(one.float(), two.float())
    after = counters()
    assert other.unused.weight.grad is None
    assert after["replays"] - before["replays"] >= 11 and after["eager"] == before["eager"], (before, after)
    assert after["recordings"] - before["recordings"] <= 6, after


def test_gradients_accumulate_and_inputs_have_them():
    plain, other = pair()
    fast, before = captured(other), counters()
    for step in range(6):
        for part in range(3):
            one = torch.randn(5, 8, requires_grad=True)
            two = one.detach().clone().requires_grad_()
            (plain(one).square().sum() / 3).backward()
            (fast(two).square().sum() / 3).backward()
            close(one.grad, two.grad)
        same_gradients(plain, other)
        if step % 2:
            plain.zero_grad()
            other.zero_grad()
    after = counters()
    assert after["replays"] - before["replays"] >= 20 and after["eager"] == before["eager"], after


def test_several_calls_before_one_backward_pass():
    plain, other = pair()
    fast = captured(other)
    for count in (1, 2, 2, 3, 3, 12, 12, 1, 2):
        inputs = [torch.randn(4, 8) for _ in range(count)]
        sum(plain(x).square().sum() for x in inputs).backward()
        sum(fast(x).square().sum() for x in inputs).backward()
        same_gradients(plain, other)
        plain.zero_grad()
        other.zero_grad()
    assert refusal(fast) is None


def test_graphs_are_retained_and_freed():
    plain, other = pair()
    fast = captured(other)
    for _ in range(5):
        x = torch.randn(4, 8)
        for model in (plain, fast):
            loss = model(x).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
            with raises(RuntimeError, "backward through the graph a second time"):
                loss.backward()
        same_gradients(plain, other)


def test_calls_whose_backward_pass_never_runs():
    plain, other = pair()
    fast, kept = captured(other), []
    for step in range(30):
        x = torch.randn(4, 8)
        y, expected = fast(x), plain(x)
        close(y, expected)
        if step % 5 == 0:
            kept.append((y, expected, x))
    for y, expected, x in kept:
        close(y, expected)
        y.sum().backward()
        expected.sum().backward()
    same_gradients(plain, other)
    largest = counters()["pool_bytes"]
    for step in range(20):
        fast(torch.randn(4, 8))
    assert counters()["pool_bytes"] <= largest + (4 << 20)


def test_results_that_are_held_and_gradients_that_are_held():
    plain, other = pair()
    fast, held, gradients = captured(other), [], []
    for step in range(7):
        x = torch.randn(4, 8)
        other.zero_grad()
        plain.zero_grad()
        y, expected = fast(x), plain(x)
        y.square().sum().backward()
        expected.square().sum().backward()
        held.append((y, expected))
        gradients.append((other.first.weight.grad, plain.first.weight.grad))
    for one, two in (*held, *gradients):
        close(one, two)


def test_sizes_and_a_cache_that_grows():
    plain, other = pair()
    plain.eval(), other.eval()
    fast = captured(other)
    for size in [3, 5, 9] * 4:
        x = torch.randn(size, 8)
        plain(x).sum().backward()
        fast(x).sum().backward()
        same_gradients(plain, other)
    weight = torch.ones(4, requires_grad=True)
    grow = captured(lambda cache, x: torch.cat([cache, x * weight]))
    cache, total = torch.zeros(1, 4), 0
    for step in range(40):
        cache = grow(cache, torch.full((1, 4), float(step)))
        total += step
    cache.sum().backward()
    same(weight.grad, torch.full((4,), float(total)))


def test_written_inputs_and_saved_tensors_that_are_written():
    weight = torch.full((3,), 2.0, requires_grad=True)

    def function(total, x):
        total.add_(x)
        return (total * weight).exp()
    fast, total, expected = captured(function), torch.zeros(3), torch.zeros(3)
    for step in range(6):
        x = torch.randn(3) * 0.1
        y, z = fast(total, x), function(expected, x)
        same(y, z)
        same(total, expected)
        (one,), (two,) = torch.autograd.grad(y.sum(), weight), torch.autograd.grad(z.sum(), weight)
        same(one, two)
        for is_result in (False, True):
            z = fast(total, x)
            (z.detach() if is_result else total).add_(0)
            with raises(RuntimeError, "modified by an inplace operation"):
                z.sum().backward()
        expected.copy_(total)


def test_some_results_have_gradients():
    plain, other = pair()

    def function(model, x):
        y = model(x)
        return y, y.argmax(1), y.detach() * 2, model.last.weight.sum()
    fast = captured(function)
    for use in ((0,), (3,), (0, 3), (0,), (3,), (0, 3), (0, 3)):
        x = torch.randn(4, 8)
        one, two = function(plain, x), fast(other, x)
        assert [y.requires_grad for y in one] == [y.requires_grad for y in two]
        for left, right in zip(one, two):
            close(left.float(), right.float())
        sum(one[place].sum() for place in use).backward()
        sum(two[place].sum() for place in use).backward()
        same_gradients(plain, other)
        plain.zero_grad()
        other.zero_grad()
    assert refusal(fast) is None


def test_random_numbers_and_autocast():
    plain, other = pair(0.3)
    fast, before = captured(other), counters()
    for step in range(6):
        x = torch.randn(16, 8)
        for model in (plain, fast):
            torch.manual_seed(step)
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=step % 3 == 2):
                loss = model(x).float().square().sum()
            loss.backward()
        for one, two in zip(plain.parameters(), other.parameters()):
            assert one.grad is None and two.grad is None or torch.allclose(one.grad, two.grad, rtol=1e-2, atol=1e-2)
        plain.zero_grad()
        other.zero_grad()
    assert counters()["eager"] == before["eager"]


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_what_a_replay_would_not_repeat_is_refused_by_name():
    weight = torch.ones(3, requires_grad=True)
    product, seen = weight * 2, []
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def whole_step(x):
        loss = (x * weight).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def accumulates(x):
        (x * weight).sum().backward()
        return x + 1

    def hooks(x):
        y = x * weight
        y.register_hook(lambda gradient: gradient * 3)
        return y * 1

    def checkpoints(x):
        return torch.utils.checkpoint.checkpoint(lambda x: (x * weight).exp(), x, use_reentrant=False)
    cases = [(whole_step, "requires a gradient"), (accumulates, "backward pass"), (hooks, "hooks"), (checkpoints, ""),
             (lambda x: Double.apply(x * weight), "own gradient"), (lambda x: x * product, "recorded operators")]
    for function, reason in cases:
        fast, start = captured(function), weight.detach().clone()
        for call in range(6):
            x, outcomes = torch.randn(3), []
            before = weight.detach().clone()
            for run in (function, fast):
                weight.grad = None
                with torch.no_grad():
                    weight.copy_(before)
                y = run(x)
                if y.requires_grad:
                    y.sum().backward(retain_graph=True)
                outcomes.append((y.detach().clone(), weight.detach().clone(), None if weight.grad is None else weight.grad.clone()))
            for one, two in zip(*outcomes):
                close(one, two)
        assert reason in (refusal(fast) or ""), (reason, refusal(fast))
        with torch.no_grad():
            weight.copy_(start)


def test_gradients_of_gradients_are_an_error_and_threads_may_run_backward():
    weight = torch.full((3,), 2.0, requires_grad=True)
    fast = captured(lambda x: (x * weight).pow(3).sum())
    for _ in range(5):
        x = torch.ones(3)
        (first,) = torch.autograd.grad(fast(x), weight, create_graph=True)
        same(first, torch.full((3,), 12.0))
        weight.grad, y = None, fast(x)
        thread = threading.Thread(target=y.backward)
        thread.start()
        thread.join()
        same(weight.grad, torch.full((3,), 12.0))
    with raises(RuntimeError, "differentiated again"):
        first.sum().backward()


def test_resets_and_frozen_parameters():
    plain, other = pair()
    fast = captured(other)
    for step in range(8):
        x = torch.randn(4, 8)
        if step == 4:
            plain.first.weight.requires_grad_(False), other.first.weight.requires_grad_(False)
        y, expected = fast(x), plain(x)
        if step == 6:
            torch.compiler.reset()
            gc.collect()
        y.sum().backward()
        expected.sum().backward()
        same_gradients(plain, other)
        plain.zero_grad()
        other.zero_grad()


def test_views_of_arguments_are_inside_or_outside_of_the_graph_as_they_were_made():
    def function(x, y):
        with torch.no_grad():
            hidden = y[:1]
        return x * y, y.detach(), hidden, y.view(1, 2), y.detach().requires_grad_(), y, y[:1].detach().exp()

    fast, before = captured(function), counters()["replays"]
    for call in range(5):
        found = []
        for run in (function, fast):
            x, y = (torch.full((2,), call + start, requires_grad=True) for start in (1.0, 2.0))
            results = run(x, y)
            sum(place * one.sum() for place, one in enumerate(results, 1)).backward()
            states = [(one.requires_grad, one.is_leaf, one is y, one.tolist()) for one in results]
            found.append((states, [one.grad.tolist() for one in (x, y, results[4])]))
        assert found[0] == found[1], call
    assert counters()["replays"] > before


def test_a_function_may_compute_gradients_of_its_own():
    weight = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))

    def penalty(x):
        return torch.autograd.grad((x * x * weight).sum(), x, create_graph=True)[0] * 2 + x

    def of_a_copy(x):
        own = x.detach().requires_grad_()
        return torch.autograd.grad((own ** 3).sum(), own)[0] * x * weight

    def of_a_weight(x):
        hidden = (x * weight).sin()
        return hidden * torch.autograd.grad((hidden * hidden).exp().sum(), weight, create_graph=True)[0]

    def transformed(x):
        return torch.func.grad(lambda y: (y ** 3 * weight).sum())(x) * x + torch.func.jvp(torch.sin, (x,), (x,))[1]

    for function in (penalty, of_a_copy, of_a_weight, transformed):
        for is_leaf in (True, False):
            fast = captured(function)
            for call in range(4):
                found = []
                for run in (function, fast):
                    x, weight.grad = torch.tensor([1.0, 2.0, 3.0 + call], requires_grad=True), None
                    result = run(x if is_leaf else x * 1)
                    result.sum().backward()
                    found.append((result.tolist(), x.grad.tolist(), weight.grad.tolist()))
                assert found[0] == found[1], (function.__name__, is_leaf, call)
