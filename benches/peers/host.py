"""PyTorch's side of `cargo bench -p thalweg-nn --bench host`: the same operators on the CPU, with all its cores.

Prints one JSON object a line, the median of rounds in microseconds, with the names of our bench. With a file of our lines as argument, a table of both.
"""
import json, statistics, sys, time
import torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(0)
OURS = {}
for path in sys.argv[1:]:
    OURS |= {line["name"]: line["value"] for line in map(json.loads, open(path))}


def timed(name, call):
    def round_of(repeats):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return time.perf_counter() - start
    round_of(1)
    repeats = 1
    while round_of(repeats) < 0.02:
        repeats *= 2
    value = statistics.median(round_of(repeats) * 1e6 / repeats for _ in range(7))
    if OURS:
        ours = OURS.get(name, float("nan"))
        print(f"| {name} | {ours:,.0f} | {value:,.0f} | {ours / value:.2f} |", flush=True)
    else:
        print(json.dumps({"name": name, "value": round(value, 1), "unit": "us"}), flush=True)


def forward(name, call):
    def without_gradients():
        with torch.no_grad():
            call()
    timed(name, without_gradients)


def training(name, leaves, call):
    def step():
        for leaf in leaves:
            leaf.grad = None
        call().sum().backward()
    timed(name, step)


if OURS:
    print("| operator | Thalweg, us | PyTorch, us | ratio |\n|---|---:|---:|---:|")
x, y, row = torch.randn(1024, 1024), torch.randn(1024, 1024), torch.randn(1024)
forward("add", lambda: x + y)
forward("mul row", lambda: x * row)
forward("exp", lambda: x.exp())
forward("tanh", lambda: x.tanh())
forward("gelu", lambda: F.gelu(x))
forward("silu", lambda: F.silu(x))
forward("to bfloat16", lambda: x.bfloat16())
forward("transpose copy", lambda: x.t().contiguous())
forward("sum", lambda: x.sum())
forward("sum rows", lambda: x.sum(1))
forward("sum columns", lambda: x.sum(0))
forward("softmax", lambda: x.softmax(-1))
forward("layer norm", lambda: F.layer_norm(x, (1024,), row, row))
leaf = x.clone().requires_grad_()
training("layer norm, gradients", [leaf], lambda: F.layer_norm(leaf, (1024,), row, row))
training("gelu, gradients", [leaf], lambda: F.gelu(leaf))
forward("matmul 1024", lambda: x @ y)
small, other = torch.randn(128, 128), torch.randn(128, 128)
forward("matmul 128", lambda: small @ other)
forward("add 128 x 128", lambda: small + other)
short = x.bfloat16()
forward("matmul 1024 bfloat16", lambda: short @ short)
table, tokens = torch.randn(50_000, 256), torch.arange(4096) * 7919 % 50_000
forward("embedding", lambda: table.index_select(0, tokens))
images, weight = torch.randn(8, 64, 32, 32, requires_grad=True), torch.randn(64, 64, 3, 3, requires_grad=True)
forward("conv2d 64 x 64 x 3 x 3", lambda: F.conv2d(images, weight, padding=1))
training("conv2d, gradients", [images, weight], lambda: F.conv2d(images, weight, padding=1))
forward("max_pool2d", lambda: F.max_pool2d(images, 2))
q, k, v = (torch.randn(4, 8, 256, 64) for _ in range(3))
forward("attention", lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
scores, classes = torch.randn(512, 10_000, requires_grad=True), torch.arange(512) * 19
training("cross entropy, gradients", [scores], lambda: F.cross_entropy(scores, classes))
sequence, lstm, gru = torch.randn(32, 16, 128), nn.LSTM(128, 128), nn.GRU(128, 128)
forward("LSTM of 32 steps", lambda: lstm(sequence))
forward("GRU of 32 steps", lambda: gru(sequence))
training("LSTM, gradients", list(lstm.parameters()), lambda: lstm(sequence)[0])
training("GRU, gradients", list(gru.parameters()), lambda: gru(sequence)[0])


class Block(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.qkv, self.projection = nn.Linear(features, 3 * features), nn.Linear(features, features)
        self.expand, self.contract = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)
        self.heads = heads

    def forward(self, x):
        batch, tokens, features = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, tokens, features)
        x = x + self.projection(heads)
        return x + self.contract(F.gelu(self.expand(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary=256, context=64, layers=4, features=128, heads=4):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, features), nn.Embedding(context, features)
        self.blocks = nn.Sequential(*(Block(features, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(features), nn.Linear(features, vocabulary)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions.weight)))


model = Gpt()
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
text = torch.arange(8 * 64).reshape(8, 64) * 31 % 256


def step():
    loss = F.cross_entropy(model(text).view(-1, 256), text.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


timed("step of a GPT", step)
