"""Checkpointed functions, saved tensors, anomaly mode, inference mode and gradient checks. All assertions also hold for
PyTorch."""

import threading

import thalweg as th
from support import close, raises
from thalweg.autograd.gradcheck import GradcheckError
from thalweg.utils.checkpoint import CheckpointError, checkpoint, checkpoint_sequential


def test_checkpoint_runs_again():
    th.manual_seed(0)
    layer = th.nn.Sequential(th.nn.Linear(4, 4), th.nn.GELU(), th.nn.Linear(4, 4))
    x = th.randn(3, 4, requires_grad=True)
    layer(x).sum().backward()
    expected = [x.grad.tolist(), [parameter.grad.tolist() for parameter in layer.parameters()]]
    x.grad = None
    layer.zero_grad()
    calls = []

    def forward(value, flag, scale=None):
        assert flag == "flag" and scale == 1
        calls.append(value.requires_grad)
        return {"out": layer(value)}
    output = checkpoint(forward, x, "flag", scale=1, use_reentrant=False)["out"]
    assert len(calls) == 1
    output.sum().backward()
    assert calls == [True, True]
    assert [x.grad.tolist(), [parameter.grad.tolist() for parameter in layer.parameters()]] == expected
    with th.no_grad():
        checkpoint(forward, x, "flag", scale=1, use_reentrant=False)
    assert len(calls) == 3


def test_checkpoint_draws_again():
    for preserved in (True, False):
        th.manual_seed(3)
        x = th.ones(64, requires_grad=True)
        y = checkpoint(lambda value: th.nn.functional.dropout(value * 1, 0.5) * value, x, use_reentrant=False, preserve_rng_state=preserved)
        th.rand(5)
        state = th.get_rng_state().tolist()
        y.sum().backward()
        same = (x.grad == 2 * y.detach()).all().item()
        assert same == preserved
        assert not preserved or th.get_rng_state().tolist() == state


def test_checkpoint_of_what_raises_and_differs():
    x = th.ones(2, requires_grad=True)

    def raising(value):
        raise LookupError("forward")
    with raises(LookupError, "forward"):
        checkpoint(raising, x, use_reentrant=False)
    count = []

    def later(value):
        count.append(1)
        if len(count) > 1:
            raise LookupError("again")
        return (value * value).exp()
    with raises(LookupError, "again"):
        checkpoint(later, x, use_reentrant=False).sum().backward()
    count.clear()

    def other(value):
        count.append(1)
        return (value * value).exp() if len(count) == 1 else value[:1].exp() * value[:1].exp()
    with raises(CheckpointError, "have different metadata than during the forward pass"):
        checkpoint(other, x, use_reentrant=False).sum().backward()
    with raises(ValueError, "determinism_check"):
        checkpoint(other, x, use_reentrant=False, determinism_check="sometimes")


def test_checkpoints_nest_and_follow_each_other():
    layers = th.nn.Sequential(*(th.nn.Linear(2, 2) for _ in range(5)))
    x = th.ones(1, 2, requires_grad=True)
    layers(x).sum().backward()
    expected, x.grad = x.grad.tolist(), None
    checkpoint_sequential(layers, 2, x, use_reentrant=False).sum().backward()
    assert x.grad.tolist() == expected
    x.grad = None
    checkpoint(lambda value: checkpoint(layers, value, use_reentrant=False), x, use_reentrant=False).sum().backward()
    assert x.grad.tolist() == expected


def test_saved_tensors_hooks():
    packed, unpacked = [], []

    def pack(tensor):
        packed.append(tensor.tolist())
        return len(packed), tensor.clone()

    def unpack(value):
        unpacked.append(value[0])
        return value[1]
    x = th.tensor([3.0], requires_grad=True)
    with th.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = x.exp() * 2
    z = y * y
    assert len(packed) >= 1 and not unpacked
    z.backward()
    assert unpacked
    count = len(packed)
    with th.autograd.graph.saved_tensors_hooks(lambda tensor: 1, lambda value: "no tensor"):
        y = x.exp()
    with raises(TypeError, "Output of saved tensor unpack_hook expected to be a Tensor"):
        y.backward()

    def raising(tensor):
        raise LookupError("pack")
    with raises(LookupError, "pack"):
        with th.autograd.graph.saved_tensors_hooks(raising, unpack):
            x.exp()
    x.exp()
    assert len(packed) == count
    x.grad = None
    with th.autograd.graph.save_on_cpu():
        y = x * x
    y.backward()
    assert x.grad.tolist() == [6]


def test_anomaly_mode():
    x = th.zeros(1, requires_grad=True)
    assert not th.is_anomaly_enabled()
    with th.autograd.detect_anomaly():
        assert th.is_anomaly_enabled() and th.is_anomaly_check_nan_enabled()
        with raises(RuntimeError, "returned nan values in its 0th output."):
            (x.sqrt() * 0).backward()
    with th.autograd.set_detect_anomaly(True, check_nan=False):
        assert th.is_anomaly_enabled() and not th.is_anomaly_check_nan_enabled()
        (x.sqrt() * 0).backward()
    assert not th.is_anomaly_enabled()
    th.autograd.set_detect_anomaly(True)
    assert th.is_anomaly_enabled()
    th.autograd.set_detect_anomaly(False)
    assert not th.is_anomaly_enabled()


def test_inference_mode():
    x = th.ones(2, requires_grad=True)
    assert not th.is_inference_mode_enabled()
    with th.inference_mode():
        assert th.is_inference_mode_enabled() and not th.is_grad_enabled()
        y = x * 2
        assert y.is_inference() and not y.requires_grad and not x.is_inference()
        with th.inference_mode(False):
            assert not th.is_inference_mode_enabled() and th.is_grad_enabled()
            assert (x * 2).requires_grad and not (x * 2).is_inference()
        y.add_(1)
    assert not th.is_inference_mode_enabled() and th.is_grad_enabled()
    with raises(RuntimeError, "Inplace update to inference tensor outside InferenceMode is not allowed"):
        y.add_(1)
    with raises(RuntimeError, "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed"):
        y.requires_grad_()
    with raises(RuntimeError):
        x * y
    assert not y.clone().is_inference() and (x * y.clone()).requires_grad

    @th.inference_mode()
    def called():
        return x * 2

    @th.inference_mode
    def bare():
        return x * 2

    @th.inference_mode(mode=False)
    def outside():
        return x * 2
    assert called().is_inference() and bare().is_inference() and outside().requires_grad
    with raises(ZeroDivisionError):
        with th.inference_mode():
            1 / 0
    modes = []
    with th.inference_mode():
        thread = threading.Thread(target=lambda: modes.append(th.is_inference_mode_enabled()))
        thread.start()
        thread.join()
    assert modes == [False] and not th.is_inference_mode_enabled()


def test_gradcheck():
    x = th.tensor([0.5, 1.5], dtype=th.float64, requires_grad=True)
    assert th.autograd.gradcheck(lambda value, power: (value.exp(), value ** power), (x, 2))

    class Wrong(th.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 3
    with raises(GradcheckError, "Jacobian mismatch for output 0 with respect to input 0"):
        th.autograd.gradcheck(Wrong.apply, (x,))
    assert not th.autograd.gradcheck(Wrong.apply, (x,), raise_exception=False)

    def raising(value):
        raise LookupError("as it is")
    with raises(LookupError, "as it is"):
        th.autograd.gradcheck(raising, (x,))


def test_passes_within_checkpoints():
    def slope(x):
        return th.autograd.grad(x.sin().exp(), x, create_graph=True)[0]
    x = th.tensor(0.3, requires_grad=True)
    expected = th.autograd.grad(slope(x), x)[0].item()
    for early_stop in (True, False):
        y = checkpoint(slope, x, use_reentrant=False, early_stop=early_stop)
        assert abs(th.autograd.grad(y, x)[0].item() - expected) < 1e-6


def test_checkpoints_with_regions_and_explanations():
    class Region:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            entered.append(self.name)

        def __exit__(self, *_):
            pass
    entered, x = [], th.ones(2, requires_grad=True)
    y = checkpoint(lambda value: value.sin().exp(), x, use_reentrant=False, context_fn=lambda: (Region("first"), Region("second")))
    assert entered == ["first"]
    y.sum().backward()
    assert entered == ["first", "second"]
    calls = []

    def other(value):
        calls.append(None)
        return value.sin().exp() if len(calls) == 1 else value.sin() * th.ones(3, 2)
    y = checkpoint(other, x, use_reentrant=False, debug=True)
    with raises(CheckpointError, "You are seeing this error because you passed `debug=True` to checkpoint"):
        y.sum().backward()


def test_policies_keep_results():
    from thalweg.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
    net, x = th.nn.Sequential(th.nn.Linear(3, 4), th.nn.GELU(), th.nn.Linear(4, 2)), th.randn(5, 3)
    net(x).square().sum().backward()
    expected = net[0].weight.grad.clone()
    runs = {False: [], True: []}

    def policy(ctx, op, *args, **kwargs):
        runs[ctx.is_recompute].append(op)
        return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE
    kept = [th.ops.aten.gelu.default, th.ops.aten.addmm.default]
    for chosen in (policy, kept):
        net.zero_grad()
        checkpoint(net, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(chosen)).square().sum().backward()
        close(net[0].weight.grad, expected.tolist())
    assert runs[False] and runs[True] and set(kept) <= set(runs[True])
    with raises(ValueError, "OpOverloadPacket"):
        create_selective_checkpoint_contexts([th.ops.aten.mm])
