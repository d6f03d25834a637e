"""Trains models of many kinds, written plainly, under PyTorch or under Thalweg, and prints time and peak memory.

    python models.py torch                          # eager PyTorch
    python models.py thalweg --compile              # torch.compile(...) of the library that is named
    python models.py thalweg --only bert,vit --trace traces/

A row is one JSON object: model, seconds of the first step, milliseconds of a step (the median), and peak MiB.
"""

import argparse
import importlib
import json
import math
import pathlib
import statistics
import sys
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("library", choices=["torch", "thalweg"])
parser.add_argument("--only", default="", help="names of models, with commas")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--mode", default=None, help="the mode of torch.compile")
parser.add_argument("--device", default="cuda", help="`sim` for the simulated GPU")
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--warm", type=int, default=24, help="steps before those that are timed")
parser.add_argument("--batch", type=float, default=1.0, help="a factor of the batch")
parser.add_argument("--trace", default=None, help="a folder for Chrome traces of two steps")
options = parser.parse_args()

torch = importlib.import_module(options.library)
sys.modules.setdefault("torch", torch)
nn = importlib.import_module(options.library + ".nn")
F = importlib.import_module(options.library + ".nn.functional")
DEVICE = options.device
BF16 = torch.bfloat16


def batch(count):
    return max(1, int(count * options.batch))


class Block(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.ln_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, vocabulary=50304, context=1024, width=768, heads=12, layers=12):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x))
        return F.cross_entropy(scores.view(-1, scores.shape[-1]), targets.view(-1))


def rms(x, weight, eps=1e-5):
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)).type_as(x) * weight


def rotate(x, cosine, sine):
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1).type_as(x)


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, key_heads, hidden):
        super().__init__()
        self.heads, self.key_heads, self.head = heads, key_heads, width // heads
        self.norm_1, self.norm_2 = (nn.Parameter(torch.ones(width)) for _ in range(2))
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, key_heads * self.head, bias=False) for _ in range(2))
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cosine, sine):
        b, t, c = x.shape
        h = rms(x, self.norm_1)
        q = rotate(self.q(h).view(b, t, self.heads, self.head).transpose(1, 2), cosine, sine)
        k = rotate(self.k(h).view(b, t, self.key_heads, self.head).transpose(1, 2), cosine, sine)
        v = self.v(h).view(b, t, self.key_heads, self.head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, c))
        h = rms(x, self.norm_2)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, vocabulary=32000, width=1024, heads=16, key_heads=4, hidden=2816, layers=16, context=2048):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, key_heads, hidden) for _ in range(layers))
        self.norm = nn.Parameter(torch.ones(width))
        self.head = nn.Linear(width, vocabulary, bias=False)
        half = width // heads // 2
        angles = torch.outer(torch.arange(context).float(), 10000.0 ** (-torch.arange(half).float() / half))
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        scores = self.head(rms(x, self.norm))
        return F.cross_entropy(scores.view(-1, scores.shape[-1]), targets.view(-1))


class BertBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm_1, self.norm_2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.1 if self.training else 0.0)
        x = self.norm_1(x + self.dropout(self.o(y.transpose(1, 2).reshape(b, t, c))))
        return self.norm_2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class Bert(nn.Module):
    def __init__(self, vocabulary=30522, width=768, heads=12, layers=12, context=512):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.types = nn.Embedding(2, width)
        self.norm, self.dropout = nn.LayerNorm(width, eps=1e-12), nn.Dropout(0.1)
        self.blocks = nn.ModuleList(BertBlock(width, heads) for _ in range(layers))
        self.transform, self.last_norm = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.head = nn.Linear(width, vocabulary)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, lengths, targets):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        mask = (places[None, :] < lengths[:, None])[:, None, None, :]
        x = self.tokens(tokens) + self.positions(places) + self.types(torch.zeros_like(tokens))
        x = self.dropout(self.norm(x))
        for block in self.blocks:
            x = block(x, mask)
        scores = self.head(self.last_norm(F.gelu(self.transform(x))))
        return F.cross_entropy(scores.view(-1, scores.shape[-1]), targets.view(-1), ignore_index=-100)


class Vit(nn.Module):
    def __init__(self, width=768, heads=12, layers=12, classes=1000, image=224, patch=16):
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images, targets):
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return F.cross_entropy(self.head(self.norm(self.encoder(x)[:, 0])), targets)


class Bottleneck(nn.Module):
    def __init__(self, inside, width, stride):
        super().__init__()
        self.conv_1, self.bn_1 = nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv_2, self.bn_2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv_3, self.bn_3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.short = None
        if stride != 1 or inside != 4 * width:
            self.short = nn.Sequential(nn.Conv2d(inside, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.bn_1(self.conv_1(x)))
        y = F.relu(self.bn_2(self.conv_2(y)))
        return F.relu(self.bn_3(self.conv_3(y)) + (x if self.short is None else self.short(x)))


class ResNet(nn.Module):
    def __init__(self, depths=(3, 4, 6, 3), classes=1000):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks, inside = [], 64
        for stage, depth in enumerate(depths):
            for number in range(depth):
                blocks.append(Bottleneck(inside, 64 << stage, 2 if stage and number == 0 else 1))
                inside = 256 << stage
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(inside, classes)

    def forward(self, images, targets):
        x = self.blocks(self.pool(F.relu(self.bn(self.stem(images)))))
        return F.cross_entropy(self.head(x.mean((2, 3))), targets)


class Residual(nn.Module):
    def __init__(self, inside, outside, times):
        super().__init__()
        self.norm_1, self.conv_1 = nn.GroupNorm(32, inside), nn.Conv2d(inside, outside, 3, padding=1)
        self.time = nn.Linear(times, outside)
        self.norm_2, self.conv_2 = nn.GroupNorm(32, outside), nn.Conv2d(outside, outside, 3, padding=1)
        self.short = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x, t):
        y = self.conv_1(F.silu(self.norm_1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.short(x) + self.conv_2(F.silu(self.norm_2(y)))


class ImageAttention(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(32, width)
        self.qkv, self.out = nn.Conv1d(width, 3 * width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x).view(b, c, h * w)).view(b, 3, self.heads, c // self.heads, h * w)
        q, k, v = (part.transpose(-1, -2) for part in qkv.unbind(1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(b, c, h * w)
        return x + self.out(y).view(b, c, h, w)


class UNet(nn.Module):
    def __init__(self, base=128, factors=(1, 2, 2, 4), times=512):
        super().__init__()
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, times), nn.SiLU(), nn.Linear(times, times))
        self.first = nn.Conv2d(3, base, 3, padding=1)
        self.down, self.up, widths, inside = nn.ModuleList(), nn.ModuleList(), [base], base
        for level, factor in enumerate(factors):
            outside, attends = base * factor, level >= 2
            for _ in range(2):
                self.down.append(nn.ModuleList([Residual(inside, outside, times), ImageAttention(outside) if attends else nn.Identity()]))
                inside = outside
                widths.append(inside)
            if level + 1 < len(factors):
                self.down.append(nn.Conv2d(inside, inside, 3, 2, 1))
                widths.append(inside)
        self.middle = nn.ModuleList([Residual(inside, inside, times), ImageAttention(inside), Residual(inside, inside, times)])
        for level, factor in reversed(list(enumerate(factors))):
            outside, attends = base * factor, level >= 2
            for _ in range(3):
                self.up.append(nn.ModuleList([Residual(inside + widths.pop(), outside, times), ImageAttention(outside) if attends else nn.Identity()]))
                inside = outside
            if level:
                self.up.append(nn.Conv2d(inside, inside, 3, padding=1))
        self.norm, self.last = nn.GroupNorm(32, inside), nn.Conv2d(inside, 3, 3, padding=1)

    def forward(self, images, times, noise):
        half = self.base // 2
        angles = times.float()[:, None] * torch.exp(torch.arange(half, device=images.device) * (-math.log(10000.0) / half))
        t = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        x = self.first(images)
        kept = [x]
        for part in self.down:
            if isinstance(part, nn.ModuleList):
                x = part[1](part[0](x, t))
            else:
                x = part(x)
            kept.append(x)
        x = self.middle[2](self.middle[1](self.middle[0](x, t)), t)
        for part in self.up:
            if isinstance(part, nn.ModuleList):
                x = part[1](part[0](torch.cat([x, kept.pop()], dim=1), t))
            else:
                x = part(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return F.mse_loss(self.last(F.silu(self.norm(x))).float(), noise)


class LstmModel(nn.Module):
    def __init__(self, vocabulary=10000, width=1024, layers=2):
        super().__init__()
        self.tokens, self.lstm = nn.Embedding(vocabulary, width), nn.LSTM(width, width, layers)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens, targets):
        scores = self.head(self.lstm(self.tokens(tokens))[0])
        return F.cross_entropy(scores.view(-1, scores.shape[-1]), targets.view(-1))


class GraphNetwork(nn.Module):
    def __init__(self, width=128, layers=3, classes=40):
        super().__init__()
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.others = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x, source, target, degree, classes):
        for own, others in zip(self.own, self.others):
            sums = torch.zeros_like(x).index_add_(0, target, x[source])
            x = F.relu(own(x) + others(sums / degree))
        return F.cross_entropy(self.head(x), classes)


class Experts(nn.Module):
    def __init__(self, width=1024, hidden=2048, experts=8):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.up = nn.ModuleList(nn.Linear(width, hidden) for _ in range(experts))
        self.down = nn.ModuleList(nn.Linear(hidden, width) for _ in range(experts))

    def forward(self, x):
        h = self.norm(x)
        weights, chosen = torch.softmax(self.router(h).float(), dim=-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, (up, down) in enumerate(zip(self.up, self.down)):
            rows, which = torch.where(chosen == number)
            y = down(F.gelu(up(h[rows])))
            out.index_add_(0, rows, (y * weights[rows, which, None]).to(out.dtype))
        return x + out


class Mixture(nn.Module):
    def __init__(self, width=1024, layers=4):
        super().__init__()
        self.layers, self.head = nn.ModuleList(Experts(width) for _ in range(layers)), nn.Linear(width, width)

    def forward(self, x, target):
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(self.head(x).float(), target)


class Small(nn.Module):
    def __init__(self, width=256, layers=24):
        super().__init__()
        self.layers = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))

    def forward(self, x, target):
        return F.mse_loss(self.layers(x), target)


class Generator(nn.Module):
    def __init__(self, noise=100, width=64):
        super().__init__()
        sizes, layers = [noise, 8 * width, 4 * width, 2 * width, width], []
        for number, (a, b) in enumerate(zip(sizes, sizes[1:])):
            layers += [nn.ConvTranspose2d(a, b, 4, 2 if number else 1, 1 if number else 0, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, z):
        return self.layers(z)


class Discriminator(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        sizes, layers = [width, 2 * width, 4 * width, 8 * width], [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)]
        for a, b in zip(sizes, sizes[1:]):
            layers += [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2, True)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False))

    def forward(self, images):
        return self.layers(images).view(-1)


def integers(most, *shape):
    return torch.randint(0, most, shape, device=DEVICE)


def normal(*shape):
    return torch.randn(*shape, device=DEVICE)


def compiled(model):
    return torch.compile(model, mode=options.mode) if options.compile else model


def trained(model, inputs, amp=True, fused=True):
    """Returns a step: the loss under autocast, its gradients, a step of AdamW."""
    model = model.to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    call = compiled(model)

    def step():
        with torch.autocast(DEVICE, dtype=BF16, enabled=amp):
            loss = call(*inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def gpt2():
    n = batch(16)
    return trained(Gpt2(), (integers(50257, n, 1024), integers(50257, n, 1024)))


def llama():
    n = batch(8)
    return trained(Llama(), (integers(32000, n, 2048), integers(32000, n, 2048)))


def bert():
    n = batch(32)
    targets = integers(30522, n, 512)
    targets = torch.where(torch.rand(n, 512, device=DEVICE) < 0.15, targets, torch.full_like(targets, -100))
    return trained(Bert(), (integers(30522, n, 512), integers(385, n) + 128, targets))


def vit():
    n = batch(128)
    return trained(Vit(), (normal(n, 3, 224, 224), integers(1000, n)))


def resnet():
    n = batch(128)
    images = normal(n, 3, 224, 224).to(memory_format=torch.channels_last)
    return trained(ResNet().to(memory_format=torch.channels_last), (images, integers(1000, n)))


def unet():
    n = batch(16)
    return trained(UNet(), (normal(n, 3, 64, 64), integers(1000, n), normal(n, 3, 64, 64)))


def lstm():
    n = batch(64)
    return trained(LstmModel(), (integers(10000, 64, n), integers(10000, 64, n)), amp=False)


def graph():
    nodes, edges = batch(200_000), batch(4_000_000)
    source, target = integers(nodes, edges), integers(nodes, edges)
    degree = torch.bincount(target, minlength=nodes).clamp(min=1).float()[:, None]
    return trained(GraphNetwork(), (normal(nodes, 128), source, target, degree, integers(40, nodes)))


def moe():
    n = batch(16384)
    return trained(Mixture(), (normal(n, 1024), normal(n, 1024)))


def small():
    return trained(Small(), (normal(64, 256), normal(64, 256)), amp=False)


def dcgan():
    n = batch(128)
    generator, discriminator = Generator().to(DEVICE), Discriminator().to(DEVICE)
    of_generator, of_discriminator = (torch.optim.Adam(m.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True) for m in (generator, discriminator))
    generate, judge = compiled(generator), compiled(discriminator)
    real, loss = normal(n, 3, 64, 64), nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(n, device=DEVICE), torch.zeros(n, device=DEVICE)

    def step():
        of_discriminator.zero_grad()
        fake = generate(normal(n, 100, 1, 1))
        (loss(judge(real), ones) + loss(judge(fake.detach()), zeros)).backward()
        of_discriminator.step()
        of_generator.zero_grad()
        total = loss(judge(fake), ones)
        total.backward()
        of_generator.step()
        return total

    return step


MODELS = dict(gpt2=gpt2, llama=llama, bert=bert, vit=vit, resnet=resnet, unet=unet, lstm=lstm, graph=graph, moe=moe, small=small, dcgan=dcgan)


def timed(step):
    """Returns the milliseconds of each of the steps, one after another without a wait."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(options.steps + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in zip(events, events[1:])]


def traced(name, step):
    from importlib import import_module
    profiler = import_module(options.library + ".profiler")
    pathlib.Path(options.trace).mkdir(parents=True, exist_ok=True)
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as recorded:
        step()
        step()
        torch.cuda.synchronize()
    recorded.export_chrome_trace(f"{options.trace}/{name}-{options.library}{'-compiled' if options.compile else ''}.json")


def main():
    wanted = options.only.split(",") if options.only else list(MODELS)
    for name in wanted:
        torch.manual_seed(0)
        if options.compile and options.library == "torch":
            torch._dynamo.reset()
        row = dict(model=name, library=options.library, compiled=options.compile)
        try:
            step = MODELS[name]()
            torch.cuda.synchronize()
            start = time.perf_counter()
            loss = step()
            torch.cuda.synchronize()
            row["first_s"] = round(time.perf_counter() - start, 3)
            for _ in range(options.warm):
                step()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            row["ms"] = round(statistics.median(timed(step)), 3)
            row["mib"] = torch.cuda.max_memory_allocated() >> 20
            row["loss"] = loss.item()
            if options.trace:
                traced(name, step)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:300]
        print(json.dumps(row), flush=True)
        step = loss = None
        import gc
        gc.collect()
        torch.cuda.empty_cache()


main()
