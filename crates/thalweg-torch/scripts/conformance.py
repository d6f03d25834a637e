"""Runs PyTorch's own samples with and without kernels inside PyTorch (`thalweg_torch.enable_kernels`).

    python conformance.py --samples              of every operator of PyTorch's database (OpInfo) that comes to a kernel: results, gradients, errors
    python conformance.py --modules              of every module of PyTorch's database (ModuleInfo) that comes to a kernel
    python conformance.py --captured             on a GPU: a training step of a small GPT-2 as a CUDA graph, beside eager PyTorch without kernels
    python conformance.py --samples --device cpu the same without a GPU, by loops on the host

PyTorch's databases are part of its wheel; they need `expecttest`. Every call is taken (`everywhere=True`), also those that the table leaves to PyTorch.
"""

import argparse
import copy
import sys
import time
import unittest

import torch
import thalweg_torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


# Operators of kernels that the table has no line of: their calls are not counted.
UNLISTED = ("nn.functional.embedding", "sum", "mean", "amax", "logsumexp", "contiguous", "clone", "reshape", "flatten", "var", "nn.functional.mse_loss",
            "linalg.vector_norm", "special.log_softmax", "norm")


def calls():
    return sum(kernel.taken for kernel in thalweg_torch.kernels())


def enable(device):
    thalweg_torch.enable_kernels(everywhere=True, device=device)


def tensors(value):
    """Returns the tensors of a result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    return [part for item in value for part in tensors(item)] if isinstance(value, (tuple, list)) or hasattr(value, "mapping") else []


def weighted(part):
    weights = torch.linspace(0.5, 1.5, part.numel(), dtype=torch.float64, device=part.device)
    return ((part.abs() if part.is_complex() else part).double().flatten() * weights).sum()


def gradients(results, leaves):
    total = sum(weighted(part) for part in results if part.requires_grad)
    if not isinstance(total, torch.Tensor) or not leaves:
        return []
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    return [part for part in found if part is not None]


def outcome(function, leaves):
    """Results and gradients, or the exception."""
    torch.manual_seed(0)
    try:
        results = tensors(function())
        return [part.detach() for part in results] + gradients(results, leaves)
    except Exception as error:
        return type(error), str(error).split("GPU 0")[0]


def compare(name, theirs, ours, dtype):
    """Returns a description of the difference, or None."""
    if isinstance(theirs, tuple) or isinstance(ours, tuple):
        return None if theirs == ours else f"{name}: {theirs if isinstance(theirs, tuple) else 'results'}, ours {ours if isinstance(ours, tuple) else 'results'}"
    # Gradients of rounded results are rounded twice.
    tolerance = 1e-4 if dtype == torch.float32 else 16 * torch.finfo(dtype).eps
    if len(theirs) != len(ours):
        return f"{name}: {len(theirs)} tensors, ours {len(ours)}"
    for number, (a, b) in enumerate(zip(theirs, ours)):
        try:
            torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=True)
        except AssertionError as error:
            return f"{name}, tensor {number}: " + " ".join(str(error).split())[:200]
    return None


def leaves_of(sample):
    found = [part for part in tensors([sample.input, sample.args, sample.kwargs]) if part.is_floating_point() and part.is_leaf]
    return [part for part in found if part.requires_grad]


def is_sampled(operator, device):
    """Returns whether one of an operator's first samples is computed by a kernel."""
    if operator.name in UNLISTED:
        return True
    for dtype in DTYPES:
        if dtype not in operator.supported_dtypes(device):
            continue
        before = calls()
        try:
            wants = dtype in operator.supported_backward_dtypes(device)
            for number, sample in enumerate(operator.sample_inputs(device, dtype, requires_grad=wants)):
                outcome(lambda: operator(sample.input, *sample.args, **sample.kwargs), leaves_of(sample))
                if calls() > before:
                    return True
                if number == 7:
                    break
        except Exception:
            pass
        return False
    return False


def check_samples(device, seconds, part, parts):
    """Runs PyTorch's samples of every operator that has a kernel, and its samples of errors."""
    from torch.testing._internal.common_methods_invocations import op_db

    begin, wrong, skipped, total = time.perf_counter(), [], [], 0
    for operator in op_db[part::parts]:
        enable(device)
        if not is_sampled(operator, device):
            continue
        name = f"{operator.name} {operator.variant_test_name}".strip()
        if time.perf_counter() - begin > seconds:
            skipped.append(name)
            continue
        count = 0
        for dtype in DTYPES:
            if dtype not in operator.supported_dtypes(device):
                continue
            wants = dtype in operator.supported_backward_dtypes(device)
            for sample in operator.sample_inputs(device, dtype, requires_grad=wants):
                if time.perf_counter() - begin > 1.2 * seconds:
                    skipped.append(f"{name} {dtype} from its sample {count} on")
                    break
                leaves = leaves_of(sample)
                function = lambda: operator(sample.input, *sample.args, **sample.kwargs)
                thalweg_torch.disable_kernels()
                theirs = outcome(function, leaves)
                again = outcome(function, leaves)
                if compare(name, theirs, again, dtype):
                    # PyTorch's own results differ from call to call.
                    continue
                enable(device)
                different = compare(f"{name} {dtype}", theirs, outcome(function, leaves), dtype)
                note(wrong, different)
                count += 1
        errors = []
        if operator.error_inputs_func:
            errors = list(operator.error_inputs(torch.device(device)))
        for error in errors:
            sample = error.sample_input
            function = lambda: operator(sample.input, *sample.args, **sample.kwargs)
            thalweg_torch.disable_kernels()
            theirs = outcome(function, [])
            enable(device)
            different = compare(f"{name}, an error", theirs, outcome(function, []), torch.float32)
            note(wrong, different)
        total += count
        print(f"{count:5} samples of {name}, {len(errors)} of its errors", flush=True)
    report(f"{total} samples", wrong, skipped)
    return not wrong


def check_modules(device, seconds):
    """PyTorch's samples of every module that comes to a kernel: results, and the gradients of inputs and parameters."""
    from torch.testing._internal.common_modules import module_db

    begin, wrong, skipped, total = time.perf_counter(), [], [], 0
    for info in module_db:
        name, count, dtype = info.module_cls.__name__, 0, torch.float32
        if time.perf_counter() - begin > seconds:
            skipped.append(name)
            continue
        for training in (True, False):
            try:
                inputs = info.module_inputs_func(info, device=device, dtype=dtype, requires_grad=True, training=training)
            except (unittest.SkipTest, RuntimeError):
                continue
            for sample in inputs:
                made = sample.constructor_input
                torch.manual_seed(1)
                try:
                    module = info.module_cls(*made.args, **made.kwargs).to(device, dtype).train(training)
                except Exception:
                    continue
                given = sample.forward_input
                if given is None:
                    continue
                inner = [part for part in tensors([given.args, given.kwargs]) if part.requires_grad and part.is_leaf]

                def run():
                    other = copy.deepcopy(module)
                    parameters = [part for part in other.parameters() if part.requires_grad]
                    return outcome(lambda: other(*given.args, **given.kwargs), inner + parameters)

                thalweg_torch.disable_kernels()
                theirs, again = run(), run()
                if compare(name, theirs, again, dtype):
                    continue
                enable(device)
                before = calls()
                ours = run()
                if calls() == before:
                    continue
                different = compare(name, theirs, ours, dtype)
                note(wrong, different)
                count += 1
        if count:
            total += count
            print(f"{count:5} samples of {name}", flush=True)
    report(f"{total} samples of modules", wrong, skipped)
    return not wrong


def note(wrong, different):
    """Stores a difference, and prints it immediately."""
    if different:
        wrong.append(different)
        print("DIFFERENT", different, flush=True)


def report(what, wrong, skipped):
    late = f"; the time was up for {len(skipped)}: {' '.join(skipped)}" if skipped else ""
    print(f"{what}, {len(wrong)} different{late}")
    print("calls taken and passed on:", {k.operator: (k.taken, k.passed_on) for k in thalweg_torch.kernels()}, flush=True)
    for kernel in thalweg_torch.kernels():
        assert not kernel.given_up, kernel


def check_captured(steps=6):
    """Losses of a captured step with kernels, beside those of eager PyTorch without; and that replays call the kernels that the capture took."""
    from kernels import Gpt2

    def build():
        torch.manual_seed(0)
        model = Gpt2(features=768, heads=12, layers=4, tokens=512).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True, capturable=True)
        generator = torch.Generator().manual_seed(1)
        tokens, following = (torch.randint(0, 50257, (16, 512), generator=generator).cuda() for _ in range(2))

        def step():
            optimizer.zero_grad(set_to_none=False)
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(tokens, following)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    thalweg_torch.disable_kernels()
    step = build()
    expected = [step().item() for _ in range(steps + 3)]
    for everywhere in (False, True):
        thalweg_torch.disable_kernels()
        thalweg_torch.enable_kernels(everywhere=everywhere)
        before = calls()
        step = build()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            losses = [step().item() for _ in range(3)]
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        warm = calls()
        with torch.cuda.graph(graph):
            loss = step()
        captured = calls() - warm
        assert warm - before == 3 * captured, "a capture takes the calls that a step takes"
        for _ in range(steps):
            graph.replay()
            losses.append(loss.item())
        worst = max(abs(a - b) / abs(b) for a, b in zip(losses, expected))
        print(f"captured step, everywhere={everywhere}: {captured} calls taken, losses {[round(x, 4) for x in losses]}, PyTorch's {[round(x, 4) for x in expected]}")
        # bfloat16 keeps 3 digits.
        assert captured and worst < 5e-3, worst
        del graph, step


def main():
    arguments = argparse.ArgumentParser()
    for name in ("--samples", "--modules", "--captured"):
        arguments.add_argument(name, action="store_true")
    arguments.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    arguments.add_argument("--part", default="0/1", help="K/N: every Nth operator from the Kth on, so that processes share the work")
    arguments.add_argument("--seconds", type=float, default=600)
    arguments = arguments.parse_args()
    good = True
    if arguments.captured:
        check_captured()
    if arguments.modules:
        good &= check_modules(arguments.device, arguments.seconds)
    if arguments.samples:
        good &= check_samples(arguments.device, arguments.seconds, *map(int, arguments.part.split("/")))
    return not good


if __name__ == "__main__":
    sys.exit(main())
