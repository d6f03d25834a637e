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
