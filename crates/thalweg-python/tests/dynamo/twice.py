"""A program whose graphs a second process finds in PyTorch's cache. It prints the compiled graphs, and a gradient."""

import sys

import torch

from thalweg import dynamo

dynamo.register()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
if len(sys.argv) > 2:
    torch.compiler.load_cache_artifacts(open(sys.argv[2], "rb").read())
result = torch.compile(model, backend="thalweg")(torch.ones(3, 4))
result.sum().backward()
if len(sys.argv) == 2:
    open(sys.argv[1], "wb").write(torch.compiler.save_cache_artifacts()[0])
print([(graph.kind, graph.is_loaded) for graph in dynamo.compiled()], model[0].weight.grad.sum().item())
