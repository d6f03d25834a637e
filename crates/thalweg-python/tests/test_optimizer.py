"""User-defined optimizers: they subclass `Optimizer`, as in PyTorch."""

import thalweg as th
from thalweg import nn
from support import close, raises


class Momentum(th.optim.Optimizer):
    """Gradient descent with momentum, as programs write it."""

    def __init__(self, params, lr=0.1, momentum=0.9):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @th.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with th.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["velocity"] = th.zeros_like(p)
                state["step"] += 1
                state["velocity"].mul_(group["momentum"]).add_(p.grad)
                p.add_(state["velocity"], alpha=-group["lr"])
        return loss


def trained(make, steps, saved=None):
    """Returns the value of a parameter after each step of minimizing a sum of fourth powers, and the optimizer."""
    p = nn.Parameter(th.tensor([1.0, -2.0, 0.5]) if saved is None else saved)
    optimizer = make([p])
    places = []
    for _ in range(steps):
        optimizer.zero_grad()
        (p ** 4).sum().backward()
        optimizer.step()
        places.append(p.tolist())
    return places, optimizer, p


def test_a_rule_of_ones_own_is_the_fused_one():
    own, optimizer, p = trained(lambda params: Momentum(params, lr=0.01), 6)
    fused, _, _ = trained(lambda params: th.optim.SGD(params, lr=0.01, momentum=0.9), 6)
    close(own, fused, 1e-5)
    assert optimizer.state[p]["step"] == 6 and "Momentum" in repr(optimizer)


def test_its_states_are_saved_and_loaded():
    whole, _, _ = trained(lambda params: Momentum(params, lr=0.01), 6)
    _, optimizer, p = trained(lambda params: Momentum(params, lr=0.01), 3)
    saved = optimizer.state_dict()
    assert saved["state"][0]["step"] == 3 and saved["param_groups"][0]["params"] == [0]

    def resumed(params):
        other = Momentum(params, lr=0.5)
        other.load_state_dict(saved)
        return other
    rest, other, _ = trained(resumed, 3, p.detach().clone())
    assert other.param_groups[0]["lr"] == 0.01
    close(rest, whole[3:], 1e-6)


def test_closures_schedules_and_groups():
    p, q = nn.Parameter(th.ones(2)), nn.Parameter(th.ones(2))
    optimizer = Momentum([{"params": [p], "own": "kept"}, {"params": [q], "lr": 1.0}], momentum=0.0)
    assert optimizer.param_groups[0]["own"] == "kept"
    schedule = th.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def closure():
        optimizer.zero_grad()
        loss = (p + q).sum()
        loss.backward()
        return loss
    assert optimizer.step(closure).item() == 4.0
    schedule.step()
    optimizer.step(closure)
    close(p, [1.0 - 0.1 - 0.05] * 2)
    close(q, [1.0 - 1.0 - 0.5] * 2)


def test_what_it_cannot():
    p = nn.Parameter(th.ones(2))
    with raises(NotImplementedError, "has no `step`"):
        th.optim.Optimizer([p], {"lr": 0.1}).step()
    with raises(ValueError, "empty parameter list"):
        Momentum([])
    with raises(TypeError, "'rate'"):
        th.optim.SGD([p], rate=1.0)
    matrix = nn.Parameter(th.ones(2, 2) * 1j)
    matrix.grad = th.ones(2, 2) * 1j
    with raises(RuntimeError, "does not support complex parameters"):
        th.optim.Muon([matrix]).step()


def test_hooks_of_steps():
    p, seen = nn.Parameter(th.ones(1)), []
    for optimizer in (th.optim.SGD([p], lr=0.5), Momentum([p])):
        before = optimizer.register_step_pre_hook(lambda own, args, kwargs: seen.append((own is optimizer, p.item())))
        optimizer.register_step_post_hook(lambda own, args, kwargs: seen.append((own is optimizer, p.item())))
        p.data.fill_(1.0)
        p.grad = th.ones(1)
        optimizer.step()
        assert seen == [(True, 1.0), (True, p.item())] and p.item() < 1.0
        before.remove()
        scaler = th.amp.GradScaler(init_scale=2.0)
        scaler.scale((p * 0).sum()).backward()
        scaler.step(optimizer)
        assert len(seen) == 3
        seen.clear()
    optimizer.register_step_pre_hook(lambda *_: 3)
    with raises(RuntimeError, "must return None or a tuple"):
        optimizer.step()


def test_initial_values():
    for shape in ((3, 5), (5, 3), (4, 2, 3)):
        x = nn.init.orthogonal_(th.empty(shape), 2.0).reshape(shape[0], -1)
        product = x @ x.T if x.shape[0] <= x.shape[1] else x.T @ x
        close(product, (th.eye(product.shape[0]) * 4).tolist(), 1e-5)
    image = th.arange(36).view(1, 4, 3, 3).float()
    close(nn.functional.conv2d(image, nn.init.dirac_(th.empty(4, 2, 3, 3), 2), padding=1, groups=2), image.tolist())
    assert (nn.init.sparse_(th.empty(10, 4), 0.25) == 0).sum(0).tolist() == [3] * 4


def test_a_step_leaves_parameters_to_fusion():
    from thalweg import _core
    parameter = th.nn.Parameter(th.ones(4))
    optimizer = th.optim.AdamW([parameter])
    parameter.grad = th.ones(4)
    optimizer.step()
    compiled = th.compile(lambda: (parameter.detach() * 2 + 1).neg())
    loops = _core._compile_counters()[0]
    compiled()
    assert _core._compile_counters()[0] - loops == 3


def test_functions_of_lists_step_as_the_classes():
    from thalweg.optim import _functional
    start, gradients = [1.0, -2.0, 0.5], [[0.5, -1.0, 2.0], [1.0, 0.1, -0.3]]
    cases = [
        ("Adam", {"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.01, "amsgrad": True}, ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]),
        ("AdamW", {"lr": 0.1, "betas": (0.8, 0.99), "weight_decay": 0.1, "amsgrad": False}, ["exp_avg", "exp_avg_sq", None]),
        ("RMSprop", {"lr": 0.1, "alpha": 0.9, "momentum": 0.5, "centered": True}, ["square_avg", "grad_avg", "momentum_buffer"]),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, ["momentum_buffer"])]
    for name, options, states in cases:
        parameter = th.nn.Parameter(th.tensor(start))
        optimizer = getattr(th.optim, name)([parameter], **options)
        function = getattr(getattr(th.optim, name.lower()), name.lower())
        assert function is getattr(_functional, name.lower())
        own = th.tensor(start)
        lists = [[None] if name == "SGD" else [th.zeros(3)] if state else [] for state in states]
        if name != "SGD":
            lists.append([th.tensor(0.0)])
        given = {key: value for key, value in {**optimizer.defaults, **options}.items() if key not in ("betas", "fused", "foreach", "capturable", "differentiable")}
        if "betas" in options:
            given["beta1"], given["beta2"] = options["betas"]
        for gradient in gradients:
            parameter.grad = th.tensor(gradient)
            optimizer.step()
            function([own], [th.tensor(gradient)], *lists, **given)
        close(own, parameter.tolist(), 1e-6)
        for state, values in zip(states, lists):
            if state:
                close(values[0], optimizer.state[parameter][state].tolist(), 1e-6)


def test_options_are_read_from_the_constructors_code():
    for name in ("SGD", "Adam", "RMSprop", "Adadelta"):
        code = getattr(th.optim, name).__init__.__code__
        names = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
        assert names[:3] == ("self", "params", "lr") and "maximize" in names
    with raises(TypeError, "Adam.__init__() got an unexpected keyword argument 'rate'"):
        th.optim.Adam([th.nn.Parameter(th.ones(1))], rate=1.0)


def test_parts_of_threads_are_those_of_a_list():
    # Large lists are divided among threads, also within a tensor. The same elements as many small tensors have the same bits.
    sizes = (3, 70_001, 1, 4096, 33_333)
    values = [th.randn(size) for size in sizes]
    gradients = [th.randn(size) for size in sizes]
    for make in (lambda list: th.optim.AdamW(list, lr=0.1, weight_decay=0.1), lambda list: th.optim.SGD(list, lr=0.1, momentum=0.9)):
        found = []
        for length in (10**6, 997):
            parts = [nn.Parameter(part.clone()) for value in values for part in value.split(length)]
            for parameter, part in zip(parts, [part for gradient in gradients for part in gradient.split(length)], strict=True):
                parameter.grad = part.clone()
            optimizer = make(parts)
            for _ in range(3):
                optimizer.step()
            found.append(th.cat([parameter.detach() for parameter in parts]))
        assert th.equal(*found)
        assert not th.equal(found[0], th.cat(values))


def test_rprops_first_step_has_the_learning_rate_of_that_time():
    for options in ({}, {"differentiable": True}):
        x = th.ones(1, requires_grad=True)
        optimizer = th.optim.Rprop([x], lr=0.1, **options)
        optimizer.param_groups[0]["lr"] = 0.05
        leaf = x.clone() if options else x
        optimizer.param_groups[0]["params"][0] = leaf
        leaf.grad = th.ones(1)
        optimizer.step()
        assert abs(leaf.item() - 0.95) < 1e-6, options
