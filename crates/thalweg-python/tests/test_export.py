"""Modules as graphs of operators: `torch.export` and `torch.jit.trace`."""

import io

import thalweg as th
from support import close, raises
from thalweg import nn
from thalweg.export import Dim, export


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Linear(3, 4)
        self.register_buffer("scale", th.tensor(2.0))

    def forward(self, x, *, shift=None):
        y = th.relu(self.norm(self.conv(x))).mean((2, 3)).view(x.shape[0] * 2 - x.size(0), -1)
        rows = th.arange(x.shape[0]).float()[:, None]
        y = self.linear(y) * self.scale + 5 * rows - (1 - rows)
        y[0] = 7.0
        return {"y": y if shift is None else y + shift, "n": x.shape[0]}


def test_a_graph_computes_with_other_extents():
    model = Net().eval()
    program = export(model, (th.randn(2, 2, 4, 4),), {"shift": th.ones(4)}, dynamic_shapes={"x": {0: Dim("batch", max=8)}})
    x = th.randn(5, 2, 4, 4)
    for module in (program.module(), reread(program).module()):
        result = module(x, shift=th.ones(4))
        close(result["y"], model(x, shift=th.ones(4))["y"].tolist())
        assert result["n"] == 5
    with raises(AssertionError, "to be equal to 4, but got 3"):
        module(th.randn(5, 2, 3, 4), shift=th.ones(4))
    with raises(RuntimeError, "<= 8, but got 9"):
        module(th.randn(9, 2, 4, 4), shift=th.ones(4))
    with raises(TypeError, "missing 1 required"):
        module(x)


def reread(program):
    file = io.BytesIO()
    th.export.save(program, file)
    return th.export.load(io.BytesIO(file.getvalue()))


def test_a_program_names_its_parts():
    model = Net()
    program = export(model, (th.randn(2, 2, 4, 4),))
    signature = program.graph_signature
    assert signature.inputs_to_parameters["p_conv_weight"] == "conv.weight" and "norm.running_mean" in signature.buffers
    assert signature.user_inputs == ("x",) and len(signature.user_outputs) == 2 and dict(program.named_parameters())["linear.bias"] is model.linear.bias
    # Buffers have their former values, and the graph writes those of the module.
    assert model.norm.num_batches_tracked == 0 and any(node.target is th.ops.aten.linear.default for node in program.graph.nodes)
    module = program.module()
    module(th.randn(2, 2, 4, 4))["y"].sum().backward()
    assert model.norm.num_batches_tracked == 1 and model.conv.weight.grad is not None
    assert "torch.ops.aten.conv2d.default(x, p_conv_weight" in str(program)
    with raises(RuntimeError, "program.module()"):
        program(th.randn(2, 2, 4, 4))


def test_values_decide_nothing():
    class Branches(nn.Module):
        def forward(self, x):
            return x.sin() if x.sum() > 0 else x.cos()
    with raises(RuntimeError, "depends on the inputs"):
        export(Branches(), (th.ones(2),))

    class Fixed(nn.Module):
        def forward(self, x):
            assert th.compiler.is_exporting()
            return x * 2 if th.ones(2).sum() == 2 else x
    assert export(Fixed(), (th.ones(2),)).module()(th.ones(2)).tolist() == [2.0, 2.0] and not th.compiler.is_exporting()


def test_mapped_functions_are_recorded():
    class Mask(nn.Module):
        def forward(self, x):
            rows, columns = th.arange(x.shape[0]), th.arange(x.shape[1])
            kept = th.vmap(th.vmap(lambda row, column: (x[row, column] > 0) & (column <= row), (None, 0)), (0, None))
            return x.masked_fill(~kept(rows, columns), 0.0)
    module = export(Mask(), (th.randn(3, 4),), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},)).module()
    x = th.randn(6, 5)
    assert module(x).tolist() == Mask()(x).tolist()


def test_traced_modules_are_graphs():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.5)).eval()
    traced = th.jit.trace(model, th.randn(2, 3))
    file = io.BytesIO()
    traced.save(file)
    x = th.randn(5, 3)
    loaded = th.jit.load(io.BytesIO(file.getvalue()))
    for module in (traced, loaded):
        close(module(x), model(x).tolist())
    assert isinstance(traced, th.jit.TopLevelTracedModule) and "aten.tanh" in traced.code and sorted(loaded.state_dict()) == sorted(model.state_dict())
    assert th.jit.trace(lambda x: 2 ** x + 1, th.ones(3))(th.ones(2)).tolist() == [3.0, 3.0]
