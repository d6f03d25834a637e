"""A rank of two that trains a compiled model with data that is divided among the ranks: `ranks.py ddp|fsdp`."""

import copy
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from thalweg import dynamo


class Net(torch.nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.second(torch.nn.functional.gelu(self.first(x)))


def main(kind):
    dist.init_process_group("gloo")
    dynamo.register()
    torch.manual_seed(0)
    model, batches = Net(), [torch.randn(3, 4) for _ in range(2)]
    whole = copy.deepcopy(model)
    if kind == "ddp":
        called = torch.compile(DistributedDataParallel(model), backend="thalweg")
    else:
        for layer in (*model.children(), model):
            fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
        called = torch.compile(model, backend="thalweg")
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, whole)]
    for _ in range(2):
        called(batches[dist.get_rank()]).square().sum().backward()
        sum(whole(batch).square().sum() for batch in batches).div(2).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for one, other in zip(model.parameters(), whole.parameters()):
        torch.testing.assert_close(one.full_tensor() if hasattr(one, "full_tensor") else one, other)
    assert {graph.kind for graph in dynamo.compiled()} == {"forward", "backward"}, dynamo.compiled()
    dist.destroy_process_group()


main(sys.argv[1])
