"""Kernels inside PyTorch (`thalweg_torch.enable_kernels`): results against float64, time on the GPU and on the host.

    python kernels.py --check                 on a GPU: results, shapes that are taken and that are not, captures, streams
    python kernels.py --check --device cpu    the same without a GPU, by loops on the host
    python kernels.py --time FILE             on a GPU: writes a line of JSON per case; prints a table
    python kernels.py --time-formed FILE      the same of reductions, of dimensions that are not the last, and of copies that transpose
    python kernels.py --train                 on a GPU: GPT-2's training step with and without kernels, and where its time goes

Nothing is timed with --check. Time on the GPU is that of a captured graph of calls, so that the host takes no part in it. The bytes of a case are counted once
read and once written, and compared with a copy of as many.
"""

import argparse
import concurrent.futures
import json
import statistics
import sys
import time

import torch
import adam
import thalweg_torch
from cases import ALL, COLUMNS, REDUCTIONS, Case, Formed, formed_cases, numbers
from training_step import train

aten = torch.ops.aten
# With its gradient, as one case.
TIMED = ALL + ["cross_entropy_loss"]
# Of lists of tensors.
LISTED = list(adam.OPERATORS)
# Those of ResNet-50 with 64 images, of which batch norm is timed besides: 14 x 14 and 7 x 7 are not multiples of vectors.
PLANES = [(dtype, 64 * channels, plane) for dtype in (torch.bfloat16, torch.float32)
          for channels, plane in ((64, 12544), (256, 3136), (512, 784), (1024, 196), (2048, 49))]


def check_formed(device):
    """Reductions, dimensions that are not the last, and copies, against float64."""
    names = ["_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", *REDUCTIONS, "clone"]
    shapes = {"rows": [(7, 40, 1), (33, 1000, 1), (3, 8192, 1), (2, 50304, 1)], "columns": [(1, 64, 40), (3, 5, 64), (2, 1000, 17), (5, 300, 128)],
              "transposed": [(1, 64, 40), (3, 33, 65), (2, 128, 8)]}
    for operator in names:
        forms = ["transposed"] if operator == "clone" else ["rows", "columns"]
        for form, shape, dtype in ((f, s, d) for f in forms for s in shapes[f] for d in (torch.float32, torch.float16, torch.bfloat16)):
            thalweg_torch.disable_kernels()
            case = Formed(operator, form, dtype, *shape, device)
            exact, theirs = case.exact(), case.call()
            thalweg_torch.enable_kernels(names, everywhere=True, device=device)
            poison(case)
            ours = case.call()
            assert ours[0].shape == theirs[0].shape and ours[0].stride() == theirs[0].stride() and ours[0].dtype == theirs[0].dtype
            limit = 2 * error_of(theirs, exact) + 4 * torch.finfo(dtype).eps
            assert error_of(ours, exact) <= limit, f"{operator} {form} {dtype} {shape}: {error_of(ours, exact):.2e}, limit {limit:.2e}"
    x = numbers((6, 40), torch.float32, device, 3)
    x[1, 3], x[2], x[3, 5] = float("nan"), -float("inf"), float("inf")
    ours = [getattr(torch, name)(x, -1, keepdim=True) for name in ("sum", "mean", "amax", "logsumexp")]
    thalweg_torch.disable_kernels()
    for name, result in zip(("sum", "mean", "amax", "logsumexp"), ours):
        assert torch.allclose(result, getattr(torch, name)(x, -1, keepdim=True), equal_nan=True), name
    print("ok reductions, columns, copies")


def poison(case):
    """Writes NaN to the memory that the next results will get."""
    results = case.call()
    for result in results:
        result.fill_(float("nan"))
    del results


def taken(operator):
    return next((k.taken for k in thalweg_torch.kernels() if k.operator == operator), None)


def error_of(results, exact):
    worst = 0.0
    for result, reference in zip(results, exact):
        assert torch.isfinite(result).all(), "a result is not finite"
        worst = max(worst, ((result.double() - reference).abs() / (reference.abs() + reference.abs().mean())).max().item())
    return worst


def check(device):
    shapes = [(1, 17), (3, 64), (5, 768), (33, 1000), (7, 1024), (64, 2048), (5, 5000), (9, 8192), (3, 50304), (2, 65536)]
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    if device == "cuda":
        load_all((dtype, columns) for dtype in dtypes for _, columns in shapes)
    for dtype in dtypes:
        for operator in ALL if device == "cuda" else [name for name in ALL if "rms" not in name]:
            worst = [0.0, 0.0]
            for rows, columns in shapes:
                if operator == "embedding_dense_backward" and columns > 2048:
                    continue
                thalweg_torch.disable_kernels()
                case = Case(operator, dtype, rows, columns, device)
                exact = case.exact()
                theirs = error_of(case.call(), exact)
                thalweg_torch.enable_kernels(everywhere=True, device=device)
                poison(case)
                ours = error_of(case.call(), exact)
                if operator == "embedding_dense_backward":
                    # Errors are relative to a mean that is almost 0; sums are in another order than PyTorch's.
                    assert torch.allclose(case.call()[0].double(), exact[0], rtol=2 * torch.finfo(dtype).eps, atol=1e-4)
                    continue
                # A unit in the last place more than PyTorch's, which sums in another order.
                limit = 2 * theirs + 4 * torch.finfo(dtype).eps
                assert ours <= limit, f"{operator} {dtype} {rows}x{columns}: error {ours:.2e}, PyTorch's {theirs:.2e}"
                worst = [max(worst[0], ours), max(worst[1], theirs)]
            print(f"ok {operator} {dtype}: error {worst[0]:.1e}, PyTorch's {worst[1]:.1e}")
    for kernel in thalweg_torch.kernels():
        # The others are called below.
        skipped = kernel.operator not in ALL or device == "cpu" and "rms" in kernel.operator
        assert (kernel.taken or skipped) and not kernel.given_up, kernel
    check_others(device)
    check_errors(device)
    check_cross_entropy(device)
    check_formed(device)
    check_batch_norm(device)
    adam.check(device)
    if device == "cuda":
        check_captured()
        check_streams()
    print("all is well")


def check_others(device):
    """Checks that operators without a kernel of ours have PyTorch's results, bit by bit."""
    x = numbers((6, 40, 16), torch.float32, device, 5)
    cases = [
        lambda: torch.softmax(x.transpose(1, 2), -1),
        lambda: torch.softmax(x.double(), -1),
        lambda: torch.softmax(x[:0], -1),
        lambda: torch.softmax(x[0, 0, 0], 0),
        lambda: torch.nn.functional.layer_norm(x, (40, 16)),
        lambda: torch.nn.functional.layer_norm(x.double(), (16,)),
        lambda: torch.nn.functional.rms_norm(x.double(), (16,), x[0, 0].double(), 0.5),
    ]
    thalweg_torch.disable_kernels()
    before = [case() for case in cases]
    thalweg_torch.enable_kernels(everywhere=True, device=device)
    count = taken("_softmax"), taken("native_layer_norm")
    for case, expected in zip(cases, before):
        assert torch.equal(case(), expected)
    assert count == (taken("_softmax"), taken("native_layer_norm"))
    module = torch.nn.LayerNorm((40, 16), device=device)
    expected = [torch.nn.functional.layer_norm(x, (40, 16)) * module.weight + module.bias]
    assert torch.allclose(module(x), expected[0], atol=1e-5) and taken("native_layer_norm") == count[1] + 1
    inputs = numbers((3, 24), torch.float64, device, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: torch.softmax(x, -1), (inputs,))
    single = numbers((3, 24), torch.float32, device, 6).requires_grad_()
    torch.softmax(single, -1).square().sum().backward()
    torch.softmax(inputs, -1).square().sum().backward()
    assert torch.allclose(single.grad.double(), inputs.grad, atol=1e-6)
    print("ok what has no kernel")


def check_batch_norm(device):
    """Modules in training and not: results, running statistics and gradients, of one channel, small planes, and layouts that are PyTorch's."""
    shapes = [(4, 3, 9, 7), (32, 2, 5), (16, 24), (2, 3, 64, 80), (8, 1, 3, 3)]
    for shape in shapes:
        for dtype in (torch.float32, torch.bfloat16):
            outcomes = []
            for enabled in (False, True):
                thalweg_torch.disable_kernels()
                if enabled:
                    thalweg_torch.enable_kernels(everywhere=True, device=device)
                before = taken("native_batch_norm") or 0
                kind = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}[len(shape)]
                module = kind(shape[1], momentum=0.3, device=device)
                with torch.no_grad():
                    module.weight.copy_(numbers(shape[1:2], torch.float32, device, 1))
                    module.bias.copy_(numbers(shape[1:2], torch.float32, device, 2))
                x = numbers(shape, dtype, device, 3).requires_grad_()
                # Without cuDNN, which PyTorch asks where it can.
                with torch.backends.cudnn.flags(enabled=False):
                    for _ in range(2):
                        y = module(x)
                    y.backward(numbers(shape, dtype, device, 4))
                    rest = [module.eval()(x), module.train()(x.transpose(0, -1).contiguous().transpose(0, -1))]
                assert not enabled or taken("native_batch_norm") == before + 2, shape
                outcomes.append([y, x.grad, module.weight.grad, module.bias.grad, module.running_mean, module.running_var, *rest])
            for their, our in zip(*outcomes):
                tolerance = 1e-4 if our.dtype == torch.float32 and dtype == torch.float32 else 2e-2
                assert torch.allclose(our, their, rtol=tolerance, atol=tolerance * (1 + their.abs().max().item() / 8)), (shape, dtype)
    print("ok batch norm")


def check_cross_entropy(device):
    """Compares losses and gradients with float64, and checks the calls that are composed as in PyTorch."""
    cross_entropy = torch.nn.functional.cross_entropy
    thalweg_torch.enable_kernels(everywhere=True, device=device)

    def count():
        return taken("cross_entropy_loss"), taken("cross_entropy_loss_backward")

    def run(scores, target, **how):
        scores = scores.detach().requires_grad_()
        loss = cross_entropy(scores, target, **how)
        (gradient,) = torch.autograd.grad(loss.sum(), scores)
        return loss.detach(), gradient

    for rows, columns in [(7, 40), (64, 1000), (33, 8192), (5, 50304), (3, 50257)]:
        target = torch.randint(0, columns, (rows,), generator=torch.Generator(device).manual_seed(7), device=device)
        target[1] = -100
        for dtype, eps in [(torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)]:
            scores = numbers((rows, columns), dtype, device, 8)
            for how in (dict(), dict(reduction="sum"), dict(reduction="none"), dict(ignore_index=int(target[0]))):
                target[1] = how.get("ignore_index", -100)
                loss, gradient = run(scores.double(), target, **how)
                before = count()
                actual, slope = run(scores, target, **how)
                assert count() == (before[0] + 1, before[1] + 1), (count(), before)
                assert actual.dtype == dtype and slope.dtype == dtype
                assert torch.allclose(actual.double(), loss, rtol=eps, atol=eps), (rows, columns, dtype, how)
                assert (slope.double() - gradient).abs().max() <= eps * gradient.abs().max(), (rows, columns, dtype, how)
                with torch.autocast(device, torch.bfloat16):
                    wide, _ = run(scores, target, **how)
                assert wide.dtype == torch.float32 and torch.allclose(wide.double(), loss, rtol=1e-5, atol=1e-5)
    target = torch.tensor([3, -100, 0, 39, 7, 8, 9], device=device)
    scores, weight = numbers((7, 40), torch.float32, device, 8), numbers((40,), torch.float32, device, 9).abs()
    before = count()
    cases = [
        (scores, target, dict(weight=weight)),
        (scores, target, dict(label_smoothing=0.1)),
        (scores, torch.softmax(numbers((7, 40), torch.float32, device, 10), 1), {}),
        (scores.double(), target, {}),
        (scores.t().contiguous().t(), target, {}),
        (scores[2], target[2], {}),
        (scores[:0], target[:0], dict(reduction="sum")),
        (scores.view(1, 7, 40).transpose(1, 2), target.view(1, 7), {}),
    ]
    ours = [run(*case[:2], **case[2]) for case in cases]
    assert count() == before
    ours.append(run(scores, torch.full_like(target, -100)))
    cases.append((scores, torch.full_like(target, -100), {}))
    thalweg_torch.disable_kernels()
    for case, (loss, gradient) in zip(cases, ours):
        expected = run(*case[:2], **case[2])
        assert torch.allclose(loss, expected[0], equal_nan=True) and torch.allclose(gradient, expected[1], equal_nan=True)
    derivatives = []
    for enabled in (True, False):
        if enabled:
            thalweg_torch.enable_kernels(everywhere=True, device=device)
        else:
            thalweg_torch.disable_kernels()
        leaf = scores.clone().requires_grad_()
        (first,) = torch.autograd.grad(cross_entropy(leaf, target), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), leaf)
        mapped = torch.func.grad(lambda x: cross_entropy(x, target))(scores)
        each = torch.func.vmap(lambda x, y: cross_entropy(x, y))(scores[:, None], target.clamp_min(0)[:, None])
        directions = torch.eye(7, device=device)
        losses = cross_entropy(leaf, target, reduction="none")
        (rows,) = torch.autograd.grad(losses, leaf, directions, is_grads_batched=True)
        traced = torch.jit.trace(lambda x: cross_entropy(x, target), scores)
        assert "thalweg" not in str(traced.graph)
        errors = []
        for wrong in (target[:3], target.float(), target[None]):
            try:
                cross_entropy(scores, wrong)
            except Exception as error:
                errors.append((type(error), str(error)))
        derivatives.append((first.detach(), second, mapped, each, rows, errors))
    for ours, theirs in zip(*derivatives):
        assert ours == theirs if isinstance(ours, list) else torch.allclose(ours, theirs, atol=1e-7)
    # Taken forward and taken out before the gradient.
    thalweg_torch.enable_kernels(everywhere=True, device=device)
    leaf = scores.clone().requires_grad_()
    loss = cross_entropy(leaf, target)
    thalweg_torch.disable_kernels()
    loss.backward()
    assert torch.allclose(leaf.grad, derivatives[1][0], atol=1e-7)
    print("ok cross entropy")


def check_errors(device):
    """PyTorch's exceptions are those of PyTorch, with and without kernels."""
    x = torch.zeros(3, 4, device=device)
    calls = [
        lambda: torch.softmax(x, 5),
        lambda: torch.softmax(x.long(), 1),
        lambda: aten._softmax(x, 1, True),
        lambda: torch.nn.functional.layer_norm(x, (5,)),
        lambda: aten._softmax_backward_data(x, x[:2], 1, torch.float32),
    ]
    if device == "cuda":
        calls.append(lambda: torch.softmax(torch.empty(1 << 30, device="cuda").expand(1 << 10, 1 << 30), -1))

    def outcome(call):
        try:
            return call().shape
        except Exception as error:
            return type(error), str(error).split("GPU 0")[0]

    thalweg_torch.disable_kernels()
    before = [outcome(call) for call in calls]
    thalweg_torch.enable_kernels(everywhere=True, device=device)
    assert before == [outcome(call) for call in calls], (before, [outcome(call) for call in calls])
    print("ok exceptions")


def check_captured():
    thalweg_torch.enable_kernels(everywhere=True)
    case = Case("_softmax", torch.bfloat16, 32, 2048, "cuda")
    case.call()
    graph = torch.cuda.CUDAGraph()
    before = taken("_softmax")
    with torch.cuda.graph(graph):
        (result,) = case.call()
    assert taken("_softmax") == before + 1
    case.x.copy_(numbers((32, 2048), torch.bfloat16, "cuda", 9))
    graph.replay()
    assert error_of((result,), case.exact()) < 0.02
    # A kernel that is not loaded yet is PyTorch's in a capture.
    unseen = Case("_softmax", torch.bfloat16, 32, 3072, "cuda")
    graph = torch.cuda.CUDAGraph()
    before = taken("_softmax")
    with torch.cuda.graph(graph):
        (result,) = unseen.call()
    graph.replay()
    assert error_of((result,), unseen.exact()) < 0.02
    print("ok captured; a kernel of a class that was not loaded was", "ours" if taken("_softmax") > before else "PyTorch's")


def check_streams():
    """Checks that work is on the current stream: after long work, nothing is read before it is written."""
    thalweg_torch.enable_kernels(everywhere=True)
    case = Case("_softmax", torch.float32, 256, 4096, "cuda")
    case.call()
    exact = case.exact()
    stream, x = torch.cuda.Stream(), case.x.clone()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        case.x.fill_(float("nan"))
        torch.cuda._sleep(50_000_000)
        case.x.copy_(x)
        (result,) = case.call()
    stream.synchronize()
    assert error_of((result,), exact) < 1e-5
    print("ok streams")


class Issued:
    """Calls that are issued one by one."""

    def __init__(self, case, calls, ours):
        self.case, self.calls, self.ours = case, calls, ours

    def replay(self, first):
        if self.ours:
            thalweg_torch.enable_kernels(everywhere=True)
        else:
            thalweg_torch.disable_kernels()
        # The host is ahead of the GPU by then.
        torch.cuda._sleep(4_000_000)
        first.record()
        for _ in range(self.calls):
            self.case.call()


class Captured:
    def __init__(self, graph):
        self.graph = graph

    def replay(self, first):
        first.record()
        self.graph.replay()


def captured(case, calls, ours):
    """Captures calls as a graph, so that the host does not influence their time."""
    for _ in range(2):
        case.call()
    if case.operator == "embedding_dense_backward":
        return Issued(case, calls, ours)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            case.call()
    return Captured(graph)


def microseconds(graph, calls):
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay(first)
    last.record()
    last.synchronize()
    return first.elapsed_time(last) * 1000 / calls


def on_gpu(case, calls, rounds=7, operators=None):
    """Returns microseconds of one call on the GPU with PyTorch's kernel and with ours, their ratio, and PyTorch's
    message if it refuses the call. Times are medians of rounds that run both, in alternating order. PyTorch's time and
    the ratio are None if it refuses."""
    thalweg_torch.disable_kernels()
    theirs, refusal = None, ""
    try:
        theirs = captured(case, calls, False)
    except RuntimeError as error:
        refusal = str(error).splitlines()[0]
    thalweg_torch.enable_kernels(operators, everywhere=True)
    ours = captured(case, calls, True)
    rows = []
    for number in range(rounds + 1):
        order = [graph for graph in (theirs, ours) if graph is not None]
        order = order if number % 2 == 0 else order[::-1]
        times = {graph: microseconds(graph, calls) for graph in order}
        rows.append((times.get(theirs), times[ours]))
    theirs, ours = zip(*rows[1:])
    if refusal:
        return None, statistics.median(ours), None, refusal
    return statistics.median(theirs), statistics.median(ours), statistics.median(a / b for a, b in zip(theirs, ours)), ""


def speeds(case, calls, rate, **how):
    """Returns a row of a case's times: PyTorch's and ours, and both in % of a copy; and the text of it."""
    theirs, ours, ratio, refusal = on_gpu(case, calls, **how)
    percent_pytorch, percent = (time and 100 * case.bytes() / rate / time for time in (theirs, ours))
    row = dict(pytorch=theirs, ours=ours, ratio=ratio, percent_pytorch=percent_pytorch, percent=percent)
    if refusal:
        return row | dict(refusal=refusal), f"{'refused':>9} {ours:9.1f} us {'':6} {percent:6.1f} % of a copy  PyTorch: {refusal}"
    return row, f"{theirs:9.1f} {ours:9.1f} us {percent_pytorch:6.1f} {percent:6.1f} % of a copy  x{ratio:.3f}"


def on_host(case, calls=200):
    """Returns microseconds of one call on the host: the median of 9 rounds, in which the GPU keeps up or has room in
    its queue."""
    times = []
    for _ in range(10):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            case.call()
        times.append((time.perf_counter() - begin) * 1e6 / calls)
    torch.cuda.synchronize()
    return statistics.median(times[1:])


def calls_for(case):
    return max(1, min(50, (1 << 26) // max(case.x.numel(), 1)))


def copy_time(elements):
    """Returns the microseconds of a copy of `elements` bfloat16 numbers, once read and once written."""
    source = torch.zeros(elements, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(9):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        target.copy_(source)
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) * 1000)
    return statistics.median(times[1:])


def cases():
    """Dtype, rows, columns: large tensors of many widths, then smaller ones."""
    for dtype in (torch.bfloat16, torch.float32):
        for columns in (64, 128, 256, 512, 768, 1024, 1280, 2048, 4096, 8192, 16384, 32768, 50304, 65536, 131072):
            yield dtype, (1 << 26) // columns, columns
    for columns in (128, 768, 1024, 8192, 65536):
        yield torch.float16, (1 << 26) // columns, columns
    for dtype in (torch.bfloat16, torch.float32):
        for columns in (256, 768, 1024, 4096):
            for elements in (1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24):
                yield dtype, max(1, elements // columns), columns


def cases_of(operator):
    if operator == "embedding_dense_backward":
        return [(dtype, rows, columns) for dtype in (torch.float32, torch.bfloat16) for columns in (256, 768, 2048)
                for rows in (1024, 16384, 65536)]
    return list(cases()) + (PLANES if "batch_norm" in operator else [])


def load_all(shapes):
    """Compiles all kernels for dtypes and columns, on many threads."""
    thalweg_torch.enable_kernels(everywhere=True)
    classes = {(operator, dtype, columns) for dtype, columns in shapes for operator in TIMED
               if operator != "embedding_dense_backward" or columns <= 2048}
    begin = time.perf_counter()

    def load(key):
        Case(key[0], key[1], 512, key[2], "cuda").call()

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(load, sorted(classes, key=str)))
    torch.cuda.synchronize()
    print(f"{len(classes)} classes loaded in {time.perf_counter() - begin:.1f} s", flush=True)


def measure(path, seconds):
    begin = time.perf_counter()
    copied = copy_time(1 << 28)
    rate = (1 << 30) / copied
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; a copy: {rate / 1000:.0f} GB/s")
    with open(path, "w") as lines:
        measure_lists(lines, rate)
        if not TIMED:
            return
        load_all((dtype, columns) for dtype, _, columns in cases())
        measure_host(lines)
        order = [(number, operator, *case) for operator in TIMED for number, case in enumerate(cases_of(operator))]
        for _, operator, dtype, rows, columns in sorted(order, key=lambda row: (row[0], TIMED.index(row[1]))):
            if time.perf_counter() - begin > seconds:
                print("the time is up")
                return
            case = Case(operator, dtype, rows, columns, "cuda")
            row, text = speeds(case, calls_for(case), rate)
            name = str(dtype).removeprefix("torch.")
            print(json.dumps(dict(operator=operator, dtype=name, rows=rows, columns=columns) | row), file=lines, flush=True)
            print(f"{operator:28} {name:9} {rows:8}x{columns:<7} {text}", flush=True)


def measure_lists(lines, rate):
    """Yields the cases of fused optimizers."""
    for operator, dtype, name, sizes in adam.cases():
        if operator not in LISTED:
            continue
        case = adam.Lists(operator, dtype, sizes, "cuda")
        thalweg_torch.enable_kernels(everywhere=True)
        case.call()
        row, text = speeds(case, max(1, min(50, (1 << 26) // case.elements())), rate)
        host = []
        for enabled in (False, True):
            thalweg_torch.disable_kernels()
            if enabled:
                thalweg_torch.enable_kernels(everywhere=True)
            host.append(on_host(case, 20))
        kind = str(dtype).removeprefix("torch.")
        about = dict(operator=operator, form="list", dtype=kind, list=name, tensors=len(sizes), elements=case.elements())
        print(json.dumps(about | row | dict(host_pytorch=host[0], host_ours=host[1])), file=lines, flush=True)
        print(f"{operator:28} {kind:9} {name:16} {text}  host {host[0]:.1f} {host[1]:.1f} us", flush=True)


def measure_formed(path, seconds):
    """As `measure`, of reductions, columns and copies."""
    begin, copied = time.perf_counter(), copy_time(1 << 28)
    rate = (1 << 30) / copied
    names = sorted({case[0] for case in formed_cases()})
    thalweg_torch.enable_kernels(names, everywhere=True)

    def load(key):
        # As large as the measured tensors: plans depend on sizes.
        Formed(*key, "cuda").call()

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        list(pool.map(load, formed_cases()))
    torch.cuda.synchronize()
    print(f"loaded in {time.perf_counter() - begin:.1f} s; a copy: {rate / 1000:.0f} GB/s", flush=True)
    with open(path, "w") as lines:
        for operator, form, dtype, *shape in formed_cases():
            if time.perf_counter() - begin > seconds:
                print("the time is up")
                return
            case = Formed(operator, form, dtype, *shape, "cuda")
            row, text = speeds(case, max(1, calls_for(case) // 4), rate, rounds=3, operators=names)
            name = str(dtype).removeprefix("torch.")
            print(json.dumps(dict(operator=operator, form=form, dtype=name, shape=shape) | row), file=lines, flush=True)
            print(f"{operator:28} {form:10} {name:9} {str(shape):22} {text}", flush=True)
        for operator in names:
            form = "transposed" if operator == "clone" else "rows"
            times = []
            for enabled in (False, True):
                thalweg_torch.disable_kernels()
                if enabled:
                    thalweg_torch.enable_kernels(names)
                times.append(on_host(Formed(operator, form, torch.bfloat16, 8, 768, 8, "cuda") if form == "transposed" else Formed(operator, form, torch.bfloat16, 8, 768, 1, "cuda")))
            print(json.dumps(dict(host=operator, pytorch=times[0], passed_on=times[1])), file=lines, flush=True)
            print(f"host {operator:28} {times[0]:6.2f} us, passed on {times[1]:6.2f}", flush=True)


def measure_host(lines):
    """Measures the host's time of a call with one small shape: PyTorch's, ours, and that of a call that is passed on."""
    for dtype in (torch.bfloat16, torch.float32):
        for operator in TIMED:
            thalweg_torch.disable_kernels()
            case = Case(operator, dtype, 8, 768, "cuda")
            theirs = on_host(case)
            thalweg_torch.enable_kernels(everywhere=True)
            ours = on_host(case)
            thalweg_torch.enable_kernels(everywhere=False)
            passed_on = on_host(case)
            name = str(dtype).removeprefix("torch.")
            row = dict(host=operator, dtype=name, pytorch=theirs, ours=ours, passed_on=passed_on)
            print(json.dumps(row), file=lines, flush=True)
            print(f"host {operator:28} {name:9} {theirs:6.2f} us, ours {ours:6.2f}, passed on {passed_on:6.2f}", flush=True)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    arguments.add_argument("--time")
    arguments.add_argument("--time-formed")
    arguments.add_argument("--train", action="store_true")
    arguments.add_argument("--everywhere", action="store_true")
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--operators", help="with --time: these alone, by names with commas between them")
    arguments = arguments.parse_args()
    if arguments.operators:
        names = arguments.operators.split(",")
        LISTED[:] = [name for name in names if name in adam.OPERATORS]
        TIMED[:] = [name for name in names if name not in LISTED]
    if arguments.check:
        check(arguments.device)
    if arguments.time:
        measure(arguments.time, arguments.seconds)
    if arguments.time_formed:
        measure_formed(arguments.time_formed, arguments.seconds)
    if arguments.train:
        train(arguments.everywhere)


if __name__ == "__main__":
    sys.exit(main())
