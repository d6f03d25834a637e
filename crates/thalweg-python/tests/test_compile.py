"""`torch.compile`: the same bits by fewer kernels, and functions that run as they are written."""

import copy
import functools

import thalweg as torch
from support import raises
from thalweg import nn


def kernels(function, *args):
    """Returns the result of a call, and the numbers of loops and kernels that it took."""
    before = torch._core._compile_counters()
    result = function(*args)
    after = torch._core._compile_counters()
    return result, after[0] - before[0], after[2] - before[2]


def same(one, other):
    assert one.shape == other.shape and one.dtype == other.dtype and one.stride() == other.stride()
    assert torch.equal(one.nan_to_num(), other.nan_to_num())


def test_a_function_has_the_same_bits_by_fewer_kernels():
    def function(x, y):
        return ((x * 2 + y).tanh() * x).softmax(-1), x + y
    x, y = torch.randn(32, 64), torch.randn(64)
    compiled = torch.compile(function)
    for _ in range(2):
        results, loops, launched = kernels(compiled, x, y)
        for one, other in zip(results, function(x, y)):
            same(one, other)
        assert 0 < launched < loops, (loops, launched)
    assert compiled.__name__ == "function" and compiled._torchdynamo_orig_callable is function

    @torch.compile(fullgraph=True, dynamic=True, mode="max-autotune")
    def decorated(x):
        return x.exp() + 1
    same(decorated(x), x.exp() + 1)
    for rows in range(1, 6):
        same(decorated(x[:rows]), x[:rows].exp() + 1)


def test_python_runs_each_time():
    seen = []

    @torch.compile
    def function(x):
        seen.append(len(seen))
        y = x * len(seen)
        if y.sum() > 0:
            return y.exp()
        return y.neg()
    x = torch.ones(4)
    for _ in range(3):
        result = function(x)
        same(result, (x * len(seen)).exp())
        same(function(-x), x * len(seen))
    assert seen == list(range(6))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.linear, self.calls = nn.LayerNorm(width), nn.Linear(width, width), 0

    def forward(self, x):
        self.calls += 1
        return x + nn.functional.gelu(self.linear(self.norm(x * 0.5 + 1)))


def test_a_module_trains_with_the_same_bits():
    torch.manual_seed(0)
    plain = nn.Sequential(Block(16), Block(16))
    other = copy.deepcopy(plain)
    compiled = torch.compile(other)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.1) for model in (plain, other)]
    for step in range(3):
        x = torch.randn(8, 16)
        losses = []
        for model, optimizer in zip((plain, compiled), optimizers):
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        same(*losses)
    for one, two in zip(plain.parameters(), other.parameters()):
        same(one, two)
    assert other[0].calls == 3


def test_a_compiled_module_is_the_module_otherwise():
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.ReLU())
    compiled = torch.compile(model, mode="reduce-overhead")
    assert compiled._orig_mod is model and isinstance(compiled, nn.Module) and len(compiled) == 3
    assert type(compiled) is torch._dynamo.OptimizedModule
    assert list(compiled.state_dict()) == ["_orig_mod.0.weight", "_orig_mod.0.bias"]
    compiled.eval()
    assert not model.training and not model[1].training and not compiled.training
    compiled.extra = 5
    assert model.extra == 5 and compiled[0] is model[0]
    x = torch.randn(2, 4)
    same(compiled(x), model(x))
    twin = copy.deepcopy(compiled)
    assert twin._orig_mod is not model
    same(twin(x), model(x))
    calls = []
    model.register_forward_hook(lambda module, args, output: calls.append(output.shape))
    compiled(x)
    assert calls == [(2, 3)]


def test_a_module_compiles_in_place():
    model = Block(8).eval()
    x = torch.randn(4, 8)
    expected = model(x)
    model.compile()
    model.compile()
    result, loops, launched = kernels(model, x)
    same(result, expected)
    assert 0 < launched < loops
    with raises(RuntimeError):
        model(torch.randn(3, 3))
    assert not torch.compiler.is_compiling()
    same(copy.deepcopy(model)(x), expected)
    assert kernels(copy.deepcopy(model), x)[1] == 0
    with torch.compiler.set_stance("force_eager"):
        assert kernels(model, x)[1] == 0
    model.compile(disable=True)
    assert kernels(model, x)[1] == 0
    with raises(RuntimeError, "Unrecognized mode"):
        model.compile(mode="fast")


def test_products_are_tuned_where_other_bits_are_allowed():
    tunable, seen = torch.cuda.tunable, []

    def function(x):
        seen.append(tunable.is_enabled())
        return x + 1
    for options in ({"max_autotune": True, "numerics": "fast"}, {"max_autotune": True}, {"numerics": "fast"}):
        torch.compile(function, options=options)(torch.ones(2))
        assert not tunable.is_enabled()
    torch.compile(function, mode="max-autotune")(torch.ones(2))
    assert seen == [True, False, False, False]
    with raises(RuntimeError, "numerics is 'eager'"):
        torch.compile(function, options={"numerics": "exact"})


@torch.no_grad()
def test_a_module_that_compiles_in_place_takes_a_mode():
    model, before = nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch._core._capture_counters()["replays"]
    x = torch.randn(4, 8)
    expected = model(x)
    model.compile(mode="reduce-overhead", fullgraph=True)
    for _ in range(5):
        same(model(x), expected)
    assert torch._core._capture_counters()["replays"] >= before + 3
    model.load_state_dict(copy.deepcopy(model).state_dict())
    same(model(x), expected)


def test_parts_may_be_excluded():
    def states():
        return torch.compiler.is_compiling()
    excluded = torch.compiler.disable(states)
    assert torch.compile(lambda: (states(), excluded(), states()))() == (True, False, True)
    assert not states() and not excluded()
    with torch.compiler.set_stance("force_eager"):
        assert not torch.compile(states)()
    assert torch.compile(states)()
    assert torch.compile(states, disable=True) is states and torch.compile(states, backend="eager") is states
    assert torch.compiler.disable(recursive=False)(states) is states
    torch.compiler.reset()


def test_errors_are_the_functions_own():
    def fails(x):
        y = x + 1
        raise KeyError(str(y.shape))
    with raises(KeyError, "[3]"):
        torch.compile(fails)(torch.ones(3))
    assert not torch.compiler.is_compiling()
    with raises(RuntimeError, "Unrecognized mode=fast"):
        torch.compile(fails, mode="fast")
    with raises(RuntimeError, "Either mode or options"):
        torch.compile(fails, mode="default", options={})
    with raises(RuntimeError, "Invalid backend"):
        torch.compile(fails, backend="nothing")
    with raises(NotImplementedError, "FX graph"):
        torch.compile(fails, backend=lambda graph, inputs: graph)


def test_random_numbers_and_writes_in_place_are_those_of_the_function():
    @torch.compile
    def function(x, total):
        y = nn.functional.dropout(x * 2, 0.5)
        total.add_(y.sum(0)).mul_(0.5)
        return y + torch.rand_like(x)
    x = torch.randn(16, 8)
    results = []
    for call in (function, function._torchdynamo_orig_callable):
        torch.manual_seed(3)
        total = torch.zeros(8)
        results.append([call(x, total), call(x, total), total])
    for one, other in zip(*results):
        same(one, other)


def test_a_partial_and_a_method_are_compiled():
    class Scale:
        factor = 3

        def __call__(self, x):
            return x.exp() * self.factor

        def method(self, x):
            return x.sin() + self.factor
    x = torch.randn(5)
    same(torch.compile(functools.partial(torch.add, x))(x), x + x)
    same(torch.compile(Scale())(x), x.exp() * 3)
    same(torch.compile(Scale().method)(x), x.sin() + 3)
