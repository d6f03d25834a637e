"""A small word language model in PyTorch's style, with a transformer's encoder: the program's only import of a tensor library is `torch`."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PositionalEncoding(nn.Module):
    def __init__(self, width, longest=64):
        super().__init__()
        self.dropout = nn.Dropout(p=0.0)
        pe = torch.zeros(longest, width)
        position = torch.arange(0, longest, dtype=torch.float).unsqueeze(1)
        factor = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
        pe[:, 0::2] = torch.sin(position * factor)
        pe[:, 1::2] = torch.cos(position * factor)
        self.register_buffer("pe", pe.unsqueeze(0).transpose(0, 1))

    def forward(self, x):
        return self.dropout(x + self.pe[:x.size(0), :])


class TransformerModel(nn.Transformer):
    def __init__(self, words, width, heads, hidden, layers):
        super().__init__(d_model=width, nhead=heads, dim_feedforward=hidden, num_encoder_layers=layers, dropout=0.0)
        self.src_mask = None
        self.pos_encoder = PositionalEncoding(width)
        self.input_emb = nn.Embedding(words, width)
        self.width = width
        self.decoder = nn.Linear(width, words)

    def forward(self, src):
        if self.src_mask is None or self.src_mask.size(0) != len(src):
            self.src_mask = torch.log(torch.tril(torch.ones(len(src), len(src)))).to(src.device)
        src = self.pos_encoder(self.input_emb(src) * math.sqrt(self.width))
        return F.log_softmax(self.decoder(self.encoder(src, mask=self.src_mask)), dim=-1)


def weights(model):
    """Sets every parameter to numbers that any library computes alike."""
    with torch.no_grad():
        for place, (name, parameter) in enumerate(sorted(model.named_parameters())):
            count = torch.arange(parameter.numel(), dtype=torch.float64)
            values = torch.sin(count * 12.9898 + place) * 43758.5453
            values = (values - torch.floor(values) - 0.5) * 0.3
            if "norm" in name and name.endswith("weight"):
                values = values + 1.0
            parameter.copy_(values.view(parameter.shape).float())


def train(steps=6, device="cpu"):
    """Returns the loss of each step from given weights on given text, then outputs of an encoder and a decoder with masks."""
    model = TransformerModel(33, 16, 2, 24, 2).to(device)
    weights(model)
    data = torch.tensor([(5 * place * place + place) % 33 for place in range(240)], dtype=torch.long, device=device)
    data = data.view(4, -1).t().contiguous()
    criterion = nn.NLLLoss()
    losses = []
    model.train()
    for step in range(steps):
        source, target = data[8 * step:8 * step + 8], data[8 * step + 1:8 * step + 9].reshape(-1)
        model.zero_grad()
        loss = criterion(model(source).view(-1, 33), target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            if p.grad is not None:
                p.data.add_(p.grad, alpha=-2.0)
        losses.append(loss.item())
    for norm_first in (False, True):
        whole = nn.Transformer(8, 2, 1, 1, 12, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm_first).to(device)
        weights(whole)
        src, tgt = (torch.sin(torch.arange(2.0 * n * 8, device=device)).view(2, n, 8) for n in (5, 3))
        padding = torch.tensor([[False] * 5, [False, False, False, True, True]], device=device)
        mask = nn.Transformer.generate_square_subsequent_mask(3).to(device)
        output = whole(src, tgt, tgt_mask=mask, memory_key_padding_mask=padding)
        losses += output.square().mean(dim=(1, 2)).tolist()
    return losses


if __name__ == "__main__":
    print(train())
