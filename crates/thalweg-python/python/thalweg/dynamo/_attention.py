"""Calls of PyTorch's attention on a GPU, translated to calls of the table.

PyTorch has three kernels, each an operator with a gradient of its own. All become one operator with one gradient, which save the
same: the result and a logarithm for each query, and with dropout the state that it was drawn from. What that operator does not take
stays PyTorch's: features that are not whole chunks of 16 bytes, or more than 256 (128 in float32).
"""

import torch

from . import _draws

aten = torch.ops.aten

_LIBRARY = torch.library.Library("thalweg_graph", "DEF")
_LIBRARY.define("attention(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? state, bool is_causal, float scale, float dropout) -> (Tensor, Tensor)")
_OF_GRADIENT = "Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? state, Tensor out, Tensor logsumexp, "
_OF_GRADIENT += "bool is_causal, float scale, float dropout"
_LIBRARY.define(f"attention_backward({_OF_GRADIENT}) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define(f"attention_backward_mask({_OF_GRADIENT}) -> Tensor")
ours = torch.ops.thalweg_graph

# The bits of the kernels that may compute it: cuDNN's and our own.
_BACKENDS = 3


def _rows(tensor):
    """Returns an empty tensor of the form of heads, with the heads inside of the tokens."""
    batch, heads, tokens, features = tensor.shape
    return tensor.new_empty((batch, tokens, heads, features)).transpose(1, 2)


@torch.library.register_fake("thalweg_graph::attention", lib=_LIBRARY)
def _(query, key, value, mask, state, is_causal, scale, dropout):
    return _rows(query), query.new_empty(query.shape[:3], dtype=torch.float32)


@torch.library.register_fake("thalweg_graph::attention_backward", lib=_LIBRARY)
def _(grad_out, query, key, value, mask, state, out, logsumexp, is_causal, scale, dropout):
    return _rows(query), _rows(key), _rows(value)


@torch.library.register_fake("thalweg_graph::attention_backward_mask", lib=_LIBRARY)
def _(grad_out, query, key, value, mask, state, out, logsumexp, is_causal, scale, dropout):
    return mask.new_empty(mask.shape)


def _rule(name):
    """Returns the rule of a call of the table."""
    return lambda named: (f"thalweg::{name}", {"mask": None, "state": None, **named, "backends": _BACKENDS})


RULES = {
    ours.attention.default: _rule("fused_attention"),
    ours.attention_backward.default: _rule("fused_attention_backward"),
    ours.attention_backward_mask.default: _rule("fused_attention_backward_mask"),
}


# The most features of a head, by the dtypes that are taken.
_MOST_FEATURES = {torch.float16: 256, torch.bfloat16: 256, torch.float32: 128}


def _takes(query, key, value, mask, dropout):
    features = query.shape[-1]
    is_alike = query.dtype == key.dtype == value.dtype and query.dtype in _MOST_FEATURES
    is_known = all(isinstance(size, int) for size in (features, value.shape[-1], query.shape[1], key.shape[1]))
    return (
        (not dropout or dropout < 1.0 and _draws.are_ours(query.device))
        and is_alike
        and is_known
        and features == value.shape[-1]
        and features % (16 // query.element_size()) == 0
        and features <= _MOST_FEATURES[query.dtype]
        and query.shape[1] % key.shape[1] == 0
        and (mask is None or mask.dtype in (torch.bool, query.dtype))
    )


def _scale(query, scale):
    return query.shape[-1] ** -0.5 if scale is None else scale


def _of_none(query):
    """Returns the value that replaces a random state if nothing was drawn."""
    return query.new_empty((), dtype=torch.int64)


def _computed(query, key, value, mask, dropout, is_causal, scale):
    """Returns attention, its logarithms, and the state that its dropout was drawn from."""
    state = _draws.state(query) if dropout else None
    out, logarithm = ours.attention(query, key, value, mask, state, is_causal, _scale(query, scale), dropout)
    return out, logarithm, _of_none(query) if state is None else state


def _flash(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    if return_debug_mask or not _takes(query, key, value, None, dropout_p):
        return NotImplemented
    out, logarithm, state = _computed(query, key, value, None, dropout_p, is_causal, scale)
    return out, logarithm, None, None, query.shape[2], key.shape[2], state, _of_none(query), query.new_empty((0,))


def _efficient(query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None):
    if not _takes(query, key, value, attn_bias, dropout_p):
        return NotImplemented
    return *_computed(query, key, value, attn_bias, dropout_p, is_causal, scale), _of_none(query)


def _cudnn(query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    if return_debug_mask or not _takes(query, key, value, attn_bias, dropout_p):
        return NotImplemented
    out, logarithm, state = _computed(query, key, value, attn_bias, dropout_p, is_causal, scale)
    return out, logarithm, None, None, query.shape[2], key.shape[2], state, _of_none(query), None


def _gradients(grad_out, query, key, value, mask, state, out, logarithm, dropout, is_causal, scale):
    state = state if dropout else None
    return ours.attention_backward(grad_out, query, key, value, mask, state, out, logarithm, is_causal, _scale(query, scale), dropout)


def _flash_backward(
    grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed, philox_offset, *, scale=None
):
    if not _takes(query, key, value, None, dropout_p):
        return NotImplemented
    return _gradients(grad_out, query, key, value, None, philox_seed, out, logsumexp, dropout_p, is_causal, scale)


def _efficient_backward(
    grad_out, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p, grad_input_mask, is_causal=False, *, scale=None
):
    if not _takes(query, key, value, attn_bias, dropout_p):
        return NotImplemented
    gradients = _gradients(grad_out, query, key, value, attn_bias, philox_seed, out, logsumexp, dropout_p, is_causal, scale)
    of_mask = None
    if attn_bias is not None and grad_input_mask[3]:
        numbers = is_causal, _scale(query, scale), dropout_p
        state = philox_seed if dropout_p else None
        of_mask = ours.attention_backward_mask(grad_out, query, key, value, attn_bias, state, out, logsumexp, *numbers)
    return *gradients, of_mask


def _cudnn_backward(
    grad_out, query, key, value, out, logsumexp, philox_seed, philox_offset, attn_bias, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
    *, scale=None,
):  # fmt: skip
    if not _takes(query, key, value, attn_bias, dropout_p):
        return NotImplemented
    return _gradients(grad_out, query, key, value, attn_bias, philox_seed, out, logsumexp, dropout_p, is_causal, scale)


OWN = {
    aten._scaled_dot_product_flash_attention.default: _flash,
    aten._scaled_dot_product_efficient_attention.default: _efficient,
    aten._scaled_dot_product_cudnn_attention.default: _cudnn,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_backward,
}
