"""Programs of several ranks: collectives, modules whose gradients or parameters are shared, and the switches that such programs
set."""

import contextlib
import copy
import os
import pathlib
import subprocess
import sys
import tempfile

import thalweg as th
import thalweg.distributed as dist
from thalweg import nn
from thalweg.nn.parallel import DistributedDataParallel
from support import close, raises


class group:
    def __enter__(self):
        dist.init_process_group(backend="nccl")

    def __exit__(self, *_):
        dist.destroy_process_group()


def test_group_of_one():
    assert dist.is_available() and not dist.is_initialized()
    with raises(ValueError, "has not been initialized"):
        dist.get_rank()
    with group():
        assert dist.is_initialized() and dist.get_rank() == 0 and dist.get_world_size() == 1 and dist.get_backend() == "nccl"
        with raises(ValueError, "twice"):
            dist.init_process_group("gloo")
        x = th.tensor([1.0, 2.0])
        assert dist.all_reduce(x, op=dist.ReduceOp.SUM) is None and x.tolist() == [1.0, 2.0]
        assert dist.broadcast(x, 0, async_op=True).wait()
        gathered = [th.zeros(2)]
        dist.all_gather(gathered, x)
        assert gathered[0].tolist() == [1.0, 2.0]
        with raises(ValueError, "rank 1"):
            dist.broadcast(x, src=1)
        with raises(ValueError, "2 tensors"):
            dist.all_gather([th.zeros(2), th.zeros(2)], x)
        dist.barrier()
    assert not dist.is_initialized()


def collectives(rank):
    ranks = dist.get_world_size()
    assert dist.get_rank() == rank and ranks == 3
    x = th.tensor([1.0, 2.0]) * (rank + 1)
    dist.all_reduce(x)
    assert x.tolist() == [6.0, 12.0]
    for operation, expected in ((dist.ReduceOp.MAX, 3.0), (dist.ReduceOp.AVG, 2.0), (dist.ReduceOp.PRODUCT, 6.0), (dist.ReduceOp.MIN, 1.0)):
        y = th.tensor(rank + 1.0)
        dist.all_reduce(y, operation)
        assert y.item() == expected
    gathered = th.zeros(6)
    dist.all_gather_into_tensor(gathered, th.tensor([rank, -rank]).float())
    assert gathered.tolist() == [0.0, 0.0, 1.0, -1.0, 2.0, -2.0]
    part = th.zeros(2)
    dist.reduce_scatter_tensor(part, th.arange(6.0))
    assert part.tolist() == [6.0 * rank, 6.0 * rank + 3]
    outputs = [th.zeros(1) for _ in range(3)]
    dist.all_to_all(outputs, [th.tensor([10.0 * rank + other]) for other in range(3)])
    assert [value.item() for value in outputs] == [rank, 10.0 + rank, 20.0 + rank]
    y = th.full((2,), float(rank))
    dist.broadcast(y, 1)
    dist.scatter(part, [th.full((2,), float(other)) for other in range(3)] if rank == 2 else None, src=2)
    assert y.tolist() == [1.0, 1.0] and part.tolist() == [rank, rank]
    objects = [None] * 3
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
    following, before = (rank + 1) % 3, (rank + 2) % 3
    received = th.zeros(1)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, received, before), dist.P2POp(dist.isend, th.tensor([float(rank)]), following)]):
        work.wait()
    assert received.item() == before
    some = dist.new_group([0, 2])
    if rank != 1:
        z = th.tensor(float(rank))
        dist.all_reduce(z, group=some)
        assert z.item() == 2.0 and dist.get_group_rank(some, 2) == 1 and dist.get_process_group_ranks(some) == [0, 2]
    else:
        assert dist.get_rank(some) == -1
    mesh = dist.init_device_mesh("cpu", (1, 3), mesh_dim_names=("rows", "columns"))
    assert mesh.get_coordinate() == [0, rank] and mesh["columns"].get_group().size() == 3 and mesh.get_local_rank("rows") == 0
    dist.barrier()
    return rank


def test_collectives_of_ranks_that_are_threads():
    assert dist.run_ranks(collectives, 3) == [0, 1, 2] and not dist.is_initialized()

    def fails(rank):
        if rank == 1:
            raise KeyError("broken")
        dist.barrier()
    with raises(KeyError, "broken"):
        dist.run_ranks(fails, 2)

    def differs(rank):
        dist.barrier() if rank else dist.all_reduce(th.ones(1))
    with raises(RuntimeError, "call different collectives: rank 0 all_reduce, rank 1 barrier"):
        dist.run_ranks(differs, 2)
    with raises(ValueError, "not within"):
        dist.init_process_group("nccl", world_size=1, rank=1)
    with raises(ValueError, "MASTER_ADDR expected"):
        dist.init_process_group("gloo", world_size=2, rank=0)


PROGRAM = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
net = DistributedDataParallel(torch.nn.Linear(3, 1))
weight = net.module.weight.detach().clone()
x = torch.arange(12.0).view(4, 3)
net(x[rank::ranks]).square().mean().backward()
whole = torch.nn.Linear(3, 1)
whole.load_state_dict(net.module.state_dict())
whole(x).square().mean().backward()
assert torch.allclose(net.module.weight.grad, whole.weight.grad), (net.module.weight.grad, whole.weight.grad)
found = [None] * ranks
dist.all_gather_object(found, weight.tolist())
assert found[0] == found[1]
dist.destroy_process_group()
"""


def test_ranks_that_are_processes():
    package = str(pathlib.Path(th.__file__).parent.parent)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "program.py"
        path.write_text(PROGRAM)
        command = [sys.executable, "-m", "thalweg.distributed.run", "--nproc-per-node", "2", str(path)]
        run = subprocess.run(command, env={**os.environ, "PYTHONPATH": package}, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stdout + run.stderr
        path.write_text("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(60)")
        run = subprocess.run(command, env={**os.environ, "PYTHONPATH": package}, capture_output=True, text=True, timeout=60)
        assert run.returncode == 3 and "rank 1" in run.stderr


def train(rank, ranks, is_sharded, folder):
    th.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))
    for name, value in STATE.items():
        net.get_parameter(name).data.copy_(value)
    if is_sharded:
        from thalweg.distributed.fsdp import fully_shard
        fully_shard(net[0])
        fully_shard(net)
    optimizer, losses = th.optim.Adam(net.parameters(), lr=0.1), []
    x = th.arange(32.0).view(8, 4).sin()
    for _ in range(3):
        loss = (net(x[rank::ranks]) - x[rank::ranks].sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    if is_sharded:
        from thalweg.distributed import checkpoint
        state = {"model": net.state_dict(keep_vars=True)}
        checkpoint.save(state, checkpoint_id=folder)
        whole = [parameter.full_tensor() for parameter in net.parameters()]
        for parameter in net.parameters():
            parameter.data.zero_()
        checkpoint.load(state, checkpoint_id=folder)
        assert all(th.equal(parameter.full_tensor(), value) for parameter, value in zip(net.parameters(), whole))
        assert net[0].weight.to_local().shape == ((3, 4), (2, 4))[rank] and net[0].weight.full_tensor().shape == (5, 4)
    return losses


STATE = {}


def test_sharded_parameters_train_as_whole_ones():
    STATE.update({name: value.detach() for name, value in nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)).named_parameters()})
    with tempfile.TemporaryDirectory() as folder:
        first, second = dist.run_ranks(train, 2, (2, True, folder))
    close([(one + other) / 2 for one, other in zip(first, second)], train(0, 1, False, None), 1e-5)


def test_tensors_with_parts_on_ranks():
    from thalweg.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    def program(rank):
        mesh = dist.init_device_mesh("cpu", (2,))
        x = distribute_tensor(th.arange(6.0).view(3, 2), mesh, [Shard(0)])
        assert x.shape == (3, 2) and x.to_local().shape == ((2, 2), (1, 2))[rank]
        assert isinstance(x + 1, DTensor) and (x + 1).full_tensor().tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
        assert x.redistribute(placements=[Replicate()]).to_local().tolist() == x.full_tensor().tolist()
    dist.run_ranks(program, 2)


def test_wrapped_module_trains_as_the_module():
    plain = nn.Linear(3, 2)
    with raises(ValueError, "has not been initialized"):
        DistributedDataParallel(plain)
    with group():
        wrapped = DistributedDataParallel(copy.deepcopy(plain), device_ids=[0])
        assert list(wrapped.state_dict()) == ["module.weight", "module.bias"]
        x = th.randn(4, 3)
        wrapped.require_backward_grad_sync = True
        with wrapped.no_sync():
            assert not wrapped.require_backward_grad_sync
        for net in (plain, wrapped):
            net(x).square().sum().backward()
        close(wrapped.module.weight.grad, plain.weight.grad.tolist())
        with raises(RuntimeError, "doesn't have any parameter"):
            DistributedDataParallel(nn.ReLU())


def test_bits_that_repeat():
    try:
        th.use_deterministic_algorithms(True, warn_only=True)
        assert th.get_deterministic_debug_mode() == 1 and th.is_deterministic_algorithms_warn_only_enabled()
        filled = th.empty(3, dtype=th.int32, device="sim")
        assert filled.tolist() == [2**31 - 1] * 3
        th.utils.deterministic.fill_uninitialized_memory = False
        assert not th.utils.deterministic.fill_uninitialized_memory
        th.set_deterministic_debug_mode("error")
        assert th.get_deterministic_debug_mode() == 2
    finally:
        th.utils.deterministic.fill_uninitialized_memory = True
        th.set_deterministic_debug_mode(0)
    assert not th.are_deterministic_algorithms_enabled()
    with raises(RuntimeError, "expected one of `default`, `warn`, `error`"):
        th.set_deterministic_debug_mode("loud")
    with raises(TypeError):
        th.utils.deterministic.fill_uninitialized_memory = 1


def test_switches():
    import thalweg.backends.cudnn as cudnn
    from thalweg.backends import cuda
    former = cuda.matmul.allow_tf32, cudnn.allow_tf32, th.are_deterministic_algorithms_enabled()
    try:
        th.backends.cuda.matmul.allow_tf32 = True
        assert th.get_float32_matmul_precision() == "high" and cuda.matmul.allow_tf32
        th.set_float32_matmul_precision("highest")
        assert not th.backends.cuda.matmul.allow_tf32
        cudnn.allow_tf32 = False
        cudnn.deterministic = True
        assert not th.backends.cudnn.allow_tf32 and th._core._backends._switch("cudnn.deterministic")
        cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
        assert th._core._backends._reduction("bf16") == (False, False)
        assert not cuda.matmul.allow_bf16_reduced_precision_reduction
        cuda.matmul.allow_bf16_reduced_precision_reduction = True
        assert th._core._backends._reduction("bf16") == (True, True)
        th.use_deterministic_algorithms(True)
        assert th.are_deterministic_algorithms_enabled()
    finally:
        cudnn.deterministic = False
        cuda.matmul.allow_tf32, cudnn.allow_tf32 = former[:2]
        th.use_deterministic_algorithms(former[2])
    with raises(RuntimeError):
        th.set_float32_matmul_precision("fast")
    with raises(RuntimeError, "True or False"):
        cudnn.enabled = 1
    with raises(AttributeError, "no attribute 'alow_tf32'"):
        cudnn.alow_tf32 = True
    q = th.randn(1, 2, 8, 16)
    expected = nn.functional.scaled_dot_product_attention(q, q, q)
    with th.backends.cuda.sdp_kernel(enable_flash=False, enable_mem_efficient=False, enable_cudnn=False):
        assert th.backends.cuda.math_sdp_enabled() and not th.backends.cuda.flash_sdp_enabled()
        close(nn.functional.scaled_dot_product_attention(q, q, q), expected.tolist(), 1e-5)
    assert th.backends.cuda.flash_sdp_enabled()
    assert th.backends.cuda.cufft_plan_cache[0].size == 0
    assert not th.backends.mps.is_available()
    assert th.accelerator.is_available() == th.cuda.is_available()
    assert (th.accelerator.current_accelerator() is None) == (not th.cuda.is_available())


def wrapped(rank, ranks):
    from functools import partial
    from thalweg.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType
    from thalweg.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))
    for name, value in STATE.items():
        net.get_parameter(name).data.copy_(value)
    x, losses = th.arange(32.0).view(8, 4).sin(), []
    if ranks > 1:
        net = FullyShardedDataParallel(net, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}) if rank < 2 else partial(size_based_auto_wrap_policy, min_num_params=20))
        assert net.module[0].weight.to_local().shape[0] < 5 and [name for name, _ in net.named_parameters()] == list(STATE)
    optimizer = th.optim.AdamW(net.parameters(), lr=0.1)
    for _ in range(3):
        for part in (0, 1):
            own = x[4 * part:4 * part + 4][rank::ranks]
            with net.no_sync() if ranks > 1 and part == 0 else contextlib.nullcontext():
                loss = (net(own) - own.sum(1, keepdim=True)).square().mean()
                loss.backward()
        norm = net.clip_grad_norm_(0.5) if ranks > 1 else nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(norm.item())
    if ranks > 1:
        state, optimizer_state = net.state_dict(), FullyShardedDataParallel.optim_state_dict(net, optimizer)
        with FullyShardedDataParallel.state_dict_type(net, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)):
            assert bool(net.state_dict()) == (rank == 0)
        assert optimizer_state["state"]["0.weight"]["exp_avg"].shape == (5, 4)
        optimizer.load_state_dict(FullyShardedDataParallel.optim_state_dict_to_load(net, optimizer, optimizer_state))
        again = FullyShardedDataParallel.optim_state_dict(net, optimizer)
        assert th.equal(again["state"]["2.weight"]["exp_avg_sq"], optimizer_state["state"]["2.weight"]["exp_avg_sq"])
        with FullyShardedDataParallel.summon_full_params(net):
            net.module[2].bias.data.fill_(3.0)
        assert net.state_dict()["2.bias"].tolist() == [3.0]
        net.load_state_dict(state)
        assert th.equal(net.state_dict()["2.bias"], state["2.bias"])
        return losses, {name: value.tolist() for name, value in state.items()}
    return losses, {name: value.tolist() for name, value in net.state_dict().items()}


def test_the_first_wrapper_trains_as_the_module():
    STATE.clear()
    STATE.update({name: value.detach() for name, value in nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)).named_parameters()})
    losses, state = wrapped(0, 1)
    for norms, found in dist.run_ranks(wrapped, 2, (2,)):
        close(norms, losses, 1e-4)
        for name, value in state.items():
            close(found[name], value, 1e-4)


def divided(rank, sequence):
    from thalweg.distributed import init_device_mesh
    from thalweg.distributed.tensor import Replicate, Shard
    from thalweg.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module
    mesh = init_device_mesh("cpu", (2,))
    net = Feed()
    net.load_state_dict(STATE)
    plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    if sequence:
        plan = {"norm": SequenceParallel(), "first": ColwiseParallel(input_layouts=Shard(1)), "second": RowwiseParallel(output_layouts=Shard(1))}
        parallelize_module(net, mesh, PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)))
    parallelize_module(net, mesh, plan)
    x = th.arange(48.0).view(2, 4, 6).sin()
    output = net(x)
    share = th.arange(48.0).view(2, 4, 6).cos()
    (output * (share.chunk(2, 1)[rank] if sequence else share)).sum().backward()
    whole = dist._functional_collectives.all_gather_tensor(output, 1) if sequence else output
    gradients = {}
    for name, parameter in net.named_parameters():
        gradients[name] = parameter.grad.full_tensor() if hasattr(parameter, "placements") else parameter.grad
    assert net.first.weight.full_tensor().shape == (8, 6) and net.first.weight.to_local().shape == (4, 6)
    return whole.tolist(), {name: value.tolist() for name, value in gradients.items()}


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x):
        return self.second(self.first(self.norm(x)).relu())


def test_layers_are_divided_among_ranks():
    net = Feed()
    STATE.clear()
    STATE.update(net.state_dict())
    x = th.arange(48.0).view(2, 4, 6).sin()
    output = net(x)
    (output * th.arange(48.0).view(2, 4, 6).cos()).sum().backward()
    for sequence in (False, True):
        for found, gradients in dist.run_ranks(divided, 2, (sequence,)):
            close(found, output.tolist(), 1e-5)
            for name, parameter in net.named_parameters():
                close(gradients[name], parameter.grad.tolist(), 1e-4)


def test_ranks_with_devices_of_their_own():
    folder = pathlib.Path(__file__).parent
    run = subprocess.run([sys.executable, folder / "programs" / "ranks.py"], capture_output=True, text=True, timeout=60, env={
        **os.environ, "PYTHONPATH": str(folder.parent / "python"), "THALWEG_SIM_DEVICES": "2"})
    assert run.stdout == "'rank 1 ends'\n", run.stdout + run.stderr
