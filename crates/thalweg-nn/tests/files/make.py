"""Writes the files that the tests of `serialize` read: by PyTorch 2.11 and the `safetensors` package.

    python3 make.py
"""

import collections

import torch

torch.manual_seed(3)
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.uint16, torch.float8_e4m3fn, torch.float8_e5m2,
]


def ramp(dtype):
    return (torch.arange(6).reshape(2, 3) % (2 if dtype == torch.bool else 6)).to(dtype)


every = {str(dtype).removeprefix("torch."): ramp(dtype) for dtype in DTYPES}
every["empty"] = torch.zeros(0, 4)
every["scalar"] = torch.tensor(2.5)
torch.save(every, "dtypes.pt")

numbers = torch.arange(6).reshape(2, 3) * (1 - 2j)
torch.save({"complex64": numbers.to(torch.complex64), "complex128": numbers.to(torch.complex128)}, "complex.pt")

# Views, storages that are shared, parameters, containers and plain values.
weight = torch.arange(12.0).reshape(3, 4)
checkpoint = {
    "model": collections.OrderedDict(weight=weight, tied=weight, transposed=weight.t(), row=weight[1, 1:]),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "epoch": 7,
    "large": 1 << 40,
    "negative": -(1 << 40),
    "rate": 0.125,
    "done": False,
    "nothing": None,
    "names": ["a", "ö"],
    "shape": (2, 3),
}
torch.save(checkpoint, "checkpoint.pt")

model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
x = torch.arange(6.0).reshape(2, 3) / 4
torch.save(model.state_dict(), "model.pt")
torch.save({"x": x, "y": model(x).detach()}, "model_values.pt")


class Surprise:
    def __reduce__(self):
        return (print, ("code was run",))


torch.save({"weight": Surprise()}, "code.pt")

try:
    import safetensors.torch

    safetensors.torch.save_file(every, "dtypes.safetensors", metadata={"format": "pt"})
except ImportError:
    print("the safetensors package is missing: its file is as it was")
