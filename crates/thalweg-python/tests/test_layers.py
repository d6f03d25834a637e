"""Convolutions, sequences of different lengths and multi-head attention, as functions."""

import thalweg as th
import thalweg.nn as nn
import thalweg.nn.functional as F
from support import close, raises


def test_convolutions_have_gradients_as_functions_and_complex_operands():
    x, weight = th.arange(8.0).reshape(1, 2, 4) - 3, th.arange(6.0).reshape(2, 1, 3) / 2 - 1
    gradient = th.tensor([[[1.0, -1.0], [2.0, 0.0]]])
    assert nn.grad.conv1d_input(x.shape, weight, gradient, groups=2).tolist() == [[[-1.0, 0.5, 0.5, 0.0], [1.0, 2.0, 3.0, 0.0]]]
    with th.no_grad():
        assert F.grad.conv1d_weight(x, weight.shape, gradient, groups=2).tolist() == [[[-1.0, -1.0, -1.0]], [[2.0, 4.0, 6.0]]]
    y, v, bias = th.complex(x, x.flip(-1)), th.complex(weight, -weight.flip(-1)), th.tensor([1 + 2j, 3 - 1j])
    assert th.conv1d(y, v, bias, groups=2).tolist() == [[[7.5 + 0.5j, 7.5 + 3.5j], [20 + 2j, 20 - 4j]]]
    assert F.conv_transpose1d(y, v, bias, stride=2, groups=2)[0, 0, :4].tolist() == [4 + 2j, 2.5 + 0.5j, 3 + 0j, 2.5 + 1.5j]


def test_packed_sequences_convert():
    packed = nn.utils.rnn.pack_sequence([th.tensor([1.0, 2.0]), th.tensor([3.0])], enforce_sorted=False)
    assert packed.to(packed.data.device) is packed and packed.float() is packed
    long = packed.long()
    assert long.data.dtype == th.int64 and long.batch_sizes is packed.batch_sizes and long.sorted_indices.tolist() == [0, 1]
    with raises(RuntimeError, "Cannot pack empty tensors"):
        nn.utils.rnn.pack_padded_sequence(th.zeros(0, 1, 2), [1])


def test_attention_takes_keys_and_values_by_heads():
    layer, x = nn.MultiheadAttention(4, 2), th.ones(3, 1, 4)
    given = dict(num_heads=2, in_proj_weight=layer.in_proj_weight, in_proj_bias=layer.in_proj_bias, bias_k=None, bias_v=None, add_zero_attn=False,
                 dropout_p=0.0, out_proj_weight=layer.out_proj.weight, out_proj_bias=layer.out_proj.bias, need_weights=False)
    keys, values = th.zeros(2, 3, 2), th.tensor([[1.0, 2.0], [3.0, 4.0]]).unsqueeze(1).expand(2, 3, 2)
    found, _ = F.multi_head_attention_forward(x, x, x, 4, static_k=keys, static_v=values, **given)
    close(found[0, 0], layer.out_proj(th.tensor([1.0, 2.0, 3.0, 4.0])).tolist())
    with raises(AssertionError, "expecting static_k.size(2) of 2, but got 3"):
        F.multi_head_attention_forward(x, x, x, 4, static_k=th.zeros(2, 3, 3), **given)


def test_layers_in_training_keep_no_scores():
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.2, batch_first=True, norm_first=True)
    x, padding = th.randn(2, 48, 32), th.arange(48) >= th.tensor([[30], [48]])
    sizes, projections = [], []

    def pack(tensor):
        sizes.append(tensor.numel())
        projections.append(tuple(tensor.shape) == (96, 32))
        return tensor

    with th.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), th.autocast("cuda", dtype=th.bfloat16):
        first, second = layer(x, src_key_padding_mask=padding), layer(x, src_key_padding_mask=padding)
    # The largest is of the feed-forward part: 2 · 48 · 64. Queries, keys and values are projected by one weight.
    assert max(sizes) == 2 * 48 * 64 and any(projections) and not th.equal(first, second)
    (first.float().sum() + second.float().sum()).backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in layer.parameters())
    # Without dropout keys that are ignored change nothing.
    layer.eval()
    with th.no_grad():
        other = x.masked_fill(padding.unsqueeze(-1), 7.0)
        close(layer(x, src_key_padding_mask=padding)[0, :30], layer(other, src_key_padding_mask=padding)[0, :30].tolist())


def test_equal_inputs_of_attention_are_projected_together():
    for batch_first in (False, True):
        layer = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        x, other = th.randn(5, 3, 8), th.randn(5, 3, 8)
        for operands in ((x, x, x), (x, other, other), (x, other, other + 1)):
            together, weights = layer(*operands)
            apart, same = layer(*(tensor.clone() for tensor in operands))
            close(together, apart.tolist(), 1e-5)
            close(weights, same.tolist(), 1e-5)


def test_pools_of_random_windows_say_what_does_not_fit():
    x = th.ones(1, 2, 4, 4)
    for kernel, output, text in (((2,), 2, "kernel_size must either be a single Int"), (2, (2, 2, 2), "output_size must either be a single Int"),
                                 (2, (4, 2), "too large relative to input height 4"), (2, (2, 4), "too large relative to input width 4")):
        with raises(RuntimeError, text):
            F.fractional_max_pool2d(x, kernel, output, _random_samples=th.zeros(1, 2, 2))
    with raises(RuntimeError, "Expected input to be a 3D or 4D tensor with non-zero size"):
        F.fractional_max_pool2d(th.ones(1, 0, 4, 4), 2, 2)
    assert F.fractional_max_pool2d(x.requires_grad_(), 2, (0, 1)).shape == (1, 2, 0, 1)


def test_a_window_may_exceed_the_image_if_sizes_are_rounded_up():
    x = th.arange(6.0).reshape(1, 1, 6)
    assert F.max_pool1d(x, 8, 8, ceil_mode=True).tolist() == [[[5.0]]]
    assert F.avg_pool2d(x[None], (1, 8), (1, 8), ceil_mode=True).tolist() == [[[[2.5]]]]
    with raises(RuntimeError):
        F.max_pool1d(x, 8, 8)
    with raises(RuntimeError):
        F.max_pool1d(x, 8, 2, ceil_mode=True)


def test_a_point_that_is_no_number_is_at_the_border():
    x, nan, inf = th.arange(4.0).reshape(1, 1, 1, 4), float("nan"), float("inf")
    grid = th.tensor([[[nan, 0.0], [inf, 0.0], [-inf, 0.0]]])[None].reshape(1, 1, 3, 2)
    for mode in ("bilinear", "nearest"):
        assert F.grid_sample(x, grid, mode, "border", True).tolist() == [[[[0.0, 3.0, 0.0]]]]


def test_attention_is_in_the_order_of_its_dimensions():
    for batch_first in (False, True):
        attention = th.nn.MultiheadAttention(4, 2, batch_first=batch_first)
        x = th.ones(3, 2, 4)
        assert attention(x, x, x)[0].view(6, 4).shape == (6, 4)
    assert repr(th.nn.LSTM(2, 3, bidirectional=True)) == "LSTM(2, 3, bidirectional=True)"
    assert repr(th.nn.Upsample(scale_factor=2)) == "Upsample(scale_factor=2.0, mode='nearest')"


def test_products_of_groups():
    x, y = th.arange(30.0).view(6, 5).sin().requires_grad_(), th.arange(40.0).view(2, 5, 4).cos().requires_grad_()
    ends = th.tensor([1, 4], dtype=th.int32)
    rows = F.grouped_mm(x, y, offs=ends)
    close(rows, th.cat([x[:1] @ y[0], x[1:4] @ y[1], th.zeros(2, 4)]).tolist(), 1e-6)
    columns = F.grouped_mm(y.mT, x.t(), offs=ends)
    close(columns, rows.t().tolist(), 1e-6)
    sums = F.grouped_mm(x.t(), rows.detach(), offs=ends)
    close(sums, th.stack([x[:1].t() @ rows[:1], x[1:4].t() @ rows[1:4]]).tolist(), 1e-6)
    close(F.grouped_mm(x.view(2, 3, 5), y), th.bmm(x.view(2, 3, 5), y).tolist(), 1e-6)
    rows.square().sum().backward()
    close(y.grad, (2 * sums).tolist(), 1e-5)
    assert x.grad[4:].tolist() == [[0.0] * 5] * 2
    for arguments, text in (((x, y), "Have to provide offsets"), ((x, y, ends.long()), "have to be int32"), ((x[0], y, ends), "mat_a has to be 2 or 3d"),
                            ((x[:, :4], y, ends), "contraction dimension"), ((x, y, ends[:1]), "batch sizes have to match")):
        with raises(RuntimeError, text):
            F.grouped_mm(*arguments[:2], offs=arguments[2] if len(arguments) > 2 else None)


def test_parameters_are_reset():
    modules = (nn.RNNCell(3, 4), nn.LSTMCell(3, 4), nn.GRUCell(3, 4), nn.GroupNorm(2, 4), nn.RMSNorm(4), nn.LayerNorm(4), nn.PReLU(3, init=0.5), nn.GRU(3, 4))
    for module in modules:
        first = {name: value.detach().clone() for name, value in module.named_parameters()}
        with th.no_grad():
            for value in module.parameters():
                value.fill_(7.0)
        module.reset_parameters()
        for name, value in module.named_parameters():
            is_drawn = "_ih" in name or "_hh" in name
            assert (value.abs().max() <= 0.5 and not th.equal(value, first[name])) if is_drawn else th.equal(value, first[name]), (module, name)


def test_checks_of_recurrent_networks():
    network = nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2)
    x = th.zeros(5, 6, 3)
    assert network.get_expected_hidden_size(x, None) == (4, 6, 2) and network.get_expected_cell_size(x, None) == (4, 6, 4)
    assert network.get_expected_hidden_size(x[0], th.tensor([6])) == (4, 6, 2)
    network.check_forward_args(x, (th.zeros(4, 6, 2), th.zeros(4, 6, 4)), None)
    with raises(RuntimeError, "Expected hidden[1] size (4, 6, 4), got [4, 6, 2]"):
        network.check_forward_args(x, (th.zeros(4, 6, 2), th.zeros(4, 6, 2)), None)
    with raises(RuntimeError, "input must have 2 dimensions, got 3"):
        network.check_input(x, th.tensor([6]))
    state = th.arange(6.0).view(1, 6, 1)
    assert network.permute_hidden((state, None), th.tensor([5, 0]))[0].flatten().tolist() == [5.0, 0.0]


def test_layers_are_of_the_classes_that_programs_ask_for():
    padding = nn.modules.padding
    for kind in ("Constant", "Reflection", "Replication", "Circular"):
        base = getattr(padding, f"_{kind}PadNd")
        made = {one.__name__ for one in vars(nn).values() if isinstance(one, type) and issubclass(one, base)}
        assert made == {f"{name}Pad{dims}d" for name in ((kind, "Zero") if kind == "Constant" else (kind,)) for dims in (1, 2, 3)}
    assert isinstance(nn.ZeroPad2d(1), nn.ConstantPad2d) and not isinstance(nn.ZeroPad2d(1), nn.ConstantPad1d)
    assert repr(nn.Hardshrink()) == "Hardshrink(0.5)" and repr(nn.Softshrink(1.0)) == "Softshrink(1.0)" and repr(nn.ELU()) == "ELU(alpha=1.0)"
    assert isinstance(nn.ReLU6(), nn.Hardtanh) and repr(nn.ReLU6(True)) == "ReLU6(inplace=True)" and repr(nn.ZeroPad1d(2)) == "ZeroPad1d((2, 2))"
    x = th.tensor([[-1.0, 3.0, 9.0]])
    assert nn.ReLU6()(x).tolist() == [[0.0, 3.0, 6.0]] and nn.ZeroPad1d(1)(x).tolist() == [[0.0, -1.0, 3.0, 9.0, 0.0]]
    assert nn.ReflectionPad1d(1)(x).tolist() == [[3.0, -1.0, 3.0, 9.0, 3.0]] and nn.ReplicationPad1d(1)(x).tolist() == [[-1.0, -1.0, 3.0, 9.0, 9.0]]


def test_parts_of_batch_normalization_of_two_processes():
    """The statistics and sums of two halves of a batch give what one `batch_norm` of all of it gives."""
    x, weight, bias = (th.arange(90.0).view(6, 3, 5) * 0.7).sin(), th.tensor([0.5, -1.0, 2.0]), th.tensor([0.1, 0.2, 0.3])
    gradient, running = (th.arange(90.0).view(6, 3, 5) * 0.3).cos(), [th.zeros(3), th.ones(3)]
    whole, own = x.clone().requires_grad_(), [one.clone().requires_grad_() for one in (weight, bias)]
    wanted_running = [one.clone() for one in running]
    wanted = F.batch_norm(whole, *wanted_running, *own, training=True, momentum=0.3, eps=1e-3)
    wanted.backward(gradient)
    halves, gradients = (x[:2], x[2:]), (gradient[:2], gradient[2:])
    means, scales = map(th.stack, zip(*(th.batch_norm_stats(half, 1e-3) for half in halves)))
    counts = th.tensor([10, 20])
    mean, scale = th.batch_norm_gather_stats_with_counts(x, means, scales, *running, 0.3, 1e-3, counts)
    close(th.cat([th.batch_norm_elemt(half, weight, bias, mean, scale, 1e-3) for half in halves]), wanted.tolist(), 1e-5)
    for one, other in zip(running, wanted_running):
        close(one, other.tolist(), 1e-6)
    sums = [th.batch_norm_backward_reduce(g, half, mean, scale, weight, True, True, True) for g, half in zip(gradients, halves)]
    total, product, of_weight, of_bias = (one + other for one, other in zip(*sums))
    parts = [th.batch_norm_backward_elemt(g, half, mean, scale, weight, total, product, counts) for g, half in zip(gradients, halves)]
    for found, expected in ((th.cat(parts), whole.grad), (of_weight, own[0].grad), (of_bias, own[1].grad)):
        close(found, expected.tolist(), 1e-4)
