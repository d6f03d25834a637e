"""Programs whose memory is compared: each is a function that runs some steps and returns their results.

Everything is defined here, so that nothing but PyTorch is needed. Seeds are fixed and algorithms deterministic: two runs that differ
in their allocator alone compute the same bits.
"""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, past=None):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=-1)
        )
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        return self.out(y.transpose(1, 2).reshape(batch, length, width)), (k, v)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x, past=None):
        y, present = self.attention(self.norm1(x), past)
        x = x + y
        return x + self.mlp(self.norm2(x)), present


class GPT(nn.Module):
    """GPT-2's shape: 124 million parameters with the defaults."""

    def __init__(self, layers=12, width=768, heads=12, vocabulary=50304, context=1024):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, pasts=None):
        start = 0 if pasts is None else pasts[0][0].shape[2]
        places = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.places(places)
        presents = []
        for index, block in enumerate(self.blocks):
            x, present = block(x, None if pasts is None else pasts[index])
            presents.append(present)
        return self.head(self.norm(x)), presents

    def loss(self, tokens):
        logits, _ = self(tokens[:, :-1])
        return F.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def _tokens(batch, length, vocabulary=50304):
    return torch.randint(0, vocabulary, (batch, length + 1), device=DEVICE)


def _gpt_step(model, optimizer, loss_of, tokens):
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        loss = loss_of(tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def gpt_eager(steps, timer, loss_of=None):
    model = GPT().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    loss_of = loss_of(model) if loss_of else model.loss
    batches = [_tokens(8, 1024) for _ in range(4)]
    losses = []
    for step in range(steps):
        with timer:
            # A graph's output is overwritten by the next replay: a copy is kept.
            losses.append(_gpt_step(model, optimizer, loss_of, batches[step % 4]).clone())
    return losses


def gpt_compiled(steps, timer):
    return gpt_eager(steps, timer, lambda model: torch.compile(model.loss))


def gpt_reduce_overhead(steps, timer):
    return gpt_eager(steps, timer, lambda model: torch.compile(model.loss, mode="reduce-overhead"))


def gpt_captured(steps, timer):
    """Captures the entire step in one graph: forward pass, backward pass, optimizer."""
    model = GPT().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True, capturable=True)
    batches = [_tokens(8, 1024) for _ in range(4)]
    tokens = batches[0].clone()

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=torch.bfloat16, cache_enabled=False):
            loss = model.loss(tokens)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for number in range(steps):
        with timer:
            tokens.copy_(batches[number % 4])
            graph.replay()
            losses.append(loss.detach().clone())
    return losses


class Bottleneck(nn.Module):
    def __init__(self, channels, inner, stride):
        super().__init__()
        outer = 4 * inner
        self.body = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, outer, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        self.shortcut = nn.Identity()
        if stride > 1 or channels != outer:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


def resnet50():
    layers = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for stage, (count, inner) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for index in range(count):
            layers.append(Bottleneck(channels, inner, 2 if stage and not index else 1))
            channels = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


RESNET_EPOCH = 40


def resnet(steps, timer):
    """Images of changing sizes, in batches of changing sizes. In the second epoch cuDNN has a plan for each."""
    model = resnet50().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        if step % RESNET_EPOCH == 0:
            sizes = random.Random(5)
        batch, size = sizes.choice((16, 24, 32, 48)), 32 * sizes.randint(4, 9)
        x = torch.randn(batch, 3, size, size, device=DEVICE)
        labels = torch.randint(0, 1000, (batch,), device=DEVICE)
        with timer:
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    return losses


def gnn(steps, timer):
    """Message passing over graphs of random sizes, so that no two steps request the same memory."""
    width, layers = 192, 4
    model = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers)).to(DEVICE)
    head = nn.Linear(width, 16).to(DEVICE)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-3, fused=True)
    sizes = random.Random(9)
    losses = []
    for _ in range(steps):
        nodes = int(20_000 * 10 ** sizes.random())
        edges = int(nodes * sizes.uniform(4, 16))
        source = torch.randint(0, nodes, (edges,), device=DEVICE)
        target = torch.randint(0, nodes, (edges,), device=DEVICE).sort().values
        counts = torch.bincount(target, minlength=nodes)
        x = torch.randn(nodes, width, device=DEVICE)
        labels = torch.randint(0, 16, (nodes,), device=DEVICE)
        with timer:
            for layer in model:
                # Sums over sorted segments: the same order every time.
                messages = torch.segment_reduce(x[source], "sum", lengths=counts, unsafe=True)
                x = F.relu(layer(torch.cat((x, messages), dim=-1)))
            loss = F.cross_entropy(head(x), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    return losses


class UNet(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256)):
        super().__init__()

        def double(before, after):
            return nn.Sequential(
                nn.Conv2d(before, after, 3, padding=1),
                nn.GroupNorm(8, after),
                nn.SiLU(),
                nn.Conv2d(after, after, 3, padding=1),
                nn.GroupNorm(8, after),
                nn.SiLU(),
            )

        self.down = nn.ModuleList(double(a, b) for a, b in zip((3, *widths), widths))
        self.up = nn.ModuleList(double(2 * a, a) for a in reversed(widths[:-1]))
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(reversed(widths[:-1]), reversed(widths[1:]))
        )
        self.out = nn.Conv2d(widths[0], 3, 1)

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        kept = []
        for level, block in enumerate(self.down):
            x = checkpoint(block, F.max_pool2d(x, 2) if level else x, use_reentrant=False)
            kept.append(x)
        kept.pop()
        for grow, block in zip(self.grow, self.up):
            x = checkpoint(block, torch.cat((grow(x), kept.pop()), dim=1), use_reentrant=False)
        return self.out(x)


def unet(steps, timer):
    """Activation checkpointing on images of changing sizes."""
    model = UNet().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    sizes = random.Random(3)
    losses = []
    for _ in range(steps):
        height, width = 64 * sizes.randint(4, 10), 64 * sizes.randint(4, 10)
        x = torch.randn(4, 3, height, width, device=DEVICE)
        with timer:
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = F.mse_loss(model(x).float(), x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    return losses


def generation(steps, timer):
    """Variable prompts and answers, with caches of keys and values that grow by concatenation."""
    model = GPT(layers=12).to(DEVICE, dtype=torch.bfloat16).eval()
    sizes = random.Random(11)
    sums = []
    for _ in range(steps):
        batch, prompt, answer = sizes.choice((4, 8, 16)), sizes.randint(32, 512), sizes.randint(16, 96)
        tokens = _tokens(batch, prompt - 1)
        with timer, torch.no_grad():
            pasts, total = None, torch.zeros((), device=DEVICE, dtype=torch.int64)
            for _ in range(answer):
                logits, pasts = model(tokens, pasts)
                tokens = logits[:, -1:].argmax(-1)
                total += tokens.sum()
        sums.append(total.double())
    return sums


# Each with its steps, and how many of them compile, warm up and fill the cache, and are not counted.
WORKLOADS = {
    "gpt_eager": (gpt_eager, 90, 10),
    "gpt_compiled": (gpt_compiled, 90, 10),
    "gpt_reduce_overhead": (gpt_reduce_overhead, 90, 10),
    "gpt_captured": (gpt_captured, 90, 10),
    "resnet": (resnet, 2 * RESNET_EPOCH, RESNET_EPOCH),
    "gnn": (gnn, 60, 20),
    "unet": (unet, 40, 13),
    "generation": (generation, 12, 4),
}


def gpt_small_step_sizes(steps):
    """Runs `gpt_train` of the recorded traces: 6 layers, batches of two shapes in turn. Returns the losses."""
    model = GPT(layers=6).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    losses = []
    for step in range(steps):
        tokens = _tokens(*((8, 1024) if step % 2 == 0 else (6, 896)))
        losses.append(_gpt_step(model, optimizer, model.loss, tokens))
    return [float(loss) for loss in losses]
