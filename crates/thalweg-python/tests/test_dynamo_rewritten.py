"""Changes of the graphs of PyTorch's compiler before they are divided: the order of images, pools, running statistics, masks, and attention."""

import copy
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "dynamo"))

from running import trained, with_pytorch  # noqa: E402
from test_dynamo_gpu import without_gpu  # noqa: E402


def network(torch):
    """Returns a network that reads images in many ways."""

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            nn = torch.nn
            self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
            self.second, self.pool = nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False), nn.MaxPool2d(2)
            self.point, self.last = nn.Conv2d(16, 6, 1), nn.Linear(6 * 4 * 4, 5)

        def forward(self, x):
            x = torch.relu(self.norm(self.first(x)))
            y = self.pool(self.second(x + 1))
            x = torch.cat([y, torch.nn.functional.avg_pool2d(x, 4)], 1)
            x = self.point(x.flip(2)) * x.mean((2, 3), keepdim=True)[:, :6]
            # A view of the channels in groups, and one of all elements.
            x = x.view(x.shape[0], 2, 3, 4, 4).transpose(1, 2).reshape(x.shape[0], 6, 4, 4)
            return x, self.last(x.flatten(1))

    return Network()


def of_graph(run):
    """Returns the nodes of the graphs that are compiled while a function runs, and its result."""
    from thalweg.dynamo import _entry

    nodes, own = [], _entry.Importer

    def importer(gm, *options):
        nodes.extend(gm.graph.nodes)
        return own(gm, *options)

    _entry.Importer = importer
    try:
        return nodes, run()
    finally:
        _entry.Importer = own


@with_pytorch
def test_convolutions_have_their_channels_last_and_results_their_own_order(torch, dynamo):
    import as_gpu

    if (reason := without_gpu(torch)) is not None:
        return reason
    aten = torch.ops.aten
    for is_training in (True, False):
        model = network(torch).train(is_training)
        other, x = copy.deepcopy(model), torch.rand(4, 3, 16, 16)
        compiled = torch.compile(model, backend=as_gpu.backend, fullgraph=True)

        def run(function, one):
            with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(is_training):
                results = function(x)
            if is_training:
                sum(result.float().square().sum() for result in results).backward()
            return [*results, *one.buffers(), *(parameter.grad for parameter in one.parameters() if is_training)]

        nodes, found = of_graph(lambda: run(compiled, model))
        images = [node for node in nodes if node.target in (aten.convolution.default, aten.convolution_backward.default)]
        read = [one.meta["val"] for node in images for one in node.args[:2]]
        assert len(images) == (6 if is_training else 3) and all(one.is_contiguous(memory_format=torch.channels_last) for one in read)
        assert not any(graph.passed_on for graph in dynamo.compiled()), dynamo.compiled()
        assert any("max_pool2d_within" in str(node.target) for node in nodes) == is_training
        for number, (one, two) in enumerate(zip(found, run(other, other), strict=True)):
            assert one.stride() == two.stride(), (number, one.stride(), two.stride())
            torch.testing.assert_close(one.float(), two.float(), rtol=0.05, atol=0.03 * float(two.abs().max()), msg=lambda text: f"{number}: {text}")
        dynamo.forget()


@with_pytorch
def test_channels_are_last_beside_convolutions_in_groups_unless_parts_of_them_are_read(torch, dynamo):
    import as_gpu

    if (reason := without_gpu(torch)) is not None:
        return reason
    aten, nn = torch.ops.aten, torch.nn
    blocks = nn.ModuleList([nn.Conv2d(4, 12, 1), nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.Conv2d(12, 6, 1), nn.Conv2d(6, 6, 3, groups=6)])

    def whole(x):
        for block in blocks[:3]:
            x = block(x).relu()
        return x

    def divided(x):
        first, second = whole(x).split(3, 1)
        return blocks[3](torch.cat([second, first], 1)) + nn.functional.conv2d(first, blocks[3].weight[:3], groups=3).sum()

    for function, is_last in ((whole, True), (divided, False)):
        x = torch.rand(2, 4, 9, 10)

        def run(call, x=x):
            with torch.autocast("cpu", torch.bfloat16):
                result = call(x)
            gradients = torch.autograd.grad(result.float().square().sum(), list(blocks.parameters()), allow_unused=True)
            return [result, *(one for one in gradients if one is not None)]

        nodes, found = of_graph(lambda: run(torch.compile(function, backend=as_gpu.backend, fullgraph=True)))
        images = [node.args[0].meta["val"] for node in nodes if node.target is aten.convolution.default and node.args[8] == 1]
        assert images and all(one.is_contiguous(memory_format=torch.channels_last) == is_last for one in images), (is_last, [one.stride() for one in images])
        for one, two in zip(found, run(function), strict=True):
            assert one.stride() == two.stride()
            torch.testing.assert_close(one.float(), two.float(), rtol=0.05, atol=0.03 * float(two.abs().max()))
        dynamo.forget()


@with_pytorch
def test_rows_that_are_normalized_are_dense_and_results_keep_their_order(torch, dynamo):
    import as_gpu

    if (reason := without_gpu(torch)) is not None:
        return reason
    aten = torch.ops.aten
    layers = torch.nn.ModuleList([torch.nn.LayerNorm(48), torch.nn.Linear(48, 48), torch.nn.Linear(48, 48)])

    def function(x, bias, normalize, first, second):
        turned = x.transpose(1, 2) + bias
        scores = (turned * 2).transpose(1, 2).softmax(1)
        return turned, turned + second(first(normalize(turned)).relu()), scores + (turned.transpose(1, 2) * 3).softmax(-1)

    compiled = torch.compile(function, backend=as_gpu.backend, fullgraph=True)
    inputs = torch.randn(30, 48, 64, requires_grad=True), torch.randn(48, requires_grad=True)

    def run(call):
        results = call(*inputs, *layers)
        gradients = torch.autograd.grad(sum((result * result).sum() for result in results), [*inputs, *layers.parameters()])
        return [*results, *gradients]

    nodes, found = of_graph(lambda: run(compiled))
    norms = [node for node in nodes if node.target is aten.native_layer_norm.default]
    sums = [node for node in nodes if node.target is aten._softmax.default]
    along = [(node.args[0].meta["val"], -1) for node in norms] + [(node.args[0].meta["val"], node.args[1]) for node in sums]
    assert norms and sums and all(one.stride(dimension) == 1 for one, dimension in along), [(one.stride(), dimension) for one, dimension in along]
    for number, (one, two) in enumerate(zip(found, run(function), strict=True)):
        assert number > 2 or one.stride() == two.stride(), (number, one.stride(), two.stride())
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    assert not any(graph.passed_on for graph in dynamo.compiled()), dynamo.compiled()


@with_pytorch
def test_no_matrix_is_turned_for_products_of_batches(torch, dynamo):
    import as_gpu

    if (reason := without_gpu(torch)) is not None:
        return reason
    aten = torch.ops.aten

    def function(x, bias, is_kept):
        query, key, value = x.reshape(16, 49, 3, 2, 48).permute(2, 0, 3, 1, 4).unbind(0)
        turned = key.transpose(-2, -1).contiguous()
        weights = (query.mul(0.2) @ turned + bias).softmax(-1)
        # A result of the graph, and a turned copy that a sum reads, keep their order.
        return weights @ value, turned if is_kept else turned.sum(), (value.transpose(-2, -1).contiguous() * 2).cumsum(-1)

    x, bias = torch.randn(16, 49, 288, requires_grad=True), torch.randn(2, 49, 49, requires_grad=True)
    for is_kept in (False, True):

        def run(call):
            results = call(x, bias, is_kept)
            return [*results, *torch.autograd.grad(sum((result * result).sum() for result in results), [x, bias])]

        found = run(torch.compile(function, backend=as_gpu.backend, fullgraph=True))
        for number, (one, two) in enumerate(zip(found, run(function), strict=True)):
            assert one.stride() == two.stride(), (number, one.stride(), two.stride())
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-3)
    heads = x.detach().reshape(16, 49, 6, 48).transpose(1, 2).requires_grad_()
    compiled = torch.compile(lambda x: (x @ x.transpose(-2, -1)).relu() @ x, backend=as_gpu.backend)
    nodes, _ = of_graph(lambda: trained(torch, compiled, [], [heads]))
    products = [node for node in nodes if node.target is aten.bmm.default]
    copies = [node for node in nodes if node.target is aten.clone.default and node.args[0].meta["val"].stride()[-1] != 1]
    assert len(products) == 6 and not copies, (len(products), copies)


@with_pytorch
def test_images_are_resized_by_one_operator_and_so_are_gradients(torch, dynamo):
    import as_gpu

    if (reason := without_gpu(torch)) is not None:
        return reason
    functional = torch.nn.functional
    kinds = [("nearest", axes) for axes in (1, 2, 3)] + [("nearest-exact", 2), ("linear", 1), ("bilinear", 2), ("trilinear", 3), ("bicubic", 2)]
    sizes = {"size": (9, 6, 4)}, {"scale_factor": 2.0}, {"scale_factor": 0.7}, {"scale_factor": 1.5, "recompute_scale_factor": True}
    for mode, axes in kinds:
        for options in sizes:
            for corners in (None,) if "nearest" in mode else (False, True):
                given = {name: one[:axes] if name == "size" else one for name, one in options.items()}
                torch._dynamo.reset()

                def function(x, mode=mode, corners=corners, given=given):
                    return functional.interpolate(x, mode=mode, align_corners=corners, **given).sin()

                x = torch.randn(2, 3, *(6, 7, 5)[:axes], requires_grad=True)
                nodes, found = of_graph(lambda: trained(torch, torch.compile(function, backend=as_gpu.backend), [], [x]))
                names = [node.target._schema.name for node in nodes if isinstance(node.target, torch._ops.OpOverload)]
                assert sum("upsample" in name for name in names) == 2 and not any("index" in name for name in names), (mode, names)
                for one, two in zip(found, trained(torch, function, [], [x]), strict=True):
                    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4, msg=lambda text: f"{mode} {given} {corners}: {text}")
                assert not any(graph.passed_on for graph in dynamo.compiled()[-2:]), dynamo.compiled()[-2:]

    # Between convolutions, whose channels are last; of sizes that vary, for all of which there is one trace; and of integers.
    weights = [torch.randn(4, 4, 3, 3, requires_grad=True) for _ in range(2)]

    def network(x):
        x = functional.conv2d(x, weights[0], padding=1)
        return functional.conv2d(functional.interpolate(x, scale_factor=2, mode="bilinear") + functional.interpolate(x, size=(16, 18)), weights[1])

    x = torch.randn(2, 4, 8, 9, requires_grad=True)
    found = []
    for called in (torch.compile(network, backend=as_gpu.backend), network):
        with torch.autocast("cpu", torch.bfloat16):
            found.append([one.float() for one in trained(torch, called, weights, [x])])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=0.05, atol=0.05 * float(two.abs().max()))
    torch._dynamo.reset()
    before = len(dynamo.compiled())
    double = torch.compile(lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), backend=as_gpu.backend, dynamic=True)
    for length in (6, 8, 11):
        x = torch.randn(2, 3, length, 7, requires_grad=True)
        for one, two in zip(trained(torch, double, [], [x]), trained(torch, lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), [], [x])):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    assert len(dynamo.compiled()) == before + 2
    whole = torch.arange(24, dtype=torch.uint8).reshape(1, 2, 3, 4)
    torch.testing.assert_close(double(whole), functional.interpolate(whole, scale_factor=2, mode="bilinear"), rtol=0, atol=1)


@with_pytorch
def test_functions_that_stay_pytorchs_get_the_order_in_memory_that_they_had(torch, dynamo):
    import as_gpu

    if (reason := without_gpu(torch)) is not None:
        return reason

    # A function of the program that reads memory row by row, as a kernel may.
    @torch.library.custom_op("thalweg_test::rows", mutates_args=())
    def rows(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x, x.shape, torch.empty(x.shape).stride()).cumsum(-1)

    rows.register_fake(lambda x: x.new_empty(x.shape))
    rows.register_autograd(lambda context, gradient: rows(gradient.flip(-1).contiguous()).flip(-1))
    functional = torch.nn.functional

    def summed(x, weight, scale):
        return rows(functional.conv2d(x, weight, padding=1).relu() * scale[:, None, None]).relu()

    def grouped(x, weight, scale):
        """Computes groups of 16 bits with weights of 32, which the table refuses."""
        return functional.silu(functional.group_norm(functional.conv2d(x, weight, padding=1), 2, scale, scale))

    for function, passed_on in ((summed, "thalweg_test.rows.default"), (grouped, "aten.native_group_norm_backward.default")):
        leaves = [torch.randn(shape).requires_grad_() for shape in ((2, 4, 8, 9), (6, 4, 3, 3), (6,))]
        found = []
        for called in (torch.compile(function, backend=as_gpu.backend, fullgraph=True), function):
            with torch.autocast("cpu", torch.bfloat16):
                found.append([one.float() for one in trained(torch, called, [], leaves)])
        assert passed_on in {name for graph in dynamo.compiled()[-2:] for name, _ in graph.passed_on}, dynamo.compiled()
        for number, (one, two) in enumerate(zip(*found, strict=True)):
            torch.testing.assert_close(one, two, rtol=0.05, atol=0.05 * float(two.abs().max()), msg=lambda text: f"{passed_on}, {number}: {text}")


@with_pytorch
def test_running_statistics_are_written_in_their_place(torch, dynamo):
    import as_gpu

    if (reason := without_gpu(torch)) is not None:
        return reason
    aten = torch.ops.aten
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.BatchNorm2d(8))
    other, x = copy.deepcopy(model), torch.rand(4, 3, 9, 9)
    compiled = torch.compile(model, backend=as_gpu.backend)
    nodes, _ = of_graph(lambda: compiled(x).sum().backward())
    other(x)
    copies = [node for node in nodes if node.target is aten.copy_.default]
    # Each counter is written where it is computed, and the backward pass reads no running statistics.
    assert len(copies) == 6 and all(node.args[1].next is node for node in copies if node.args[1].target is aten.add.Tensor)
    backward = [node for node in nodes if node.target is aten.native_batch_norm_backward.default]
    assert len(backward) == 2 and all(node.args[3:5] == (None, None) for node in backward)
    for _ in range(4):
        compiled(x)
        other(x)
        for (name, one), (_, two) in zip(model.named_buffers(), other.named_buffers(), strict=True):
            torch.testing.assert_close(one, two, msg=lambda text: f"{name}: {text}")


@with_pytorch
def test_masks_of_dropout_are_drawn_again_rather_than_saved(torch, dynamo):
    import as_gpu

    if (reason := without_gpu(torch)) is not None:
        return reason
    kept = []
    layer = torch.nn.Linear(16, 32)
    compiled = torch.compile(lambda x: torch.nn.functional.dropout(layer(x).exp(), 0.5) * 2, backend=as_gpu.backend)
    x = torch.rand(64, 16)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        result = compiled(x)
    result.sum().backward()
    large = [tensor for tensor in kept if tensor.numel() == 64 * 32]
    assert len(large) == 1 and large[0].dtype is torch.float32, [(tuple(tensor.shape), tensor.dtype) for tensor in kept]
    # What was dropped has no gradient.
    torch.testing.assert_close(layer.bias.grad, result.detach().sum(0))
    assert 0.4 < float((result == 0).float().mean()) < 0.6


@with_pytorch
def test_attention_is_taken_before_pytorch_chooses(torch, dynamo):
    import as_gpu

    if (reason := without_gpu(torch)) is not None:
        return reason
    attend = torch.nn.functional.scaled_dot_product_attention

    def function(q, k, v, mask, is_causal, shares):
        return attend(q, k, v, mask, is_causal=is_causal, enable_gqa=shares) * 2

    # The heads of keys, the mask, whether it is causal, and the dtype of autocast.
    narrow, math = torch.bfloat16, torch.nn.attention.SDPBackend.MATH
    cases = [(4, None, False, None), (2, None, True, None), (1, "bias", False, None), (4, "bool", False, narrow), (4, "grad", False, None), (4, "bias", False, narrow)]
    for heads, kind, is_causal, dtype in cases:
        torch._dynamo.reset()
        dynamo.forget()
        leaves = [torch.randn(2, count, 9, 16, requires_grad=True) for count in (4, heads, heads)]
        mask = {None: None, "bool": torch.rand(2, 1, 9, 9) > 0.3}.get(kind, torch.randn(1, 4, 9, 9, requires_grad=kind == "grad"))
        leaves += [mask] if kind == "grad" else []
        found = []
        for one in (torch.compile(function, backend=as_gpu.backend, fullgraph=True), function):
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                result = one(*leaves[:3], mask, is_causal, heads == 2)
            found.append([result, *torch.autograd.grad(result.float().square().sum(), leaves)])
        graphs = dynamo.compiled()
        assert all(not graph.passed_on and graph.taken <= 8 for graph in graphs), graphs
        for one, other in zip(*found, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape), (heads, kind, one.dtype, one.shape, other.dtype, other.shape)
            bound = 2e-5 if dtype is None else 2e-2
            torch.testing.assert_close(one.float(), other.float(), rtol=bound, atol=bound * float(other.detach().abs().max()))
    # Autocast casts every float but those of 64 bits.
    for dtype in (torch.float16, torch.float64):
        q = torch.randn(2, 4, 9, 16, dtype=dtype)
        with torch.autocast("cpu", narrow):
            assert torch.compile(lambda q: attend(q, q, q) * 2, backend=as_gpu.backend)(q).dtype is attend(q, q, q).dtype
    # A program may ask for products, and what has other sizes or a scale that is not positive is PyTorch's.
    q = torch.randn(2, 4, 9, 16)
    calls = (lambda q: attend(q, q, q), False), (lambda q: attend(q[0], q[0], q[0]), True), (lambda q: attend(q[..., :6], q[..., :6], q), True), (lambda q: attend(q, q, q, scale=-0.5), True)
    for place, (call, taken) in enumerate(calls):
        with torch.nn.attention.sdpa_kernel(math) if not taken else torch.no_grad():
            nodes, result = of_graph(lambda one=call: torch.compile(one, backend=as_gpu.backend)(q))
            torch.testing.assert_close(result, call(q), rtol=1e-4, atol=1e-5)
        # On the CPU, PyTorch 2.15 makes heads without a batch a batch of one.
        assert place == 1 or not any("thalweg_graph.attention" in str(node.target) for node in nodes)
