"""GPT-2's training step in eager PyTorch with and without kernels: `kernels.py --train`."""

import statistics
import sys
import time

import torch
import thalweg_torch


class Block(torch.nn.Module):
    """A block of GPT-2's."""

    def __init__(self, features, heads):
        super().__init__()
        nn = torch.nn
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.qkv, self.projection = nn.Linear(features, 3 * features), nn.Linear(features, features)
        self.expand, self.contract = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)

    def forward(self, x):
        functional = torch.nn.functional
        batch, tokens, features = x.shape
        packed = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, features // self.heads)
        q, k, v = (part.transpose(1, 2) for part in packed.unbind(2))
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(heads.transpose(1, 2).reshape(batch, tokens, features))
        return x + self.contract(functional.gelu(self.expand(self.norm2(x)), approximate="tanh"))


class Gpt2(torch.nn.Module):
    def __init__(self, features=768, heads=12, layers=12, vocabulary=50304, tokens=1024):
        super().__init__()
        nn = torch.nn
        self.tokens, self.positions = nn.Embedding(vocabulary, features), nn.Embedding(tokens, features)
        self.blocks, self.norm = nn.ModuleList(Block(features, heads) for _ in range(layers)), nn.LayerNorm(features)

    def forward(self, tokens, following):
        x = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        scores = torch.nn.functional.linear(self.norm(x), self.tokens.weight)
        return torch.nn.functional.cross_entropy(scores.view(-1, scores.shape[-1]), following.view(-1))


def train(everywhere, rounds=5, steps=4):
    """GPT-2's training step of 16 x 1,024 tokens, eager, in bfloat16 by autocast, with and without kernels, in alternating order."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    model = Gpt2().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    tokens, following = (torch.randint(0, 50257, (16, 1024), device="cuda") for _ in range(2))

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens, following)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def timed():
        begin = time.perf_counter()
        for _ in range(steps):
            loss = step()
        issued = time.perf_counter()
        torch.cuda.synchronize()
        end = time.perf_counter()
        return [1000 * (end - begin) / steps, 1000 * (issued - begin) / steps, loss.item()]

    def enable(ours):
        thalweg_torch.disable_kernels()
        if ours:
            thalweg_torch.enable_kernels(everywhere=everywhere)

    results = {False: [], True: []}
    for number in range(rounds + 1):
        for ours in (False, True) if number % 2 == 0 else (True, False):
            enable(ours)
            results[ours].append(timed())
    for ours, rows in results.items():
        whole, issued, losses = zip(*rows[1:])
        print(f"GPT-2 {'with' if ours else 'without'} kernels: {statistics.median(whole):.3f} ms per step, the host {statistics.median(issued):.3f},"
              f" losses {[round(loss, 4) for loss in losses]}", flush=True)
    ratio = statistics.median(a[0] / b[0] for a, b in zip(results[False][1:], results[True][1:]))
    print(f"GPT-2: x{ratio:.3f}; calls taken: {dict((k.operator, (k.taken, k.passed_on)) for k in thalweg_torch.kernels())}", flush=True)
    for ours in (False, True):
        enable(ours)
        step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step()
            torch.cuda.synchronize()
        print("with kernels" if ours else "without kernels")
        for row in sorted(profile.key_averages(), key=lambda row: -row.self_device_time_total)[:40]:
            print(f"  {row.self_device_time_total / 1000:8.3f} ms {row.count:5} {row.key[:130]}")
        sys.stdout.flush()
