"""Calls the operators that programs use most, so that their kernels are recorded for the wheel.

    THALWEG_RECORD_KERNELS=FOLDER PYTHONPATH=python python3 tools/common_kernels.py

A kernel is chosen by dtypes, by strides, and by the sizes of rows and columns: whether loads can be wide, how many threads share a row. So the
layers below are called with sizes on both sides of each choice, forward and backward, in the dtypes that training uses, and nothing here is
the size of a particular model. The script starts itself again on a simulated GPU that keeps the order of work and touches no memory; `cargo
xtask wheel thalweg` compiles what it recorded.
"""

import itertools
import os
import sys

SETTINGS = {"THALWEG_DEVICE": "sim", "THALWEG_SIM_SEED": "1", "THALWEG_SIM_ORDER_ONLY": "1", "THALWEG_SIM_MEMORY_BYTES": str(1 << 38),
            "THALWEG_SIM_REPORT": os.devnull}

if os.environ.get("THALWEG_SIM_ORDER_ONLY") != "1":
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | SETTINGS)

import thalweg as torch
import thalweg.nn as nn
import thalweg.nn.functional as F

FEATURES = [2, 10, 64, 100, 128, 320, 512, 640, 1000, 1280, 2560, 4096, 8192]
ROWS = [1, 32, 500, 4096, 32768]
HALVES = [torch.bfloat16, torch.float16]
LAST = torch.channels_last
DEVICE = torch.ones(1).device
FAILED = []


def tried(call, *arguments):
    """Calls a function; a combination that an operator refuses is left out."""
    try:
        call(*arguments)
    except Exception as error:
        FAILED.append(f"{call.__name__}: {type(error).__name__}: {str(error)[:100]}")


def modes():
    """Yields the dtype of parameters and that of autocast: single, mixed and half precision."""
    yield torch.float32, None
    for half in HALVES:
        yield torch.float32, half
        yield half, None


def trained(module, inputs, lower=None, loss=None):
    """Runs a module forward and backward."""
    with torch.autocast("cuda", dtype=lower or torch.bfloat16, enabled=lower is not None):
        result = module(*inputs)
        result = loss(result) if loss else result
    seeds = [None] if result.dim() == 0 else [torch.ones_like(result)]
    torch.autograd.backward([result], seeds)


def drawn(*shape, dtype=torch.float32, gradient=True):
    return torch.empty(shape, dtype=dtype, device=DEVICE).requires_grad_(gradient)


class Residual(nn.Module):
    """A norm, an expansion with an activation, dropout, and the way around them."""

    def __init__(self, features, norm, activation, bias):
        super().__init__()
        self.norm = norm(features)
        self.up, self.down = nn.Linear(features, 2 * features, bias=bias), nn.Linear(2 * features, features, bias=bias)
        self.activation, self.dropout = activation, nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.down(self.activation(self.up(self.norm(x)))))


class Gated(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.gate, self.up = nn.Linear(features, features, bias=False), nn.Linear(features, features, bias=False)

    def forward(self, x):
        return F.silu(self.gate(x)) * self.up(x)


class Attention(nn.Module):
    def __init__(self, heads, width, kind):
        super().__init__()
        self.heads, self.width, self.kind = heads, width, kind
        self.packed, self.out = nn.Linear(heads * width, 3 * heads * width), nn.Linear(heads * width, heads * width)

    def forward(self, x):
        batch, length, features = x.shape
        q, k, v = (part.view(batch, length, self.heads, self.width).transpose(1, 2) for part in self.packed(x).split(features, 2))
        mask = None
        if self.kind == "mask":
            mask = (torch.arange(length, device=x.device) < length - 3)[None, None, None, :]
        if self.kind == "rotary":
            angle = torch.arange(length, device=x.device, dtype=torch.float32)[:, None] * torch.ones(self.width // 2, device=x.device)
            cosine, sine = angle.cos(), angle.sin()
            turned = lambda t: torch.cat([t[..., : self.width // 2] * cosine - t[..., self.width // 2 :] * sine,
                                          t[..., self.width // 2 :] * cosine + t[..., : self.width // 2] * sine], -1).to(v.dtype)
            q, k = turned(q), turned(k)
        dropout = 0.1 if self.kind == "dropout" else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=self.kind in ("causal", "rotary"))
        return self.out(y.transpose(1, 2).reshape(batch, length, features))


class Convolved(nn.Module):
    """A convolution, a norm, an activation, and a shortcut."""

    def __init__(self, inputs, outputs, kernel, norm, bias):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=bias)
        self.norm = nn.GroupNorm(4, outputs) if norm == "group" else nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 1, bias=bias)
        self.activation = F.silu if norm == "group" else lambda x: F.relu(x, inplace=True)

    def forward(self, x):
        y = self.activation(self.norm(self.first(x)))
        return F.relu(y + self.second(y))


def dense_layers():
    for (dtype, lower), features, rows in itertools.product(modes(), FEATURES, ROWS):
        if rows * features > 1 << 27:
            continue
        x = drawn(rows, features, dtype=dtype)
        pieces = [nn.Linear(features, 64), Gated(features)]
        if features % 2 == 0:
            pieces += [Residual(features, nn.LayerNorm, F.gelu, True), Residual(features, nn.RMSNorm, F.relu, False),
                       Residual(features, nn.LayerNorm, lambda t: F.gelu(t, approximate="tanh"), True), Residual(features, nn.LayerNorm, F.silu, True)]
        for piece in pieces:
            tried(trained, piece.to(device=DEVICE, dtype=dtype), [x], lower)
        if rows >= 32:
            three = x.view(4, rows // 4, features)
            tried(trained, Residual(features, nn.LayerNorm, torch.tanh, True).to(device=DEVICE, dtype=dtype), [three], lower)


def losses():
    for dtype, classes, rows in itertools.product([torch.float32, *HALVES], [2, 10, 100, 1000, 10000, 36002, 40000, 60001], [32, 1000, 8192]):
        x = drawn(rows, classes, dtype=dtype)
        target = torch.zeros(rows, dtype=torch.int64, device=DEVICE)
        for wide in {dtype, torch.float32}:
            tried(trained, lambda t: F.cross_entropy(t.to(wide), target), [x])
            tried(trained, lambda t: F.cross_entropy(t.to(wide), target, label_smoothing=0.1, ignore_index=-100), [x])
            tried(trained, lambda t: F.nll_loss(F.log_softmax(t.to(wide), -1), target), [x])
        tried(trained, lambda t: F.softmax(t, -1), [x])
        tried(lambda: (x.detach().argmax(-1) == target).float().mean())
        for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits):
            tried(trained, lambda t: loss(t, torch.zeros_like(t)), [x])


def embeddings():
    for dtype, width, rows, count in itertools.product([torch.float32, *HALVES], [16, 64, 640, 1280], [4, 1000, 60001], [64, 8192]):
        table = drawn(rows, width, dtype=dtype)
        indices = torch.zeros(4, count // 4, dtype=torch.int64, device=DEVICE)
        tried(trained, lambda t: F.embedding(indices, t) + F.embedding(indices[:1], t), [table])
        tried(trained, lambda t: F.embedding_bag(indices, t, mode="sum"), [table])


def attentions():
    for (dtype, lower), width, length, kind in itertools.product(modes(), [32, 64, 128], [50, 128, 512, 1024], ["plain", "causal", "mask", "dropout", "rotary"]):
        tried(trained, Attention(8, width, kind).to(device=DEVICE, dtype=dtype), [drawn(4, length, 8 * width, dtype=dtype)], lower)


def images():
    sizes = [(3, 16, 64), (16, 32, 32), (48, 48, 60), (80, 320, 30), (320, 640, 15), (640, 1280, 9), (12, 20, 33), (3, 96, 120), (128, 128, 128), (96, 192, 5)]
    for (dtype, lower), (inputs, outputs, plane), last, batch in itertools.product(modes(), sizes, [False, True], [2, 16, 128]):
        for kernel, norm in itertools.product([1, 3], ["batch", "group"]):
            module = Convolved(inputs, outputs, kernel, norm, norm == "group").to(device=DEVICE, dtype=dtype)
            x = drawn(batch, inputs, plane, plane, dtype=dtype, gradient=False)
            if last:
                module, x = module.to(memory_format=LAST), x.contiguous(memory_format=LAST)
            tried(trained, module, [x.requires_grad_()], lower)
        x = drawn(batch, outputs, plane, plane, dtype=lower or dtype, gradient=False)
        x = (x.contiguous(memory_format=LAST) if last else x).requires_grad_()
        for call in (lambda t: F.max_pool2d(t, 3, 2, 1), lambda t: F.avg_pool2d(t, 2), lambda t: F.adaptive_avg_pool2d(t, 1).flatten(1),
                     lambda t: F.interpolate(t, scale_factor=2), lambda t: F.interpolate(t, scale_factor=2, mode="bilinear"),
                     lambda t: F.leaky_relu(t, 0.2), lambda t: torch.cat([t, t], 1), lambda t: F.pad(t, (1, 1, 1, 1)), lambda t: torch.tanh(t) * torch.sigmoid(t),
                     lambda t: F.dropout2d(t, 0.1), lambda t: t.mean((2, 3)), lambda t: t.flatten(2).transpose(1, 2).contiguous()):
            tried(trained, call, [x])


def optimizers():
    for dtype in (torch.float32, *HALVES):
        for count in ((3, 5), (64, 64), (1000, 1000)):
            parameters = [nn.Parameter(drawn(*count, dtype=dtype).detach()) for _ in range(3)] + [nn.Parameter(drawn(7, dtype=dtype).detach())]
            for make in (lambda p: torch.optim.SGD(p, 0.1), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4),
                         lambda p: torch.optim.Adam(p, 1e-3), lambda p: torch.optim.AdamW(p, 1e-3), lambda p: torch.optim.RMSprop(p, 1e-3),
                         lambda p: torch.optim.Adagrad(p, 1e-3), lambda p: torch.optim.NAdam(p, 1e-3), lambda p: torch.optim.Adamax(p, 1e-3)):
                tried(stepped, make(parameters), parameters)


def whole_steps():
    """Steps of small networks, in which operators meet as they do in programs."""

    class Encoder(nn.Module):
        def __init__(self, width, images):
            super().__init__()
            self.images, self.table = images, nn.Embedding(1000, width)
            self.place = nn.Parameter(torch.zeros(1, 65, width))
            self.patches, self.token = nn.Conv2d(3, width, 8, 8), nn.Parameter(torch.zeros(1, 1, width))
            layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=images)
            self.layers, self.norm, self.head = nn.TransformerEncoder(layer, 2), nn.LayerNorm(width), nn.Linear(width, 1000)

        def forward(self, x):
            if self.images:
                x = self.patches(x).flatten(2).transpose(1, 2)
                x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.place
                return self.head(self.norm(self.layers(x))[:, 0])
            mask = x == 0
            return self.head(self.norm(self.layers(self.table(x) + self.place[:, :64], src_key_padding_mask=mask)))

    for lower, width, images, make in itertools.product([None, *HALVES], [64, 512], [False, True], [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD]):
        network = Encoder(width, images).to(DEVICE)
        batch = drawn(32, 3, 64, 64, gradient=False) if images else torch.zeros(32, 64, dtype=torch.int64, device=DEVICE)
        target = torch.zeros(32 if images else 32 * 64, dtype=torch.int64, device=DEVICE)
        optimizer = make(network.parameters(), 1e-3)
        for _ in range(2):
            tried(trained, network, [batch], lower, lambda y: F.cross_entropy(y.flatten(0, -2), target))
            tried(nn.utils.clip_grad_norm_, network.parameters(), 1.0)
            tried(optimizer.step)
            optimizer.zero_grad()


def stepped(optimizer, parameters):
    scaler = torch.amp.GradScaler()
    for use in (False, True):
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        if use:
            scaler.scale(torch.ones((), device=DEVICE))
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        scaler.step(optimizer) if use else optimizer.step()
        scaler.update() if use else optimizer.zero_grad(set_to_none=False)


def elementwise():
    """The commonest functions of one and two tensors, contiguous, transposed and with a row or a column of another shape."""
    one = [torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.abs, torch.neg, torch.sin, torch.cos, torch.tanh, torch.sigmoid, F.relu, F.gelu, F.silu, F.elu,
           F.softplus, F.hardswish, torch.square, torch.reciprocal, lambda t: t * 2.0, lambda t: t + 1.0, lambda t: t / 3.0, lambda t: 1.0 - t, lambda t: t**2,
           lambda t: t.clamp(0, 1), lambda t: F.dropout(t, 0.1), lambda t: t.float(), lambda t: t.masked_fill(t.detach() > 0, 0.0), lambda t: t.tril() if t.dim() > 1 else t]
    two = [torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, lambda a, b: torch.where(a.detach() > 0, a, b), lambda a, b: a.lerp(b, 0.1),
           lambda a, b: torch.addcmul(a, a, b)]
    compare = [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge]
    for dtype, shape in itertools.product([torch.float32, *HALVES], [(8,), (1 << 18,), (1 << 24,), (64, 1000), (4096, 1024), (16, 33, 65), (8, 12, 128, 64)]):
        x = drawn(*shape, dtype=dtype)
        for call in one:
            tried(trained, call, [x])
        others = [x.detach()]
        if len(shape) > 1:
            others += [drawn(shape[-1], dtype=dtype), drawn(*shape[:-1], 1, dtype=dtype), x.detach().transpose(-1, -2).contiguous().transpose(-1, -2), drawn(1, dtype=torch.float32)]
        for other in others:
            for call in two:
                tried(trained, call, [x, other])
            for call in compare if dtype == torch.float32 else ():
                tried(call, x.detach(), other.detach())
    for dtype in (torch.int64, torch.int32, torch.bool, torch.uint8):
        for shape in ((8,), (1 << 20,), (64, 1000)):
            x = torch.zeros(shape, dtype=dtype, device=DEVICE)
            for call in (lambda t: t.float(), lambda t: t.long(), lambda t: t.bfloat16(), lambda t: t == 0, lambda t: t != 0, lambda t: t.sum(), lambda t: t + 1, lambda t: t * t,
                         lambda t: ~t, lambda t: t & t, lambda t: t | t, lambda t: t.cumsum(-1), lambda t: t.any(), lambda t: t.all(), lambda t: t.clone(), lambda t: t.max(), lambda t: t.flip(0)):
                tried(call, x)


def reductions():
    for dtype, shape in itertools.product([torch.float32, *HALVES], [(1 << 20,), (4096, 640), (64, 60001), (32, 128, 640), (8, 16, 64, 64), (3, 7)]):
        x = drawn(*shape, dtype=dtype)
        dims = {0, len(shape) - 1, len(shape) // 2}
        for call in (torch.sum, torch.mean, torch.amax, torch.amin, torch.var, torch.std, torch.logsumexp, torch.norm):
            if call is not torch.logsumexp:
                tried(trained, call, [x])
            for dim in dims:
                tried(trained, lambda t: call(t, dim=dim), [x])
        for dim in dims:
            for call in (torch.argmax, torch.cumsum, torch.softmax):
                tried(call, x.detach(), dim)
            tried(trained, lambda t: t.max(dim)[0], [x])
            tried(torch.topk, x.detach(), 2, dim)
            tried(torch.sort, x.detach(), dim)
        tried(lambda: torch.isfinite(x.detach()).all())


def places():
    for dtype, width, rows, count in itertools.product([torch.float32, *HALVES], [1, 3, 16, 64, 128, 640], [1000, 200_000], [300, 100_000]):
        x, index = drawn(rows, width, dtype=dtype), torch.zeros(count, dtype=torch.int64, device=DEVICE)
        wide = index[:, None].expand(count, width)
        source = drawn(count, width, dtype=dtype)
        for call in (lambda t, s: t[index], lambda t, s: t.index_select(0, index), lambda t, s: t.gather(0, wide), lambda t, s: t.index_add(0, index, s),
                     lambda t, s: t.scatter_add(0, wide, s), lambda t, s: t.scatter_reduce(0, wide, s, "mean"), lambda t, s: t.index_copy(0, index, s),
                     lambda t, s: t.masked_fill(t.detach()[:, :1] > 0, 0.0), lambda t, s: torch.cat([t, s]), lambda t, s: torch.stack([s, s]), lambda t, s: t[: rows // 2].clone(),
                     lambda t, s: t.roll(1, 0), lambda t, s: t.repeat(1, 2), lambda t, s: t.t().contiguous()):
            tried(trained, call, [x, source])


def recurrent():
    for kind, dtype in itertools.product([nn.LSTM, nn.GRU, nn.RNN], [torch.float32, torch.float16]):
        module = kind(64, 128, 2, batch_first=True, dropout=0.1).to(device=DEVICE, dtype=dtype)
        tried(trained, lambda t: module(t)[0], [drawn(8, 20, 64, dtype=dtype)])


def main():
    for family in (dense_layers, losses, embeddings, attentions, images, whole_steps, optimizers, elementwise, reductions, places, recurrent):
        before = len(FAILED)
        family()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        recorded = len(os.listdir(os.environ["THALWEG_RECORD_KERNELS"])) if "THALWEG_RECORD_KERNELS" in os.environ else 0
        print(f"{family.__name__:<14} {recorded} kernels, {len(FAILED) - before} calls refused", flush=True)
    for refusal in sorted(set(FAILED))[:20]:
        print("  ", refusal)


if __name__ == "__main__":
    main()
