"""Kernels inside PyTorch (`thalweg_torch.enable_kernels`): results against float64, time on the GPU and on the host.

    python kernels.py --check                 on a GPU: results, shapes that are taken and that are not, captures, streams
    python kernels.py --check --device cpu    the same without a GPU, by loops on the host
    python kernels.py --time FILE             on a GPU: writes a line of JSON a case; prints a table
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
from training_step import train

aten = torch.ops.aten
ALL = ["_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm",
       "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward", "embedding_dense_backward", "_fused_rms_norm",
       "_fused_rms_norm_backward"]
# Rows of a table of embeddings.
EMBEDDINGS = 50304
# With its gradient, as one case.
TIMED = ALL + ["cross_entropy_loss"]
# Of lists of tensors.
LISTED = list(adam.OPERATORS)


def numbers(shape, dtype, device, seed):
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)


class Case:
    """An operator on one shape: `call()` gives its results."""

    def __init__(self, operator, dtype, rows, columns, device):
        self.operator, self.dtype, self.rows, self.columns, self.device = operator, dtype, rows, columns, device
        shape = (rows, columns)
        self.x, self.gradient = numbers(shape, dtype, device, 1), numbers(shape, dtype, device, 2)
        if "layer_norm" in operator:
            self.weight = numbers((columns,), dtype, device, 3) + 1
            self.bias = numbers((columns,), dtype, device, 4)
            _, self.mean, self.deviation = self.norm(self.x, self.weight, self.bias)
        elif "group_norm" in operator:
            # A row is a group of channels of an instance.
            self.groups, self.channels = 8 if rows % 8 == 0 else rows, 2 if columns % 2 == 0 else 1
            self.x, self.gradient = (
                values.view(rows // self.groups, self.groups * self.channels, columns // self.channels) for values in (self.x, self.gradient))
            self.weight, self.bias = (numbers(self.x.shape[1:2], dtype, device, seed) + 1 for seed in (3, 4))
            _, self.mean, self.deviation = self.group_norm()
        elif "rms_norm" in operator:
            self.weight = numbers((columns,), dtype, device, 3) + 1
            _, self.root = aten._fused_rms_norm(self.x, [columns], self.weight, 1e-5)
        elif operator == "embedding_dense_backward":
            # Few are frequent, as words are: the first one is 2.7 % of them.
            uniform = torch.rand((rows,), generator=torch.Generator(device).manual_seed(5), device=device)
            self.table = EMBEDDINGS if rows > 64 else 64
            self.indices = (uniform**3 * self.table).long().clamp_max(self.table - 1)
        elif operator == "cross_entropy_loss":
            self.x.requires_grad_()
            self.target = torch.randint(0, columns, (rows,), device=device)
        elif "backward" in operator:
            function = aten._softmax if operator == "_softmax_backward_data" else aten._log_softmax
            self.x = function(self.x, 1, False)

    def group_norm(self):
        return aten.native_group_norm(self.x, self.weight, self.bias, *self.x.shape, self.groups, 1e-5)

    def norm(self, x, weight, bias):
        return aten.native_layer_norm(x, [self.columns], weight, bias, 1e-5)

    def call(self):
        if self.operator == "cross_entropy_loss":
            return torch.autograd.grad(torch.nn.functional.cross_entropy(self.x, self.target), self.x)
        if self.operator in ("_softmax", "_log_softmax"):
            return (getattr(aten, self.operator)(self.x, 1, False),)
        if "data" in self.operator:
            return (getattr(aten, self.operator)(self.gradient, self.x, 1, self.dtype),)
        if self.operator == "embedding_dense_backward":
            return (aten.embedding_dense_backward(self.gradient, self.indices, self.table, -1, False),)
        if self.operator == "native_group_norm":
            return self.group_norm()
        if self.operator == "native_group_norm_backward":
            arguments = self.gradient, self.x, self.mean, self.deviation, self.weight, *self.x.shape, self.groups
            return aten.native_group_norm_backward(*arguments, [True, True, True])
        if self.operator == "_fused_rms_norm":
            return aten._fused_rms_norm(self.x, [self.columns], self.weight, 1e-5)
        if self.operator == "_fused_rms_norm_backward":
            arguments = self.gradient, self.x, [self.columns], self.root, self.weight
            return aten._fused_rms_norm_backward(*arguments, [True, False])[:1]
        if self.operator == "native_layer_norm":
            return self.norm(self.x, self.weight, self.bias)
        arguments = self.gradient, self.x, [self.columns], self.mean, self.deviation, self.weight, self.bias
        return aten.native_layer_norm_backward(*arguments, [True, False, False])[:1]

    def exact(self):
        """The results by formulas in float64."""
        x, gradient = self.x.double(), self.gradient.double()
        if self.operator == "_softmax":
            return (torch.exp(x - x.amax(1, True)) / torch.exp(x - x.amax(1, True)).sum(1, keepdim=True),)
        if self.operator == "_log_softmax":
            shifted = x - x.amax(1, True)
            return (shifted - torch.exp(shifted).sum(1, keepdim=True).log(),)
        if self.operator == "_softmax_backward_data":
            return (x * (gradient - (x * gradient).sum(1, keepdim=True)),)
        if self.operator == "_log_softmax_backward_data":
            return (gradient - torch.exp(x) * gradient.sum(1, keepdim=True),)
        if self.operator == "embedding_dense_backward":
            zeros = torch.zeros(self.table, self.columns, dtype=torch.float64, device=self.device)
            return (zeros.index_add_(0, self.indices, gradient),)
        weight = self.weight.double()
        if self.operator == "_fused_rms_norm":
            root = 1 / (x.square().mean(1, keepdim=True) + 1e-5).sqrt()
            return x * root * weight, root
        if self.operator == "_fused_rms_norm_backward":
            root = self.root.double()
            slope = (gradient * weight * x * root).mean(1, keepdim=True)
            return (root * (gradient * weight - x * root * slope),)
        bias = self.bias.double()
        if self.operator == "native_group_norm":
            parts = x.view(-1, self.groups, self.channels * x.shape[2])
            mean = parts.mean(2, keepdim=True)
            deviation = 1 / ((parts - mean).square().mean(2, keepdim=True) + 1e-5).sqrt()
            result = ((parts - mean) * deviation).view(x.shape) * weight[:, None] + bias[:, None]
            return result, mean[..., 0], deviation[..., 0]
        if self.operator == "native_group_norm_backward":
            parts = x.view(-1, self.groups, self.channels * x.shape[2])
            deviation = self.deviation.double()[..., None]
            normalized = (parts - self.mean.double()[..., None]) * deviation
            weighted = (gradient * weight[:, None]).view(parts.shape)
            slope = (weighted * normalized).mean(2, keepdim=True)
            of_input = deviation * (weighted - weighted.mean(2, keepdim=True) - normalized * slope)
            return of_input.view(x.shape), (gradient * normalized.view(x.shape)).sum((0, 2)), gradient.sum((0, 2))
        if self.operator == "native_layer_norm":
            mean = x.mean(1, keepdim=True)
            deviation = 1 / ((x - mean).square().mean(1, keepdim=True) + 1e-5).sqrt()
            return (x - mean) * deviation * weight + bias, mean, deviation
        normalized = (x - self.mean.double()) * self.deviation.double()
        gradient = gradient * weight
        slope = (gradient * normalized).mean(1, keepdim=True)
        return (self.deviation.double() * (gradient - gradient.mean(1, keepdim=True) - normalized * slope),)

    def bytes(self):
        if self.operator == "embedding_dense_backward":
            return (self.rows + self.table) * self.columns * self.x.element_size()
        tensors = 3 if "backward" in self.operator or "cross" in self.operator else 2
        return tensors * self.x.numel() * self.x.element_size()


REDUCTIONS = ["sum.dim_IntList", "mean.dim", "amax", "logsumexp"]
COLUMNS = ["_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", *REDUCTIONS]


class Formed:
    """An operator on rows, on columns (runs of `columns` points among `after` neighbours), or a copy that transposes."""

    def __init__(self, operator, form, dtype, before, columns, after, device):
        self.operator, self.form, self.dtype, self.columns, self.device = operator, form, dtype, columns, device
        self.rows = before * after
        if form == "transposed":
            self.x = numbers((before, after, columns), dtype, device, 1).transpose(1, 2)
            self.columns = after
            return
        shape = (before, columns) if form == "rows" else (before, columns, after)
        self.x, self.gradient = numbers(shape, dtype, device, 1), numbers(shape, dtype, device, 2)
        if "backward" in operator:
            function = aten._softmax if operator == "_softmax_backward_data" else aten._log_softmax
            self.x = function(self.x, 1, False)

    def call(self):
        if self.form == "transposed":
            return (self.x.clone(memory_format=torch.contiguous_format),)
        if self.operator in ("_softmax", "_log_softmax"):
            return (getattr(aten, self.operator)(self.x, 1, False),)
        if "data" in self.operator:
            return (getattr(aten, self.operator)(self.gradient, self.x, 1, self.dtype),)
        name, _, overload = self.operator.partition(".")
        return (getattr(getattr(aten, name), overload or "default")(self.x, [1]),)

    def exact(self):
        x = self.x.double()
        if self.form == "transposed":
            return (x.contiguous(),)
        if self.operator in REDUCTIONS:
            return (getattr(torch, self.operator.partition(".")[0])(x, 1),)
        if self.operator == "_softmax":
            return (torch.softmax(x, 1),)
        if self.operator == "_log_softmax":
            return (torch.log_softmax(x, 1),)
        gradient = self.gradient.double()
        if self.operator == "_softmax_backward_data":
            return (x * (gradient - (x * gradient).sum(1, keepdim=True)),)
        return (gradient - torch.exp(x) * gradient.sum(1, keepdim=True),)

    def bytes(self):
        tensors = 1 if self.operator in REDUCTIONS else 3 if "backward" in self.operator else 2
        return tensors * self.x.numel() * self.x.element_size()


def formed_cases(elements=1 << 26):
    """Operator, form, dtype, before, columns, after."""
    for dtype in (torch.bfloat16, torch.float32):
        for columns in (64, 256, 1024, 4096, 16384, 65536):
            for operator in REDUCTIONS:
                yield operator, "rows", dtype, elements // columns, columns, 1
        for operator in COLUMNS:
            for before, columns, after in ((1, 4096, 1024), (1, 4096, 16384), (1, 65536, 1024), (16, 1024, 512), (64, 1024, 1024), (64, 128, 8192), (4096, 64, 256), (8192, 16, 512)):
                yield operator, "columns", dtype, before, columns, after
        for before, columns, after in ((1, 8192, 8192), (1, 1024, 65536), (1, 65536, 1024), (192, 1024, 64), (192, 64, 1024), (16, 1024, 768), (256, 512, 512), (1 << 16, 32, 32)):
            yield "clone", "transposed", dtype, before, columns, after


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
    """Leaves NaN where the next results will be."""
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
    adam.check(device)
    if device == "cuda":
        check_captured()
        check_streams()
    print("all is well")


def check_others(device):
    """What has no kernel of ours has PyTorch's results, bit by bit."""
    x = numbers((6, 40, 16), torch.float32, device, 5)
    cases = [
        lambda: torch.softmax(x.transpose(1, 2), -1),
        lambda: torch.softmax(x.double(), -1),
        lambda: torch.softmax(x[:0], -1),
        lambda: torch.softmax(x[0, 0, 0], 0),
        lambda: torch.nn.functional.layer_norm(x, (40, 16)),
        lambda: torch.nn.functional.layer_norm(x.double(), (16,)),
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


def check_cross_entropy(device):
    """Losses and gradients against float64, and what is composed as PyTorch does."""
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
    """Work is on the current stream: behind a long one, nothing is read before it is written."""
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
    """A graph of calls, so that the host takes no part in their time."""
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
    """Microseconds of one call on the GPU, PyTorch's and ours, and the ratio: medians of rounds that run both, in alternating order."""
    thalweg_torch.disable_kernels()
    theirs = captured(case, calls, False)
    thalweg_torch.enable_kernels(operators, everywhere=True)
    ours = captured(case, calls, True)
    pairs = []
    for number in range(rounds + 1):
        order = [theirs, ours] if number % 2 == 0 else [ours, theirs]
        times = [microseconds(graph, calls) for graph in order]
        pairs.append(times if number % 2 == 0 else times[::-1])
    pairs = pairs[1:]
    return (*(statistics.median(times) for times in zip(*pairs)), statistics.median(a / b for a, b in pairs))


def on_host(case, calls=200):
    """Microseconds of one call on the host: the median of 9 rounds that the GPU keeps up with, or whose work it queues."""
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
    """Microseconds of a copy of so many bfloat16, once read and once written."""
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
    return list(cases())


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
            theirs, ours, ratio = on_gpu(case, calls_for(case))
            percent = [100 * case.bytes() / rate / time for time in (theirs, ours)]
            name = str(dtype).removeprefix("torch.")
            row = dict(operator=operator, dtype=name, rows=rows, columns=columns, pytorch=theirs, ours=ours, ratio=ratio,
                       percent_pytorch=percent[0], percent=percent[1])
            print(json.dumps(row), file=lines, flush=True)
            print(f"{operator:28} {name:9} {rows:8}x{columns:<7} {theirs:9.1f} {ours:9.1f} us"
                  f" {percent[0]:6.1f} {percent[1]:6.1f} % of a copy  x{ratio:.3f}", flush=True)


def measure_lists(lines, rate):
    """The same of fused optimizers."""
    for operator, dtype, name, sizes in adam.cases():
        if operator not in LISTED:
            continue
        case = adam.Lists(operator, dtype, sizes, "cuda")
        thalweg_torch.enable_kernels(everywhere=True)
        case.call()
        theirs, ours, ratio = on_gpu(case, max(1, min(50, (1 << 26) // case.elements())))
        percent = [100 * case.bytes() / rate / time for time in (theirs, ours)]
        host = []
        for enabled in (False, True):
            thalweg_torch.disable_kernels()
            if enabled:
                thalweg_torch.enable_kernels(everywhere=True)
            host.append(on_host(case, 20))
        kind = str(dtype).removeprefix("torch.")
        row = dict(operator=operator, form="list", dtype=kind, list=name, tensors=len(sizes), elements=case.elements(), pytorch=theirs, ours=ours, ratio=ratio,
                   percent_pytorch=percent[0], percent=percent[1], host_pytorch=host[0], host_ours=host[1])
        print(json.dumps(row), file=lines, flush=True)
        print(f"{operator:28} {kind:9} {name:16} {theirs:9.1f} {ours:9.1f} us {percent[0]:6.1f} {percent[1]:6.1f} % of a copy  x{ratio:.3f}"
              f"  host {host[0]:.1f} {host[1]:.1f} us", flush=True)


def measure_formed(path, seconds):
    """As `measure`, of reductions, columns and copies."""
    begin, copied = time.perf_counter(), copy_time(1 << 28)
    rate = (1 << 30) / copied
    names = sorted({case[0] for case in formed_cases()})
    thalweg_torch.enable_kernels(names, everywhere=True)

    def load(key):
        # As large as what is measured: plans depend on sizes.
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
            theirs, ours, ratio = on_gpu(case, max(1, calls_for(case) // 4), rounds=3, operators=names)
            percent = [100 * case.bytes() / rate / time for time in (theirs, ours)]
            name = str(dtype).removeprefix("torch.")
            row = dict(operator=operator, form=form, dtype=name, shape=shape, pytorch=theirs, ours=ours, ratio=ratio,
                       percent_pytorch=percent[0], percent=percent[1])
            print(json.dumps(row), file=lines, flush=True)
            print(f"{operator:28} {form:10} {name:9} {str(shape):22} {theirs:10.1f} {ours:9.1f} us {percent[0]:6.1f} {percent[1]:6.1f} %  x{ratio:.3f}", flush=True)
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
    """The host's time of a call of one small shape: PyTorch's, ours, and one that is passed on."""
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
