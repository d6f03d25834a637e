"""Modules of activation functions and of attention."""

import warnings

from .. import _core
from . import _checks, _parameters
from . import functional as F
from . import init
from .module import Module
from .parameter import Parameter


def _activation(name, function, parameters="", shows_names=True):
    """Creates the module of an activation, whose options are its parameters. Its text names them, unless `shows_names` is false."""
    fields = [one for one in _parameters.names_of(parameters) if one != "inplace"]
    # A function that a program puts in the place of one of `functional` is called.
    home, own = F if getattr(F, function.__name__, None) is function else _core, function.__name__

    def start(self, given):
        Module.__init__(self)
        for field, value in given.items():
            setattr(self, field, value)

    def forward(self, input):
        values, function = [getattr(self, field) for field in fields], getattr(home, own)
        return function(input, *values, inplace=True) if self.inplace else function(input, *values)

    def extra_repr(self):
        texts = [f"{field}={getattr(self, field)!r}" if shows_names else str(getattr(self, field)) for field in fields]
        return ", ".join(texts + (["inplace=True"] if self.inplace else []))
    return type(name, (Module,), {
        "inplace": False, "__init__": _parameters.initializer(name, parameters, start), "forward": forward, "extra_repr": extra_repr,
        "__module__": "thalweg.nn", "__qualname__": name, "__doc__": f"`functional.{function.__name__}` as a module."})


ReLU = _activation("ReLU", F.relu, "inplace=False")
SiLU = _activation("SiLU", F.silu, "inplace=False")
Mish = _activation("Mish", F.mish, "inplace=False")
SELU = _activation("SELU", F.selu, "inplace=False")
Hardswish = _activation("Hardswish", F.hardswish, "inplace=False")
Hardsigmoid = _activation("Hardsigmoid", F.hardsigmoid, "inplace=False")
LeakyReLU = _activation("LeakyReLU", F.leaky_relu, "negative_slope=0.01, inplace=False")
ELU = _activation("ELU", F.elu, "alpha=1.0, inplace=False")
CELU = _activation("CELU", F.celu, "alpha=1.0, inplace=False")
GELU = _activation("GELU", F.gelu, "approximate='none'")
GLU = _activation("GLU", F.glu, "dim=-1")
Softmax = _activation("Softmax", F.softmax, "dim=None")
LogSoftmax = _activation("LogSoftmax", F.log_softmax, "dim=None")
Softmin = _activation("Softmin", F.softmin, "dim=None")
Softplus = _activation("Softplus", _core.softplus, "beta=1.0, threshold=20.0")
Tanh = _activation("Tanh", _core.tanh)
Sigmoid = _activation("Sigmoid", _core.sigmoid)
LogSigmoid = _activation("LogSigmoid", F.logsigmoid)
Softsign = _activation("Softsign", _core.softsign)
Tanhshrink = _activation("Tanhshrink", F.tanhshrink)
Hardshrink = _activation("Hardshrink", _core.hardshrink, "lambd=0.5", shows_names=False)
Softshrink = _activation("Softshrink", _core.softshrink, "lambd=0.5", shows_names=False)


class Hardtanh(_activation("Hardtanh", F.hardtanh, "min_val=-1.0, max_val=1.0, inplace=False")):
    """`functional.hardtanh` as a module."""

    def __init__(self, min_val=-1.0, max_val=1.0, inplace=False, min_value=None, max_value=None):
        for name, value in (("min_val", min_value), ("max_val", max_value)):
            if value is not None:
                warnings.warn(f"keyword argument `{name}ue` is deprecated and rename to `{name}`", FutureWarning, stacklevel=2)
        low, high = (own if former is None else former for own, former in ((min_val, min_value), (max_val, max_value)))
        super().__init__(low, high, inplace)
        if not self.max_val > self.min_val:
            raise AssertionError(f"max_val ({self.max_val}) must be greater than min_val ({self.min_val})")


class ReLU6(Hardtanh):
    """`functional.relu6` as a module."""

    def __init__(self, inplace=False):
        super().__init__(0.0, 6.0, inplace)

    def extra_repr(self):
        return "inplace=True" if self.inplace else ""


class Threshold(Module):
    """The input, with elements that are not above a threshold replaced by a value."""

    def __init__(self, threshold, value, inplace=False):
        super().__init__()
        self.threshold, self.value, self.inplace = threshold, value, inplace

    def forward(self, input):
        return F.threshold(input, self.threshold, self.value, inplace=self.inplace)

    def extra_repr(self):
        return f"threshold={self.threshold}, value={self.value}" + (", inplace=True" if self.inplace else "")


class RReLU(Module):
    """The input, with negative elements multiplied by a slope that is random during training."""

    def __init__(self, lower=1.0 / 8, upper=1.0 / 3, inplace=False):
        super().__init__()
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, input):
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self):
        return f"lower={self.lower}, upper={self.upper}" + (", inplace=True" if self.inplace else "")


class Softmax2d(Module):
    """Softmax over the channels of each position of (N, C, H, W) or (C, H, W)."""

    def forward(self, input):
        if input.dim() not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D (got {input.dim()}D instead)")
        return F.softmax(input, -3)


class PReLU(Module):
    """The input, with negative elements multiplied by a learned slope."""

    def __init__(self, num_parameters=1, init=0.25, device=None, dtype=None):
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(_core.full([num_parameters], init, device=device, dtype=dtype))

    def reset_parameters(self):
        """Sets the slopes to the initial one."""
        init.constant_(self.weight, self.init)

    def forward(self, input):
        return F.prelu(input, self.weight)

    def extra_repr(self):
        return f"num_parameters={self.num_parameters}"


def _seen_keys(attn_mask, key_padding_mask, batch, heads):
    """Returns a single mask of truth values as the keys that are seen, which attention reads as they are; `None` for other masks."""
    truth = getattr(_core, "bool")
    if attn_mask is None and key_padding_mask is not None and key_padding_mask.dtype == truth:
        return key_padding_mask.logical_not().reshape(-1, 1, 1, key_padding_mask.shape[-1])
    if key_padding_mask is None and attn_mask is not None and attn_mask.dtype == truth:
        seen = attn_mask.logical_not()
        return seen.unflatten(0, [batch, heads]) if seen.dim() == 3 else seen
    return None


class MultiheadAttention(Module):
    """Multi-head attention over projected queries, keys and values."""

    def __init__(self, embed_dim, num_heads, dropout=0.0, bias=True, add_bias_kv=False, add_zero_attn=False, kdim=None, vdim=None,
                 batch_first=False, device=None, dtype=None):
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(f"embed_dim and num_heads must be greater than 0, got embed_dim={embed_dim} and num_heads={num_heads} instead")
        if embed_dim % num_heads:
            raise AssertionError("embed_dim must be divisible by num_heads")
        from .layers import NonDynamicallyQuantizableLinear, _empty
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = (embed_dim if size is None else size for size in (kdim, vdim))
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        is_one = self._qkv_same_embed_dim = self.kdim == self.vdim == embed_dim
        sizes = {"in_proj_weight": 3 * embed_dim} if is_one else {"q_proj_weight": embed_dim, "k_proj_weight": self.kdim, "v_proj_weight": self.vdim}
        shapes = {name: (size, embed_dim) if is_one else (embed_dim, size) for name, size in sizes.items()}
        for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_weight"):
            self.register_parameter(name, _empty(shapes[name], device, dtype) if name in shapes else None)
        self.register_parameter("in_proj_bias", _empty((3 * embed_dim,), device, dtype) if bias else None)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias, device, dtype)
        for name in ("bias_k", "bias_v"):
            self.register_parameter(name, _empty((1, 1, embed_dim), device, dtype) if add_bias_kv else None)
        self._reset_parameters()

    def _reset_parameters(self):
        """Draws new initial values."""
        for names, draw in ((("q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_weight"), init.xavier_uniform_),
                            (("bias_k", "bias_v"), init.xavier_normal_)):
            for name in names:
                if getattr(self, name) is not None:
                    draw(getattr(self, name))
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)

    def forward(self, query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None, average_attn_weights=True,
                is_causal=False):
        """Returns the attended values, and the attention weights if requested."""
        _checks.check_attention(query, key, value, key_padding_mask, attn_mask, self.num_heads, self.in_proj_weight is None)
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint. You may use the Transformer module method "
                               "`generate_square_subsequent_mask` to create this mask.")
        if query.shape[-1] != self.embed_dim:
            raise AssertionError(f"was expecting embedding dimension of {self.embed_dim}, but got {query.shape[-1]}")
        # The kernel applies a causal mask itself if there is no other mask.
        is_causal = is_causal and key_padding_mask is None and not need_weights
        attn_mask = None if is_causal else attn_mask
        unbatched = query.dim() == 2
        # Equal tensors stay one, so that they are projected together.
        known = {id(tensor): tensor for tensor in (query, key, value)}
        if unbatched:
            known = {name: tensor.unsqueeze(0) for name, tensor in known.items()}
        elif not self.batch_first:
            known = {name: tensor.transpose(0, 1) for name, tensor in known.items()}
        query, key, value = (known[id(tensor)] for tensor in (query, key, value))
        _checks.check_masks(query.shape[0], self.num_heads, query.shape[1], key.shape[1], attn_mask, key_padding_mask)
        heads, further = self._heads(query, key, value)
        seen = None if need_weights or further else _seen_keys(attn_mask, key_padding_mask, query.shape[0], self.num_heads)
        mask = self._mask(attn_mask, key_padding_mask, query) if seen is None else seen
        if further:
            # Keys that are added are visible to all queries.
            mask = None if mask is None else F.pad(mask, (0, further))
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            scores = heads[0] @ heads[1].transpose(-2, -1) / self.head_dim ** 0.5
            shares = F.softmax(scores if mask is None else scores + mask, -1)
            attended = F.dropout(shares, dropout, True) @ heads[2] if dropout else shares @ heads[2]
        else:
            shares = None
            attended = F.scaled_dot_product_attention(*heads, attn_mask=mask, dropout_p=dropout, is_causal=is_causal)
        # The output is made in the order of its dimensions: programs view it.
        order = (0, 2, 1, 3) if unbatched or self.batch_first else (2, 0, 1, 3)
        result = self.out_proj(attended.permute(order).flatten(2))
        if shares is not None and average_attn_weights:
            shares = shares.mean(1)
        if unbatched:
            return result.squeeze(0), None if shares is None else shares.squeeze(0)
        return result, shares

    def _heads(self, query, key, value):
        """Returns queries, keys and values by heads, and how many keys the module adds."""
        if self.in_proj_weight is None:
            biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
            parts = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            projected = [F.linear(tensor, weight, bias) for tensor, weight, bias in zip((query, key, value), parts, biases)]
        else:
            projected = self._projected(query, key, value)
        if self.bias_k is not None:
            for place, added in ((1, self.bias_k), (2, self.bias_v)):
                projected[place] = _core.cat([projected[place], added.expand(query.shape[0], 1, self.embed_dim)], 1)
        heads = self._with_static([tensor.unflatten(-1, [self.num_heads, self.head_dim]).transpose(1, 2) for tensor in projected], query.shape[0])
        if self.add_zero_attn:
            for place in (1, 2):
                heads[place] = F.pad(heads[place], (0, 0, 0, 1))
        return heads, (self.bias_k is not None) + bool(self.add_zero_attn)

    def _projected(self, query, key, value):
        """Returns the projections by the rows of one weight; those of equal tensors by one product."""
        counts = (3,) if query is key and key is value else (1, 2) if key is value else (1, 1, 1)
        sizes = [count * self.embed_dim for count in counts]
        weights = (self.in_proj_weight,) if len(counts) == 1 else self.in_proj_weight.split(sizes)
        biases = (self.in_proj_bias,) if len(counts) == 1 else (None,) * len(counts) if self.in_proj_bias is None else self.in_proj_bias.split(sizes)
        results = [F.linear(tensor, weight, bias) for tensor, weight, bias in zip((query, key, value), weights, biases)]
        return [part for result, count in zip(results, counts) for part in (result.chunk(count, -1) if count > 1 else (result,))]

    def _with_static(self, heads, batch):
        return heads

    def _mask(self, attn_mask, key_padding_mask, query):
        def added(mask):
            if mask.dtype != getattr(_core, "bool"):
                return mask
            return _core.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(mask, float("-inf"))
        mask = None if attn_mask is None else added(attn_mask)
        if mask is not None and mask.dim() == 3:
            mask = mask.unflatten(0, [query.shape[0], self.num_heads])
        if key_padding_mask is not None:
            padding = added(key_padding_mask).reshape(-1, 1, 1, key_padding_mask.shape[-1])
            mask = padding if mask is None else mask + padding
        return mask
