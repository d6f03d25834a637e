"""Modules of functions without parameters, and of losses."""

from .. import _core
from . import functional as F
from . import init
from .module import Module
from .parameter import Parameter


def _activation(name, function, fields=(), doc=""):
    """Makes a module of an activation; `fields` are its options with their defaults."""
    def __init__(self, *args, inplace=False, **kwargs):
        Module.__init__(self)
        for place, (field, default) in enumerate(fields):
            setattr(self, field, kwargs.pop(field, args[place] if place < len(args) else default))
        if len(args) > len(fields):
            inplace = args[len(fields)]
        if kwargs:
            raise TypeError(f"{name}.__init__() got an unexpected keyword argument {next(iter(kwargs))!r}")
        self.inplace = inplace

    def forward(self, input):
        values = [getattr(self, field) for field, _ in fields]
        return function(input, *values, inplace=True) if self.inplace else function(input, *values)

    def extra_repr(self):
        texts = [f"{field}={getattr(self, field)!r}" for field, _ in fields]
        return ", ".join(texts + (["inplace=True"] if self.inplace else []))
    return type(name, (Module,), {"__init__": __init__, "forward": forward, "extra_repr": extra_repr, "__module__": "thalweg.nn",
                                  "__qualname__": name, "__doc__": doc or f"`functional.{function.__name__}` as a module."})


ReLU = _activation("ReLU", F.relu)
ReLU6 = _activation("ReLU6", F.relu6)
SiLU = _activation("SiLU", F.silu)
Mish = _activation("Mish", F.mish)
SELU = _activation("SELU", F.selu)
Hardswish = _activation("Hardswish", F.hardswish)
Hardsigmoid = _activation("Hardsigmoid", F.hardsigmoid)
LeakyReLU = _activation("LeakyReLU", F.leaky_relu, [("negative_slope", 0.01)])
ELU = _activation("ELU", F.elu, [("alpha", 1.0)])
CELU = _activation("CELU", F.celu, [("alpha", 1.0)])
Hardtanh = _activation("Hardtanh", F.hardtanh, [("min_val", -1.0), ("max_val", 1.0)])
GELU = _activation("GELU", F.gelu, [("approximate", "none")])
GLU = _activation("GLU", F.glu, [("dim", -1)])
Softmax = _activation("Softmax", F.softmax, [("dim", None)])
LogSoftmax = _activation("LogSoftmax", F.log_softmax, [("dim", None)])
Softmin = _activation("Softmin", F.softmin, [("dim", None)])
Softplus = _activation("Softplus", _core.softplus, [("beta", 1.0), ("threshold", 20.0)])
Tanh = _activation("Tanh", _core.tanh)
Sigmoid = _activation("Sigmoid", _core.sigmoid)


class PReLU(Module):
    """The input, and negative elements times a learned slope."""

    def __init__(self, num_parameters=1, init=0.25, device=None, dtype=None):
        super().__init__()
        self.num_parameters = num_parameters
        self.weight = Parameter(_core.full([num_parameters], init, device=device, dtype=dtype or _core.float32))

    def forward(self, input):
        return _core.prelu(input, self.weight)

    def extra_repr(self):
        return f"num_parameters={self.num_parameters}"


def _loss(name, function, fields=(), weights=()):
    """Makes a module of a loss: `weights` are tensors, `fields` options with their defaults."""
    def __init__(self, *args, reduction="mean", **kwargs):
        Module.__init__(self)
        places = dict(zip(weights, args))
        if len(args) > len(weights):
            raise TypeError(f"{name}() takes its options by name")
        for weight in weights:
            self.register_buffer(weight, kwargs.pop(weight, places.get(weight)))
        for field, default in fields:
            setattr(self, field, kwargs.pop(field, default))
        if kwargs:
            raise TypeError(f"{name}.__init__() got an unexpected keyword argument {next(iter(kwargs))!r}")
        self.reduction = reduction

    def forward(self, input, target):
        options = {field: getattr(self, field) for field, _ in fields}
        options.update({weight: getattr(self, weight) for weight in weights})
        return function(input, target, reduction=self.reduction, **options)
    return type(name, (Module,), {"__init__": __init__, "forward": forward, "__module__": "thalweg.nn", "__qualname__": name,
                                  "__doc__": f"`functional.{function.__name__}` as a module."})


CrossEntropyLoss = _loss("CrossEntropyLoss", F.cross_entropy, [("ignore_index", -100), ("label_smoothing", 0.0)], ["weight"])
NLLLoss = _loss("NLLLoss", F.nll_loss, [("ignore_index", -100)], ["weight"])
MSELoss = _loss("MSELoss", F.mse_loss)
L1Loss = _loss("L1Loss", F.l1_loss)
SmoothL1Loss = _loss("SmoothL1Loss", F.smooth_l1_loss, [("beta", 1.0)])
HuberLoss = _loss("HuberLoss", F.huber_loss, [("delta", 1.0)])
BCELoss = _loss("BCELoss", F.binary_cross_entropy, (), ["weight"])
BCEWithLogitsLoss = _loss("BCEWithLogitsLoss", F.binary_cross_entropy_with_logits, (), ["weight", "pos_weight"])
KLDivLoss = _loss("KLDivLoss", F.kl_div, [("log_target", False)])


class MultiheadAttention(Module):
    """Attention of several heads over projected queries, keys and values."""

    def __init__(self, embed_dim, num_heads, dropout=0.0, bias=True, add_bias_kv=False, add_zero_attn=False, kdim=None, vdim=None,
                 batch_first=False, device=None, dtype=None):
        super().__init__()
        if add_bias_kv or add_zero_attn or kdim not in (None, embed_dim) or vdim not in (None, embed_dim):
            raise NotImplementedError("MultiheadAttention: add_bias_kv, add_zero_attn, kdim and vdim are left out")
        if embed_dim % num_heads:
            raise ValueError("embed_dim must be divisible by num_heads")
        from .layers import Linear, _empty
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.dropout, self.batch_first = dropout, batch_first
        self.in_proj_weight = _empty((3 * embed_dim, embed_dim), device, dtype)
        self.register_parameter("in_proj_bias", _empty((3 * embed_dim,), device, dtype) if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        init.xavier_uniform_(self.in_proj_weight)
        if bias:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)

    def forward(self, query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None, average_attn_weights=True,
                is_causal=False):
        """Returns the attended values, and the weights where they are needed."""
        unbatched = query.dim() == 2
        if unbatched:
            query, key, value = (tensor.unsqueeze(0) for tensor in (query, key, value))
        elif not self.batch_first:
            query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
        weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        heads = [
            F.linear(tensor, weight, bias).unflatten(-1, [self.num_heads, self.head_dim]).transpose(1, 2)
            for tensor, weight, bias in zip((query, key, value), weights, biases)
        ]
        mask = self._mask(attn_mask, key_padding_mask, query)
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            scores = heads[0] @ heads[1].transpose(-2, -1) / self.head_dim ** 0.5
            shares = F.softmax(scores if mask is None else scores + mask, -1)
            attended = F.dropout(shares, dropout, True) @ heads[2] if dropout else shares @ heads[2]
        else:
            shares = None
            causal = is_causal and mask is None
            attended = F.scaled_dot_product_attention(*heads, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        result = self.out_proj(attended.transpose(1, 2).flatten(2))
        if shares is not None and average_attn_weights:
            shares = shares.mean(1)
        if unbatched:
            return result.squeeze(0), None if shares is None else shares.squeeze(0)
        return (result if self.batch_first else result.transpose(0, 1)), shares

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
