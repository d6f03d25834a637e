"""PyTorch's side of `thalweg bench --torch`: reads a row as JSON from each line of standard input, and answers with its device time."""

import json
import sys

import torch

SPAN_MS = 1.0
MOST_CALLS = 50
REPEATS = 7


torch.backends.cudnn.benchmark = "cudnn.benchmark" in sys.argv


def draw(variable):
    shape = list(variable["shape"])
    if variable["transposed"]:
        shape[-1], shape[-2] = shape[-2], shape[-1]
    dtype = getattr(torch, variable["dtype"])
    if dtype == torch.bool:
        tensor = torch.rand(shape, device="cuda") > 0.5
    elif not dtype.is_floating_point:
        tensor = torch.randint(0, variable["below"] or 100, shape, device="cuda", dtype=dtype)
    elif variable["positive"]:
        tensor = torch.empty(shape, device="cuda").uniform_(0.1, 2.0).to(dtype)
    else:
        tensor = torch.randn(shape, device="cuda").to(dtype)
    if variable["channels_last"]:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor.transpose(-2, -1) if variable["transposed"] else tensor


def argument(value, variables, lists_of_numbers):
    if isinstance(value, list):
        if lists_of_numbers and value and all(isinstance(each, dict) for each in value):
            return [extent for each in value for extent in variables[each["var"]].shape]
        return [argument(each, variables, lists_of_numbers) for each in value]
    if isinstance(value, dict):
        return variables[value["var"]] if "var" in value else getattr(torch, value["dtype"])
    return value


def prepare(row):
    variables = {}
    for variable in row["variables"]:
        tensor = draw(variable)
        if variable["name"] in row["gradients"]:
            tensor.requires_grad_()
        variables[variable["name"]] = tensor
    name, _, overload = row["operator"].partition(".")
    operator = getattr(getattr(torch.ops.aten, name), overload or "default")
    positional, named = [], {}
    for parameter, value in zip(operator._schema.arguments, row["arguments"]):
        value = argument(value, variables, "int" in str(parameter.type))
        if parameter.kwarg_only:
            named[parameter.name] = value
        else:
            positional.append(value)

    def forward():
        result = operator(*positional, **named)
        return list(result) if isinstance(result, (tuple, list)) else [result]

    inputs = [variables[name] for name in row["gradients"]]
    cotangent = torch.ones_like(forward()[0]).detach() if inputs else None

    def call():
        results = forward()
        if inputs:
            torch.autograd.grad(results[0], inputs, cotangent, allow_unused=True)

    return call


def span(run):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def measure(row):
    call = prepare(row)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
        call()
    torch.cuda.synchronize()
    first = span(call)
    calls = max(1, min(MOST_CALLS, int(SPAN_MS / max(first, 1e-3))))

    def many():
        for _ in range(calls):
            call()

    captured, run = True, many
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            many()
        run = graph.replay
    except Exception:
        captured = False
        torch.cuda.synchronize()
    run()
    least = min(span(run) for _ in range(REPEATS))
    return {"microseconds": least * 1e3 / calls, "captured": captured}


def main():
    torch.manual_seed(0)
    name = f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    print(json.dumps({"peer": name}), flush=True)
    for line in sys.stdin:
        try:
            answer = measure(json.loads(line))
        except Exception as error:
            answer = {"error": str(error).splitlines()[0] if str(error) else type(error).__name__}
        torch.cuda.empty_cache()
        print(json.dumps(answer), flush=True)


main()
