"""Graphs of programs: traces, code, changes, pickles."""

import copy
import operator
import pickle

import thalweg as th
from support import raises
from thalweg import fx, nn
from thalweg.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(3, 4), nn.Parameter(th.ones(4))
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x, *rest, factor=2, **named):
        y = self.layers(self.linear(x) * self.scale)
        first, second = y.split(2, 1)
        z = F.relu(first, inplace=False).sum(dim=-1, keepdim=True)
        return {"z": -z / factor, "y": th.cat([first, second], dim=1)[:, None, 1:], "rest": rest[0], "size": x.shape[0]}


def test_a_module_becomes_code():
    net = Net()
    traced = fx.symbolic_trace(net)
    traced.graph.lint()
    # The text is PyTorch's.
    assert traced.code == """


def forward(self, x, factor = 2, *rest, **named):
    _rest = rest
    _named = named
    linear = self.linear(x)
    scale = self.scale
    mul = linear * scale;  linear = scale = None
    layers_0 = getattr(self.layers, "0")(mul);  mul = None
    layers_1 = getattr(self.layers, "1")(layers_0);  layers_0 = None
    split = layers_1.split(2, 1);  layers_1 = None
    getitem = split[0]
    getitem_1 = split[1];  split = None
    relu = torch.nn.functional.relu(getitem, inplace = False)
    sum_1 = relu.sum(dim = -1, keepdim = True);  relu = None
    neg = -sum_1;  sum_1 = None
    truediv = neg / factor;  neg = factor = None
    cat = torch.cat([getitem, getitem_1], dim = 1);  getitem = getitem_1 = None
    getitem_2 = cat[(slice(None, None, None), None, slice(1, None, None))];  cat = None
    getitem_3 = _rest[0];  _rest = None
    getattr_1 = x.shape;  x = None
    getitem_4 = getattr_1[0];  getattr_1 = None
    return {'z': truediv, 'y': getitem_2, 'rest': getitem_3, 'size': getitem_4}
    """
    x = th.randn(2, 3)
    for other in (traced, copy.deepcopy(traced), pickle.loads(pickle.dumps(traced)), fx.Transformer(traced).transform()):
        expected, found = net(x, 7), other(x, 2, 7)
        assert th.equal(found["z"], expected["z"]) and th.equal(found["y"], expected["y"]) and found["rest"] == 7 and found["size"] == 2
    assert fx.Interpreter(traced).run(x, 2, 7)["z"].tolist() == net(x, 7)["z"].tolist()


def test_graphs_are_changed():
    traced = fx.symbolic_trace(lambda x, y: th.relu(x + y).sum() * 2)
    for node in list(traced.graph.nodes):
        if node.target is th.relu:
            with traced.graph.inserting_after(node):
                new = traced.graph.call_function(th.tanh, node.args)
            node.replace_all_uses_with(new)
            with raises(RuntimeError, "still had 2 users"):
                traced.graph.erase_node(node.args[0])
            traced.graph.erase_node(node)
    traced.recompile()
    traced.graph.lint()
    x, y = th.randn(3), th.randn(3)
    assert traced(x, y).item() == (th.tanh(x + y).sum() * 2).item()
    add = next(node for node in traced.graph.nodes if node.target is operator.add)
    assert add.format_node() == "%add : [num_users=1] = call_function[target=operator.add](args = (%x, %y), kwargs = {})"
    assert not traced.graph.eliminate_dead_code() and [node.op for node in traced.graph.nodes].count("placeholder") == 2
    with raises(TypeError, "does not support mutation"):
        add.kwargs.update(alpha=2)


def test_patterns_are_replaced():
    def program(x, w):
        return (th.sigmoid(x) * x + w).sum() + (th.sigmoid(w) * w).sum()
    traced = fx.symbolic_trace(program)
    found = fx.replace_pattern(traced, lambda a: th.sigmoid(a) * a, lambda a: F.silu(a))
    x, w = th.randn(3), th.randn(3)
    assert len(found) == 2 and traced.code.count("silu(") == 2 and "sigmoid" not in traced.code
    assert abs(traced(x, w).item() - program(x, w).item()) < 1e-5


def test_what_cannot_be_traced_is_refused():
    def branches(x):
        return x if x.sum() > 0 else -x
    for program, error, text in (
            (branches, fx.proxy.TraceError, "inputs to control flow"), (lambda x: [y for y in x], fx.proxy.TraceError, "cannot be iterated"),
            (lambda x: len(x), RuntimeError, "'len' is not supported"), (lambda x: x.add(object()), NotImplementedError, "argument of type")):
        with raises(error, text):
            fx.symbolic_trace(program)
    given = fx.symbolic_trace(lambda x, flag: x + 1 if flag else x, concrete_args={"flag": True})
    assert given(th.ones(1), True).item() == 2
    with raises(AssertionError, "specialized"):
        given(th.ones(1), False)


def test_shapes_are_known_after_a_run():
    from thalweg.fx.passes.shape_prop import ShapeProp
    traced = fx.symbolic_trace(nn.Sequential(nn.Linear(3, 5), nn.ReLU()))
    ShapeProp(traced).propagate(th.ones(2, 3))
    assert [tuple(node.meta["tensor_meta"].shape) for node in traced.graph.nodes] == [(2, 3), (2, 5), (2, 5), (2, 5)]


def test_a_subscript_may_be_symbolic():
    table = th.arange(6.0).view(3, 2)
    traced = fx.symbolic_trace(lambda x: table[: x.size(0), 1] + x)
    assert traced(th.zeros(2)).tolist() == [1.0, 3.0]


def test_graphs_are_divided():
    from thalweg.fx.passes.split_module import split_module
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    traced = fx.symbolic_trace(net)
    parts = split_module(traced, net, lambda node: int(node.name == "_2"))
    x = th.randn(5, 3)
    assert [name for name, _ in parts.named_children()] == ["submod_0", "submod_1"] and th.equal(parts(x), net(x))
    assert parts.submod_1.graph.find_nodes(op="call_module")[0].target == "2"


def test_a_list_of_operands_is_recorded_as_separate_ones():
    made = th.fx.symbolic_trace(lambda x, y: th.einsum("ij,jk->ik", [x, y]) + th.einsum("ij,jk->ik", x, y))
    calls = [node.args for node in made.graph.nodes if getattr(node.target, "__name__", "") == "einsum"]
    assert calls[0] == calls[1] and len(calls[0]) == 3
    assert th.equal(made(th.ones(2, 3), th.ones(3, 2)), th.full((2, 2), 6.0))


def test_functions_are_recorded():
    from thalweg.fx.experimental.proxy_tensor import make_fx
    weight = th.ones(3)
    made = make_fx(lambda x, pair: {"y": (x * weight).sin() + pair[0], "n": pair[1]}, tracing_mode="symbolic")(th.ones(2, 3), [th.ones(2, 3), 5])
    x = th.randn(4, 3)
    found = made(x, [x, 5])
    assert th.equal(found["y"], x.sin() + x) and found["n"] == 5
    assert th.ops.aten.sin.default in [node.target for node in made.graph.nodes]
