"""A small GPT in PyTorch's style: the program's only import of a tensor library is `torch`."""

import math

import torch
import torch.nn as nn
from torch.nn import functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, width, heads, block, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.attn_dropout = nn.Dropout(dropout)
        self.resid_dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.tril(torch.ones(block, block)).view(1, 1, block, block), persistent=False)

    def forward(self, x, flash):
        batch, time, width = x.size()
        q, k, v = self.c_attn(x).split(width, dim=2)
        k = k.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
        q = q.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
        v = v.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
        if flash:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.mask[:, :, :time, :time] == 0, float("-inf"))
            att = self.attn_dropout(F.softmax(att, dim=-1))
            y = att @ v
        y = y.transpose(1, 2).contiguous().view(batch, time, width)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    def __init__(self, width, dropout=0.0):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=True)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * width, width, bias=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, width, heads, block):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads, block)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = MLP(width)

    def forward(self, x, flash):
        x = x + self.attn(self.ln_1(x), flash)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary=65, width=32, heads=4, layers=2, block=16):
        super().__init__()
        self.block = block
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(vocabulary, width),
            wpe=nn.Embedding(block, width),
            drop=nn.Dropout(0.0),
            h=nn.ModuleList([Block(width, heads, block) for _ in range(layers)]),
            ln_f=nn.LayerNorm(width),
        ))
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx, targets=None, flash=True):
        device = idx.device
        _, time = idx.size()
        assert time <= self.block
        pos = torch.arange(0, time, dtype=torch.long, device=device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x, flash)
        x = self.transformer.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)

    def configure_optimizers(self, weight_decay, learning_rate, betas):
        named = {name: p for name, p in self.named_parameters() if p.requires_grad}
        groups = [
            {"params": [p for p in named.values() if p.dim() >= 2], "weight_decay": weight_decay},
            {"params": [p for p in named.values() if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=betas)

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None):
        for _ in range(max_new_tokens):
            logits, _ = self(idx if idx.size(1) <= self.block else idx[:, -self.block:])
            logits = logits[:, -1, :] / temperature
            if top_k is not None:
                v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
                logits[logits < v[:, [-1]]] = -float("Inf")
            idx = torch.cat((idx, torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)), dim=1)
        return idx


def weights(model):
    """Sets every parameter to numbers that any library computes alike."""
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            count = torch.arange(parameter.numel(), dtype=torch.float64)
            values = torch.sin(count * 12.9898 + place) * 43758.5453
            values = (values - torch.floor(values) - 0.5) * 0.2
            if parameter.dim() < 2:
                values = values + (1.0 if place % 2 == 0 else 0.0)
            parameter.copy_(values.view(parameter.shape).float())


def train(steps=8, device="cpu"):
    """Returns the loss of each step from given weights on given text."""
    model = GPT().to(device)
    weights(model)
    text = [(7 * place * place + 3 * place) % 65 for place in range(400)]
    data = torch.tensor(text, dtype=torch.long)
    optimizer = model.configure_optimizers(0.1, 1e-2, (0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    model.train()
    for step in range(steps):
        starts = [17 * (step + 3 * row) % 380 for row in range(4)]
        x = torch.stack([data[start:start + 16] for start in starts]).to(device)
        y = torch.stack([data[start + 1:start + 17] for start in starts]).to(device)
        _, loss = model(x, y, flash=step % 2 == 0)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    model.eval()
    torch.manual_seed(1)
    sample = model.generate(torch.zeros((1, 1), dtype=torch.long, device=device), 8, top_k=5)
    assert sample.shape == (1, 9)
    return losses


if __name__ == "__main__":
    print(train())
