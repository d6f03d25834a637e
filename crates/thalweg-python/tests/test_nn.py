"""Modules, optimizers, schedules and files."""

import json
import math
import os
import struct
import tempfile
import warnings

import thalweg as th
import thalweg.nn as nn
import thalweg.nn.functional as F
from support import close, raises


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(8, 2, bias=False))
        self.register_buffer("scale", th.tensor(2.0))
        self.register_buffer("hidden", th.tensor(1.0), persistent=False)

    def forward(self, x):
        return self.rest(self.first(x)) * self.scale


def test_modules_are_collected():
    net = Net()
    assert [name for name, _ in net.named_parameters()] == ["first.weight", "first.bias", "rest.1.weight"]
    assert list(net.state_dict()) == ["scale", "first.weight", "first.bias", "rest.1.weight"]
    assert [name for name, _ in net.named_modules()] == ["", "first", "rest", "rest.0", "rest.1"]
    assert sum(p.numel() for p in net.parameters()) == 56 and len(list(net.buffers())) == 2
    assert net.training and not net.eval().rest[0].training and net.train() is net
    assert net.get_parameter("rest.1.weight") is net.rest[1].weight
    net.rest[1].weight = net.first.weight
    assert len(list(net.parameters())) == 2
    with raises(TypeError, "cannot assign"):
        net.first.weight = th.ones(2)
    with raises(AttributeError, "no attribute 'nothing'"):
        net.nothing
    assert repr(Net()).splitlines()[1] == "  (first): Linear(in_features=4, out_features=8, bias=True)"


def test_state_is_loaded():
    one, other = Net(), Net()
    other.load_state_dict(one.state_dict())
    x = th.randn(3, 4)
    assert other(x).tolist() == one(x).tolist()
    with raises(RuntimeError, 'Missing key(s) in state_dict: "scale"'):
        other.load_state_dict({name: value for name, value in one.state_dict().items() if name != "scale"})
    with raises(RuntimeError, "size mismatch for first.weight"):
        other.load_state_dict({**one.state_dict(), "first.weight": th.ones(2, 2)})
    assert other.load_state_dict({}, strict=False).missing_keys == list(one.state_dict())


def test_modules_move_and_convert():
    net = Net()
    weight = net.first.weight
    assert net.double() is net and net.first.weight is weight and weight.dtype is th.float64 and net.scale.dtype is th.float64
    net.to(th.float32).to("meta")
    assert weight.device.type == "meta" and isinstance(weight, nn.Parameter)
    with raises(TypeError, "floating point"):
        net.to(th.int32)


def test_hooks():
    net, seen = Net(), []
    with net.first.register_forward_hook(lambda module, args, output: seen.append(output.shape)):
        net(th.ones(1, 4))
    handle = net.register_forward_pre_hook(lambda module, args: (args[0] * 0,))
    assert net(th.ones(1, 4)).tolist() == net(th.zeros(1, 4)).tolist() and seen == [(1, 8)]
    handle.remove()


def test_optimizers_step_as_by_hand():
    def run(make, steps=3):
        weight = nn.Parameter(th.tensor([1.0, -2.0]))
        optimizer = make([weight])
        for _ in range(steps):
            optimizer.zero_grad()
            (weight * weight).sum().backward()
            optimizer.step()
        return weight.tolist(), optimizer
    close(run(lambda p: th.optim.SGD(p, lr=0.1))[0], [0.512, -1.024])
    value, velocity = 1.0, 0.0
    for _ in range(3):
        velocity = 0.9 * velocity + 2 * value
        value -= 0.1 * velocity
    close(run(lambda p: th.optim.SGD(p, 0.1, 0.9))[0][0], value)
    value, m, v = 1.0, 0.0, 0.0
    for t in range(1, 4):
        value *= 1 - 0.1 * 0.5
        g = 2 * value / (1 - 0.1 * 0.5)
        m, v = 0.8 * m + 0.2 * g, 0.99 * v + 0.01 * g * g
        value -= 0.1 * (m / (1 - 0.8**t)) / ((v / (1 - 0.99**t)) ** 0.5 + 1e-8)
    close(run(lambda p: th.optim.AdamW(p, lr=0.1, betas=(0.8, 0.99), weight_decay=0.5))[0][0], value)
    for name in ("Adam", "Adamax", "NAdam", "RAdam", "Adadelta", "Adagrad", "ASGD", "RMSprop", "Rprop", "Lion"):
        weight, _ = run(getattr(th.optim, name))
        assert abs(weight[0]) < 1.0 and abs(weight[1]) < 2.0, name
    with raises(ValueError, "Invalid learning rate"):
        th.optim.SGD([th.ones(1, requires_grad=True)], lr=-1)
    with raises(ValueError, "empty parameter list"):
        th.optim.SGD([])
    with raises(TypeError, "unexpected keyword"):
        th.optim.SGD([th.ones(1)], nonsense=1)


def test_groups_and_states():
    a, b = nn.Parameter(th.ones(2)), nn.Parameter(th.ones(3))
    optimizer = th.optim.Adam([{"params": [a], "lr": 0.5}, {"params": b}], lr=0.1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]

    def step(optimizer):
        optimizer.zero_grad()
        (a.sum() + (b * b).sum()).backward()
        optimizer.step()
    step(optimizer)
    close(a, [0.5, 0.5])
    close(b, [0.9] * 3)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.param_groups[1]["weight_decay"] = 0.1
    step(optimizer)
    close(a, [0.5, 0.5])
    state = optimizer.state_dict()
    assert sorted(state["state"][0]) == ["exp_avg", "exp_avg_sq", "step"] and state["state"][1]["step"].item() == 2
    saved = {name: {inner: value.clone() for inner, value in own.items()} for name, own in state["state"].items()}
    kept = b.detach().clone()
    step(optimizer)
    expected = b.tolist()
    b.data = kept
    again = th.optim.Adam([{"params": [a]}, {"params": b}], lr=0.7)
    again.load_state_dict({"state": saved, "param_groups": state["param_groups"]})
    step(again)
    close(b, expected)
    assert again.param_groups[1]["weight_decay"] == 0.1
    with raises(ValueError, "more than one"):
        again.add_param_group({"params": a})


def test_schedules():
    def rates(make, count):
        optimizer = th.optim.SGD([th.ones(1, requires_grad=True)], lr=1.0)
        scheduler = make(optimizer)
        found = []
        for _ in range(count):
            found.append(optimizer.param_groups[0]["lr"])
            scheduler.step()
        return found
    schedules = th.optim.lr_scheduler
    close(rates(lambda o: schedules.StepLR(o, 2, 0.1), 5), [1, 1, 0.1, 0.1, 0.01])
    close(rates(lambda o: schedules.LambdaLR(o, lambda step: 0.5**step), 3), [1, 0.5, 0.25])
    close(rates(lambda o: schedules.CosineAnnealingLR(o, 2), 3), [1, 0.5, 0])
    close(rates(lambda o: schedules.MultiStepLR(o, [1, 3], 0.1), 5), [1, 0.1, 0.1, 0.01, 0.01])
    close(rates(lambda o: schedules.LinearLR(o, 0.5, 1.0, 2), 4), [0.5, 0.75, 1, 1])
    close(rates(lambda o: schedules.ExponentialLR(o, 0.5), 3), [1, 0.5, 0.25])
    plateau = schedules.ReduceLROnPlateau(th.optim.SGD([th.ones(1, requires_grad=True)], lr=1.0), patience=1)
    for loss in (1.0, 1.0, 1.0):
        plateau.step(loss)
    assert plateau.get_last_lr() == [0.1]


def test_scaler():
    weight = nn.Parameter(th.ones(2))
    optimizer, scaler = th.optim.SGD([weight], lr=0.1), th.amp.GradScaler(init_scale=4.0, growth_interval=1)
    scaler.scale((weight * 3).sum()).backward()
    assert weight.grad.tolist() == [12, 12]
    scaler.step(optimizer)
    scaler.update()
    close(weight, [0.7, 0.7])
    assert scaler.get_scale() == 8.0
    weight.grad = th.tensor([float("inf"), 1.0])
    scaler.step(optimizer)
    scaler.update()
    close(weight, [0.7, 0.7])
    assert scaler.get_scale() == 4.0


def test_layers_have_shapes():
    x = th.randn(2, 3, 8, 8)
    assert nn.Conv2d(3, 4, 3, padding="same")(x).shape == (2, 4, 8, 8) and nn.MaxPool2d(2)(x).shape == (2, 3, 4, 4)
    assert nn.Flatten()(x).shape == (2, 192) and nn.AdaptiveAvgPool2d(1)(x).shape == (2, 3, 1, 1)
    assert nn.Upsample(scale_factor=2)(x).shape == (2, 3, 16, 16) and nn.GroupNorm(3, 3)(x).shape == x.shape
    norm = nn.BatchNorm2d(3)
    y = norm(x)
    close(y.mean((0, 2, 3)), [0, 0, 0], 1e-4)
    assert norm.num_batches_tracked.item() == 1 and norm.running_mean.tolist() != [0, 0, 0]
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    q = th.randn(2, 5, 8)
    attended, shares = attention(q, q, q)
    assert attended.shape == (2, 5, 8) and shares.shape == (2, 5, 5)
    close(attention(q, q, q, need_weights=False)[0], attended.tolist(), 1e-4)
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        output, state = kind(8, 4, num_layers=2, bidirectional=True)(th.randn(5, 2, 8))
        assert output.shape == (5, 2, 8) and (state[0] if kind is nn.LSTM else state).shape == (4, 2, 4)
    assert nn.Dropout(0.5).eval()(x).tolist() == x.tolist()
    dropped = F.dropout(th.ones(1000), 0.5)
    assert set(dropped.tolist()) == {0.0, 2.0}
    assert nn.DataParallel(nn.Dropout(0.5).eval())(x).tolist() == x.tolist()
    with raises(NotImplementedError, "over 2 GPUs is left out"):
        nn.DataParallel(nn.Dropout(0.5), device_ids=[0, 1])


def test_losses():
    scores, classes = th.tensor([[2.0, 1.0, 0.0]]), th.tensor([0])
    close(nn.CrossEntropyLoss()(scores, classes), 0.4076059)
    close(nn.CrossEntropyLoss(weight=th.tensor([2.0, 1.0, 1.0]), reduction="sum")(scores, classes), 0.8152118)
    assert nn.MSELoss(reduction="none")(scores, scores + 2).tolist() == [[4, 4, 4]]
    close(F.binary_cross_entropy_with_logits(th.tensor([0.0]), th.tensor([1.0])), 0.6931472)
    with raises(ValueError, "not a valid value"):
        F.mse_loss(scores, scores, reduction="average")
    weight = th.tensor([[1.0, 2.0, 0.0]])
    assert F.mse_loss(scores, scores + weight, weight=weight).tolist() == 3.0
    assert F.mse_loss(scores, scores + weight, reduction="none", weight=weight).tolist() == [[1.0, 8.0, 0.0]]
    with raises(ValueError, "same size"):
        F.mse_loss(scores, scores, weight=th.ones(2))


def test_each_row_of_indices_is_a_bag():
    table, indices = th.tensor([[1.0], [2.0], [4.0]]), th.tensor([[0, 1], [2, 2]])
    for last, sparse in ((False, False), (True, False), (True, True)):
        weight = table.clone().requires_grad_()
        bags = F.embedding_bag(indices, weight, mode="sum", include_last_offset=last, sparse=sparse)
        assert bags.tolist() == [[3.0], [8.0]], (last, sparse)


def test_rows_of_a_limited_norm():
    for module, indices in ((nn.Embedding(3, 2, max_norm=1.0), th.tensor([[0, 2], [0, 0]])), (nn.EmbeddingBag(3, 2, max_norm=1.0), th.tensor([[0, 2]]))):
        with th.no_grad():
            module.weight.copy_(th.tensor([[3.0, 4.0], [3.0, 4.0], [0.3, 0.4]]))
        module(indices).sum().backward()
        close(module.weight, [[0.6, 0.8], [3.0, 4.0], [0.3, 0.4]])
        assert module.weight.grad[1].tolist() == [0.0, 0.0]
    table = th.tensor([[3.0, -4.0]])
    close(F.embedding(th.tensor([0]), table, max_norm=0.7, norm_type=1.0), [[0.3, -0.4]])


def test_synchronized_batch_norm():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=0.5), nn.Sequential(nn.BatchNorm2d(2)))
    before = net[1]
    before.running_mean.fill_(3.0)
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    after = net[1]
    assert type(after) is type(net[2][0]) is nn.SyncBatchNorm and after.weight is before.weight and after.momentum == 0.5
    x = th.randn(5, 4)
    close(after.eval()(x), before.eval()(x).tolist())
    close(after.train()(x), before.train()(x).tolist())
    # Both modules update the same statistics.
    assert after.running_mean is before.running_mean and after(th.randn(2, 4, 3)).shape == (2, 4, 3)
    with raises(ValueError, "at least 2D"):
        after(th.ones(4))


def test_files():
    state = Net().state_dict()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "net.pt")
        th.save({"model": state, "epoch": 3, "rates": [0.1, 0.2], "name": "net"}, path)
        loaded = th.load(path)
        assert loaded["epoch"] == 3 and loaded["rates"] == [0.1, 0.2] and loaded["name"] == "net"
        assert {name: value.tolist() for name, value in loaded["model"].items()} == {name: value.tolist() for name, value in state.items()}
        with open(path, "rb") as file:
            assert th.load(file, map_location="sim")["epoch"] == 3
        assert th.load(path, weights_only=False)["epoch"] == 3
        with raises(FileNotFoundError):
            th.load(os.path.join(folder, "missing.pt"))


def test_safetensors():
    from thalweg import safetensors
    tensors = {"weight": th.tensor([[1.0, -2.0], [0.5, 3.0]]), "count": th.tensor([7], dtype=th.int64)}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "net.safetensors")
        safetensors.save_file(tensors, path, metadata={"format": "pt"})
        with open(path, "rb") as file:
            data = file.read()
        # The format: the length of the header, the header as JSON, the elements.
        length, = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + length])
        assert header["__metadata__"] == {"format": "pt"} and set(header) == {"__metadata__", "weight", "count"}
        assert header["weight"]["dtype"] == "F32" and header["weight"]["shape"] == [2, 2] and header["count"]["dtype"] == "I64"
        start, end = header["weight"]["data_offsets"]
        assert struct.unpack("<4f", data[8 + length + start:8 + length + end]) == (1.0, -2.0, 0.5, 3.0)
        loaded = th.serialization.load_file(path, device="sim")
        assert {name: value.tolist() for name, value in loaded.items()} == {name: value.tolist() for name, value in tensors.items()}
        with raises(RuntimeError):
            safetensors.load_file(os.path.join(folder, "missing.safetensors"))
    text = json.dumps({"x": {"dtype": "I32", "shape": [3], "data_offsets": [0, 12]}}).encode()
    read = safetensors.load(struct.pack("<Q", len(text)) + text + struct.pack("<3i", 4, -5, 6))
    assert read["x"].tolist() == [4, -5, 6] and read["x"].dtype == th.int32
    assert safetensors.load(safetensors.save(tensors))["count"].tolist() == [7]
    with raises(RuntimeError):
        safetensors.load(struct.pack("<Q", 1 << 40) + text)
    with raises(TypeError, "tensors by names"):
        safetensors.save({"epoch": 3})
    with raises(TypeError, "metadata"):
        safetensors.save(tensors, {"epoch": 3})


def test_dictionaries_of_parameters():
    parameters = nn.ParameterDict({"left": nn.Parameter(th.ones(2)), "right": th.zeros(3)})
    assert list(parameters) == ["left", "right"] and isinstance(parameters["right"], nn.Parameter) and "left" in parameters
    parameters["more"] = th.ones(1)
    assert [name for name, _ in parameters.named_parameters()] == ["left", "right", "more"] == list(parameters.state_dict())
    del parameters["left"]
    assert parameters.pop("more").tolist() == [1.0] and len(parameters) == 1 and parameters.get("left") is None


def test_new_layers_refuse():
    with raises(ValueError, "4 numbers"):
        nn.ZeroPad2d((1, 2))
    with raises(RuntimeError, "wrapping around"):
        nn.CircularPad1d(5)(th.ones(1, 1, 3))
    with raises(ValueError, "num_features"):
        nn.InstanceNorm1d(4, affine=True)(th.ones(1, 3, 5))
    with raises(ValueError, "valid sizes"):
        nn.ConvTranspose1d(1, 1, 3, stride=2)(th.ones(1, 1, 4), output_size=[20])
    assert nn.ConvTranspose1d(1, 1, 3, stride=2)(th.ones(1, 1, 4), output_size=[10]).shape == (1, 1, 10)
    with raises(NotImplementedError, "mode='sum'"):
        nn.EmbeddingBag(4, 2)(th.tensor([[0, 1]]), per_sample_weights=th.ones(1, 2))
    with raises(RuntimeError, "sorted in decreasing order"):
        nn.utils.rnn.pack_padded_sequence(th.ones(3, 2, 1), [1, 3])
    with raises(RuntimeError, "greater than 0"):
        nn.utils.rnn.pack_padded_sequence(th.ones(3, 2, 1), [3, 0])


def test_norms_of_gradients():
    layer = nn.Linear(2, 2)
    for parameter in layer.parameters():
        parameter.grad = th.full(parameter.shape, 2.0)
    gradients = [parameter.grad for parameter in layer.parameters()]
    total = nn.utils.get_total_norm(gradients)
    close(total, 24**0.5)
    nn.utils.clip_grads_with_norm_(layer.parameters(), 1.0, total)
    close(nn.utils.get_total_norm([parameter.grad for parameter in layer.parameters()]), 1.0)
    with raises(RuntimeError, "is non-finite"):
        nn.utils.get_total_norm(th.tensor([float("inf")]), error_if_nonfinite=True)
    assert nn.utils.skip_init(nn.Linear, 2, 3).weight.shape == (3, 2)


def test_losses_warn_of_sizes_that_are_broadcast():
    for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            loss(th.ones(2, 3), th.ones(2, 3))
            assert not found
            loss(th.ones(2, 1), th.ones(2))
        assert "Please ensure they have the same size." in str(found[0].message) and found[0].filename == __file__
    assert F.l1_loss(th.tensor([3 + 4j]), th.tensor([0j])).item() == 5.0


def test_circular_pads_may_cut_off():
    x = th.arange(12.0).reshape(1, 1, 3, 4)
    assert F.pad(x, (-1, 2, 1, -1), mode="circular").tolist() == [[[[5, 6, 7, 5, 6], [1, 2, 3, 1, 2], [5, 6, 7, 5, 6]]]]
    assert F.pad(x[0, :, 0], (-1, -2), mode="circular").tolist() == [[1.0]]
    with raises(RuntimeError, "Negative padding value is resulting in an empty dimension"):
        F.pad(x[0, :, 0], (-3, -2), mode="circular")


def test_images_of_bytes_are_resized():
    x = th.arange(0, 250, 10, dtype=th.uint8).reshape(1, 1, 5, 5)
    assert F.interpolate(x, size=(2, 3), mode="bilinear").tolist() == [[[[41, 58, 75], [166, 183, 200]]]]
    assert F.interpolate(x, size=(7, 7), mode="bicubic", antialias=True).flatten()[:8].tolist() == [0, 2, 10, 17, 24, 32, 38, 24]


def test_layers_have_the_default_dtype():
    th.set_default_dtype(th.float64)
    try:
        layers = [nn.Linear(2, 2), nn.Conv2d(1, 1, 1), nn.LSTM(2, 2), nn.Embedding(2, 2), nn.BatchNorm1d(2), nn.PReLU(), nn.LayerNorm(2),
                  nn.TransformerEncoderLayer(2, 1, 4)]
        assert all(value.dtype is th.float64 for layer in layers for value in layer.parameters())
        assert layers[2](th.ones(3, 1, 2))[0].dtype is th.float64
    finally:
        th.set_default_dtype(th.float32)


def test_destinations_of_modules():
    net, place = nn.Linear(2, 2), th.device("cpu")
    for args, options in (((place, True), {}), ((None, True), {}), ((place, th.float32, 1), {}), (([],), {}), ((place, th.ones(1)), {}), ((), {"where": place})):
        with raises(TypeError, "to() received an invalid combination of arguments"):
            net.to(*args, **options)
    with raises(RuntimeError, ".to() does not accept copy argument"):
        net.to(place, copy=True)
    assert net.to(place, th.float64, True) is net and net.to(th.ones(1)).weight.dtype is th.float32 and net.to(device=None, dtype=th.float64) is net
    state = nn.Sequential(net).state_dict()
    nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "0.")
    assert sorted(state) == ["bias", "weight"] and sorted(state._metadata) == [""]


def test_causal_attention_is_the_kernels():
    layer, x = nn.MultiheadAttention(8, 2).eval(), th.randn(5, 3, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    close(layer(x, x, x, attn_mask=mask, need_weights=False, is_causal=True)[0], layer(x, x, x, attn_mask=mask)[0].tolist(), 1e-5)
    with raises(RuntimeError, "Expected sequence length to be larger than 0 in RNN"):
        nn.GRU(2, 2)(th.ones(0, 1, 2))


def test_states_of_the_first_form_of_spectral_norm():
    net, other = (nn.utils.spectral_norm(nn.Linear(3, 5)) for _ in range(2))
    x = th.randn(2, 3)
    for _ in range(30):
        net(x)
    state = net.state_dict()
    net.eval(), other.eval()
    with raises(RuntimeError, "Cannot register two spectral_norm hooks on the same parameter weight"):
        nn.utils.spectral_norm(net)
    # That format has the computed weight, and neither a version nor the right singular vector.
    del state._metadata[""]["spectral_norm"], state["weight_v"]
    state["weight"] = net.weight.detach().clone()
    other.load_state_dict(state)
    close(other(x), net(x).tolist(), 1e-4)
    del state["weight_u"]
    with raises(RuntimeError, 'Missing key(s) in state_dict: "weight_u"'):
        other.load_state_dict(state)
    nn.utils.remove_spectral_norm(other)
    assert not other._load_state_dict_pre_hooks and not other._state_dict_hooks
    with raises(ValueError, "spectral_norm of 'weight' not found in Linear("):
        nn.utils.remove_spectral_norm(other)


def test_a_dropout_in_place_that_keeps_everything_writes_nothing():
    x = th.ones(3, requires_grad=True)
    for function in (F.dropout, F.alpha_dropout, F.feature_alpha_dropout):
        assert function(x, 0.5, training=False, inplace=True) is x
        y = x.exp()
        function(y, 0.5, False, True).sum().backward()
    close(x.grad, 3 * x.exp())


def test_an_impossible_sequence_has_no_gradient_unless_it_counts_as_0():
    for zero_infinity in (False, True):
        x = th.randn(4, 2, 3).requires_grad_()
        loss = F.ctc_loss(x.log_softmax(-1), th.tensor([[1, 1, 2], [1, 2, 0]]), (3, 4), (3, 2), reduction="none", zero_infinity=zero_infinity)
        loss.sum().backward()
        assert loss[0].item() == (0.0 if zero_infinity else math.inf) and math.isfinite(loss[1].item())
        assert x.grad[:3, 0].isnan().all() != zero_infinity and x.grad[3, 0].tolist() == [0.0] * 3 and x.grad[:, 1].isfinite().all()


def test_losses_without_targets_have_a_gradient_of_zeros_with_a_graph_too():
    for smoothing in (0.0, 0.1):
        x = th.randn(2, 3, requires_grad=True)
        loss = th.nn.functional.cross_entropy(x, th.full((2,), -100), label_smoothing=smoothing)
        (gradient,) = th.autograd.grad(loss, x, create_graph=True)
        assert gradient.tolist() == [[0, 0, 0]] * 2, smoothing
