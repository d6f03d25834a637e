"""Decompositions of our own, of operators for which PyTorch has none that can be differentiated or that fits."""

import math

import torch

from . import _attention, _linear_algebra

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


def weight_norm_backward(grad_w, saved_v, saved_g, saved_norms, dim):
    """Computes the gradients of a weight that is a direction times a length."""
    wide = saved_norms.dtype
    gradient, direction = grad_w.to(wide), saved_v.to(wide)
    products = (gradient * direction).sum([place for place in range(saved_v.dim()) if place != dim], keepdim=True)
    of_direction = saved_g.to(wide) / saved_norms * (gradient - direction * (products / (saved_norms * saved_norms)))
    return of_direction.to(saved_v.dtype), (products / saved_norms).to(saved_g.dtype)


def masked_scatter_backward(grad_output, mask, sizes):
    """Computes the gradient of the elements that were written where a mask is true, one after the other."""
    flat, count = mask.expand(grad_output.shape).reshape(-1), math.prod(sizes)
    # The elements at other places go to one place more.
    places = torch.where(flat, torch.cumsum(flat, 0) - 1, count)
    return grad_output.new_zeros(count + 1).scatter(0, places, grad_output.reshape(-1))[:count].view(sizes)


OWN = {
    aten.masked_scatter_backward.default: masked_scatter_backward,
    aten._weight_norm_interface_backward.default: weight_norm_backward,
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention_on_cpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention_on_cpu_backward,
    **_attention.OWN,
    **_linear_algebra.OWN,
}


def _element(value, place):
    return value[place] if isinstance(value, (list, tuple)) else value


def _each(function):
    """Returns the function of lists that calls a function for each element."""

    def each(first, *rest, **named):
        def call(place, tensor):
            return function(tensor, *(_element(value, place) for value in rest), **{name: _element(value, place) for name, value in named.items()})

        return [call(place, tensor) for place, tensor in enumerate(first)]

    return each


def _each_with_value(function):
    """Returns the function of three lists and a value."""

    def each(first, second, third, value=1):
        return [function(one, second[place], third[place], value=_element(value, place)) for place, one in enumerate(first)]

    return each


def _norm(tensor, order=2, dtype=None):
    return torch.linalg.vector_norm(tensor, order, dtype=dtype)


def _powers(base, exponents):
    return [torch.pow(base, exponent) for exponent in exponents]


def _of_lists():
    """Returns the decompositions of the functions of lists that optimizers call."""
    one = "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round rsqrt sigmoid sign sin "
    one += "sinh sqrt tan tanh trunc"
    functions = {name: getattr(torch, name) for name in f"{one} add sub mul div maximum minimum clamp_min clamp_max pow lerp".split()}
    functions |= {"norm": _norm, "copy": aten.copy}
    of_numbers = {**functions, "maximum": torch.clamp_min, "minimum": torch.clamp_max}
    made = {aten._foreach_pow.ScalarAndTensor: _powers}
    for name in functions:
        packet = getattr(aten, f"_foreach_{name}")
        for overload in {"default", "List", "Scalar", "ScalarList", "Tensor"} & set(packet.overloads()):
            chosen = of_numbers if overload.startswith("Scalar") else functions
            made[getattr(packet, overload)] = _each(chosen[name])
    for name in ("addcmul", "addcdiv"):
        packet = getattr(aten, f"_foreach_{name}")
        made |= {getattr(packet, overload): _each_with_value(getattr(torch, name)) for overload in ("Scalar", "ScalarList")}
    return made


OWN |= _of_lists()
