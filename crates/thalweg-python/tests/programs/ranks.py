"""Two ranks as threads, each with a simulated GPU of its own (THALWEG_SIM_DEVICES=2): every collective goes from one to the other."""

import thalweg as th
import thalweg.distributed as dist
from thalweg.distributed.fsdp import fully_shard
from thalweg.nn.parallel import DistributedDataParallel


def collectives(rank):
    x = th.ones(4) * (rank + 1)
    assert x.device == th.device("sim", rank)
    yield dist.all_reduce(x) or x
    work = dist.all_reduce(x, op=dist.ReduceOp.MAX, group=dist.new_group([0, 1]), async_op=True)
    assert work.wait()
    work.synchronize()
    assert work.is_completed()
    yield x
    whole = th.zeros(2, 2)
    dist.all_gather_into_tensor(whole, th.full((1, 2), float(rank)))
    yield whole
    part = th.zeros(2)
    dist.reduce_scatter_tensor(part, th.arange(4.0) + rank, op=dist.ReduceOp.AVG)
    yield part
    dist.reduce(part, 1, op=dist.ReduceOp.PRODUCT)
    yield part if rank else th.zeros(2)
    parts = [th.zeros(1) for _ in range(2)]
    dist.all_gather(parts, th.ones(1) * rank)
    yield th.cat(parts)
    dist.gather(th.ones(1) * rank, parts if rank == 0 else None, 0)
    dist.scatter(part[:1], parts if rank == 0 else None, 0)
    yield part[:1]
    sent = th.zeros(2)
    dist.all_to_all_single(sent, th.arange(2.0) + 10 * rank)
    yield sent
    dist.all_to_all(parts, [th.full((1,), 10.0 * rank + place) for place in range(2)])
    yield th.cat(parts)
    dist.broadcast(sent, 1)
    yield sent
    if rank == 0:
        dist.send(th.full((2,), 7.0), 1)
    else:
        dist.recv(sent, 0)
    yield sent
    got = th.zeros(1)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, th.full((1,), float(rank)), 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]):
        work.wait()
    yield got


def program(rank):
    found = [value.tolist() for value in collectives(rank)]
    assert len(dist.group.WORLD._communicators) == 1
    net = DistributedDataParallel(th.nn.Linear(2, 2))
    net(th.ones(1, 2) * rank).sum().backward()
    assert net.module.weight.grad.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    sharded = fully_shard(th.nn.Linear(2, 4))
    sharded(th.ones(1, 2) * rank).sum().backward()
    assert sharded.weight.grad.to_local().tolist() == [[0.5, 0.5]] * 2
    return found


first, second = dist.run_ranks(program, 2, devices=["sim:0", "sim:1"])
assert first == [[3.0] * 4, [3.0] * 4, [[0.0, 0.0], [1.0, 1.0]], [0.5, 1.5], [0.0, 0.0], [0.0, 1.0], [0.0], [0.0, 10.0], [0.0, 10.0], [1.0, 11.0],
                 [1.0, 11.0], [1.0]], first
assert second == [[3.0] * 4, [3.0] * 4, [[0.0, 0.0], [1.0, 1.0]], [2.5, 3.5], [1.25, 5.25], [0.0, 1.0], [1.0], [1.0, 11.0], [1.0, 11.0], [1.0, 11.0],
                  [7.0, 7.0], [0.0]], second


def failing(rank):
    x = th.ones(2)
    dist.all_reduce(x)
    if rank == 1:
        raise KeyError("rank 1 ends")
    dist.all_reduce(x)
    return x.tolist()


try:
    dist.run_ranks(failing, 2, devices=["sim:0", "sim:1"])
except KeyError as error:
    print(error)
