"""Writes PyTorch's results under `torch.autocast("cuda")`: the dtypes of results, computations and gradients, and some values.

    OUT=. python autocast.py          # on a machine with a GPU and PyTorch; writes $OUT/autocast.json.gz

`cases(torch)` is the list that the test also runs, with this package as `torch`.
"""

import gzip
import json
import os
import sys
import time

VARIANTS = ("f32", "half", "first_f32", "first_half", "other", "f64")


def numbers(count, low, high, start):
    """Returns `count` numbers between two bounds, none of which is exactly representable in 16 bits."""
    return [low + (high - low) * (((start + 1) * 0.3819660112501051 + i * 0.6180339887498949) % 1.0) for i in range(count)]


class Floats:
    """An input of floating-point numbers with a variable dtype."""

    def __init__(self, *shape, low=-1.0, high=1.0):
        self.shape, self.low, self.high = shape, low, high


class Fixed:
    """An input that is the same in all variants."""

    def __init__(self, values, dtype="int64"):
        self.values, self.dtype = values, dtype


def build(torch, device, specs, region, variant):
    """Returns the inputs of a case. Floating-point inputs are leaves that require gradients."""
    half = getattr(torch, region)
    other = torch.float16 if half == torch.bfloat16 else torch.bfloat16
    of = {
        "f32": lambda i: torch.float32, "half": lambda i: half, "other": lambda i: other, "f64": lambda i: torch.float64,
        "first_f32": lambda i: half if i % 2 else torch.float32, "first_half": lambda i: torch.float32 if i % 2 else half,
    }[variant]
    inputs, place = [], 0
    for spec in specs:
        if isinstance(spec, Fixed):
            inputs.append(torch.tensor(spec.values, dtype=getattr(torch, spec.dtype), device=device))
            continue
        count = 1
        for size in spec.shape:
            count *= size
        values = torch.tensor(numbers(count, spec.low, spec.high, place), dtype=torch.float64).reshape(spec.shape)
        inputs.append(values.to(of(place)).to(device).requires_grad_())
        place += 1
    return inputs


def module(torch, make):
    """Returns a function that calls a module with fixed float32 weights."""
    def call(*inputs):
        m = make(torch.nn).to(inputs[0].device)
        with torch.no_grad():
            for i, p in enumerate(m.parameters()):
                p.copy_(torch.tensor(numbers(p.numel(), -0.5, 0.5, i), dtype=torch.float32).reshape(p.shape))
        return m(*inputs)
    return call


def cases(torch):
    """Returns the cases, each with a name, a function and its inputs."""
    F, L, S, nn = torch.nn.functional, torch.linalg, torch.special, torch.nn
    f = Floats
    P = dict(low=0.1, high=0.9)
    x, v, img = f(3, 4), f(4), f(2, 4, 6, 6)
    pos = f(3, 4, **P)
    found = []

    def add(name, function, *inputs):
        found.append((name, function, inputs))

    # Products and convolutions.
    add("mm", lambda a, b: torch.mm(a, b), f(3, 8), f(8, 4))
    add("matmul", lambda a, b: torch.matmul(a, b), f(2, 3, 8), f(8, 4))
    add("operator @", lambda a, b: a @ b, f(3, 8), f(8))
    add("Tensor.matmul", lambda a, b: a.matmul(b), f(8), f(8))
    add("bmm", lambda a, b: torch.bmm(a, b), f(2, 3, 8), f(2, 8, 4))
    add("mv", lambda a, b: torch.mv(a, b), f(3, 8), f(8))
    add("dot", lambda a, b: torch.dot(a, b), f(8), f(8))
    add("vdot", lambda a, b: torch.vdot(a, b), f(8), f(8))
    add("inner", lambda a, b: torch.inner(a, b), f(3, 8), f(4, 8))
    add("outer", lambda a, b: torch.outer(a, b), f(3), f(4))
    add("ger", lambda a, b: torch.ger(a, b), f(3), f(4))
    add("kron", lambda a, b: torch.kron(a, b), f(2, 2), f(2, 3))
    add("tensordot", lambda a, b: torch.tensordot(a, b, dims=1), f(3, 8), f(8, 4))
    add("tensordot of dims", lambda a, b: torch.tensordot(a, b, dims=([1], [0])), f(3, 8), f(8, 4))
    add("einsum", lambda a, b: torch.einsum("ij,jk->ik", a, b), f(3, 8), f(8, 4))
    add("einsum of one", lambda a: torch.einsum("ij->ji", a), x)
    add("einsum sums", lambda a: torch.einsum("ij->i", a), x)
    add("einsum elementwise", lambda a, b: torch.einsum("ij,ij->ij", a, b), x, x)
    add("einsum of three", lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c), f(3, 8), f(8, 4), f(4, 2))
    add("chain_matmul", lambda a, b, c: torch.chain_matmul(a, b, c), f(3, 8), f(8, 4), f(4, 2))
    add("linalg.multi_dot", lambda a, b, c: L.multi_dot([a, b, c]), f(3, 8), f(8, 4), f(4, 2))
    add("linalg.vecdot", lambda a, b: L.vecdot(a, b), f(3, 8), f(3, 8))
    add("linalg.matmul", lambda a, b: L.matmul(a, b), f(3, 8), f(8, 4))
    add("linalg.matrix_power", lambda a: L.matrix_power(a, 3), f(4, 4))
    add("matrix_power", lambda a: torch.matrix_power(a, 2), f(4, 4))
    add("matrix_exp", lambda a: torch.matrix_exp(a), f(4, 4))
    add("addmm", lambda a, b, c: torch.addmm(a, b, c, beta=0.5, alpha=2), f(3, 4), f(3, 8), f(8, 4))
    add("addmv", lambda a, b, c: torch.addmv(a, b, c), f(3), f(3, 8), f(8))
    add("addr", lambda a, b, c: torch.addr(a, b, c), f(3, 4), f(3), f(4))
    add("addbmm", lambda a, b, c: torch.addbmm(a, b, c), f(3, 4), f(2, 3, 8), f(2, 8, 4))
    add("baddbmm", lambda a, b, c: torch.baddbmm(a, b, c), f(2, 3, 4), f(2, 3, 8), f(2, 8, 4))
    add("linear", lambda a, w, b: F.linear(a, w, b), f(3, 8), f(4, 8), f(4))
    add("linear without bias", lambda a, w: F.linear(a, w), f(3, 8), f(4, 8))
    add("bilinear", lambda a, b, w: F.bilinear(a, b, w), f(3, 4), f(3, 5), f(2, 4, 5))
    add("prelu", lambda a, w: F.prelu(a, w), f(2, 4, 3), f(4))
    add("conv1d", lambda a, w, b: F.conv1d(a, w, b), f(2, 4, 8), f(8, 4, 3), f(8))
    add("conv2d", lambda a, w, b: F.conv2d(a, w, b), img, f(8, 4, 3, 3), f(8))
    add("conv3d", lambda a, w, b: F.conv3d(a, w, b), f(1, 2, 4, 4, 4), f(4, 2, 3, 3, 3), f(4))
    add("conv2d same", lambda a, w: F.conv2d(a, w, padding="same"), img, f(8, 4, 3, 3))
    add("conv_transpose1d", lambda a, w: F.conv_transpose1d(a, w), f(2, 4, 8), f(4, 8, 3))
    add("conv_transpose2d", lambda a, w: F.conv_transpose2d(a, w), img, f(4, 8, 3, 3))
    add("conv_transpose3d", lambda a, w: F.conv_transpose3d(a, w), f(1, 2, 4, 4, 4), f(2, 4, 3, 3, 3))
    add("conv_tbc", lambda a, w, b: torch.conv_tbc(a, w, b), f(8, 2, 4), f(3, 4, 8), f(8))
    add("convolution", lambda a, w: torch.convolution(a, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), img, f(8, 4, 3, 3))
    add("scaled_dot_product_attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v), f(1, 2, 8, 16), f(1, 2, 8, 16), f(1, 2, 8, 16))
    add("scaled_dot_product_attention causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), f(1, 2, 8, 16), f(1, 2, 8, 16), f(1, 2, 8, 16))
    add("scaled_dot_product_attention mask", lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), f(1, 2, 8, 16), f(1, 2, 8, 16), f(1, 2, 8, 16), f(8, 8))
    add("rnn_tanh_cell", lambda a, h, w, u: torch.rnn_tanh_cell(a, h, w, u), f(3, 4), f(3, 8), f(8, 4), f(8, 8))
    add("rnn_relu_cell", lambda a, h, w, u: torch.rnn_relu_cell(a, h, w, u), f(3, 4), f(3, 8), f(8, 4), f(8, 8))
    add("gru_cell", lambda a, h, w, u: torch.gru_cell(a, h, w, u), f(3, 4), f(3, 8), f(24, 4), f(24, 8))
    add("lstm_cell", lambda a, h, c, w, u: torch.lstm_cell(a, (h, c), w, u), f(3, 4), f(3, 8), f(3, 8), f(32, 4), f(32, 8))
    add("block_diag", lambda a, b: torch.block_diag(a, b), f(2, 2), f(3, 2))
    add("cov", lambda a: torch.cov(a), f(3, 8))
    add("corrcoef", lambda a: torch.corrcoef(a), f(3, 8))
    add("trace", lambda a: torch.trace(a), f(4, 4))
    add("cross", lambda a, b: torch.cross(a, b, dim=1), f(4, 3), f(4, 3))
    add("linalg.cross", lambda a, b: L.cross(a, b), f(4, 3), f(4, 3))

    # Linear algebra.
    for name, function in {
        "inv": L.inv, "det": L.det, "slogdet": L.slogdet, "pinv": L.pinv, "svdvals": L.svdvals, "qr": L.qr, "cond": L.cond,
        "cholesky": lambda a: L.cholesky(a.mT @ a + torch.eye(4, device=a.device)), "eigvalsh": lambda a: L.eigvalsh(a + a.mT),
        "matrix_norm": L.matrix_norm, "matrix_norm nuc": lambda a: L.matrix_norm(a, "nuc"), "norm nuc": lambda a: L.norm(a, "nuc"),
        "norm": L.norm, "norm of dim": lambda a: L.norm(a, dim=1), "vector_norm": L.vector_norm, "vector_norm 1": lambda a: L.vector_norm(a, 1),
        "vector_norm dtype": lambda a: L.vector_norm(a, dtype=torch.float64), "matrix_norm 2": lambda a: L.matrix_norm(a, 2),
        "solve": lambda a: L.solve(a, a[:, :2]), "matrix_rank": L.matrix_rank, "diagonal": L.diagonal,
    }.items():
        add("linalg." + name, function, f(4, 4))

    # Elementwise functions of one tensor.
    for name in ("abs acos angle asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 fix floor frac lgamma "
                 "log log10 log1p log2 logit neg positive rad2deg reciprocal relu round rsqrt selu sgn sigmoid sign sin sinc sinh softmax "
                 "sqrt square tan tanh trunc i0 nan_to_num").split():
        if name != "softmax":
            add(name, lambda a, name=name: getattr(torch, name)(a), pos)
    add("acosh", lambda a: torch.acosh(a), f(3, 4, low=1.1, high=3.0))
    for name in "entr erfcx expit i0e i1 i1e log_ndtr ndtr ndtri psi xlog1py xlogy zeta".split():
        two = name in ("xlog1py", "xlogy", "zeta")
        if two:
            add("special." + name, lambda a, b, name=name: getattr(S, name)(a, b), f(3, 4, low=1.1, high=3.0), f(3, 4, **P))
        else:
            add("special." + name, lambda a, name=name: getattr(S, name)(a), pos)
    add("special.softmax", lambda a: S.softmax(a, 1), x)
    add("special.log_softmax", lambda a: S.log_softmax(a, 1), x)
    add("special.logsumexp", lambda a: S.logsumexp(a, 1), x)
    add("special.expm1", lambda a: S.expm1(a), x)
    add("special.log1p", lambda a: S.log1p(a), pos)
    add("exp_", lambda a: (a * 1).exp_(), pos)
    add("log_", lambda a: (a * 1).log_(), pos)
    add("pow_", lambda a: (a * 1).pow_(2), pos)
    add("exp out", lambda a: torch.exp(a.detach(), out=torch.empty_like(a)), pos)
    add("mm out", lambda a, b: torch.mm(a.detach(), b.detach(), out=torch.empty(3, 4, dtype=a.dtype, device=a.device)), f(3, 8), f(8, 4))
    add("addmm_", lambda a, b, c: (a * 1).addmm_(b, c), f(3, 4), f(3, 8), f(8, 4))
    add("baddbmm_", lambda a, b, c: (a * 1).baddbmm_(b, c), f(2, 3, 4), f(2, 3, 8), f(2, 8, 4))
    add("pow number", lambda a: a ** 3, pos)
    add("pow half", lambda a: a ** 0.5, pos)
    add("pow of number", lambda a: 2.0 ** a, pos)
    add("pow tensor", lambda a, b: a ** b, pos, pos)
    add("torch.pow", lambda a, b: torch.pow(a, b), pos, pos)
    add("float_power", lambda a: torch.float_power(a, 2), pos)
    add("operator 1/x", lambda a: 1 / a, pos)

    # Functions of several tensors.
    for name in "add sub mul div true_divide maximum minimum atan2 hypot fmod remainder logaddexp logaddexp2 copysign fmax fmin ldexp nextafter".split():
        add(name, lambda a, b, name=name: getattr(torch, name)(a, b), pos, pos)
    add("lerp", lambda a, b, w: torch.lerp(a, b, w), x, x, x)
    add("lerp number", lambda a, b: torch.lerp(a, b, 0.3), x, x)
    add("addcmul", lambda a, b, c: torch.addcmul(a, b, c), x, x, x)
    add("addcdiv", lambda a, b, c: torch.addcdiv(a, b, c), x, pos, pos)
    add("addcmul_", lambda a, b, c: (a * 1).addcmul_(b, c), x, x, x)
    add("where", lambda a, b: torch.where(a > 0, a, b), x, x)
    add("where number", lambda a: torch.where(a > 0, a, 0.5), x)
    add("cat", lambda a, b: torch.cat([a, b]), x, x)
    add("stack", lambda a, b: torch.stack([a, b]), x, x)
    add("hstack", lambda a, b: torch.hstack([a, b]), x, x)
    add("vstack", lambda a, b: torch.vstack([a, b]), x, x)
    add("dstack", lambda a, b: torch.dstack([a, b]), x, x)
    add("column_stack", lambda a, b: torch.column_stack([a, b]), x, x)
    add("cartesian_prod", lambda a, b: torch.cartesian_prod(a, b), f(3), f(3))
    add("masked_fill", lambda a: a.masked_fill(a > 0, 0.3), x)
    add("scatter_add", lambda a, b, i: torch.scatter_add(a, 1, i, b), x, f(3, 2), Fixed([[0, 1], [1, 2], [3, 3]]))
    add("scatter", lambda a, b, i: torch.scatter(a, 1, i, b), x, f(3, 2), Fixed([[0, 1], [1, 2], [3, 3]]))
    add("index_add", lambda a, b, i: torch.index_add(a, 0, i, b), x, f(2, 4), Fixed([0, 2]))
    add("index_copy", lambda a, b, i: torch.index_copy(a, 0, i, b), x, f(2, 4), Fixed([0, 2]))
    add("index_put", lambda a, b, i: torch.index_put(a, (i,), b), x, f(2, 4), Fixed([0, 2]))
    add("index_put_", lambda a, b, i: (a * 1).index_put_((i,), b), x, f(2, 4), Fixed([0, 2]))
    add("scatter_reduce", lambda a, b, i: torch.scatter_reduce(a, 1, i, b, "sum"), x, f(3, 2), Fixed([[0, 1], [1, 2], [3, 3]]))
    add("gather", lambda a, i: torch.gather(a, 1, i), x, Fixed([[0, 1], [1, 2], [3, 3]]))
    add("masked_scatter", lambda a, b: torch.masked_scatter(a, a > 0, b), x, x)
    add("dist", lambda a, b: torch.dist(a, b), x, x)
    add("cdist", lambda a, b: torch.cdist(a, b), f(3, 4), f(5, 4))
    add("cdist 1", lambda a, b: torch.cdist(a, b, p=1.0), f(3, 4), f(5, 4))
    add("cdist large", lambda a, b: torch.cdist(a, b), f(30, 4), f(30, 4))
    add("pdist", lambda a: F.pdist(a), f(4, 3))
    add("pairwise_distance", lambda a, b: F.pairwise_distance(a, b), x, x)
    add("cosine_similarity", lambda a, b: F.cosine_similarity(a, b), x, x)
    add("renorm", lambda a: torch.renorm(a, 2, 0, 0.5), x)
    add("grid_sample", lambda a, g: F.grid_sample(a, g, align_corners=False), f(1, 2, 4, 4), f(1, 3, 3, 2))
    add("affine_grid", lambda a: F.affine_grid(a, [1, 2, 4, 4], align_corners=False), f(1, 2, 3))

    # Reductions and scans.
    for name in "sum mean prod amax amin max min std var median nansum nanmean nanmedian norm logsumexp".split():
        if name == "logsumexp":
            add(name, lambda a: torch.logsumexp(a, 1), x)
            continue
        add(name, lambda a, name=name: getattr(torch, name)(a), x)
        if name != "norm":
            add(name + " dim", lambda a, name=name: getattr(torch, name)(a, dim=1), x)
    add("sum dtype", lambda a: torch.sum(a, dtype=torch.float64), x)
    add("sum half dtype", lambda a: torch.sum(a, 1, dtype=torch.float16), x)
    add("mean dtype", lambda a: torch.mean(a, dtype=torch.float64), x)
    add("norm dim", lambda a: torch.norm(a, dim=1), x)
    add("norm p", lambda a: torch.norm(a, p=3), x)
    add("norm p dim", lambda a: torch.norm(a, p=1, dim=1), x)
    add("norm fro", lambda a: torch.norm(a, p="fro"), x)
    add("norm nuc", lambda a: torch.norm(a, p="nuc"), x)
    add("Tensor.norm", lambda a: a.norm(), x)
    add("frobenius_norm", lambda a: torch.frobenius_norm(a, [0, 1]), x)
    add("nuclear_norm", lambda a: torch.nuclear_norm(a), x)
    add("nuclear_norm dim", lambda a: torch.nuclear_norm(a, [0, 1]), x)
    for name in "cumsum cumprod logcumsumexp cummax cummin".split():
        add(name, lambda a, name=name: getattr(torch, name)(a, 1), x)
    add("cumsum_", lambda a: (a * 1).cumsum_(1), x)
    add("softmax", lambda a: torch.softmax(a, 1), x)
    add("log_softmax", lambda a: torch.log_softmax(a, 1), x)
    add("softmax dtype", lambda a: torch.softmax(a, 1, dtype=torch.float64), x)
    add("Tensor.softmax", lambda a: a.softmax(-1), x)
    add("var_mean", lambda a: torch.var_mean(a, dim=1), x)
    add("std_mean", lambda a: torch.std_mean(a, dim=1), x)
    add("aminmax", lambda a: torch.aminmax(a), x)
    add("sort", lambda a: torch.sort(a), x)
    add("topk", lambda a: torch.topk(a, 2), x)
    add("kthvalue", lambda a: torch.kthvalue(a, 2), x)
    add("quantile", lambda a: torch.quantile(a, 0.3), x)
    add("trapezoid", lambda a: torch.trapezoid(a), x)
    add("diff", lambda a: torch.diff(a), x)
    add("gradient", lambda a: torch.gradient(a, dim=1), x)
    add("histc", lambda a: torch.histc(a.detach()), x)
    add("clamp", lambda a: torch.clamp(a, -0.3, 0.3), x)
    add("clamp tensors", lambda a, b: torch.clamp(a, b), x, x)

    # Activations.
    for name in ("celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 selu sigmoid silu softplus "
                 "softshrink softsign tanh tanhshrink").split():
        add("F." + name, lambda a, name=name: getattr(F, name)(a), x)
    add("F.glu", lambda a: F.glu(a), x)
    add("F.threshold", lambda a: F.threshold(a, 0.1, 0.2), x)
    add("F.softmax", lambda a: F.softmax(a, dim=-1), x)
    add("F.softmin", lambda a: F.softmin(a, dim=-1), x)
    add("F.log_softmax", lambda a: F.log_softmax(a, dim=-1), x)
    add("F.softmax dtype", lambda a: F.softmax(a, dim=-1, dtype=torch.float32), x)
    add("F.dropout", lambda a: F.dropout(a, 0.0), x)
    add("F.rrelu", lambda a: F.rrelu(a), x)
    add("F.normalize", lambda a: F.normalize(a), x)

    # Normalizations.
    add("F.layer_norm", lambda a, w, b: F.layer_norm(a, (4,), w, b), x, v, v)
    add("F.layer_norm plain", lambda a: F.layer_norm(a, (4,)), x)
    add("native_layer_norm", lambda a, w, b: torch.native_layer_norm(a, [4], w, b, 1e-5), x, v, v)
    add("F.rms_norm", lambda a, w: F.rms_norm(a, (4,), w), x, v)
    add("F.rms_norm plain", lambda a: F.rms_norm(a, (4,)), x)
    add("F.group_norm", lambda a, w, b: F.group_norm(a, 2, w, b), f(2, 4, 3), v, v)
    add("native_group_norm", lambda a, w, b: torch.native_group_norm(a, w, b, 2, 4, 3, 2, 1e-5), f(2, 4, 3), v, v)
    add("F.batch_norm", lambda a, w, b: F.batch_norm(a, None, None, w, b, training=True), f(8, 4), v, v)
    add("F.batch_norm eval", lambda a, w, b: F.batch_norm(a, torch.zeros(4, device=a.device), torch.ones(4, device=a.device), w, b), f(8, 4), v, v)
    add("F.batch_norm plain", lambda a: F.batch_norm(a, None, None, training=True), f(8, 4))
    add("F.instance_norm", lambda a: F.instance_norm(a), f(2, 4, 5))
    add("F.instance_norm weights", lambda a, w, b: F.instance_norm(a, weight=w, bias=b), f(2, 4, 5), v, v)
    add("F.local_response_norm", lambda a: F.local_response_norm(a, 2), f(2, 4, 5))

    # Losses.
    for name in "mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss".split():
        for reduction in ("mean", "none", "sum"):
            if name == "soft_margin_loss":
                add(f"F.{name} {reduction}", lambda a, b, r=reduction: F.soft_margin_loss(a, b.detach(), reduction=r), x, x)
                continue
            add(f"F.{name} {reduction}", lambda a, b, name=name, reduction=reduction: getattr(F, name)(a, b, reduction=reduction), x, x)
    classes = Fixed([0, 3, 1])
    for reduction in ("mean", "none", "sum"):
        add(f"F.cross_entropy {reduction}", lambda a, t, r=reduction: F.cross_entropy(a, t, reduction=r), x, classes)
        add(f"F.nll_loss {reduction}", lambda a, t, r=reduction: F.nll_loss(a, t, reduction=r), x, classes)
        add(f"F.kl_div {reduction}", lambda a, b, r=reduction: F.kl_div(a, b, reduction=r), x, pos)
        add(f"F.binary_cross_entropy_with_logits {reduction}", lambda a, b, r=reduction: F.binary_cross_entropy_with_logits(a, b, reduction=r), x, pos)
    add("F.cross_entropy weight", lambda a, t, w: F.cross_entropy(a, t, weight=w.detach()), x, classes, f(4, **P))
    add("F.cross_entropy smoothed", lambda a, t: F.cross_entropy(a, t, label_smoothing=0.1), x, classes)
    add("F.cross_entropy ignored", lambda a, t: F.cross_entropy(a, t, ignore_index=3), x, classes)
    add("F.cross_entropy probabilities", lambda a, b: F.cross_entropy(a, b), x, pos)
    add("F.cross_entropy images", lambda a, t: F.cross_entropy(a, t), f(1, 4, 2, 2), Fixed([[[0, 1], [2, 3]]]))
    add("nn.CrossEntropyLoss", lambda a, t: nn.CrossEntropyLoss()(a, t), x, classes)
    add("torch.cross_entropy_loss", lambda a, t: torch.cross_entropy_loss(a, t) if hasattr(torch, "cross_entropy_loss") else F.cross_entropy(a, t), x, classes)
    add("F.nll_loss images", lambda a, t: F.nll_loss(a, t), f(1, 4, 2, 2), Fixed([[[0, 1], [2, 3]]]))
    add("F.nll_loss weight", lambda a, t, w: F.nll_loss(a, t, weight=w.detach()), x, classes, f(4, **P))
    add("F.kl_div log_target", lambda a, b: F.kl_div(a, b, log_target=True, reduction="batchmean"), x, x)
    add("F.binary_cross_entropy", lambda a, b: F.binary_cross_entropy(a, b.detach()), pos, pos)
    add("nn.BCELoss", lambda a, b: nn.BCELoss()(a, b.detach()), pos, pos)
    add("F.binary_cross_entropy_with_logits weights", lambda a, b, w: F.binary_cross_entropy_with_logits(a, b, pos_weight=w.detach()), x, pos, f(4, **P))
    add("F.poisson_nll_loss", lambda a, b: F.poisson_nll_loss(a, b), x, pos)
    add("F.gaussian_nll_loss", lambda a, b, c: F.gaussian_nll_loss(a, b, c), x, x, pos)
    signs = Fixed([1, -1, 1], "float32")
    add("F.margin_ranking_loss", lambda a, b, y: F.margin_ranking_loss(a, b, y), f(3), f(3), signs)
    add("F.hinge_embedding_loss", lambda a, y: F.hinge_embedding_loss(a, y), f(3), signs)
    add("F.cosine_embedding_loss", lambda a, b, y: F.cosine_embedding_loss(a, b, y), x, x, signs)
    add("F.triplet_margin_loss", lambda a, b, c: F.triplet_margin_loss(a, b, c), x, x, x)
    add("F.triplet_margin_with_distance_loss", lambda a, b, c: F.triplet_margin_with_distance_loss(a, b, c), x, x, x)
    add("F.multi_margin_loss", lambda a, t: F.multi_margin_loss(a, t), x, classes)
    add("F.multilabel_margin_loss", lambda a, t: F.multilabel_margin_loss(a, t), x, Fixed([[0, 3, -1, 0], [1, -1, 0, 0], [2, 1, 0, -1]]))
    add("F.multilabel_soft_margin_loss", lambda a, t: F.multilabel_soft_margin_loss(a, t), x, Fixed([[0, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 1]], "float32"))
    add("F.ctc_loss", lambda a, t: F.ctc_loss(a.log_softmax(-1), t, (5, 5), (2, 2)), f(5, 2, 4), Fixed([[1, 2], [3, 1]]))

    # Sampling, pooling, and other functions that are in no autocast list.
    for mode, rank in (("nearest", 1), ("nearest", 2), ("nearest", 3), ("nearest-exact", 1), ("nearest-exact", 2), ("nearest-exact", 3), ("linear", 1),
                       ("bilinear", 2), ("trilinear", 3), ("bicubic", 2), ("area", 2)):
        add(f"F.interpolate {mode} {rank}d", lambda a, mode=mode: F.interpolate(a, scale_factor=2, mode=mode), f(1, 2, *[4] * rank))
    add("F.interpolate bilinear antialias", lambda a: F.interpolate(a, size=(2, 2), mode="bilinear", antialias=True), f(1, 2, 4, 4))
    add("F.interpolate bicubic antialias", lambda a: F.interpolate(a, size=(2, 2), mode="bicubic", antialias=True), f(1, 2, 4, 4))
    for rank in (1, 2, 3):
        small = f(1, 2, *[4] * rank)
        for name in "avg_pool max_pool".split():
            add(f"F.{name}{rank}d", lambda a, name=f"{name}{rank}d": getattr(F, name)(a, 2), small)
        for name in "adaptive_avg_pool adaptive_max_pool".split():
            add(f"F.{name}{rank}d", lambda a, name=f"{name}{rank}d": getattr(F, name)(a, 2), small)
        add(f"F.lp_pool{rank}d", lambda a, name=f"lp_pool{rank}d": getattr(F, name)(a, 2, 2), small)
    add("F.unfold", lambda a: F.unfold(a, 2), f(1, 2, 4, 4))
    add("F.fold", lambda a: F.fold(a, (3, 3), 2), f(1, 4, 4))
    add("F.pad", lambda a: F.pad(a, (1, 1)), x)
    add("F.pad reflect", lambda a: F.pad(a, (1, 1), mode="reflect"), x)
    add("F.pixel_shuffle", lambda a: F.pixel_shuffle(a, 2), img)
    add("F.embedding", lambda w, i: F.embedding(i, w), x, Fixed([0, 2, 1]))
    add("F.embedding_bag", lambda w, i: F.embedding_bag(i, w), x, Fixed([[0, 2], [1, 1]]))
    add("F.one_hot", lambda a, i: F.one_hot(i, 4) * a, x, Fixed([0, 2, 1]))
    add("fft.rfft", lambda a: torch.fft.rfft(a).abs(), f(3, 8))
    add("stft", lambda a: torch.stft(a, 8, return_complex=True).abs(), f(32))

    # Modules with float32 weights.
    add("nn.Linear", module(torch, lambda nn: nn.Linear(4, 8)), x)
    add("nn.Bilinear", module(torch, lambda nn: nn.Bilinear(4, 4, 8)), x, x)
    add("nn.Conv2d", module(torch, lambda nn: nn.Conv2d(4, 8, 3)), img)
    add("nn.BatchNorm1d", module(torch, lambda nn: nn.BatchNorm1d(4)), x)
    add("nn.LayerNorm", module(torch, lambda nn: nn.LayerNorm(4)), x)
    add("nn.RMSNorm", module(torch, lambda nn: nn.RMSNorm(4)), x)
    add("nn.GroupNorm", module(torch, lambda nn: nn.GroupNorm(2, 4)), img)
    add("nn.InstanceNorm2d", module(torch, lambda nn: nn.InstanceNorm2d(4, affine=True)), img)
    add("nn.PReLU", module(torch, lambda nn: nn.PReLU()), x)
    add("nn.RNN", module(torch, lambda nn: nn.RNN(4, 8)), f(3, 2, 4))
    add("nn.LSTM", module(torch, lambda nn: nn.LSTM(4, 8)), f(3, 2, 4))
    add("nn.GRU", module(torch, lambda nn: nn.GRU(4, 8)), f(3, 2, 4))
    add("nn.LSTM two layers", module(torch, lambda nn: nn.LSTM(4, 8, num_layers=2, bidirectional=True)), f(3, 2, 4))
    add("nn.RNNCell", module(torch, lambda nn: nn.RNNCell(4, 8)), x)
    add("nn.LSTMCell", module(torch, lambda nn: nn.LSTMCell(4, 8)), x)
    add("nn.GRUCell", module(torch, lambda nn: nn.GRUCell(4, 8)), x)
    add("nn.MultiheadAttention", module(torch, lambda nn: Attention(nn, True)), f(3, 2, 8))
    add("nn.MultiheadAttention without weights", module(torch, lambda nn: Attention(nn, False)), f(3, 2, 8))
    add("nn.TransformerEncoderLayer", module(torch, lambda nn: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)), f(3, 2, 8))
    add("nn.Sequential", module(torch, lambda nn: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))), x)
    return found


def Attention(nn, need_weights):
    """Returns a module of self-attention."""
    class Self(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(8, 2)

        def forward(self, a):
            return self.inner(a, a, a, need_weights=need_weights)
    return Self()


def flat(result):
    """Returns the tensors of a result in order."""
    if isinstance(result, (tuple, list)):
        return [tensor for part in result for tensor in flat(part)]
    return [result] if hasattr(result, "dtype") else []


def name_of(dtype):
    """Returns the name of a dtype without its module."""
    return str(dtype).split(".")[-1]


def sample(tensor, count=4):
    """Returns the first numbers of a tensor as text."""
    return [f"{float(value):.6g}" for value in tensor.detach().double().flatten()[:count].tolist()]


def run(torch, device, case, region, variant, log=None):
    """Returns the outcome of a case: dtypes and numbers of results and gradients, or the class of the error."""
    _, function, specs = case
    inputs = build(torch, device, specs, region, variant)
    answer = {}
    try:
        with torch.autocast("cuda" if device != "cpu" else "cpu", dtype=getattr(torch, region)):
            if log is None:
                results = flat(function(*inputs))
            else:
                with log as computed:
                    results = flat(function(*inputs))
                answer["computed"] = " ".join(computed.calls)
        answer["dtypes"] = [name_of(result.dtype) for result in results]
        answer["values"] = [sample(result) for result in results[:2] if not result.is_complex()]
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)[:100]}
    recorded = [result for result in results if result.requires_grad]
    if not recorded:
        return answer
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    try:
        sum((result.double() * torch.linspace(0.5, 1.5, result.numel(), dtype=torch.float64, device=device).reshape(result.shape)).sum()
            for result in recorded).backward()
        answer["gradients"] = ["none" if leaf.grad is None else name_of(leaf.grad.dtype) for leaf in leaves]
        answer["slopes"] = [[] if leaf.grad is None else sample(leaf.grad, 3) for leaf in leaves]
    except Exception as error:
        answer["gradients"] = [type(error).__name__]
    return answer


def recorder(torch):
    """Returns a mode that records the operators that reach a kernel, with the dtypes of their floating-point operands."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten

    short = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}
    ignored = ("_to_copy", "detach", "view", "empty_like", "empty", "copy_", "t", "transpose", "expand", "_unsafe_view", "reshape", "unsqueeze", "squeeze")

    class Recorder(TorchDispatchMode):
        def __enter__(self):
            self.calls = []
            return super().__enter__()

        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            name = str(function).removeprefix("aten.").split(".")[0]
            if name not in ignored:
                tensors = [part for part in tree_flatten((arguments, keywords or {}))[0] if isinstance(part, torch.Tensor)]
                self.calls.append(name + ":" + ",".join(short[part.dtype] for part in tensors if part.dtype in short))
            return function(*arguments, **(keywords or {}))
    return Recorder


def main():
    import torch
    import warnings
    warnings.simplefilter("ignore")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start, answers, left_out = time.time(), {}, 0
    mode = recorder(torch)
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    for case in cases(torch):
        for region in ("bfloat16", "float16"):
            for variant in VARIANTS:
                if len([spec for spec in case[2] if isinstance(spec, Floats)]) < 2 and variant.startswith("first"):
                    continue
                if time.time() - start > 400:
                    left_out += 1
                    continue
                key = f"{case[0]}|{region}|{variant}"
                try:
                    answers[key] = run(torch, device, case, region, variant, mode())
                except Exception as error:
                    answers[key] = {"failed": repr(error)[:200]}
    path = os.path.join(os.environ.get("OUT", "."), "autocast.json.gz")
    about = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if device == "cuda" else "cpu"}
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(json.dumps({"about": about, "answers": answers}, sort_keys=True, indent=0).encode())
    print(len(answers), "answers,", left_out, "left out,", round(time.time() - start, 1), "s", about, file=sys.stderr)
    print(sum("failed" in answer for answer in answers.values()), "failed", sum("error" in answer for answer in answers.values()), "errors", file=sys.stderr)


if __name__ == "__main__":
    main()
