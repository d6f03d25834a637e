"""Steps that the kernels do not take alone: recorded steps, and steps with parameters and options that the kernels do not
support."""

import warnings

import thalweg as th
from stepping import CASES, SHAPES, _numbers, made, stepped
from support import close, raises
from thalweg.autograd.gradcheck import GradcheckError

FUSED = [(name, options) for name, options in CASES if name not in ("Adafactor", "Muon")]


def gradient(step, number=0):
    return th.tensor(_numbers(100 * step + number + 10, SHAPES[number]), dtype=th.float64)


def stepped_by_operators(name, options, steps):
    """Returns a parameter after recorded steps, and its states."""
    parameter = th.tensor(_numbers(0, SHAPES[0]), dtype=th.float64, requires_grad=True).clone()
    optimizer = getattr(th.optim, name)([parameter], differentiable=True, **options)
    for step in steps:
        parameter.grad = gradient(step)
        optimizer.step()
    assert parameter.requires_grad and not parameter.is_leaf
    return parameter, optimizer.state[parameter]


def test_recorded_steps_are_those_of_the_kernels():
    for name, options in [*FUSED, ("AdamW", {"maximize": True}), ("RMSprop", {"weight_decay": 0.1, "maximize": True})]:
        found, states = stepped_by_operators(name, options, range(4))
        parameters, optimizer = made(th, name, options)
        close(found, stepped(th, parameters, optimizer, range(4))[0], 1e-6)
        wanted = optimizer.state[parameters[0]]
        assert set(states) == set(wanted), (name, list(states), list(wanted))
        for title, value in wanted.items():
            close(states[title], value.tolist(), 1e-6)


def test_gradients_of_recorded_steps():
    start = th.tensor([0.3, -0.9, 1.2], dtype=th.float64, requires_grad=True)
    weight = th.tensor([0.7, 0.2, -1.1], dtype=th.float64, requires_grad=True)
    rate = th.tensor(0.05, dtype=th.float64, requires_grad=True)

    def learned(name, options):
        def function(start, weight, rate):
            parameter = start.clone()
            # The step sizes of these two are states, which are not recorded.
            own = 0.05 if name in ("ASGD", "Rprop") else rate
            optimizer = getattr(th.optim, name)([parameter], lr=own, differentiable=True, **options)
            for _ in range(2):
                parameter.grad = 2 * weight * parameter.clone() + weight
                optimizer.step()
            return parameter
        return function
    for name, options in FUSED:
        options = {key: value for key, value in options.items() if key != "lr"}
        th.autograd.gradcheck(learned(name, options), (start, weight, rate), atol=1e-4)


def test_a_leaf_refuses_recorded_steps():
    parameter = th.ones(2, requires_grad=True)
    optimizer = th.optim.SGD([parameter], differentiable=True)
    parameter.grad = th.ones(2)
    with raises(RuntimeError, "leaf"):
        optimizer.step()
    close(parameter, [1.0, 1.0])
    with raises(RuntimeError, "`fused` does not support `differentiable`"):
        th.optim.Adam([parameter], fused=True, differentiable=True)


def test_complex_parameters_are_stepped_by_their_parts():
    for name, options in FUSED:
        start = th.randn(3, 2, dtype=th.complex64)
        for further in ({}, {"differentiable": True}):
            own, parts = (start.clone(), th.view_as_real(start).clone())
            own, parts = (value if further else value.requires_grad_() for value in (own, parts))
            optimizers = [getattr(th.optim, name)([value], **options, **further) for value in (own, parts)]
            for _ in range(3):
                own.grad = th.randn(3, 2, dtype=th.complex64)
                parts.grad = th.view_as_real(own.grad).clone()
                for optimizer in optimizers:
                    optimizer.step()
            assert th.equal(th.view_as_real(own), parts), (name, options)
            found, wanted = optimizers[0].state[own], optimizers[1].state[parts]
            assert set(found) == set(wanted)
            for title, value in found.items():
                assert value.is_complex() == (value.dim() > 0), (name, title)
                assert th.equal(th.view_as_real(value) if value.is_complex() else value, wanted[title])
        saved, other = optimizers[0].state_dict(), own.detach().clone()
        loaded = getattr(th.optim, name)([other], **options)
        loaded.load_state_dict(saved)
        own, optimizer = own.detach(), optimizers[0]
        other.grad = th.ones(3, 2, dtype=th.complex64)
        loaded.step()
        parts.grad = th.view_as_real(other.grad).clone()
        optimizers[1].step()
        close(th.view_as_real(other), parts.tolist(), 1e-5)


def test_complex_lbfgs():
    wanted = th.tensor([1 + 2j, -0.5j])
    for search in (None, "strong_wolfe"):
        parameter = th.zeros(2, dtype=th.complex64, requires_grad=True)
        optimizer = th.optim.LBFGS([parameter], line_search_fn=search)

        def closure():
            optimizer.zero_grad()
            loss = (parameter - wanted).abs().square().sum()
            loss.backward()
            return loss
        for _ in range(5):
            optimizer.step(closure)
        close(th.view_as_real(parameter), th.view_as_real(wanted).tolist(), 1e-3)


def test_lbfgs_without_a_slope():
    optimizer = th.optim.LBFGS([th.ones(2)], tolerance_grad=-1.0)
    assert optimizer.step(lambda: th.tensor([10])).item() == 10


def test_parameters_with_gaps():
    for name, options in [*FUSED, ("Lion", {"weight_decay": 0.1, "maximize": True})]:
        start = th.randn(4, 6)
        gaps, dense = start.clone()[:, ::2].requires_grad_(), start[:, ::2].clone().requires_grad_()
        optimizers = [getattr(th.optim, name)([value], **options) for value in (gaps, dense)]
        for _ in range(3):
            gaps.grad = th.randn(4, 3)
            dense.grad = gaps.grad.clone()
            for optimizer in optimizers:
                optimizer.step()
        close(gaps, dense.tolist(), 1e-5)
    shared = th.ones(1).expand(3)
    shared.grad = th.ones(3)
    with raises(RuntimeError, "unsupported operation"):
        th.optim.SGD([shared]).step()


def test_options_beyond_those_of_constructors():
    parameter = th.ones(2, requires_grad=True)
    optimizer = th.optim.Adam([parameter], lr=0.1)
    parameter.grad = th.ones(2)
    optimizer.step()
    close(parameter, [0.9, 0.9])
    optimizer.param_groups[0]["lr"] = -0.1
    optimizer.step()
    close(parameter, [1.0, 1.0])
    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.step()
    close(parameter, [0.9, 0.9])
    with raises(ValueError, "Invalid rho value: 1.1"):
        th.optim.Adadelta(None, rho=1.1)


def test_scaled_steps_by_operators():
    parameter = th.ones(2, dtype=th.float64).clone()
    optimizer, scaler = th.optim.SGD([parameter], lr=0.5, differentiable=True), th.amp.GradScaler(init_scale=4.0)
    scaler.scale(th.ones(()))
    for value, wanted in ((8.0, 0.0), (float("inf"), 0.0), (4.0, -1.0)):
        parameter.grad = th.full((2,), value, dtype=th.float64)
        scaler.step(optimizer)
        scaler.update()
        close(parameter, [wanted, wanted])


def test_order_of_steps_is_explained():
    optimizer = th.optim.SGD([th.ones(1, requires_grad=True)])
    scheduler = th.optim.lr_scheduler.StepLR(optimizer, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scheduler.step()
    assert "how-to-adjust-learning-rate" in str(caught[0].message)


def test_functions_that_use_their_inputs_otherwise():
    inputs = [th.tensor([0.5, 2.0], dtype=th.float64, requires_grad=True), th.tensor([1.5, 3.0], dtype=th.float64, requires_grad=True)]
    assert th.autograd.gradcheck(lambda *_: inputs[0] * inputs[1].square(), inputs)
    with raises(GradcheckError, "Jacobian mismatch"):
        th.autograd.gradcheck(lambda *_: inputs[0].detach() * inputs[1], inputs)
    close(inputs[0], [0.5, 2.0])
