"""Graphs that PyTorch's compiler makes for a GPU, compiled without one: their programs run on the simulated GPU and are compared with
PyTorch on the CPU."""

import functools
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "dynamo"))

from running import trained, with_pytorch  # noqa: E402


def without_gpu(torch):
    """Returns why a test is left out, if it is."""
    return "there is a GPU, on which the graphs would run" if torch.cuda.is_available() else None


@with_pytorch
def test_models_train(torch, dynamo):
    import as_gpu
    import models

    if (reason := without_gpu(torch)) is not None:
        return reason
    for name in ("classifier", "language", "recurrent"):
        make, shapes, _ = models.MODELS[name]
        model = make()
        makers = [(lambda shape: torch.randint(0, shape[1], shape[0])) if isinstance(shape[0], tuple) else torch.rand for shape in shapes]
        inputs = [make_one(shape) for make_one, shape in zip(makers, shapes)]
        parameters, compiled = list(model.parameters()), torch.compile(model, backend=as_gpu.backend, fullgraph=True)
        before = [buffer.clone() for buffer in model.buffers()]
        found, moved = trained(torch, compiled, parameters, inputs), [buffer.clone() for buffer in model.buffers()]
        for buffer, old in zip(model.buffers(), before):
            buffer.data.copy_(old)
        for one, other in zip([*found, *moved], [*trained(torch, model, parameters, inputs), *model.buffers()], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=lambda text: f"{name}: {text}")
    assert all(not graph.passed_on for graph in dynamo.compiled()), dynamo.compiled()


@with_pytorch
def test_attention_is_ours(torch, dynamo):
    import as_gpu

    if (reason := without_gpu(torch)) is not None:
        return reason
    tensors = [torch.randn(2, 4, 16, 8).bfloat16().requires_grad_() for _ in range(3)]
    for mask in (None, torch.randn(16, 16).bfloat16()):

        def attention(q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)

        found = trained(torch, torch.compile(attention, backend=as_gpu.backend), [], tensors)
        wide = [tensor.detach().float().requires_grad_() for tensor in tensors]
        mask = None if mask is None else mask.float()
        for one, other in zip(found, trained(torch, attention, [], wide), strict=True):
            torch.testing.assert_close(one.float(), other, rtol=2e-2, atol=2e-2)
    forward, backward = dynamo.compiled()[-2:]
    assert forward.taken + backward.taken < 12 and not forward.passed_on and not backward.passed_on, dynamo.compiled()


@with_pytorch
def test_queries_that_attend_to_nothing_are_zeros(torch, dynamo):
    import as_gpu

    allowed = torch.ones(2, 1, 4, 4, dtype=torch.bool).tril()
    allowed[0, :, :, :2] = False
    tensors = [torch.randn(2, 1, 4, 8, requires_grad=True) for _ in range(3)]
    attention = functools.partial(torch.nn.functional.scaled_dot_product_attention, attn_mask=allowed)
    found, expected = (trained(torch, called, [], tensors) for called in (torch.compile(attention, backend=as_gpu.backend), attention))
    torch.testing.assert_close(found, expected)


def attention_of(torch, kernel):
    """Returns a function of one of PyTorch's kernels of attention, with its gradient, by its operators."""
    aten = torch.ops.aten

    def flash(q, k, v, mask, g):
        o = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, scale=0.5)
        seeds = o[6], o[7]
        return o[0], *aten._scaled_dot_product_flash_attention_backward(g, q, k, v, o[0], o[1], o[2], o[3], o[4], o[5], 0.0, True, *seeds, scale=0.5)

    def efficient(q, k, v, mask, g):
        o = aten._scaled_dot_product_efficient_attention(q, k, v, mask, True)
        return o[0], *aten._scaled_dot_product_efficient_attention_backward(g, q, k, v, mask, o[0], o[1], o[2], o[3], 0.0, [True] * 4)

    def cudnn(q, k, v, mask, g):
        o = aten._scaled_dot_product_cudnn_attention(q, k, v, mask, True)
        masks = mask, o[2], o[3]
        return o[0], *aten._scaled_dot_product_cudnn_attention_backward(g, q, k, v, o[0], o[1], o[6], o[7], *masks, o[4], o[5], 0.0, False)

    return {"flash": flash, "efficient": efficient, "cudnn": cudnn}[kernel]


@with_pytorch
def test_each_kernel_of_attention_is_ours(torch, dynamo):
    import as_gpu

    from thalweg.dynamo import _entry

    if (reason := without_gpu(torch)) is not None:
        return reason
    whole = [*(torch.randn(2, 2, 16, 8) for _ in range(4)), torch.randn(2, 2, 16, 16)]
    for kernel, dtype, bound in (("flash", torch.bfloat16, 3e-2), ("efficient", torch.bfloat16, 3e-2), ("cudnn", torch.bfloat16, 3e-2), ("efficient", torch.float32, 1e-5)):
        q, k, v, g, mask = (tensor.to(dtype) for tensor in whole)
        graph, fakes = as_gpu.traced(attention_of(torch, kernel), [q, k, v, mask, g])
        found = _entry.compile_flat(graph, fakes, kind="inference")([q, k, v, mask, g])
        assert not dynamo.compiled()[-1].passed_on, dynamo.compiled()[-1]
        wide = [tensor.float().requires_grad_() for tensor in (q, k, v, mask)]
        options = {"is_causal": True, "scale": 0.5} if kernel == "flash" else {"attn_mask": wide[3]}
        result = torch.nn.functional.scaled_dot_product_attention(*wide[:3], **options)
        gradients = torch.autograd.grad(result, wide[: 4 if kernel == "efficient" else 3], g.float())
        for one, other in zip(found, [result, *gradients], strict=True):
            torch.testing.assert_close(one.float(), other, rtol=bound, atol=bound)


@with_pytorch
def test_scalars_of_the_cpu_are_numbers(torch, dynamo):
    import as_gpu

    from thalweg.dynamo import _entry

    if (reason := without_gpu(torch)) is not None:
        return reason

    def function(x, scalar):
        return x * scalar + torch.where(x > scalar, scalar, x), x.to(torch.bfloat16) - scalar

    with torch._subclasses.fake_tensor.FakeTensorMode():
        fakes = [torch.empty(4, device="cuda"), torch.empty(())]
        graph = as_gpu.make_fx(function)(*fakes)
    x, scalar = torch.tensor([0.5, 2.0, 3.0, -1.0]), torch.tensor(1.5)
    for one, other in zip(_entry.compile_flat(graph, fakes, kind="inference")([x, scalar]), function(x, scalar), strict=True):
        torch.testing.assert_close(one, other)
    assert not dynamo.compiled()[-1].passed_on, dynamo.compiled()


@with_pytorch
def test_constant_scalars_keep_the_digits_of_float64(torch, dynamo):
    import as_gpu

    for number in (0.1, torch.finfo(torch.float64).min, 1e-300):

        def function(condition, x):
            return torch.where(condition, x, torch.tensor(number, dtype=torch.float64))

        inputs = torch.tensor([True, False]), torch.ones(2, dtype=torch.float64)
        assert torch.equal(torch.compile(function, backend=as_gpu.backend)(*inputs), function(*inputs)), number
    assert all(not graph.passed_on for graph in dynamo.compiled()), dynamo.compiled()


@with_pytorch
def test_draws_are_calls_of_the_table(torch, dynamo):
    import as_gpu

    if (reason := without_gpu(torch)) is not None:
        return reason
    aten, x = torch.ops.aten, torch.rand(64, 96, requires_grad=True)
    turned = x.detach().t().requires_grad_()

    def function(x):
        y, kept = torch.native_dropout(x, 0.25, True)
        drawn = [torch.rand_like(x), torch.randn(4000, device=x.device), aten.bernoulli.p(x.detach(), 0.75), aten.bernoulli.default(kept.to(x.dtype))]
        return y, kept, *drawn, torch.native_dropout(x, 0.0, True)[0]

    for one in (x, turned):
        torch.manual_seed(3)
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=as_gpu.backend)
        y, kept, uniform, normal, trials, same, all_kept = compiled(one)
        assert not dynamo.compiled()[-1].passed_on, dynamo.compiled()[-1]
        # What was dropped in the forward pass has no gradient.
        (gradient,) = torch.autograd.grad(y.sum(), one)
        torch.testing.assert_close(gradient, kept / 0.75)
        torch.testing.assert_close(y, one * kept / 0.75)
        torch.testing.assert_close(all_kept, one)
        assert y.stride() == one.stride() and torch.equal(same, kept.to(same.dtype))
        shares = [(kept.float().mean(), 0.75), (trials.mean(), 0.75), (uniform.mean(), 0.5), (normal.mean(), 0.0), (normal.std(), 1.0)]
        assert all(abs(float(found) - share) < 0.06 for found, share in shares), shares
        assert 0 <= float(uniform.min()) < 0.01 and 0.99 < float(uniform.max()) < 1
        # The same seed has the same numbers, and each call others.
        torch.manual_seed(3)
        assert torch.equal(compiled(one)[1], kept) and not torch.equal(compiled(one)[1], kept)
    with torch._inductor.config.patch(fallback_random=True):
        torch._dynamo.reset()
        torch.manual_seed(3)
        found = torch.compile(function, backend=as_gpu.backend)(x)
        torch.manual_seed(3)
        torch.testing.assert_close(found, function(x))


@with_pytorch
def test_attention_drops_the_same_in_both_passes(torch, dynamo):
    import as_gpu

    from thalweg.dynamo import _entry

    if (reason := without_gpu(torch)) is not None:
        return reason
    aten = torch.ops.aten

    def function(q, k, v, g):
        o = aten._scaled_dot_product_flash_attention(q, k, v, 0.5, False, scale=0.5)
        return o[0], *aten._scaled_dot_product_flash_attention_backward(g, q, k, v, *o[:6], 0.5, False, o[6], o[7], scale=0.5)

    # With values of one token each and gradients of one, results are the kept weights, and so are the gradients of the values.
    q, k = (torch.zeros(1, 2, 8, 8).bfloat16() for _ in range(2))
    v, g = (torch.eye(8).expand(1, 2, 8, 8).contiguous().bfloat16() for _ in range(2))
    graph, fakes = as_gpu.traced(function, [q, k, v, g])
    found = _entry.compile_flat(graph, fakes, kind="inference")([q, k, v, g])
    assert not dynamo.compiled()[-1].passed_on, dynamo.compiled()[-1]
    weights, values = found[0].float(), found[3].float()
    assert torch.equal(weights, values.transpose(2, 3)) and sorted(set(weights.flatten().tolist())) == [0.0, 0.25], weights
    assert 0.3 < float((weights > 0).float().mean()) < 0.7


@with_pytorch
def test_scalars_of_the_cpu_become_tensors_by_one_copy_where_the_bits_stay(torch, dynamo):
    import as_gpu

    from thalweg.dynamo import _entry, _scalars

    if (reason := without_gpu(torch)) is not None:
        return reason

    def step(x, gradient, rate, count):
        steps = count + 1
        scaled = gradient / (1 + steps * 0.1)
        moved = x - (rate / (1 + steps)) * scaled
        count.copy_(steps)
        return moved, torch.where(x > rate, rate, x), scaled * steps

    with torch._subclasses.fake_tensor.FakeTensorMode():
        fakes = [torch.empty(5, device="cuda"), torch.empty(5, device="cuda"), torch.empty((), dtype=torch.float64), torch.empty(())]
        graph = as_gpu.make_fx(step)(*fakes)
    code = _entry.compile_flat(graph, fakes, kind="inference")
    for call in range(3):
        x, gradient, rate, count = torch.randn(5), torch.randn(5), torch.tensor(0.1 + call, dtype=torch.float64), torch.tensor(float(call))
        expected = step(x, gradient, rate, count.clone())
        for one, other in zip(code([x, gradient, rate, count]), expected, strict=True):
            torch.testing.assert_close(one, other)
        assert float(count) == call + 1
    kinds = [kind if kind == "call" else parts[0] for kind, parts, _ in code._description.steps]
    copies = [place for place, one in enumerate(kinds) if getattr(one, "func", None) is _scalars._moved]
    # One for each dtype, before the first call, and no number.
    assert len(copies) == 2 and copies[-1] < kinds.index("call") and _scalars.number_in not in kinds, kinds
    assert code._description.may_repeat


@with_pytorch
def test_casts_of_inputs_and_of_results_are_one_call_with_the_bits_of_each(torch, dynamo):
    import as_gpu

    from thalweg.dynamo import _entry, _graph

    if (reason := without_gpu(torch)) is not None:
        return reason

    def layers(x, scale, *parameters):
        narrow = [one.to(torch.bfloat16) for one in parameters]
        y = x.to(torch.bfloat16) * scale.to(torch.bfloat16)
        for weight, bias in zip(narrow[::2], narrow[1::2]):
            y = torch.addmm(bias, y, weight.t())
        products = [(y.t() @ y).float(), (y.t() @ y[:, :2]).t().float()]
        return y.float() * 2, narrow[0], *products, y.relu().float()

    shapes = [(8, 6), (8,), (8, 8), (8,), (3, 8), (3,)]
    inputs = [torch.randn(4, 6), torch.randn(6), *(torch.randn(shape) for shape in shapes)]
    inputs[4] = inputs[4].t()
    graph, fakes = as_gpu.traced(layers, inputs)
    code, listed = _entry.compile_flat(graph, fakes, kind="inference"), _graph.lists_of
    names = [parts[0] for kind, parts, _ in code._description.steps if kind == "call"]
    # What a loop reads or computes is cast there.
    assert names.count("thalweg::to_each") == 2 and names.count("_to_copy") == 4, names
    _graph.lists_of = lambda graph, device: ({}, set())
    try:
        each = _entry.compile_flat(graph, fakes, kind="inference")
    finally:
        _graph.lists_of = listed
    for one, other in zip(code(list(inputs)), each(list(inputs)), strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()
    assert dynamo.compiled()[-1].taken == dynamo.compiled()[-2].taken


@with_pytorch
def test_values_on_the_cpu_that_depend_on_no_input_are_constants(torch, dynamo):
    import as_gpu

    from thalweg.dynamo import _entry

    if (reason := without_gpu(torch)) is not None:
        return reason
    table, scalar = torch.tensor([1, 0, 2]), torch.tensor(2.5)

    def function(x):
        slopes = torch.pow(torch.tensor(0.5), torch.arange(4.0)).to(x.device)
        return x[table] * scalar + slopes, torch.where(x > 0, scalar, x)

    with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [torch.empty(3, 4, device="cuda")]
        graph = as_gpu.make_fx(function, decomposition_table=_entry.decompositions())(*fakes)
    x = torch.randn(3, 4)
    call = _entry.compile_flat(graph, fakes, kind="inference")
    assert not dynamo.compiled()[-1].passed_on, dynamo.compiled()[-1]
    torch.testing.assert_close(tuple(call([x])), function(x))


def with_streams(torch, gm, streams, orders):
    """Puts nodes of a graph on streams, and operators that order streams before nodes."""
    for node in list(gm.graph.nodes):
        if node.name in streams:
            node.meta["custom"] = {"stream": streams[node.name]}
        for name, *arguments in orders.get(node.name, []):
            with gm.graph.inserting_before(node):
                gm.graph.call_function(getattr(torch.ops.streams, name).default, tuple(arguments))
    return gm


def program_with_streams(torch, function, inputs, streams, orders):
    """Returns a function that compiles and runs the graph of a function with streams, and returns its results and its inputs."""
    import as_gpu
    import torch._dynamo.variables.streams  # noqa: F401

    from thalweg.dynamo import _entry

    def run():
        gm, fakes = as_gpu.traced(function, inputs)
        own = [one.clone() for one in inputs]
        call = _entry.compile_flat(with_streams(torch, gm, streams, orders), fakes, kind="inference")
        return call(list(own)), own

    return run


@with_pytorch
def test_streams_run_and_are_ordered_as_the_graph_says(torch, dynamo):
    from thalweg import testing

    if (reason := without_gpu(torch)) is not None:
        return reason
    aten, x = torch.ops.aten, torch.rand(8)

    def function(x):
        y = aten.add.Tensor(x, 1)
        return aten.sub.Tensor(aten.mul.Tensor(y, 2), aten.exp.default(y)), aten.sin.default(x)

    events = {"mul": [("record_event", 5, 0), ("wait_event", 5, 1)], "sub": [("record_event", 6, 1), ("wait_event", 6, 0)]}
    whole = {"mul": [("wait_stream", 1, 0)], "sub": [("wait_stream", 0, 1)], "sin": [("wait_stream", 2, 0)], "output": [("wait_stream", 0, 2)]}
    switched = {"mul": [("wait_stream", 1, 0), ("fork", 0, 1)], "exp": [("join", 1, 0)], "sub": [("wait_stream", 0, 1)]}
    for streams, orders in (({"mul": 1}, events), ({"mul": 1, "sin": 2}, whole), ({}, switched)):
        run = program_with_streams(torch, function, [x], streams, orders)

        def compared():
            for one, other in zip(run()[0], function(x), strict=True):
                torch.testing.assert_close(one, other)

        testing.check(compared, seeds=3)
    try:
        testing.check(program_with_streams(torch, function, [x], {"mul": 1}, {}), seeds=3)
    except testing.CheckFailed as error:
        assert "mul" in str(error), error
    else:
        raise AssertionError("a missing wait was not found: the node did not run on its stream")


@with_pytorch
def test_an_input_that_a_side_stream_writes_is_written_when_the_call_ends(torch, dynamo):
    """pytorch/pytorch#197416: the write follows the program's own join."""
    from thalweg import testing

    if (reason := without_gpu(torch)) is not None:
        return reason
    aten, x = torch.ops.aten, torch.rand(8)

    def function(x):
        y = aten.mul.Tensor(x, 3)
        return aten.add.Tensor(y, 1), aten.copy_.default(x, y)

    run = program_with_streams(torch, function, [x], {"mul": 1, "copy_": 1}, {"mul": [("wait_stream", 1, 0)], "add": [("wait_stream", 0, 1)]})

    def compared():
        results, (written,) = run()
        torch.testing.assert_close(written, x * 3)
        torch.testing.assert_close(results[0], x * 3 + 1)

    testing.check(compared, seeds=3)


@with_pytorch
def test_a_cross_entropy_reads_its_scores_once_in_each_pass(torch, dynamo):
    import as_gpu

    from thalweg.dynamo import _entry

    if (reason := without_gpu(torch)) is not None:
        return reason
    adapter, texts = _entry.adapter(), []
    record, adapter.record = adapter.record, lambda name, text: texts.append(text)
    scores, target = torch.randn(2, 6, 5).bfloat16().requires_grad_(), torch.tensor([0, 3, 2, 4, 1, 2] * 2)
    weight = torch.rand(5)

    def loss(scores, **options):
        return torch.nn.functional.cross_entropy((scores * 2).float().flatten(0, 1), target, **options)

    def compiled(dynamic, **options):
        torch._dynamo.reset()
        return torch.compile(functools.partial(loss, **options), backend=as_gpu.backend, dynamic=dynamic)

    for options, dynamic, is_whole in (
        ({}, False, True),
        ({"ignore_index": 2}, True, True),
        ({"reduction": "none", "ignore_index": 2}, False, True),
        ({"weight": weight}, False, False),
    ):
        found = trained(torch, compiled(dynamic, **options), [], [scores])
        for one, other in zip(found, trained(torch, functools.partial(loss, **options), [], [scores]), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, msg=lambda text: f"{options} {dynamic}: {text}")
        assert ["cross_entropy" in text and "log_softmax" not in text for text in texts[-2:]] == [is_whole] * 2, (options, texts[-2:])

    def narrow(scores):
        """Computes the loss as autocast does on a GPU: the logarithms are of 16 bits."""
        return torch.nn.functional.nll_loss(torch.log_softmax((scores * 2).flatten(0, 1), 1).float(), target)

    torch._dynamo.reset()
    found = trained(torch, torch.compile(narrow, backend=as_gpu.backend), [], [scores])
    for one, other in zip(found, trained(torch, loss, [], [scores]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert all("thalweg::cross_entropy" in text and "call _log_softmax" not in text for text in texts[-2:]), texts[-2:]
    with torch.no_grad():
        torch.testing.assert_close(compiled(False, reduction="sum")(scores), loss(scores, reduction="sum"))
    adapter.record = record


@with_pytorch
def test_linear_algebra_and_distances_are_calls_of_the_table(torch, dynamo):
    import as_gpu

    functional, linalg = torch.nn.functional, torch.linalg
    torch.manual_seed(5)
    matrix, other, image = torch.randn(2, 3, 3), torch.randn(2, 3, 2), torch.randn(1, 2, 7, 6)
    functions = [
        (lambda a, b: linalg.solve(a, b), [matrix, other]),
        (lambda a, b: linalg.solve(a.mT, b[..., 0]), [matrix, other]),
        (lambda a: linalg.det(a), [matrix]),
        (lambda a: torch.logdet(a @ a.mT), [matrix]),
        (lambda a: linalg.slogdet(a.mT)[1], [matrix]),
        (lambda a: linalg.svdvals(a), [matrix]),
        (lambda a: linalg.svdvals(a), [other]),
        (lambda a: linalg.eigvalsh(a @ a.mT), [matrix]),
        (functional.bilinear, [torch.randn(4, 3), torch.randn(4, 2), torch.randn(5, 3, 2)]),
        *((lambda a, b, p=p: torch.cdist(a, b, p), [torch.randn(4, 3), torch.randn(5, 3)]) for p in (1.0, 2.0, 2.5, float("inf"))),
        (lambda a: functional.pdist(a, 3.0), [torch.randn(4, 3)]),
        (lambda a: functional.interpolate(a, (3, 4), mode="bilinear", antialias=True), [image]),
        (lambda a: functional.interpolate(a, (4, 9), mode="bicubic", antialias=True), [image]),
    ]
    for place, (function, inputs) in enumerate(functions):
        results = []
        torch._dynamo.reset()
        dynamo.forget()
        for called in (torch.compile(function, backend=as_gpu.backend, fullgraph=True, dynamic=False), function):
            leaves = [one.clone().requires_grad_() for one in inputs]
            result = called(*leaves)
            results.append([result, *torch.autograd.grad(result, leaves, torch.linspace(0.5, 1, result.numel()).view(result.shape))])
        torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4, msg=lambda text: f"{place}: {text}")
        # PyTorch 2.15 keeps the check of a solution.
        passed_on = {name for graph in dynamo.compiled() for name, _ in graph.passed_on} - {"aten._linalg_check_errors.default"}
        assert not passed_on, (place, dynamo.compiled())


@with_pytorch
def test_calls_that_the_table_refuses_are_pytorchs(torch, dynamo):
    import as_gpu

    x, index, shared = torch.randn(3, 4, dtype=torch.complex64), torch.empty(0, dtype=torch.uint8), torch.tensor([0, 2, 0])
    functions = [
        # Complex numbers that the table lacks.
        (lambda x: torch.constant_pad_nd(x, [1, 2], 2j), [x], 1),
        (lambda x: torch.nn.functional.unfold(x[None, None], 2), [x], 0),
        (lambda x: x[:, :1].expand(3, 5).conj() * 2, [x], 0),
        # The gradient adds at indices of bytes.
        (lambda x, index: torch.gather(x, 0, index), [torch.randn(3), index], 1),
        # The gradient's trace has the size 1 for the indices without their repetitions.
        (lambda x, value, index: x.index_fill(-1, index, value), [torch.randn(2, 3), torch.randn(()), shared], 1),
        (lambda x: torch.unfold_copy(x, 0, 1, 1), [torch.randn(())], 0),
        # Integers become float64 beside numbers, and would become float32 in the table.
        (lambda x: x * 0.1, [torch.arange(3)], 1),
    ]
    for place, (function, inputs, passed_on) in enumerate(functions):
        results = []
        torch._dynamo.reset()
        dynamo.forget()
        torch.set_default_dtype(torch.float64 if place == 6 else torch.float32)
        for called in (torch.compile(function, backend=as_gpu.backend, dynamic=False, fullgraph=True), function):
            leaves = [one.clone().requires_grad_(one.is_floating_point()) for one in inputs]
            results.append(trained(torch, called, [], leaves))
        torch.set_default_dtype(torch.float32)
        torch.testing.assert_close(*results, msg=lambda text: f"{place}: {text}")
        assert sum(sum(graph.passed_on.values()) for graph in dynamo.compiled()) == passed_on, (place, dynamo.compiled())


@with_pytorch
def test_scalars_of_the_cpu_keep_their_digits_in_calls_of_tensors(torch, dynamo):
    import as_gpu

    from thalweg.dynamo import _entry

    def function(x, n, rate, count):
        return torch.where(x > 0, rate, x), torch.maximum(x, rate), torch.addcmul(x, x, rate), n * rate, torch.maximum(n, count), n.masked_fill(n > 2, count), rate / x

    number, integer = torch.tensor(0.1, dtype=torch.float64), torch.tensor(2**53 + 1)
    for x, n in ((torch.tensor([0.3, -1.7], dtype=torch.float64), torch.tensor([1, 3])), (torch.tensor([0.25, -1.5]), torch.tensor([2**40 + 1, 3]))):
        inputs = [x, n, number, integer]
        with torch._subclasses.fake_tensor.FakeTensorMode():
            fakes = [torch.empty(one.shape, dtype=one.dtype, device="cuda" if one.dim() else "cpu") for one in inputs]
            graph = as_gpu.make_fx(function, decomposition_table=_entry.decompositions())(*fakes)
        found = _entry.compile_flat(graph, fakes, kind="inference")(list(inputs))
        for one, other in zip(found, function(*inputs), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-15 if one.dtype is torch.float64 else 1e-6, atol=0)
        assert not dynamo.compiled()[-1].passed_on, dynamo.compiled()


@with_pytorch
def test_a_class_out_of_range_is_an_error(torch, dynamo):
    import as_gpu

    scores = torch.randn(3, 2, requires_grad=True)
    for reduction in ("mean", "none"):
        torch._dynamo.reset()
        loss = torch.compile(functools.partial(torch.nn.functional.cross_entropy, reduction=reduction), backend=as_gpu.backend)
        for target, is_right in (([0, 1, 1], True), ([0, 5, 1], False), ([-100, 0, 1], True)):
            try:
                loss(scores, torch.tensor(target))
            except IndexError as error:
                assert not is_right and "Target 5 is out of bounds" in str(error), error
            else:
                assert is_right, target


@with_pytorch
def test_gradients_that_are_read_otherwise_than_stored(torch, dynamo):
    import as_gpu

    def function(x):
        return x * 2, x * x

    def stored(x):
        return torch.compile(function, backend=as_gpu.backend)(x)

    x = torch.randn(3, dtype=torch.complex64, requires_grad=True)
    lazy = torch.randn(3, dtype=torch.complex64).conj()
    nothing = torch._efficientzerotensor((3,), dtype=torch.complex64)
    for gradients in ((lazy.clone(), lazy), (lazy, nothing)):
        found, expected = ((torch.autograd.grad(called(x), x, gradients)) for called in (stored, function))
        torch.testing.assert_close(found, expected)
    real, imaginary = torch.randn(3, requires_grad=True), lazy.imag
    assert imaginary.is_neg()
    found, expected = (torch.autograd.grad(called(real), real, (imaginary, imaginary)) for called in (stored, function))
    torch.testing.assert_close(found, expected)


@with_pytorch
def test_a_backward_pass_reads_the_old_values_of_inputs_that_the_forward_pass_writes(torch, dynamo):
    import as_gpu

    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.ones(()))
            self.register_buffer("table", torch.arange(6.0).view(2, 3))

        def forward(self, x):
            self.count += 1
            self.table.t().mul_(2)
            return (x * self.count).sin() @ (self.table + 1)

    for backend in ("thalweg", as_gpu.backend):
        torch._dynamo.reset()
        model, plain = Counting(), Counting()
        compiled = torch.compile(model, backend=backend)
        for _ in range(3):
            x = torch.randn(4, 2, requires_grad=True)
            results = [trained(torch, called, [], [x]) for called in (compiled, plain)]
            torch.testing.assert_close(*results)
            torch.testing.assert_close(list(model.buffers()), list(plain.buffers()))


@with_pytorch
def test_saved_values_are_computed_in_their_order(torch, dynamo):
    import as_gpu

    for function in (torch.sinc, lambda x: torch.sinc(x) * torch.sinc(x.exp()) + torch.linalg.svdvals(x).sum()):
        torch._dynamo.reset()
        x = torch.randn(3, 4, requires_grad=True)
        found, expected = (trained(torch, called, [], [x]) for called in (torch.compile(function, backend=as_gpu.backend), function))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@with_pytorch
def test_sizes_and_numbers_that_a_check_fixes_are_checked(torch, dynamo):
    import as_gpu

    def rows(x):
        found = x.nonzero()
        torch._check(found.size(0) == 2)
        return found + 1

    def number(x):
        count = (x > 0).sum().item()
        torch._check(count == 2)
        return torch.ones(count) * x.sum()

    def pairs(x):
        positive, negative = x[x > 0], x[x < 0]
        torch._check(positive.size(0) == negative.size(0))
        return positive * negative

    right, wrong = torch.tensor([1.0, 0.0, 2.0, -1.0, -1.0]), torch.tensor([1.0, 0.0, 2.0, 3.0, -1.0])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        for function, change in ((rows, torch.relu), (number, torch.clone), (pairs, torch.clone)):
            torch._dynamo.reset()
            compiled = torch.compile(function, backend=as_gpu.backend, fullgraph=True)
            for _ in range(2):
                torch.testing.assert_close(compiled(change(right)), function(change(right)))
                try:
                    compiled(change(wrong))
                except RuntimeError as error:
                    assert "must be" in str(error) or "Runtime assertion" in str(error), error
                else:
                    raise AssertionError("nothing was raised")


@with_pytorch
def test_regions_that_are_compiled_once_and_effects_are_parts_of_a_program(torch, dynamo):
    import as_gpu
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    seen = []

    @torch.library.custom_op("thalweg_test::see", mutates_args=())
    def see(x: torch.Tensor, number: int) -> torch.Tensor:
        seen.append(number)
        return x.clone()

    see.register_fake(lambda x, number: torch.empty_like(x))
    _register_effectful_op("thalweg_test::see", _EffectType.ORDERED)

    @torch.compiler.nested_compile_region
    def region(x, y):
        return (x * y).cos(), x + y

    def function(x, y):
        for number in range(3):
            with torch.no_grad():
                see(y, number)
            x, y = region(x, y)
        return x * y

    dynamo.forget()
    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    found, expected = (trained(torch, called, [], [x, y]) for called in (torch.compile(function, backend=as_gpu.backend, fullgraph=True), function))
    torch.testing.assert_close(found, expected)
    assert seen == [0, 1, 2] * 2, seen
    passed_on = {name for graph in dynamo.compiled() for name, _ in graph.passed_on}
    assert passed_on == {"thalweg_test.see.default"}, dynamo.compiled()


@with_pytorch
def test_results_that_nothing_reads_may_differ_from_those_of_the_trace(torch, dynamo):
    import as_gpu

    dynamo.forget()
    # The gradient of the input, which needs none, has no elements in the table.
    norm, plain, x = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3), torch.randn(5, 3)
    for backend in ("thalweg", as_gpu.backend):
        results = [trained(torch, called, one.parameters(), [x]) for one, called in ((norm, torch.compile(norm, backend=backend)), (plain, plain))]
        torch.testing.assert_close(*results)
        assert len(dynamo.compiled()) == 2 and not any(graph.passed_on for graph in dynamo.compiled()), dynamo.compiled()
        torch._dynamo.reset()
