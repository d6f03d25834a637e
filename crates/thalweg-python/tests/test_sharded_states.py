"""States of modules whose parameters are divided among ranks, and the helpers of PyTorch's around them, against one rank that has everything."""

import contextlib
import copy
import io
import os
import subprocess
import sys
import tempfile
import pathlib

import thalweg as th
import thalweg.distributed as dist
from support import close
from thalweg import nn
from thalweg.distributed import checkpoint as dcp
from thalweg.distributed.fsdp import fully_shard
from thalweg.distributed.tensor import DTensor

X = th.arange(32.0).view(8, 4).sin()


def net():
    """Returns a network with the same numbers at each call."""
    made = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    for place, parameter in enumerate(made.parameters()):
        parameter.data.copy_((th.arange(float(parameter.numel())) * 0.7 + place).sin().view(parameter.shape))
    return made


def steps(module, optimizer, count, rank=None, norm=None, ranks=2):
    """Trains on all rows, or on a rank's part of them, whose means are those of all."""
    for _ in range(count):
        optimizer.zero_grad()
        parts = [X[0::2], X[1::2]] if rank is None else [X[rank::ranks]]
        (sum(module(part).square().mean() for part in parts) / len(parts)).backward()
        if norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), norm)
        optimizer.step()


def sharded():
    made = net()
    fully_shard(made[0])
    return fully_shard(made)


def saved_and_loaded(rank, folder):
    from thalweg.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, get_state_dict, set_state_dict

    class Program(dcp.Stateful):
        def __init__(self, module, optimizer):
            self.own = module, optimizer

        def state_dict(self):
            return dict(zip(("model", "optim"), get_state_dict(*self.own)))

        def load_state_dict(self, state):
            set_state_dict(*self.own, model_state_dict=state["model"], optim_state_dict=state["optim"])
    module = sharded()
    optimizer = th.optim.Adam(module.parameters(), lr=0.1)
    steps(module, optimizer, 2, rank, 0.3)
    dcp.save({"program": Program(module, optimizer)}, checkpoint_id=folder)
    other = sharded()
    fresh = th.optim.Adam(other.parameters(), lr=0.7)
    dcp.load({"program": Program(other, fresh)}, checkpoint_id=folder)
    assert fresh.param_groups[0]["lr"] == 0.1
    steps(module, optimizer, 1, rank, 0.3)
    steps(other, fresh, 1, rank, 0.3)
    for mine, loaded in zip(module.parameters(), other.parameters()):
        assert th.equal(mine.full_tensor(), loaded.full_tensor())
    shown = optimizer.state_dict()["state"][0]["exp_avg"]
    assert isinstance(shown, DTensor) and shown.full_tensor().shape == (5, 4)
    whole = get_optimizer_state_dict(module, optimizer, options=StateDictOptions(full_state_dict=True))
    return [parameter.full_tensor().tolist() for parameter in module.parameters()], whole["state"]["2.weight"]["exp_avg"].tolist()


def test_states_are_those_of_one_rank():
    module = net()
    optimizer = th.optim.Adam(module.parameters(), lr=0.1)
    steps(module, optimizer, 3, norm=0.3)
    with tempfile.TemporaryDirectory() as folder:
        for found, average in dist.run_ranks(saved_and_loaded, 2, (folder,)):
            for value, parameter in zip(found, module.parameters()):
                close(value, parameter.tolist(), 1e-4)
            close(average, optimizer.state[module[2].weight]["exp_avg"].tolist(), 1e-4)
        path = os.path.join(folder, "whole.pt")
        dcp.dcp_to_torch_save(folder, path)
        assert th.load(path)["program"]["optim"]["state"]["0.weight"]["exp_avg"].shape == (5, 4)


def seen_entirely(rank):
    from thalweg.distributed.fsdp import CPUOffloadPolicy
    from thalweg.distributed.tensor import Shard
    module, whole, seen = net(), net(), []
    fully_shard(module[0], shard_placement_fn=lambda parameter: Shard(parameter.dim() - 1))
    fully_shard(module, offload_policy=CPUOffloadPolicy(pin_memory=False))
    weight = module[0].weight
    assert isinstance(weight, DTensor) and isinstance(weight, nn.Parameter) and weight.placements == (Shard(1),) and repr(weight).startswith("DTensor(")
    assert (tuple(weight.shape), weight.numel(), weight.size(1), weight.stride(), len(weight)) == ((5, 4), 20, 4, (4, 1), 5)
    assert weight.to_local().shape == (5, 2) and weight.to_local().is_contiguous() and weight.device_mesh.size() == 2
    module[0].register_forward_pre_hook(lambda part, _: seen.append((isinstance(part.weight, DTensor), part.weight.shape, isinstance(part.weight, nn.Parameter))))
    # Sums of gradients, of which each rank has a half.
    module.set_gradient_divide_factor(1.0)
    module[0].set_gradient_divide_factor(1.0)
    for one, rows in ((module, X[rank::2]), (whole, X)):
        one(rows).square().sum().backward()
    assert seen == [(False, (5, 4), True)] and weight.grad is weight.grad and weight.grad.placements == (Shard(1),)
    gradients = [[value.grad.full_tensor() if one is module else value.grad for value in one.parameters()] for one in (module, whole)]
    for own, wanted in zip(*gradients):
        close(own.tolist(), wanted.tolist(), 1e-5)
    for kind in (2.0, 1.0, 3.0, float("inf")):
        norms = [nn.utils.get_total_norm([value.grad for value in one.parameters()], kind) for one in (module, whole)]
        close(norms[0].item(), norms[1].item(), 1e-5)
    # Optimizers that look at entire matrices, and writes in place.
    for one in (module, whole):
        nn.utils.clip_grad_norm_(one.parameters(), 0.7)
        th.optim.Muon([one[0].weight, one[2].weight], lr=0.1).step()
        th.optim.Adafactor(one.parameters(), lr=0.1).step()
        with th.no_grad():
            one[0].bias[1:3] = 7.0
            one[2].bias.erfinv_().mul_(2.0)
    for own, wanted in zip(module.parameters(), whole.parameters()):
        close(own.full_tensor().tolist(), wanted.tolist(), 2e-2)
    drawn = nn.init.trunc_normal_(module[2].weight, std=0.1).full_tensor().flatten().tolist()
    assert len(set(drawn)) == 10 and dist.group.WORLD.exchange(drawn, "drawn") == [drawn, drawn]
    file = io.BytesIO()
    th.save(module.state_dict(), file)
    file.seek(0)
    read, copied = th.load(file), copy.deepcopy(weight)
    assert th.equal(read["0.weight"].full_tensor(), weight.full_tensor()) and th.equal(copied.full_tensor(), weight.full_tensor())
    with raises(TypeError, "must be a DTensor"):
        weight.data = th.zeros(5, 2)
    with raises(RuntimeError, "mixed torch.Tensor and DTensor"):
        weight + th.ones(5, 4)
    module.to_empty(device="cpu")
    module.load_state_dict(read)
    assert module[0].weight is weight and th.equal(copied.full_tensor(), weight.full_tensor())
    with raises(ValueError, "do not implement forward"):
        fully_shard(nn.ModuleList([nn.Linear(1, 1)]))


def test_parameters_have_the_sizes_of_entire_ones():
    dist.run_ranks(seen_entirely, 2)


def from_meta(rank):
    with th.device("meta"):
        module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    fully_shard(module)
    assert all(parameter.is_meta and parameter.placements[0].is_shard(0) for parameter in module.parameters())
    parts = {name: dist.tensor.distribute_tensor(value, module[0].weight.device_mesh, module[0].weight.placements)
             for name, value in net().state_dict().items()}
    module.load_state_dict(parts, assign=True)
    module.unshard()
    assert module[0].weight.shape == (5, 4) and not isinstance(module[0].weight, DTensor)
    module.reshard()
    return module(X).tolist()


def computed_again(rank):
    from thalweg.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
    module = net()
    apply_activation_checkpointing(module, check_fn=lambda part: isinstance(part, nn.Linear))
    fully_shard(module)
    module(X).sum().backward()
    assert sorted(module.state_dict()) == sorted(net().state_dict())
    return [parameter.grad.full_tensor().tolist() for parameter in module.parameters()]


def test_modules_without_memory_and_computed_again():
    for found in dist.run_ranks(from_meta, 2):
        close(found, net()(X).tolist(), 1e-6)
    module = net()
    module(X).sum().backward()
    for found in dist.run_ranks(computed_again, 2):
        for gradient, parameter in zip(found, module.parameters()):
            close(gradient, parameter.grad.tolist(), 1e-5)


class Layer(nn.Module):
    """A layer that computes a part of itself again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.scale = nn.Linear(3, 5), nn.Linear(5, 3, bias=False), nn.Parameter(th.ones(()) * 0.5)

    def forward(self, x):
        from thalweg.utils.checkpoint import checkpoint
        return x + self.second(checkpoint(lambda x: self.first(x).tanh(), x, use_reentrant=False)) * self.scale


def layers():
    made = nn.Sequential(nn.Linear(4, 3), Layer(), Layer(), nn.Linear(3, 2))
    for place, parameter in enumerate(made.parameters()):
        parameter.data.copy_((th.arange(float(parameter.numel())) * 0.7 + place).sin().view(parameter.shape))
    return made


def freed_between_passes(rank, ranks):
    from thalweg.utils.checkpoint import checkpoint
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "parts")) if ranks == 4 else None
    module = layers()
    for layer in module[1:3]:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    units, seen = [module._unit, module[1]._unit, module[2]._unit], []
    module[2].first.register_forward_pre_hook(lambda *_: seen.append([unit._entire is not None for unit in units]))
    kept = []
    with th.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tuple(tensor.shape)) or tensor, lambda tensor: tensor):
        result = module(X[rank::ranks])
    # No entire parameter is saved, and each is freed after its layer's pass, but for those of the outermost module.
    assert not {(3, 4), (5, 3), (3, 5)} & set(kept), kept
    assert seen == [[True, False, True]] and not module[1]._unit._entire and not module[2]._unit._entire
    result.square().mean().backward()
    assert not module._unit.context.entire and not any(unit._entire for unit in units)
    first = [parameter.grad.full_tensor().tolist() for parameter in module.parameters()]
    # Layers that are computed again entirely, with gradients that wait for a pass that reduces them.
    module.zero_grad()
    for is_last in (False, True):
        module.set_requires_gradient_sync(is_last)
        checkpoint(module, X[rank::ranks], use_reentrant=False).square().mean().backward()
    return first, [parameter.grad.full_tensor().tolist() for parameter in module.parameters()]


def test_entire_parameters_are_freed_between_passes():
    module = layers()
    module(X).square().mean().backward()
    for ranks in (2, 4):
        for first, twice in dist.run_ranks(freed_between_passes, ranks, (ranks,)):
            for one, two, parameter in zip(first, twice, module.parameters()):
                close(one, parameter.grad.tolist(), 1e-5)
                close(two, (parameter.grad * 2).tolist(), 1e-5)


def of_other_lengths(rank, divides_by_all):
    from thalweg.nn.parallel import DistributedDataParallel
    module = DistributedDataParallel(net(), bucket_cap_mb=3e-5)
    optimizer = th.optim.SGD(module.parameters(), lr=0.1)
    with module.join(divide_by_initial_world_size=divides_by_all):
        for step in range(3 - rank * 2):
            optimizer.zero_grad()
            module(X[rank + step:rank + step + 2]).square().mean().backward()
            optimizer.step()
    early, seen = DistributedDataParallel(net()), None
    try:
        with early.join(throw_on_early_termination=True):
            for _ in range(rank):
                early(X).sum().backward()
    except RuntimeError as error:
        seen = str(error)
    assert "exhausted" in seen
    return [parameter.tolist() for parameter in module.parameters()]


def test_loops_of_other_lengths():
    for divides_by_all in (True, False):
        module = net()
        optimizer = th.optim.SGD(module.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            losses = [module(X[rank + step:rank + step + 2]).square().mean() for rank in range(2 if step == 0 else 1)]
            (sum(losses) / (2 if divides_by_all else len(losses))).backward()
            optimizer.step()
        for found in dist.run_ranks(of_other_lengths, 2, (divides_by_all,)):
            for value, parameter in zip(found, module.parameters()):
                close(value, parameter.tolist(), 1e-5)


def replicated(rank):
    from thalweg.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    rows, same = [dist.new_group([0, 1]), dist.new_group([2, 3])], [dist.new_group([0, 2]), dist.new_group([1, 3])]
    module = FullyShardedDataParallel(net(), process_group=(rows[rank // 2], same[rank % 2]), sharding_strategy=ShardingStrategy.HYBRID_SHARD)
    steps(module, th.optim.SGD(module.parameters(), lr=0.1), 2, rank, ranks=4)
    return [value.tolist() for value in module.state_dict().values()]


def test_ranks_that_have_the_same_rows_add_up_their_gradients():
    module = net()
    steps(module, th.optim.SGD(module.parameters(), lr=0.1), 2)
    for found in dist.run_ranks(replicated, 4):
        for value, parameter in zip(found, module.parameters()):
            close(value, parameter.tolist(), 1e-5)


def in_buckets(rank):
    from thalweg.nn.parallel import DistributedDataParallel
    module = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)), bucket_cap_mb=3e-5)
    begun = []
    module.module[0].weight.register_hook(lambda gradient: begun.append(module.reducer._pass.begun))
    module(X[rank::2]).mean().backward()
    return begun, [parameter.grad.tolist() for parameter in module.module.parameters()]


def test_buckets_are_reduced_while_the_pass_runs():
    (begun, first), (_, second) = dist.run_ranks(in_buckets, 2)
    # The last layers' gradients were on their way before the first layer's was computed.
    assert begun[0] >= 2 and first == second


def divided_twice(rank):
    from thalweg.distributed.tensor import Replicate, Shard
    from thalweg.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    module = net()
    parallelize_module(module, mesh["model"], {"0": ColwiseParallel(use_local_output=False), "2": RowwiseParallel()})
    parallelize_module(module, mesh["model"], PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()))
    fully_shard(module, mesh=mesh["data"])
    assert module[0].weight.full_tensor().tolist() == net()[0].weight.tolist() and module[2].weight.placements == (Shard(0), Shard(1))
    optimizer = th.optim.SGD(module.parameters(), lr=0.1)
    steps(module, optimizer, 2, mesh.get_local_rank("data"), 0.3)
    return [parameter.full_tensor().tolist() for parameter in module.parameters()]


def test_parameters_that_two_groups_divide():
    module = net()
    steps(module, th.optim.SGD(module.parameters(), lr=0.1), 2, norm=0.3)
    for found in dist.run_ranks(divided_twice, 4):
        for value, parameter in zip(found, module.parameters()):
            close(value, parameter.tolist(), 1e-4)


def helpers(rank):
    from thalweg.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from thalweg.distributed.nn.functional import all_gather, all_reduce
    from thalweg.distributed.optim import ZeroRedundancyOptimizer
    from thalweg.nn.parallel import DistributedDataParallel
    x = th.full((2,), rank + 1.0, requires_grad=True)
    (th.stack(all_gather(x)) * th.tensor([[1.0], [3.0]]) * (rank + 1)).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0] if rank == 0 else [9.0, 9.0]
    y = th.ones(2, requires_grad=True)
    (all_reduce(y * 2) * (rank + 1)).sum().backward()
    assert y.grad.tolist() == [6.0, 6.0]
    module = DistributedDataParallel(net())
    module.register_comm_hook(None, fp16_compress_hook)
    optimizer = ZeroRedundancyOptimizer(module.parameters(), th.optim.Adam, lr=0.1)
    steps(module, optimizer, 2, rank)
    optimizer.consolidate_state_dict(0)
    with contextlib.nullcontext() if rank == 0 else raises(RuntimeError, "consolidate"):
        assert sorted(optimizer.state_dict()["state"]) == [0, 1, 2, 3]
    return [parameter.tolist() for parameter in module.parameters()]


@contextlib.contextmanager
def raises(kind, text):
    try:
        yield
    except kind as error:
        assert text in str(error)
    else:
        raise AssertionError(f"no {kind.__name__}")


def test_helpers_of_several_ranks():
    module = net()
    steps(module, th.optim.Adam(module.parameters(), lr=0.1), 2)
    for found in dist.run_ranks(helpers, 2):
        for value, parameter in zip(found, module.parameters()):
            close(value, parameter.tolist(), 2e-2)


def test_modules_of_torch_are_run_by_name():
    package = str(pathlib.Path(th.__file__).parent.parent)
    program = "import os, torch; torch.distributed.init_process_group('gloo'); print(torch.distributed.get_world_size(), torch.cuda.device_count())"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "program.py"
        path.write_text(program)
        run = subprocess.run([sys.executable, "-m", "thalweg", "-m", "torch.distributed.run", "--nproc-per-node", "1", str(path)], text=True, timeout=60,
                             capture_output=True, env={**os.environ, "PYTHONPATH": package, "THALWEG_SIMULATED_AS": "cuda", "THALWEG_SIM_DEVICES": "3"})
        count = th.cuda.device_count() or 3
        assert run.returncode == 0 and run.stdout.split() == ["1", str(count)], run.stdout + run.stderr
