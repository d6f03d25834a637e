"""Writes the graphs of small models as programs, with inputs and PyTorch's results, for the tests without PyTorch.

    PYTHONPATH=python python tools/dynamo_programs.py        needs PyTorch 2.11 (the CPU's will do)
"""

import functools
import gzip
import json
import pathlib
import sys

import torch

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(FOLDER / "dynamo"))

import models  # noqa: E402
import values  # noqa: E402

from thalweg.dynamo import _entry, _stored  # noqa: E402


def filled(shape, seed, below=None):
    """Returns a tensor of the values of a seed."""
    count = torch.Size(shape).numel()
    return torch.tensor(values.numbers(count, seed, below)).reshape(shape)


def described(tensor, known):
    """Returns a tensor as JSON's values: a seed, a result of an earlier graph, or numbers."""
    for key, other in known.items():
        if other.dtype == tensor.dtype and other.shape == tensor.shape and other.stride() == tensor.stride() and torch.equal(other, tensor):
            return {"as": key}
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(tensor.shape), "strides": list(tensor.stride()), "numbers": values.packed(tensor.detach().flatten().tolist(), dtype)}


class Recorder:
    """The graphs of one model, as they are compiled and called."""

    def __init__(self, known):
        self.known, self.graphs = known, []

    def backend(self, gm, inputs):
        """Compiles a graph of Dynamo, with PyTorch's operators alone."""
        compilers = [functools.partial(self.compile_flat, kind=kind) for kind in ("forward", "backward", "inference")]
        return _entry.adapter().aot(*compilers, _entry.decompositions, lambda joint: joint)(gm, inputs)

    def compile_flat(self, gm, example_inputs, *, kind):
        importer = _entry.Importer(gm)
        program = _stored.as_json(importer.description())
        run = torch.fx.Interpreter(gm)

        def call(inputs):
            own = [one.detach().clone() if isinstance(one, torch.Tensor) else one for one in inputs]
            texts = [described(one, self.known) if isinstance(one, torch.Tensor) else one for one in own]
            with torch.no_grad():
                results = run.run(*inputs)
            pairs = [(place, one, former) for place, (one, former) in enumerate(zip(inputs, own)) if isinstance(one, torch.Tensor)]
            changed = {place: described(one, {}) for place, one, former in pairs if not torch.equal(one, former)}
            number = len(self.graphs)
            outputs = [described(one, {}) if isinstance(one, torch.Tensor) else one for one in results]
            self.graphs.append({"kind": kind, "program": program, "inputs": texts, "outputs": outputs, "changed": changed})
            self.known.update({f"{number} {place}": one.detach().clone() for place, one in enumerate(results) if isinstance(one, torch.Tensor)})
            return results

        call._boxed_call = True
        return call


def recorded(make, shapes, trains, is_dynamic):
    """Returns the graphs of a model."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, known, sources = make(), {}, {}
    seed = 0
    if isinstance(model, torch.nn.Module):
        for parameter in model.parameters():
            with torch.no_grad():
                parameter.copy_(filled(parameter.shape, seed) * 0.5)
            known[f"seed {seed}"] = parameter.detach().clone()
            sources[f"seed {seed}"] = {"seed": seed, "shape": list(parameter.shape), "scale": 0.5}
            seed += 1
    inputs = []
    for shape in shapes:
        is_integer = isinstance(shape[0], tuple)
        made = filled(*((shape[0], seed, shape[1]) if is_integer else (shape, seed)))
        known[f"seed {seed}"] = made.clone()
        sources[f"seed {seed}"] = {"seed": seed, "shape": list(made.shape), "below": shape[1] if is_integer else None, "scale": 1}
        seed += 1
        inputs.append(made.requires_grad_(trains and not is_integer))
    recorder = Recorder(known)
    with torch.set_grad_enabled(trains):
        results = torch.compile(model, backend=recorder.backend, fullgraph=True, dynamic=is_dynamic)(*inputs)
    if trains:
        results = [one for one in (results if isinstance(results, tuple) else [results]) if one.requires_grad]
        torch.autograd.backward(results, [filled(one.shape, 100 + place) for place, one in enumerate(results)])
    return {"sources": sources, "graphs": recorder.graphs}


def main():
    made = {name: recorded(*model, name in models.DYNAMIC) for name, model in models.MODELS.items()}
    text = json.dumps(made, separators=(",", ":"))
    path = FOLDER / "goldens/dynamo_programs.json.gz"
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    print({name: [len(graph["program"]["steps"]) for graph in one["graphs"]] for name, one in made.items()}, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
