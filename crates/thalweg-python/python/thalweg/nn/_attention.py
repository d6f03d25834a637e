"""Multi-head attention as a function (`torch.nn.functional.multi_head_attention_forward`)."""


class _Given:
    """The attributes of a `MultiheadAttention`, passed as arguments."""

    batch_first = False

    def __init__(self, attributes):
        vars(self).update(attributes)

    def _heads(self, *tensors):
        from .activations import MultiheadAttention
        return MultiheadAttention._heads(self, *tensors)

    def _projected(self, *tensors):
        from .activations import MultiheadAttention
        return MultiheadAttention._projected(self, *tensors)

    def _with_static(self, heads, batch):
        """Returns queries, keys and values. Those that are passed per head replace the projected ones."""
        for place, given, name in ((1, self.static_k, "static_k"), (2, self.static_v, "static_v")):
            if given is None:
                continue
            for dim, wanted in ((0, batch * self.num_heads), (2, self.head_dim)):
                if given.shape[dim] != wanted:
                    raise AssertionError(f"expecting {name}.size({dim}) of {wanted}, but got {given.shape[dim]}")
            heads[place] = given.unflatten(0, [batch, self.num_heads])
        return heads

    def _mask(self, *tensors):
        from .activations import MultiheadAttention
        return MultiheadAttention._mask(self, *tensors)

    def out_proj(self, input):
        from .functional import linear
        return linear(input, self.out_proj_weight, self.out_proj_bias)


def multi_head_attention_forward(
        query, key, value, embed_dim_to_check, num_heads, in_proj_weight, in_proj_bias, bias_k, bias_v, add_zero_attn, dropout_p,
        out_proj_weight, out_proj_bias, training=True, key_padding_mask=None, need_weights=True, attn_mask=None,
        use_separate_proj_weight=False, q_proj_weight=None, k_proj_weight=None, v_proj_weight=None, static_k=None, static_v=None,
        average_attn_weights=True, is_causal=False):
    """Returns the result of a `MultiheadAttention` with these weights: the attended values, and the attention weights if
    requested."""
    from .activations import MultiheadAttention
    for given, name in ((static_k, "key"), (static_v, "value")):
        if given is not None and bias_k is not None:
            raise AssertionError(f"bias cannot be added to static {name}.")
    if query.shape[-1] != embed_dim_to_check:
        raise AssertionError(f"was expecting embedding dimension of {embed_dim_to_check}, but got {query.shape[-1]}")
    if embed_dim_to_check % num_heads:
        raise AssertionError(f"embed_dim {embed_dim_to_check} not divisible by num_heads {num_heads}")
    if (bias_k is None) != (bias_v is None):
        raise AssertionError("bias_k is set but bias_v is None" if bias_v is None else "bias_v is set but bias_k is None")
    for name, weight in (("q_proj_weight", q_proj_weight), ("k_proj_weight", k_proj_weight), ("v_proj_weight", v_proj_weight)):
        if use_separate_proj_weight and weight is None:
            raise AssertionError(f"use_separate_proj_weight is True but {name} is None")
    if not use_separate_proj_weight and in_proj_weight is None:
        raise AssertionError("use_separate_proj_weight is False but in_proj_weight is None")
    given = _Given(dict(
        embed_dim=embed_dim_to_check, num_heads=num_heads, head_dim=embed_dim_to_check // num_heads, in_proj_bias=in_proj_bias,
        in_proj_weight=None if use_separate_proj_weight else in_proj_weight, q_proj_weight=q_proj_weight, k_proj_weight=k_proj_weight,
        v_proj_weight=v_proj_weight, bias_k=bias_k, bias_v=bias_v, add_zero_attn=add_zero_attn, dropout=dropout_p, training=training,
        out_proj_weight=out_proj_weight, out_proj_bias=out_proj_bias, static_k=static_k, static_v=static_v))
    return MultiheadAttention.forward(given, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
