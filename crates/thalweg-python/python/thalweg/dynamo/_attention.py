"""Calls of PyTorch's attention on a GPU, translated to calls of the table.

PyTorch has three kernels, each an operator with a gradient of its own. All become one operator with one gradient, which save the
same: the result and a logarithm for each query, and with dropout the state that it was drawn from. What that operator does not take
stays PyTorch's: features that are not whole chunks of 16 bytes, or more than 256 (128 in float32).

`scaled_dot_product_attention` is computed by one of the kernels or, where none of them fits, by products and a softmax. `replaced` takes the calls
that the table can compute before PyTorch chooses.
"""

import torch

from . import _draws
from ._nodes import is_on_gpu

aten = torch.ops.aten

_LIBRARY = torch.library.Library("thalweg_graph", "DEF")
_LIBRARY.define("attention(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? state, bool is_causal, float scale, float dropout) -> (Tensor, Tensor)")
_OF_GRADIENT = "Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? state, Tensor out, Tensor logsumexp, "
_OF_GRADIENT += "bool is_causal, float scale, float dropout"
_LIBRARY.define(f"attention_backward({_OF_GRADIENT}) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define(f"attention_backward_mask({_OF_GRADIENT}) -> Tensor")
_OF_CALL = "Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, *, float? scale=None, "
_LIBRARY.define(f"scaled_dot_product_attention({_OF_CALL}bool enable_gqa=False) -> Tensor")
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


def _takes(query, key, value, mask, dropout, scale):
    features = query.shape[-1]
    is_alike = query.dtype == key.dtype == value.dtype and query.dtype in _MOST_FEATURES
    is_known = all(isinstance(size, int) for size in (features, value.shape[-1], query.shape[1], key.shape[1]))
    has_elements = all(not isinstance(size, int) or size > 0 for one in (query, key, value) for size in one.shape)
    return (
        (not dropout or dropout < 1.0 and _draws.are_ours(query.device))
        and is_alike
        and is_known
        and has_elements
        and features == value.shape[-1]
        and features % (16 // query.element_size()) == 0
        and features <= _MOST_FEATURES[query.dtype]
        and query.shape[1] % key.shape[1] == 0
        and (mask is None or mask.dtype in (torch.bool, query.dtype))
        # As the kernels have it, a number of float32.
        and (scale is None or isinstance(scale, (int, float)) and 1e-37 < scale < 1e37)
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
    if return_debug_mask or not _takes(query, key, value, None, dropout_p, scale):
        return NotImplemented
    out, logarithm, state = _computed(query, key, value, None, dropout_p, is_causal, scale)
    return out, logarithm, None, None, query.shape[2], key.shape[2], state, _of_none(query), query.new_empty((0,))


def _efficient(query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None):
    if not _takes(query, key, value, attn_bias, dropout_p, scale):
        return NotImplemented
    return *_computed(query, key, value, attn_bias, dropout_p, is_causal, scale), _of_none(query)


def _cudnn(query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    if return_debug_mask or not _takes(query, key, value, attn_bias, dropout_p, scale):
        return NotImplemented
    out, logarithm, state = _computed(query, key, value, attn_bias, dropout_p, is_causal, scale)
    return out, logarithm, None, None, query.shape[2], key.shape[2], state, _of_none(query), None


def _gradients(grad_out, query, key, value, mask, state, out, logarithm, dropout, is_causal, scale):
    state = state if dropout else None
    return ours.attention_backward(grad_out, query, key, value, mask, state, out, logarithm, is_causal, _scale(query, scale), dropout)


def _flash_backward(
    grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed, philox_offset, *, scale=None
):
    if not _takes(query, key, value, None, dropout_p, scale):
        return NotImplemented
    return _gradients(grad_out, query, key, value, None, philox_seed, out, logsumexp, dropout_p, is_causal, scale)


def _efficient_backward(
    grad_out, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p, grad_input_mask, is_causal=False, *, scale=None
):
    if not _takes(query, key, value, attn_bias, dropout_p, scale):
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
    if not _takes(query, key, value, attn_bias, dropout_p, scale):
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


# ---- Calls of the program -----------------------------------------------------------------------------------------------------------


# What reads a result in an order of its own, so that it need not be contiguous where PyTorch's is.
_OF_ANY_ORDER = {"transpose", "permute", "reshape", "flatten", "contiguous"}


def replaced(gm):
    """Replaces the calls of attention in a graph of Dynamo, and in the graphs within it."""
    for part in gm.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.find_nodes(op="call_function", target=torch.nn.functional.scaled_dot_product_attention):
                node.target = ours.scaled_dot_product_attention.default
                users, value = list(node.users), node.meta.get("example_value")
                is_free = all(user.op == "call_method" and user.target in _OF_ANY_ORDER for user in users)
                if not is_free and isinstance(value, torch.Tensor) and value.is_contiguous():
                    with part.graph.inserting_after(node):
                        dense = part.graph.call_method("contiguous", (node,))
                    dense.meta = dict(node.meta)
                    node.replace_all_uses_with(dense, delete_user_cb=lambda user, own=dense: user is not own)
            part.recompile()
    return gm


def _is_wanted():
    """Returns whether the program allows one of PyTorch's kernels."""
    cuda = torch.backends.cuda
    return cuda.flash_sdp_enabled() or cuda.mem_efficient_sdp_enabled() or cuda.cudnn_sdp_enabled()


def _fit(query, key, value, enable_gqa):
    """Returns whether queries, keys and values are of the same batches, and share heads as the table's kernel does."""
    if not query.dim() == key.dim() == value.dim() == 4 or key.shape[1:3] != value.shape[1:3]:
        return False
    share_heads = enable_gqa or key.shape[1] in (1, query.shape[1])
    return share_heads and query.shape[0] == key.shape[0] == value.shape[0]


def _in_autocast(tensor):
    """Returns a tensor as autocast would pass it to attention."""
    kind = tensor.device.type
    is_cast = torch.is_autocast_enabled(kind) and tensor.is_floating_point() and tensor.dtype is not torch.float64
    return tensor.to(torch.get_autocast_dtype(kind)) if is_cast else tensor


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    q, k, v = map(_in_autocast, (query, key, value))
    mask = attn_mask.to(q.dtype) if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
    is_ours = _is_wanted() and is_on_gpu(query) and _fit(query, key, value, enable_gqa) and not (is_causal and mask is not None)
    if not is_ours or not _takes(q, k, v, mask, dropout_p, scale):
        options = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)
    if mask is not None:
        mask = mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, dropout_p, is_causal, scale=scale)[0]


_LIBRARY.impl("scaled_dot_product_attention", _attention, "CompositeImplicitAutograd")
