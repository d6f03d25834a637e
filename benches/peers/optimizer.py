"""Clipping of gradients and steps of AdamW over GPT-2's 148 tensors in PyTorch, to be run beside the bench `optimizer` on the same GPU.

Prints one JSON object a line, with the names of our bench: milliseconds per call.
"""
import json, statistics, time
import torch

FEATURES, LAYERS, VOCABULARY, CONTEXT = 768, 12, 50304, 1024


def shapes():
    yield from [(VOCABULARY, FEATURES), (CONTEXT, FEATURES)]
    for _ in range(LAYERS):
        yield from [(FEATURES,), (FEATURES,), (3 * FEATURES, FEATURES), (3 * FEATURES,), (FEATURES, FEATURES), (FEATURES,)]
        yield from [(FEATURES,), (FEATURES,), (4 * FEATURES, FEATURES), (4 * FEATURES,), (FEATURES, 4 * FEATURES), (FEATURES,)]
    yield from [(FEATURES,), (FEATURES,)]


def report(name, bytes, call):
    times = []
    for turn in range(6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            call()
        torch.cuda.synchronize()
        if turn:
            times.append((time.perf_counter() - start) / 20)
    seconds = statistics.median(times)
    print(json.dumps(dict(name=f"torch_optimizer_{name}", value=round(seconds * 1e3, 4), unit="ms", GB_per_s=round(bytes / seconds / 1e9),
                          torch=torch.__version__, device=torch.cuda.get_device_name())), flush=True)


parameters = [torch.full(shape, 0.01, device="cuda", requires_grad=True) for shape in shapes()]
for parameter in parameters:
    parameter.grad = torch.full_like(parameter, 1e-3)
matrices = [parameter for parameter in parameters if parameter.dim() == 2]
elements = sum(parameter.numel() for parameter in parameters)
optimizer = torch.optim.AdamW(parameters, fused=True)


def clipped():
    torch.nn.utils.clip_grad_norm_(parameters, 1e-3)
    optimizer.step()


def cast_and_step():
    with torch.autocast("cuda", torch.bfloat16):
        for weight in matrices:
            torch.nn.functional.linear(torch.zeros(1, weight.shape[1], device="cuda", dtype=torch.bfloat16), weight)
    optimizer.step()


report("clip", 12 * elements, lambda: torch.nn.utils.clip_grad_norm_(parameters, 1e-3))
report("clip_within", 4 * elements, lambda: torch.nn.utils.clip_grad_norm_(parameters, 1e6))
report("step", 28 * elements, optimizer.step)
report("step_clipped", 32 * elements, clipped)
report("cast_and_step", 36 * elements, cast_and_step)
