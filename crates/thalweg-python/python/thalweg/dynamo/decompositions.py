"""Decompositions of our own, of operators for which PyTorch has none that can be differentiated or that fits."""

import torch

aten = torch.ops.aten



def _scores(query, key, is_causal, mask, scale):
    scores = torch.matmul(query, key.transpose(-2, -1)) * scale
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device).unsqueeze(-1)
        columns = torch.arange(key.shape[-2], device=query.device)
        scores = scores.masked_fill(columns > rows, float("-inf"))
    return scores if mask is None else scores + mask


def attention_on_cpu(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    """Computes attention and the logarithm of its sums."""
    wide = query.to(torch.float32) if query.dtype in (torch.float16, torch.bfloat16) else query
    keys, values = key.to(wide.dtype), value.to(wide.dtype)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = _scores(wide, keys, is_causal, attn_mask, scale)
    logarithm = torch.logsumexp(scores, -1)
    output = torch.matmul(torch.softmax(scores, -1), values).to(query.dtype)
    # The memory of PyTorch's result has the heads inside of the tokens.
    return output.transpose(1, 2).contiguous().transpose(1, 2), logarithm.transpose(1, 2).contiguous().transpose(1, 2)


def attention_on_cpu_backward(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None):
    """Computes the gradient of attention."""
    wide = torch.float32 if query.dtype in (torch.float16, torch.bfloat16) else query.dtype
    gradient, queries, keys, values, output = (tensor.to(wide) for tensor in (grad_out, query, key, value, out))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    weights = torch.exp(_scores(queries, keys, is_causal, attn_mask, scale) - logsumexp.unsqueeze(-1))
    of_weights = torch.matmul(gradient, values.transpose(-2, -1))
    of_scores = weights * (of_weights - (gradient * output).sum(-1, keepdim=True)) * scale
    results = (torch.matmul(of_scores, keys), torch.matmul(of_scores.transpose(-2, -1), queries), torch.matmul(weights.transpose(-2, -1), gradient))
    return tuple(result.to(query.dtype).transpose(1, 2).contiguous().transpose(1, 2) for result in results)


OWN = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention_on_cpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention_on_cpu_backward,
}
