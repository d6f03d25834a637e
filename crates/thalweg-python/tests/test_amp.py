"""Autocast regions and the gradient scaler as objects, with the attributes that PyTorch programs use. Expected values are
PyTorch's."""

import math
import warnings

import thalweg as th
from support import raises


def product_in(*args, **kwargs):
    with th.autocast(*args, **kwargs):
        return th.mm(th.ones(2, 2, dtype=th.float16), th.ones(2, 2, dtype=th.float16)).dtype


def test_regions_have_the_dtype_of_their_kind_of_device():
    assert (th.get_autocast_dtype("cpu"), th.get_autocast_dtype("cuda")) == (th.bfloat16, th.float16)
    assert product_in("cpu") is th.bfloat16 and product_in("cuda") is th.float16
    assert product_in("cuda", dtype=th.float32) is th.float32
    assert product_in("cuda", dtype=th.float32, enabled=False) is th.float16
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert product_in("cpu", dtype=th.float32) is th.float16
    assert "In CPU autocast, but the target dtype is not supported. Disabling autocast." in str(caught[0].message)
    with raises(RuntimeError, "Invalid device string: 'nowhere'"):
        th.autocast("nowhere")
    with raises(RuntimeError, "unsupported autocast device_type 'meta'"):
        th.autocast("meta")


def test_comparisons_of_a_region_take_two_dtypes():
    with th.autocast("cuda"):
        assert th.equal(th.ones(3), th.ones(3, dtype=th.float16))
        assert not th.equal(th.ones(3), th.zeros(3, dtype=th.float16))


def test_gradients_are_unscaled_after_a_step():
    for make in (lambda p: th.optim.SGD(p, lr=0.5), lambda p: th.optim.Adam(p, lr=0.5), lambda p: th.optim.Adam(p, lr=0.5, fused=True)):
        parameter = th.nn.Parameter(th.ones(3))
        optimizer, scaler = make([parameter]), th.amp.GradScaler("cuda", init_scale=128.0)
        assert scaler._scale is None and scaler._init_scale == 128.0
        scaler.scale((parameter * 3).sum()).backward()
        assert parameter.grad.tolist() == [384.0] * 3
        scaler.step(optimizer)
        scaler.update()
        assert parameter.grad.tolist() == [3.0] * 3
        assert abs(parameter[0].item() - (-0.5 if isinstance(optimizer, th.optim.SGD) else 0.5)) < 1e-5
        assert scaler._scale.item() == 128.0 and scaler._growth_tracker.item() == 1


def test_the_scale_follows_what_was_found():
    scale, tracker, found = th.full((1,), 4.0), th.zeros(1, dtype=th.int32), th.zeros(1)
    states = []
    for is_infinite in (0.0, 0.0, 1.0):
        found.fill_(is_infinite)
        th._amp_update_scale_(scale, tracker, found, 2.0, 0.25, 2)
        states.append((scale.item(), tracker.item()))
    assert states == [(4.0, 1), (8.0, 0), (2.0, 0)]
    scale.fill_(3e38)
    th._amp_update_scale_(scale, tracker, found.zero_(), 2.0, 0.25, 1)
    assert math.isfinite(scale.item()) and scale.item() > 2e38

    gradients = [th.tensor([2.0, 4.0]), th.tensor([math.inf])]
    th._amp_foreach_non_finite_check_and_unscale_(gradients[:1], found, th.tensor(0.5))
    assert gradients[0].tolist() == [1.0, 2.0] and found.item() == 0.0
    th._amp_foreach_non_finite_check_and_unscale_(gradients, found, th.tensor(0.5))
    assert found.item() == 1.0


def test_optimizers_that_unscale_themselves():
    class Own(th.optim.Optimizer):
        _step_supports_amp_scaling = True

        def __init__(self, params):
            super().__init__(params, {})
            self.seen = []

    class WithTensors(Own):
        def step(self, closure=None):
            self.seen.append((self.grad_scale.item(), self.found_inf.item()))

    class WithScaler(Own):
        def step(self, closure=None, *, grad_scaler=None):
            self.seen.append(grad_scaler)

    for gradient, found in ((1.0, 0.0), (math.inf, 1.0)):
        parameter, scaler = th.nn.Parameter(th.ones(2)), th.amp.GradScaler("cuda", init_scale=4.0)
        tensors, given = WithTensors([parameter]), WithScaler([parameter])
        scaler.scale((parameter * gradient).sum()).backward()
        scaler.step(tensors)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            scaler.step(given)
        assert [warning.category for warning in caught] == [FutureWarning]
        assert tensors.seen == [(4.0, found)] and given.seen == [scaler] and not hasattr(tensors, "found_inf")
        assert parameter.grad[0].item() == 4.0 * gradient
        scaler.update()
        assert scaler.get_scale() == (2.0 if found else 4.0)
