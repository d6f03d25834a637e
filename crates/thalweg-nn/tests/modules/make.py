"""Writes samples.jsonl.gz: PyTorch's samples of modules (ModuleInfo) with results and gradients, in f64.

    python3 make.py samples.jsonl.gz

It needs PyTorch 2.11. Inputs and parameters are rounded to three decimals, so that the file is small. Gradients are those for
cotangents of (n % 7 - 3) / 4 at the n-th element of a result.
"""

import gzip
import inspect
import json
import sys

import torch
from torch.testing._internal.common_modules import module_db

MOST_ELEMENTS = 900
MOST_SAMPLES = 12
# Of those whose samples are large.
FEW_SAMPLES = {"CTCLoss": 4}
# Of those whose first samples have options that no other has.
FIRST_SAMPLES = {"TransformerEncoderLayer": 3, "TransformerDecoderLayer": 3}


def rounded(value):
    """Returns the number with eight digits."""
    return float(f"{value:.8g}") if value == value and abs(value) != float("inf") else str(value)


def written(tensor):
    values = tensor.detach().flatten().tolist()
    if tensor.dtype.is_floating_point:
        values = [rounded(value) for value in values]
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."), "values": values}


def plain(value):
    """Returns a value in JSON's types; `written` converts tensors."""
    if torch.is_tensor(value):
        return written(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (int, float, str, bool, type(None))):
        return value
    if isinstance(value, torch.nn.TransformerEncoderLayer):
        return {
            "d_model": value.linear1.in_features,
            "nhead": value.self_attn.num_heads,
            "dim_feedforward": value.linear1.out_features,
            "activation": value.activation.__name__,
            "batch_first": value.self_attn.batch_first,
            "norm_first": value.norm_first,
            "bias": value.linear1.bias is not None,
        }
    return str(value)


def simple(value):
    """Returns a new leaf with short numbers in place of a tensor."""
    if torch.is_tensor(value):
        if not value.dtype.is_floating_point:
            return value.detach().clone()
        return value.detach().clone().contiguous().mul(1000).round().div(1000).requires_grad_(value.requires_grad)
    if isinstance(value, tuple):
        return tuple(simple(item) for item in value)
    if isinstance(value, list):
        return [simple(item) for item in value]
    return value


def tensors(value):
    if torch.is_tensor(value):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors(item)]
    return []


def cotangent(result):
    count = torch.arange(result.numel(), dtype=result.dtype)
    return ((count % 7 - 3) / 4).reshape(result.shape)


def sample(info, sample, training):
    kwargs = {key: value for key, value in sample.constructor_input.kwargs.items() if key not in ("device", "dtype")}
    arguments = inspect.signature(info.module_cls.__init__).bind(None, *sample.constructor_input.args, **kwargs)
    given = {key: value for key, value in arguments.arguments.items() if key != "self"}
    given |= given.pop("kwargs", {})
    module = info.module_cls(*sample.constructor_input.args, **kwargs)
    module = module.double().train(training)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1000).round_().div_(1000)
    state = [[key, written(value)] for key, value in module.state_dict().items() if key != "_random_samples"]
    args = [simple(value) for value in sample.forward_input.args]
    named = {key: simple(value) for key, value in sample.forward_input.kwargs.items()}
    leaves = tensors(args) + tensors(list(named.values()))
    if sum(tensor.numel() for tensor in leaves) > MOST_ELEMENTS and info.name != "nn.CTCLoss":
        return None
    results = tensors(module(*args, **named))
    wanted = [tensor for tensor in leaves + list(module.parameters()) if tensor.requires_grad]
    through = [result for result in results if result.requires_grad]
    grads = {}
    if wanted and through:
        found = torch.autograd.grad(through, wanted, [cotangent(result) for result in through], allow_unused=True)
        grads = {id(tensor): gradient for tensor, gradient in zip(wanted, found)}
    written_grad = lambda tensor: None if grads.get(id(tensor)) is None else written(grads[id(tensor)])
    return {
        "module": info.name.removeprefix("nn."),
        "arguments": {key: plain(value) for key, value in given.items()},
        "training": training,
        "state": state,
        "inputs": [plain(value) for value in args],
        "named": {key: plain(value) for key, value in named.items()},
        "wants": [tensor.requires_grad for tensor in leaves],
        "results": [written(result) for result in results],
        "input_gradients": [written_grad(tensor) for tensor in leaves],
        "gradients": {name: written_grad(parameter) for name, parameter in module.named_parameters()},
        "buffers": [[key, written(value)] for key, value in module.named_buffers() if key != "_random_samples"],
    }


def main():
    lines = []
    for info in module_db:
        name = info.name.removeprefix("nn.")
        # These differ in their constructors, which take the features from the first input.
        if name.startswith("Lazy"):
            continue
        for training in [True, False] if info.train_and_eval_differ else [True]:
            torch.manual_seed(7)
            samples = info.module_inputs_func(info, "cpu", torch.float64, True, training)
            samples = [one for one in samples if one.forward_input is not None]
            step = max(1, -(-len(samples) // FEW_SAMPLES.get(name, MOST_SAMPLES)))
            first = FIRST_SAMPLES.get(name, 0)
            for one in samples[:first] + samples[first::step]:
                line = sample(info, one, training)
                if line is not None:
                    lines.append(json.dumps(line, separators=(",", ":")))
    with open(sys.argv[1], "wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as file:
        file.write("\n".join(lines).encode())
    print(len(lines), "samples")


main()
