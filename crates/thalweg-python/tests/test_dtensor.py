"""Tensors that are divided among ranks, with their gradients, against entire ones."""

import itertools

import thalweg as th
from support import close, raises
from thalweg import distributed as dist, nn
from thalweg.distributed import init_device_mesh
from thalweg.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from thalweg.distributed.tensor.placement_types import _StridedShard

F = nn.functional
X, Y = th.arange(24.0).view(4, 6).sin(), th.arange(24.0).view(4, 6).cos()
FUNCTIONS = {
    "products": lambda x, y: (x @ y.t()).relu() @ y,
    "linear": lambda x, y: F.linear(x, y) * 0.5 + 1,
    "linear with a bias": lambda x, y: F.linear(x, y, y[:, 0]),
    "elements": lambda x, y: (x * y - x / (y * y + 1)).tanh() + x.sigmoid(),
    "broadcast": lambda x, y: x * y.sum(0) + y.mean(1, keepdim=True),
    "sums": lambda x, y: x.sum(1) * y.mean(1) + (x * y).sum(),
    "shapes": lambda x, y: (x.view(2, 2, 6).transpose(0, 1).reshape(4, 6) + y.permute(1, 0).t().unsqueeze(1).squeeze(1)).flatten(),
    "many": lambda x, y: th.bmm(x.view(2, 2, 6), y.view(2, 6, 2)).exp(),
    "rows": lambda x, y: F.layer_norm(x, [6]) * F.softmax(y, 1),
    "reversed": lambda x, y: (1 - x) * (2 / (y + 3)) + 3 * y.where(x > 0, x)}


def both(function, x, y):
    x, y = (value.detach().requires_grad_() for value in (x, y))
    result = function(x, y)
    (result * result).sum().backward()
    return [value.detach() for value in (result, x.grad, y.grad)]


def divided(rank, shape):
    mesh, found = init_device_mesh("cpu", shape), []
    places = [Replicate(), Shard(0), Shard(1)]
    pairs = list(itertools.product(itertools.product(places, repeat=len(shape)), repeat=2))
    for number, (first, second) in enumerate(pairs):
        # On a mesh of two dimensions each function is tested with some of the placements.
        names = [name for place, name in enumerate(FUNCTIONS) if (7 * place + number) % (3 if len(shape) == 1 else 60) == 0]
        for name in names:
            x, y = distribute_tensor(X, mesh, first), distribute_tensor(Y, mesh, second)
            results = both(FUNCTIONS[name], x, y)
            assert all(isinstance(value, DTensor) for value in results)
            found.append((name, first, second, [value.full_tensor().tolist() for value in results]))
    return found


def test_functions_of_divided_tensors():
    wanted = {name: both(function, X, Y) for name, function in FUNCTIONS.items()}
    for shape in ((2,), (2, 2)):
        for found in dist.run_ranks(divided, 4 if len(shape) == 2 else 2, (shape,)):
            for name, first, second, results in found:
                for value, one in zip(results, wanted[name]):
                    close(value, one.tolist(), 1e-4)


def network():
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    with th.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter.copy_((th.arange(float(parameter.numel())) + number).sin().view(parameter.shape) / 2)
    return net


def trained(net, kind, place=lambda value: value, whole=lambda value: value):
    optimizer, losses = kind(net.parameters(), lr=0.05), []
    for _ in range(3):
        loss = ((net(place(X)) - place(Y[:, :4].contiguous())) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        losses.append(whole(loss).item())
    return losses, [whole(parameter).detach().tolist() for parameter in net.parameters()]


def trained_in_parts(rank, kind, plan, input):
    mesh, net = init_device_mesh("cpu", (2,)), network()

    def place(name, part, mesh):
        for own, placement in zip(("weight", "bias"), plan.get(name, ())):
            part.register_parameter(own, nn.Parameter(distribute_tensor(getattr(part, own).detach(), mesh, [placement])))
    distribute_module(net, mesh, place)
    assert all(isinstance(parameter, DTensor) and isinstance(parameter, nn.Parameter) for parameter in net.parameters())
    return trained(net, kind, lambda value: distribute_tensor(value, mesh, [input]), lambda value: value.full_tensor())


def test_networks_train_in_parts_as_entirely():
    columns, rows = (Shard(0), Shard(0)), (Shard(1), Replicate())
    plans = [({"0": columns, "2": rows}, Replicate()), ({}, Shard(0)), ({"0": columns, "2": rows}, Shard(0)), ({"0": rows, "2": columns}, Shard(1))]
    for kind in (th.optim.SGD, th.optim.AdamW):
        losses, parameters = trained(network(), kind)
        for plan, input in plans if kind is th.optim.SGD else plans[2:3]:
            for found, own in dist.run_ranks(trained_in_parts, 2, (kind, plan, input)):
                close(found, losses, 1e-5)
                for value, wanted in zip(own, parameters):
                    close(value, wanted, 1e-4)


def placed(rank):
    mesh = init_device_mesh("cpu", (2,))
    local = th.full([2], float(rank + 1), requires_grad=True)
    term = DTensor.from_local(local, mesh, [Partial()])
    total = term.redistribute(placements=[Shard(0)])
    (total.full_tensor() * th.tensor([2.0, 3.0])).sum().backward()
    x = distribute_tensor(th.ones(3, 2, requires_grad=True), mesh, [Shard(0)])
    x.retain_grad()
    x.register_hook(lambda gradient: gradient * 2)
    # Each rank uses the entire tensor for a different term.
    (x.full_tensor(grad_placements=[Partial()]) * (rank + 1)).sum().backward()
    x.to_local().sum().backward()
    with raises(RuntimeError, "mixed torch.Tensor and DTensor"):
        x + th.ones(3, 2)
    with raises(RuntimeError, "non-leaf tensor"):
        distribute_tensor(x.to_local() * 2, mesh)
    gradient, = th.autograd.grad((x * x).sum(), x)
    return total.full_tensor().tolist(), local.grad.tolist(), x.grad.full_tensor().tolist(), gradient.full_tensor().tolist(), x.grad.placements


def strided(rank):
    mesh, halves = init_device_mesh("cpu", (2,)), _StridedShard(0, split_factor=2)
    # The rows are divided into 0 to 4 and 5 to 8, of each of which a rank has its part.
    x = distribute_tensor(th.arange(9.0, requires_grad=True), mesh, [halves])
    other = DTensor.from_local(th.ones(9), mesh, [Replicate()]).redistribute(placements=[Shard(0)])
    table = distribute_tensor(th.arange(18.0).view(9, 2), mesh, [halves])
    x.retain_grad()
    (x.redistribute(placements=[Replicate()]).to_local() * th.arange(9.0)).sum().backward()
    row = x.detach() @ table
    return x.to_local().tolist(), x.full_tensor().tolist(), (x + other).full_tensor().tolist(), row.full_tensor().tolist(), x.grad.to_local().tolist()


def test_a_part_of_each_of_several_parts():
    for (local, whole, total, row, gradient), own in zip(dist.run_ranks(strided, 2), ([0.0, 1.0, 2.0, 5.0, 6.0], [3.0, 4.0, 7.0, 8.0])):
        assert local == gradient == own and whole == [float(at) for at in range(9)] and total == [at + 1 for at in whole]
        assert row == [sum(at * 2 * at for at in range(9)), sum(at * (2 * at + 1) for at in range(9))]


def test_gradients_of_changes_of_placement():
    for total, local, x, gradient, placements in dist.run_ranks(placed, 2):
        assert total == [3.0, 3.0] and local == [2.0, 3.0] and placements == (Shard(0),)
        assert x == [[8.0, 8.0]] * 3 and gradient == [[4.0, 4.0]] * 3
