"""Modules whose tensors are computed from others, pruned, fused and averaged, for the goldens of PyTorch and for their test."""

import copy
import importlib
import random

_SOURCE = random.Random(7)


def _random(*shape):
    return _SOURCE.gauss(0, 1) if not shape else [_random(*shape[1:]) for _ in range(shape[0])]


WEIGHT, SQUARE, KERNEL, INPUT = _random(4, 3), _random(4, 4), _random(4, 2, 3, 3), _random(5, 3)


class World:
    """A library, with modules that have fixed weights."""

    def __init__(self, library):
        self.library, self.nn = library, library.nn
        for name in ("parametrize", "parametrizations", "prune", "fusion"):
            setattr(self, name, importlib.import_module(f"{library.__name__}.nn.utils.{name}"))
        self.averages = importlib.import_module(f"{library.__name__}.optim.swa_utils")
        self.utils = library.nn.utils

    def tensor(self, values):
        return self.library.tensor(values, dtype=self.library.float64)

    def _set(self, module, weight):
        module = module.double()
        module.weight.data, module.bias.data = self.tensor(weight), self.tensor([float(place) for place in range(len(weight))])
        return module

    def linear(self, weight=WEIGHT):
        return self._set(self.nn.Linear(len(weight[0]), len(weight)), weight)

    def convolution(self):
        return self._set(self.nn.Conv2d(2, 4, 3), KERNEL)

    def norm(self, kind):
        norm = kind(4).double()
        norm.running_mean.data, norm.running_var.data = self.tensor([1, 2, 3, 4]), self.tensor([0.5, 2, 3, 4])
        norm.weight.data, norm.bias.data = self.tensor([1, -2, 3, 4]), self.tensor([1, 1, 0, 2])
        return norm.eval()


def _learned(world, module):
    """Returns the output of a module, and the gradients of its parameters."""
    result = module(world.tensor(INPUT))
    (result * result).sum().backward()
    return [result, *(parameter.grad for parameter in module.parameters()), [name for name, _ in module.named_parameters()]]


def former_weight_norm(world, dim):
    module = world.utils.weight_norm(world.linear(), dim=dim)
    found = [*_learned(world, module), list(module.state_dict())]
    world.utils.remove_weight_norm(module)
    return [*found, module.weight, list(module.state_dict())]


def weight_norm(world, dim):
    module = world.parametrizations.weight_norm(world.linear(), dim=dim)
    found = [*_learned(world, module), list(module.state_dict()), repr(module)]
    other = copy.deepcopy(module)
    module.weight = world.tensor([[2 * value for value in row] for row in WEIGHT])
    found += [module.weight, other.weight]
    world.parametrize.remove_parametrizations(module, "weight")
    return [*found, module.weight, list(module.state_dict()), type(module).__name__]


def former_states(world):
    former, module = world.utils.weight_norm(world.linear()), world.parametrizations.weight_norm(world.linear())
    former.weight_g.data *= 3
    module.load_state_dict(former.state_dict())
    return [module.weight]


def spectral_norm(world, former):
    make = world.utils.spectral_norm if former else world.parametrizations.spectral_norm
    module = make(world.linear(), n_power_iterations=200)
    module(world.tensor(INPUT))
    found = [*_learned(world, module), list(module.state_dict()), [name for name, _ in module.named_buffers()]]
    if former:
        world.utils.remove_spectral_norm(module)
        found += [module.weight, list(module.state_dict())]
    return found


def orthogonal(world, kind, trivial, weight):
    module = world.parametrizations.orthogonal(world.linear(weight), orthogonal_map=kind, use_trivialization=trivial)
    found = module.weight
    product = found @ found.T if found.shape[0] <= found.shape[1] else found.T @ found
    return [product, list(module.state_dict()), *([found] if len(weight) == len(weight[0]) or not trivial else [])]


def own(world):
    nn, parametrize = world.nn, world.parametrize

    class Symmetric(nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).transpose(-1, -2)

        def right_inverse(self, x):
            return x.triu()

    class Exponential(nn.Module):
        def forward(self, x):
            return x.exp()

        def right_inverse(self, x):
            return x.log()

    class Sum(nn.Module):
        def forward(self, one, other):
            return one + other

        def right_inverse(self, x):
            return x / 2, x / 2
    module = world.linear(SQUARE)
    original = module.weight
    for name, part in (("weight", Symmetric()), ("weight", Exponential()), ("bias", Sum())):
        parametrize.register_parametrization(module, name, part)
    found = [module.weight, list(module.state_dict()), repr(module), parametrize.is_parametrized(module, "bias"),
             module.parametrizations.weight.original is original]
    with parametrize.cached():
        found.append(module.weight is module.weight)
    positive = module.weight.detach() + 1
    module.weight = positive
    found += [module.weight, parametrize.type_before_parametrizations(module).__name__]
    parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
    parametrize.remove_parametrizations(module, "bias")
    return [*found, module.weight, module.bias, type(module).__name__, [name for name, _ in module.named_parameters()]]


def pruned(world):
    prune, module = world.prune, world.linear()
    prune.l1_unstructured(module, "weight", 0.3)
    found = [module.weight, list(module.state_dict()), module(world.tensor(INPUT))]
    prune.ln_structured(module, "weight", 1, 2, 0)
    found += [module.weight, prune.is_pruned(module)]
    prune.l1_unstructured(module, "weight", 2)
    found += [module.weight, module.weight_mask]
    prune.remove(module, "weight")
    prune.custom_from_mask(module, "bias", world.tensor([1, 0, 0, 1]))
    first, second = world.linear(), world.convolution()
    prune.global_unstructured([(first, "weight"), (second, "weight"), (first, "bias")], prune.L1Unstructured, amount=0.4)
    drawn = world.convolution()
    prune.random_structured(drawn, "weight", 2, 1)
    prune.random_unstructured(drawn, "bias", 2)
    return [*found, module.weight, module.bias, [name for name, _ in module.named_parameters()], first.weight, second.weight, first.bias,
            int((drawn.weight_mask == 0).sum()), int((drawn.bias_mask == 0).sum())]


def fused(world):
    convolution, linear = world.convolution().eval(), world.linear().eval()
    one = world.fusion.fuse_conv_bn_eval(convolution, world.norm(world.nn.BatchNorm2d))
    other = world.fusion.fuse_linear_bn_eval(linear, world.norm(world.nn.BatchNorm1d))
    return [one.weight, one.bias, other.weight, other.bias]


def averaged(world):
    averages, found = world.averages, []
    for options in ({}, {"multi_avg_fn": averages.get_ema_multi_avg_fn(0.9)}, {"avg_fn": averages.get_ema_avg_fn(0.9)}, {"use_buffers": True}):
        net = world.nn.Sequential(world.linear(), world.norm(world.nn.BatchNorm1d).train())
        model = averages.AveragedModel(net, **options)
        for step in range(3):
            net(world.tensor(INPUT))
            net[0].weight.data.mul_(1.1 + step)
            model.update_parameters(net)
        averages.update_bn([world.tensor(INPUT), 2 * world.tensor(INPUT)], model)
        found.append(model.state_dict())
    for strategy in ("cos", "linear"):
        for epochs in (0, 5):
            optimizer = world.library.optim.SGD([world.nn.Parameter(world.tensor([1.0]))], lr=1.0)
            schedule = averages.SWALR(optimizer, 0.1, epochs, strategy)
            for _ in range(8):
                schedule.step()
                found.append(optimizer.param_groups[0]["lr"])
    return found


def cases():
    """Yields the name of each case, its function and its arguments."""
    for dim in (0, 1, None):
        yield f"former weight norm {dim}", former_weight_norm, (dim,)
        yield f"weight norm {dim}", weight_norm, (dim,)
    yield "former states", former_states, ()
    for former in (True, False):
        yield f"spectral norm {former}", spectral_norm, (former,)
    turned = [list(row) for row in zip(*WEIGHT)]
    for kind in (None, "matrix_exp", "cayley", "householder"):
        for trivial in (True, False):
            for title, weight in (("tall", WEIGHT), ("wide", turned), ("square", SQUARE)):
                if trivial or kind == "householder" or (kind is None and title != "square"):
                    yield f"orthogonal {kind} {trivial} {title}", orthogonal, (kind, trivial, weight)
    for function in (own, pruned, fused, averaged):
        yield function.__name__, function, ()


def numbers(value):
    """Returns a result as lists of numbers and words."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return [[key, numbers(own)] for key, own in value.items()]
    return [numbers(own) for own in value] if isinstance(value, (list, tuple)) else value


def outcome(world, function, arguments):
    """Returns the outcome of a case, without warnings."""
    import warnings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return numbers(function(world, *arguments))
