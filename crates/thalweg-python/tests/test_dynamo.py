"""`torch.compile(backend="thalweg")` in PyTorch itself. Without PyTorch these tests are left out; `test_dynamo_programs` has stored
graphs of the same models.

    PYTHONPATH=python /path/of/pytorch/bin/python tests/run.py test_dynamo.
"""

import copy
import functools
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "dynamo"))

from running import trained, with_pytorch  # noqa: E402


@with_pytorch
def test_models_compute_what_they_compute_without_it(torch, dynamo):
    import models

    for name, (make, shapes, trains) in models.MODELS.items():
        model = make()
        parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
        makers = [(lambda shape: torch.randint(0, shape[1], shape[0])) if isinstance(shape[0], tuple) else torch.rand for shape in shapes]
        inputs = [make_one(shape) for make_one, shape in zip(makers, shapes)]
        inputs = [one.requires_grad_(trains and one.is_floating_point()) for one in inputs]
        compiled = torch.compile(model, backend="thalweg", fullgraph=True)
        expected = trained(torch, model, parameters, inputs) if trains else []
        for found, other in zip(trained(torch, compiled, parameters, inputs) if trains else [], expected, strict=True):
            assert found.stride() == other.stride() and found.dtype == other.dtype
            torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-5, msg=lambda text: f"{name}: {text}")
    assert all(not graph.passed_on for graph in dynamo.compiled()), dynamo.compiled()


@with_pytorch
def test_a_size_is_no_guard(torch, dynamo):
    import models

    model = models.Block()
    compiled, parameters = torch.compile(model, backend="thalweg", dynamic=True), list(model.parameters())
    for tokens in range(3, 23):
        x = torch.rand(2, tokens, 16)
        for found, expected in zip(trained(torch, compiled, parameters, [x]), trained(torch, model, parameters, [x]), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert [graph.kind for graph in dynamo.compiled()] == ["forward", "backward"], dynamo.compiled()


@with_pytorch
def test_writes_and_views_are_those_of_the_function(torch, dynamo):
    def function(x, y):
        x[0].mul_(3)
        y += x.sum()
        z = x + 1
        return z, z.view(-1), y, x.t(), x[1:]

    def run(called):
        x, y = torch.arange(12.0).view(3, 4), torch.ones(2)
        results = called(x, y)
        results[0].zero_()
        results[3][0, 1] = 7.0
        return [*results, x, y], results[2] is y, results[3].data_ptr() == x.data_ptr()

    found, expected = run(torch.compile(function, backend="thalweg", fullgraph=True)), run(function)
    torch.testing.assert_close(found[0], expected[0])
    assert found[1:] == expected[1:] == (True, True)


@with_pytorch
def test_parts_of_an_input_are_views_of_it(torch, dynamo):
    def parts(x):
        return [*x.unbind(0), *x.split(2, 1)]

    compiled = torch.compile(parts, backend="thalweg", fullgraph=True)
    x = torch.rand(3, 4, requires_grad=True).clone()
    found = compiled(x)
    with torch.no_grad():
        x.detach().mul_(2)
        for one, other in zip(found, parts(x.detach()), strict=True):
            assert one.data_ptr() == other.data_ptr() and torch.equal(one.detach(), other)
    try:
        compiled(torch.rand(3, 4, requires_grad=True).clone())[0].mul_(2)
    except RuntimeError as error:
        assert "multiple views" in str(error), error
    else:
        raise AssertionError("autograd allowed to write one of several views")


@with_pytorch
def test_draws_and_branches_are_left_to_pytorch(torch, dynamo):
    def function(x):
        x = torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) * 2

    x = torch.ones(64)
    torch.manual_seed(3)
    expected, state = function(x), torch.get_rng_state()
    torch.manual_seed(3)
    torch.testing.assert_close(torch.compile(function, backend="thalweg")(x), expected)
    assert torch.equal(torch.get_rng_state(), state), "the generator is where it would be"
    (graph,) = dynamo.compiled()
    names = {operator for operator, _ in graph.passed_on}
    assert {"aten.rand_like.default", "cond"} <= names and "random numbers" in repr(graph), graph


@with_pytorch
def test_gradients_that_pytorch_has_no_decomposition_of(torch, dynamo):
    functional, x = torch.nn.functional, torch.randn(2, 3, 4, 6, requires_grad=True)
    norm = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(6, 5, 3), dim=2)
    mask = torch.rand(2, 3, 4, 6) > 0.5
    functions = [
        lambda x: functional.interpolate(x, scale_factor=2, mode="nearest"),
        lambda x: functional.interpolate(x, size=(5, 9), mode="nearest"),
        lambda x: functional.interpolate(x, scale_factor=1.6, mode="nearest-exact"),
        lambda x: functional.pad(x, (1, 2, 0, 3), mode="replicate"),
        lambda x: functional.pad(x[0], (1, 2), mode="replicate"),
        lambda x: norm(x.reshape(2, 12, 6).transpose(1, 2)),
        lambda x: torch.zeros(2, 3, 4, 6).masked_scatter(mask, x * x),
    ]
    for function in functions:
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="thalweg", fullgraph=True, dynamic=False)
        results = []
        for called in (compiled, function):
            leaves = [x, *(norm.parameters() if function is functions[5] else ())]
            result = called(x)
            results.append([result, *torch.autograd.grad(result, leaves, torch.linspace(-1, 1, result.numel()).view(result.shape))])
        torch.testing.assert_close(*results)
        assert not any(graph.passed_on for graph in dynamo.compiled()), dynamo.compiled()


@with_pytorch
def test_inputs_die_after_their_last_use(torch, dynamo):
    import weakref

    from thalweg.dynamo import _entry

    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    module = torch.fx.symbolic_trace(lambda x: torch.ops.aten.sin.default(torch.ops.aten.exp.default(x)))
    with torch._subclasses.FakeTensorMode() as mode:
        FakeTensorProp(module, mode).propagate(mode.from_tensor(torch.ones(4)))
    module.graph.output_node().args = ((module.graph.output_node().args[0],),)
    call = _entry.compile_flat(module, [], kind="inference")
    x = torch.ones(4)
    inputs, alive = [x], weakref.ref(x)
    del x
    result = call(inputs)
    assert inputs == [] and alive() is None and call._boxed_call
    torch.testing.assert_close(result[0], torch.ones(4).exp().sin())


@with_pytorch
def test_functions_of_rows_are_computed_again_rather_than_saved(torch, dynamo):
    # The backward pass needs the products, and all that lies between them follows from those.
    functional, kept = torch.nn.functional, []
    model = torch.nn.ModuleList([torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Linear(16, 32)])
    compiled = torch.compile(lambda x: (functional.hardswish(model[1](model[0](x))) * model[2](x).softmax(-1)).sum(), backend="thalweg")
    x = torch.rand(64, 16)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        result = compiled(x)
    result.backward()
    large = {tensor.untyped_storage().data_ptr() for tensor in kept if tensor.numel() == 64 * 32}
    assert len(large) == 2, [(tuple(tensor.shape), tensor.dtype) for tensor in kept]


@with_pytorch
def test_normalized_channels_are_computed_again_rather_than_saved(torch, dynamo):
    # The backward pass needs the results of the convolutions and of the activations.
    torch.manual_seed(0)
    of_batch, of_groups = torch.nn.BatchNorm2d, functools.partial(torch.nn.GroupNorm, 3)
    for norm, channels, dtype, bound in ((of_batch, 6, torch.float32, 1e-5), (of_batch, 5, torch.bfloat16, 3e-2), (of_groups, 6, torch.float32, 1e-5)):
        parts = [torch.nn.Conv2d(3, channels, 3), norm(channels), torch.nn.SiLU(inplace=True), torch.nn.Conv2d(channels, channels, 1)]
        model, kept = torch.nn.Sequential(*parts, norm(channels), torch.nn.GELU()), []
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        other, x = copy.deepcopy(model), torch.rand(4, 3, 9, 9)
        with torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16):
            with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
                result = torch.compile(model, backend="thalweg")(x)
            wanted = other(x)
        for one in (result, wanted):
            one.float().square().sum().backward()
        large = {tensor.untyped_storage().data_ptr() for tensor in kept if tensor.numel() == 4 * channels * 49}
        assert len(large) == 3, [(tuple(tensor.shape), tensor.dtype) for tensor in kept]
        gradients = [(one.grad, two.grad) for one, two in zip(model.parameters(), other.parameters(), strict=True)]
        largest = max(float(two.abs().max()) for _, two in gradients)
        for one, two in [(result, wanted), *gradients, *zip(model.buffers(), other.buffers(), strict=True)]:
            torch.testing.assert_close(one, two, rtol=bound, atol=bound * largest)


@with_pytorch
def test_inputs_of_group_norms_are_saved_before_they_are_widened(torch, dynamo):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.convolution = torch.nn.GroupNorm(4, 8), torch.nn.Conv2d(8, 8, 3, padding=1, dtype=torch.bfloat16)

        def forward(self, x):
            return x + self.convolution(torch.nn.functional.silu(self.norm(x.float())).to(torch.bfloat16))

    torch.manual_seed(0)
    model, kept = torch.nn.Sequential(Block(), Block()), []
    other, x = copy.deepcopy(model), torch.randn(2, 8, 12, 12, dtype=torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        result = torch.compile(model, backend="thalweg")(x)
    for one in (result, other(x)):
        one.float().square().sum().backward()
    large = {tensor.untyped_storage().data_ptr(): tensor.dtype for tensor in kept if tensor.numel() == x.numel()}
    # The inputs of two norms and two convolutions.
    assert list(large.values()) == [torch.bfloat16] * 4, [(tuple(tensor.shape), tensor.dtype) for tensor in kept]
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=0.05, atol=0.02 * float(two.grad.abs().max()))


@with_pytorch
def test_requests_are_refused_by_name(torch, dynamo):
    for keywords, part in (({"mode": "fastest"}, "'fastest' is unknown"), ({"options": {"fast": True}}, "and no other")):
        try:
            torch.compile(lambda x: x + 1, backend="thalweg", **keywords)(torch.ones(2))
        except torch._dynamo.exc.BackendCompilerFailed as error:
            assert part in str(error), error
        else:
            raise AssertionError("nothing was raised")
    assert "thalweg" in torch._dynamo.list_backends()


@with_pytorch
def test_an_optimizer_steps_as_without_it(torch, dynamo):
    layers = [torch.nn.Linear(4, 4) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    optimizers = [torch.optim.AdamW(layer.parameters(), lr=0.1) for layer in layers]
    steps = [optimizers[0].step, torch.compile(optimizers[1].step, backend="thalweg")]
    for _ in range(3):
        for layer, optimizer, step in zip(layers, optimizers, steps):
            optimizer.zero_grad()
            layer(torch.ones(2, 4)).square().sum().backward()
            step()
    for one, other in zip(layers[0].parameters(), layers[1].parameters()):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@with_pytorch
def test_graphs_for_a_gpu_compile_without_one(torch, dynamo):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    from thalweg.dynamo import _entry

    if torch.cuda.is_available():
        return "there is a GPU, on which the graph would run"

    def function(x, weight):
        y = torch.nn.functional.rms_norm(x @ weight, (6,), eps=1e-5)
        return torch.nn.functional.interpolate(y[None, None], scale_factor=2.0, mode="bilinear").softmax(-1), y.sort(-1).values

    shapes = [(4, 3), (3, 6)]
    with FakeTensorMode():
        fakes = [torch.empty(shape, device="cuda") for shape in shapes]
        graph = make_fx(function)(*fakes)
    call = _entry.compile_flat(graph, fakes, kind="inference")
    (compiled,) = dynamo.compiled()
    assert not compiled.passed_on and compiled.taken > 4, compiled
    inputs = [torch.rand(shape) for shape in shapes]
    for found, expected in zip(call(list(inputs)), function(*inputs), strict=True):
        torch.testing.assert_close(found, expected)
