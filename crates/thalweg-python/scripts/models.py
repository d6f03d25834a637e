"""Times training steps of eleven models in plain code, with this package or with PyTorch: the same program runs with
both.

    PYTHONPATH=python python scripts/models.py LIBRARY [NAME ...] [--compile [--mode MODE] [--backend BACKEND]] [--warm N] [--steps N]
        [--tiny] [--out FILE] [--trace FOLDER]

LIBRARY is `thalweg` or `torch`. Each model is a class over `nn` and `nn.functional` as a user would write it, trained by its usual optimizer under
bfloat16 autocast (float32 where the table says so). Per model: milliseconds per step (the median of N, by events), the peak of allocated memory in
MiB, the seconds of the first step, and the loss after the steps. `--compile` wraps the step's forward pass and loss with `torch.compile`,
with a mode and a backend where they are named (`torch --compile --backend thalweg` runs our kernels inside PyTorch).
`--tiny` makes the models and inputs small, so that they run on the simulated GPU or on PyTorch's CPU: does each run, and are the losses alike?
With FILE a line of JSON per model is appended. `--warm` is the number of steps before those that are timed: a compiled function takes about 20 calls
to find the faster way. With FOLDER a Chrome trace of two more steps per model is written there.
"""

import argparse
import importlib
import json
import math
import os
import random
import statistics
import sys
import time

torch = nn = F = None


def load(library):
    """Binds the library's modules to the names that the models below use."""
    global torch, nn, F
    torch = importlib.import_module(library)
    nn = importlib.import_module(library + ".nn")
    F = importlib.import_module(library + ".nn.functional")
    for definition in DEFINITIONS:
        definition()


MODELS = {}
DEFINITIONS = []


def model(**options):
    """Registers a function that returns a module, a function of a batch's loss and a batch, with the options of its training."""
    def register(function):
        MODELS[function.__name__] = (function, options)
        return function
    return register


def definition(function):
    """Registers a function that defines classes, which is called once the library is known."""
    DEFINITIONS.append(function)
    return function


@definition
def define():
    """Defines the classes of the models below."""

    class Norm(nn.Module):
        def __init__(self, features):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(features))

        def forward(self, x):
            return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)

    class Block(nn.Module):
        """A layer of GPT-2."""
        def __init__(self, features, heads):
            super().__init__()
            self.heads = heads
            self.first, self.second = nn.LayerNorm(features), nn.LayerNorm(features)
            self.mix, self.out = nn.Linear(features, 3 * features), nn.Linear(features, features)
            self.up, self.down = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)

        def forward(self, x):
            rows, tokens, features = x.shape
            q, k, v = (part.view(rows, tokens, self.heads, -1).transpose(1, 2)
                       for part in self.mix(self.first(x)).split(features, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(rows, tokens, features))
            return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self, vocabulary, features, layers, heads, tokens):
            super().__init__()
            self.words, self.places = nn.Embedding(vocabulary, features), nn.Embedding(tokens, features)
            self.blocks = nn.ModuleList([Block(features, heads) for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(features), nn.Linear(features, vocabulary, bias=False)
            self.head.weight = self.words.weight

        def forward(self, tokens):
            x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    class LlamaBlock(nn.Module):
        """A layer of the Llama form: grouped heads, rotary positions, SwiGLU."""
        def __init__(self, features, heads, groups, hidden):
            super().__init__()
            self.heads, self.groups, self.size = heads, groups, features // heads
            self.first, self.second = Norm(features), Norm(features)
            self.q = nn.Linear(features, features, bias=False)
            self.k = nn.Linear(features, groups * self.size, bias=False)
            self.v = nn.Linear(features, groups * self.size, bias=False)
            self.o = nn.Linear(features, features, bias=False)
            self.gate, self.up = nn.Linear(features, hidden, bias=False), nn.Linear(features, hidden, bias=False)
            self.down = nn.Linear(hidden, features, bias=False)

        def rotated(self, x, cos, sin):
            first, second = x.chunk(2, dim=-1)
            return x * cos + torch.cat((-second, first), dim=-1) * sin

        def forward(self, x, cos, sin):
            rows, tokens, _ = x.shape
            y = self.first(x)
            q = self.q(y).view(rows, tokens, self.heads, self.size).transpose(1, 2)
            k = self.k(y).view(rows, tokens, self.groups, self.size).transpose(1, 2)
            v = self.v(y).view(rows, tokens, self.groups, self.size).transpose(1, 2)
            q, k = self.rotated(q, cos, sin).to(v.dtype), self.rotated(k, cos, sin).to(v.dtype)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.o(y.transpose(1, 2).reshape(rows, tokens, -1))
            y = self.second(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    class Llama(nn.Module):
        def __init__(self, vocabulary, features, layers, heads, groups, hidden, tokens):
            super().__init__()
            self.words = nn.Embedding(vocabulary, features)
            self.blocks = nn.ModuleList([LlamaBlock(features, heads, groups, hidden) for _ in range(layers)])
            self.norm, self.head = Norm(features), nn.Linear(features, vocabulary, bias=False)
            size = features // heads
            rates = 1.0 / 10000 ** (torch.arange(0, size, 2).float() / size)
            angles = torch.outer(torch.arange(tokens).float(), rates)
            angles = torch.cat((angles, angles), dim=-1)
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)

        def forward(self, tokens):
            x = self.words(tokens)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return self.head(self.norm(x))

    class BertLayer(nn.Module):
        def __init__(self, features, heads, dropout):
            super().__init__()
            self.heads, self.dropout = heads, dropout
            self.q, self.k, self.v = (nn.Linear(features, features) for _ in range(3))
            self.o, self.first = nn.Linear(features, features), nn.LayerNorm(features)
            self.up, self.down = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)
            self.second, self.drop = nn.LayerNorm(features), nn.Dropout(dropout)

        def forward(self, x, mask):
            rows, tokens, features = x.shape
            q, k, v = (part(x).view(rows, tokens, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0)
            x = self.first(x + self.drop(self.o(y.transpose(1, 2).reshape(rows, tokens, features))))
            return self.second(x + self.drop(self.down(F.gelu(self.up(x)))))

    class Bert(nn.Module):
        def __init__(self, vocabulary, features, layers, heads, tokens, dropout):
            super().__init__()
            self.words, self.places = nn.Embedding(vocabulary, features), nn.Embedding(tokens, features)
            self.norm, self.drop = nn.LayerNorm(features), nn.Dropout(dropout)
            self.layers = nn.ModuleList([BertLayer(features, heads, dropout) for _ in range(layers)])
            self.head = nn.Linear(features, vocabulary)

        def forward(self, tokens, lengths):
            places = torch.arange(tokens.shape[1], device=tokens.device)
            mask = (places < lengths[:, None])[:, None, None, :]
            x = self.drop(self.norm(self.words(tokens) + self.places(places)))
            for layer in self.layers:
                x = layer(x, mask)
            return self.head(x)

    class Vit(nn.Module):
        def __init__(self, size, patch, features, layers, heads, classes, dropout):
            super().__init__()
            self.patches = nn.Conv2d(3, features, patch, stride=patch)
            self.token = nn.Parameter(torch.zeros(1, 1, features))
            self.places = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, features))
            layer = nn.TransformerEncoderLayer(features, heads, 4 * features, dropout, "gelu", batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(features), enable_nested_tensor=False)
            self.head = nn.Linear(features, classes)

        def forward(self, images):
            x = self.patches(images).flatten(2).transpose(1, 2)
            x = torch.cat((self.token.expand(x.shape[0], -1, -1).to(x.dtype), x), dim=1) + self.places
            return self.head(self.encoder(x)[:, 0])

    class Bottleneck(nn.Module):
        def __init__(self, inputs, middle, stride):
            super().__init__()
            outputs = 4 * middle
            self.convolutions = nn.ModuleList([nn.Conv2d(inputs, middle, 1, bias=False),
                                               nn.Conv2d(middle, middle, 3, stride, 1, bias=False),
                                               nn.Conv2d(middle, outputs, 1, bias=False)])
            self.norms = nn.ModuleList([nn.BatchNorm2d(middle), nn.BatchNorm2d(middle), nn.BatchNorm2d(outputs)])
            self.relu, self.down = nn.ReLU(inplace=True), None
            if stride != 1 or inputs != outputs:
                self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

        def forward(self, x):
            same = x if self.down is None else self.down(x)
            for place, (convolution, norm) in enumerate(zip(self.convolutions, self.norms)):
                x = norm(convolution(x))
                if place < 2:
                    x = self.relu(x)
            return self.relu(x + same)

    class ResNet(nn.Module):
        def __init__(self, blocks, width, classes):
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
                                      nn.MaxPool2d(3, 2, 1))
            stages, inputs = [], width
            for stage, count in enumerate(blocks):
                for place in range(count):
                    stages.append(Bottleneck(inputs, width << stage, 2 if stage and place == 0 else 1))
                    inputs = 4 * (width << stage)
            self.stages, self.pool, self.head = nn.Sequential(*stages), nn.AdaptiveAvgPool2d(1), nn.Linear(inputs, classes)

        def forward(self, x):
            return self.head(self.pool(self.stages(self.stem(x))).flatten(1))

    class Residual(nn.Module):
        """A residual block of the U-Net, with the step's embedding added."""
        def __init__(self, inputs, outputs, steps):
            super().__init__()
            self.first, self.second = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
            self.a, self.b = nn.Conv2d(inputs, outputs, 3, 1, 1), nn.Conv2d(outputs, outputs, 3, 1, 1)
            self.step = nn.Linear(steps, outputs)
            self.same = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

        def forward(self, x, t):
            y = self.a(F.silu(self.first(x))) + self.step(F.silu(t))[:, :, None, None]
            return self.same(x) + self.b(F.silu(self.second(y)))

    class Spatial(nn.Module):
        def __init__(self, channels, heads):
            super().__init__()
            self.heads, self.norm = heads, nn.GroupNorm(8, channels)
            self.mix, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

        def forward(self, x):
            rows, channels, height, width = x.shape
            q, k, v = self.mix(self.norm(x)).reshape(rows, 3, self.heads, -1, height * width).transpose(-1, -2).unbind(1)
            y = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(rows, channels, height, width)
            return x + self.out(y)

    class UNet(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.width, steps = width, 4 * width
            self.embed = nn.Sequential(nn.Linear(width, steps), nn.SiLU(), nn.Linear(steps, steps))
            self.enter = nn.Conv2d(3, width, 3, 1, 1)
            self.d1, self.d2, self.d3 = Residual(width, width, steps), Residual(width, 2 * width, steps), Residual(2 * width, 4 * width, steps)
            self.s1, self.s2 = nn.Conv2d(width, width, 3, 2, 1), nn.Conv2d(2 * width, 2 * width, 3, 2, 1)
            self.middle, self.attention = Residual(4 * width, 4 * width, steps), Spatial(4 * width, 4)
            self.u2, self.u1 = Residual(6 * width, 2 * width, steps), Residual(3 * width, width, steps)
            self.norm, self.leave = nn.GroupNorm(8, width), nn.Conv2d(width, 3, 3, 1, 1)

        def forward(self, x, time):
            half = self.width // 2
            rates = torch.exp(-9.2 * torch.arange(half, device=x.device) / half)
            angles = time[:, None].float() * rates
            t = self.embed(torch.cat((angles.sin(), angles.cos()), dim=1))
            a = self.d1(self.enter(x), t)
            b = self.d2(self.s1(a), t)
            c = self.attention(self.middle(self.d3(self.s2(b), t), t))
            c = self.u2(torch.cat((F.interpolate(c, scale_factor=2.0, mode="nearest"), b), dim=1), t)
            c = self.u1(torch.cat((F.interpolate(c, scale_factor=2.0, mode="nearest"), a), dim=1), t)
            return self.leave(F.silu(self.norm(c)))

    class Words(nn.Module):
        """A language model by an LSTM."""
        def __init__(self, vocabulary, features, layers):
            super().__init__()
            self.words, self.lstm = nn.Embedding(vocabulary, features), nn.LSTM(features, features, layers)
            self.head = nn.Linear(features, vocabulary)

        def forward(self, tokens):
            return self.head(self.lstm(self.words(tokens))[0])

    class GraphNetwork(nn.Module):
        """Mean of the neighbours, three layers."""
        def __init__(self, features, classes):
            super().__init__()
            self.own = nn.ModuleList([nn.Linear(features, features) for _ in range(3)])
            self.others = nn.ModuleList([nn.Linear(features, features) for _ in range(3)])
            self.head = nn.Linear(features, classes)

        def forward(self, x, sources, targets):
            count = torch.zeros(x.shape[0], device=x.device).index_add(0, targets, torch.ones(targets.shape[0], device=x.device))
            for own, others in zip(self.own, self.others):
                total = torch.zeros_like(x).index_add(0, targets, x[sources])
                x = F.relu(own(x) + others(total / count.clamp(min=1)[:, None])).to(x.dtype)
            return self.head(x)

    class Experts(nn.Module):
        """A block whose linear layers are eight experts; each token goes to two."""
        def __init__(self, features, hidden, experts):
            super().__init__()
            self.gate = nn.Linear(features, experts, bias=False)
            self.experts = nn.ModuleList([nn.Sequential(nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, features))
                                          for _ in range(experts)])
            self.norm = nn.LayerNorm(features)

        def forward(self, x):
            y = self.norm(x).flatten(0, 1)
            weights, chosen = F.softmax(self.gate(y).float(), dim=-1).topk(2, dim=-1)
            weights = weights / weights.sum(-1, keepdim=True)
            result = torch.zeros_like(y)
            for place, expert in enumerate(self.experts):
                rows, slot = torch.where(chosen == place)
                result = result.index_add(0, rows, (expert(y[rows]) * weights[rows, slot, None]).to(result.dtype))
            return x + result.view_as(x)

    class Mixture(nn.Module):
        def __init__(self, vocabulary, features, layers, hidden, experts):
            super().__init__()
            self.words = nn.Embedding(vocabulary, features)
            self.layers = nn.ModuleList([Experts(features, hidden, experts) for _ in range(layers)])
            self.head = nn.Linear(features, vocabulary)

        def forward(self, tokens):
            x = self.words(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    globals().update({key: value for key, value in locals().items() if isinstance(value, type)})


def words(vocabulary, *shape):
    """Returns random indices. Small numbers of them follow a rule instead, so that small models get the same ones in
    both libraries."""
    count = math.prod(shape)
    if count < 4096:
        return (torch.arange(count) * 7919 % vocabulary).reshape(shape)
    return torch.randint(0, vocabulary, shape)


def entropy(scores, targets):
    return F.cross_entropy(scores.flatten(0, -2).float(), targets.flatten())


@model()
def gpt2(tiny):
    vocabulary, rows, tokens = (97, 2, 16) if tiny else (50304, 16, 1024)
    network = GPT(vocabulary, *((32, 2, 2) if tiny else (768, 12, 12)), tokens)
    return network, lambda m, x, y: entropy(m(x), y), [words(vocabulary, rows, tokens), words(vocabulary, rows, tokens)]


@model()
def llama(tiny):
    vocabulary, rows, tokens = (97, 2, 16) if tiny else (32000, 8, 2048)
    network = Llama(vocabulary, *((32, 2, 4, 2, 64) if tiny else (1024, 16, 16, 4, 2816)), tokens)
    return network, lambda m, x, y: entropy(m(x), y), [words(vocabulary, rows, tokens), words(vocabulary, rows, tokens)]


@model()
def bert(tiny):
    vocabulary, rows, tokens = (97, 2, 16) if tiny else (30522, 32, 512)
    network = Bert(vocabulary, *((32, 2, 2) if tiny else (768, 12, 12)), tokens, 0.0 if tiny else 0.1)
    lengths = tokens - words(tokens // 2, rows)
    return network, lambda m, x, n, y: entropy(m(x, n), y), [words(vocabulary, rows, tokens), lengths, words(vocabulary, rows, tokens)]


@model()
def vit(tiny):
    size, patch, rows = (32, 8, 2) if tiny else (224, 16, 128)
    network = Vit(size, patch, *((32, 2, 2) if tiny else (768, 12, 12)), 10 if tiny else 1000, 0.0 if tiny else 0.1)
    return network, lambda m, x, y: entropy(m(x), y), [torch.randn(rows, 3, size, size), words(10, rows)]


@model(channels_last=True)
def resnet50(tiny):
    rows, size = (2, 64) if tiny else (128, 224)
    network = ResNet((1, 1, 1, 1) if tiny else (3, 4, 6, 3), 8 if tiny else 64, 10 if tiny else 1000)
    return network, lambda m, x, y: entropy(m(x), y), [torch.randn(rows, 3, size, size), words(10, rows)]


@model()
def unet(tiny):
    rows, size = (2, 16) if tiny else (16, 64)
    network = UNet(16 if tiny else 128)
    return network, lambda m, x, t, y: F.mse_loss(m(x, t).float(), y), [torch.randn(rows, 3, size, size), words(1000, rows), torch.randn(rows, 3, size, size)]


@model(autocast=False)
def lstm(tiny):
    vocabulary, tokens, rows = (97, 8, 4) if tiny else (10000, 64, 64)
    network = Words(vocabulary, 16 if tiny else 1024, 2)
    return network, lambda m, x, y: entropy(m(x), y), [words(vocabulary, tokens, rows), words(vocabulary, tokens, rows)]


@model(autocast=False)
def graph_network(tiny):
    nodes, edges, features = (40, 160, 8) if tiny else (200_000, 4_000_000, 128)
    network = GraphNetwork(features, 16)
    batch = [torch.randn(nodes, features), words(nodes, edges), words(nodes, edges), words(16, nodes)]
    return network, lambda m, x, s, t, y: entropy(m(x, s, t), y), batch


@model()
def mixture(tiny):
    vocabulary, rows, tokens = (97, 2, 16) if tiny else (32000, 8, 1024)
    network = Mixture(vocabulary, *((16, 2, 32, 4) if tiny else (768, 4, 3072, 8)))
    return network, lambda m, x, y: entropy(m(x), y), [words(vocabulary, rows, tokens), words(vocabulary, rows, tokens)]


@model(autocast=False)
def mlp(tiny):
    features = 8 if tiny else 64
    network = nn.Sequential(*[layer for _ in range(24) for layer in (nn.Linear(features, features), nn.ReLU())])
    return network, lambda m, x, y: F.mse_loss(m(x), y), [torch.randn(32, features), torch.randn(32, features)]


@model(autocast=False)
def dcgan(tiny):
    width, rows = (4, 2) if tiny else (64, 128)
    sizes = [8 * width, 4 * width, 2 * width, width]
    parts, inputs = [], 100
    for place, outputs in enumerate(sizes):
        parts += [nn.ConvTranspose2d(inputs, outputs, 4, 1 if place == 0 else 2, 0 if place == 0 else 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True)]
        inputs = outputs
    parts += [nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh()]
    inputs = 3
    for outputs in reversed(sizes):
        parts += [nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2, inplace=True)]
        inputs = outputs
    network = nn.Sequential(*parts, nn.Conv2d(inputs, 1, 4, 1, 0, bias=False), nn.Flatten())
    return network, lambda m, x, y: F.binary_cross_entropy_with_logits(m(x), y), [torch.randn(rows, 100, 1, 1), torch.ones(rows, 1)]


def initialized(network):
    """Fills the parameters that begin at random numbers by a rule, so that both libraries begin alike."""
    with torch.no_grad():
        for place, parameter in enumerate(network.parameters()):
            if not bool((parameter == parameter.flatten()[0]).all()):
                count, inputs = parameter.numel(), parameter.numel() // parameter.shape[0]
                wave = torch.sin(torch.arange(count, dtype=torch.float64) * (12.9898 + place)) * 43758.5453
                values = (wave - wave.floor() - 0.5) * 2 * inputs ** -0.5
                parameter.copy_(values.reshape(parameter.shape).to(parameter.dtype))
    return network


def drawn(batch):
    """Replaces the random numbers of a small batch by ones that both libraries share."""
    source = random.Random(7)

    def one(x):
        if not x.is_floating_point():
            return x
        constant = bool((x == x.flatten()[0]).all())
        return x if constant else torch.tensor([source.gauss(0, 1) for _ in range(x.numel())]).reshape(x.shape)
    return [one(x) for x in batch]


def measured(name, options, device):
    """Trains one model and returns its row."""
    build, kind = MODELS[name]
    torch.manual_seed(0)
    network, loss_of, batch = build(options.tiny)
    if options.tiny:
        network, batch = initialized(network), drawn(batch)
    network, batch = network.to(device), [x.to(device) for x in batch]
    if kind.get("channels_last"):
        network = network.to(memory_format=torch.channels_last)
        batch = [x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x for x in batch]
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    lower = kind.get("autocast", True) and not options.tiny

    def forward(*batch):
        with torch.autocast(device.split(":")[0], dtype=torch.bfloat16, enabled=lower):
            return loss_of(network, *batch)
    if options.compile:
        # Models share the code of `forward`, of which PyTorch compiles a few variants only.
        torch.compiler.reset()
        chosen = dict(mode=options.mode) | (dict(backend=options.backend) if options.backend else {})
        forward = torch.compile(forward, **chosen)

    def step():
        loss = forward(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss
    started = time.perf_counter()
    loss = step().item()
    first = time.perf_counter() - started
    losses = [loss] + [step().item() for _ in range(2)]
    row = dict(name=name, library=torch.__name__, first_s=round(first, 3), losses=losses)
    if options.tiny:
        return row
    for _ in range(options.warm):
        step()
    row |= timed(step, options.steps)
    if options.trace:
        traced(step, os.path.join(options.trace, f"{name}-{torch.__name__}{'-compiled' if options.compile else ''}.json"))
    return row


def traced(step, path):
    """Writes the timeline of two steps."""
    profiler = importlib.import_module(torch.__name__ + ".profiler")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as recorded:
        step()
        step()
        torch.cuda.synchronize()
    recorded.export_chrome_trace(path)


def timed(step, steps):
    """Returns the median time of a step by events, the host's time to issue one, and the peak of memory."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    marks, hosts = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)], []
    marks[0].record()
    for mark in marks[1:]:
        started = time.perf_counter()
        step()
        hosts.append(time.perf_counter() - started)
        mark.record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
    return dict(ms=round(statistics.median(times), 3), host_ms=round(min(hosts) * 1e3, 3),
                peak_mib=round(torch.cuda.max_memory_allocated() / 2**20))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=["thalweg", "torch"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--mode")
    parser.add_argument("--backend")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--warm", type=int, default=24)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out")
    parser.add_argument("--trace")
    options = parser.parse_args()
    load(options.library)
    if options.backend == "thalweg":
        importlib.import_module("thalweg.dynamo").register()
    ours = options.library == "thalweg"
    device = str(torch.ones(1).device) if ours else "cuda" if torch.cuda.is_available() else "cpu"
    failed = False
    for name in options.names or MODELS:
        try:
            row = measured(name, options, device)
        except Exception as error:  # the next model runs all the same
            row, failed = dict(name=name, library=options.library, error=f"{type(error).__name__}: {error}"[:500]), True
        row["compiled"] = (options.backend or options.mode or True) if options.compile else False
        print("  ".join(f"{key} {value}" for key, value in row.items() if key != "library"), flush=True)
        if options.out:
            with open(options.out, "a") as file:
                file.write(json.dumps(row) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
