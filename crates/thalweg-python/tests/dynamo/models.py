"""Small models of PyTorch whose graphs are stored for tests, and that the tests with PyTorch train."""

import torch
import torch.nn.functional as F
from torch import nn


class Classifier(nn.Module):
    """Convolutions with batch norm, as in a residual network."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.groups = nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.GroupNorm(2, 8)
        self.last = nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        x = x + F.silu(self.groups(self.second(x)))
        return self.last(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Block(nn.Module):
    """A block of a decoder: attention and a gated layer, with RMS norms and rotated positions."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.gate, self.down = nn.Linear(width, 32, bias=False), nn.Linear(width, 32, bias=False), nn.Linear(32, width, bias=False)

    def rotated(self, x):
        half = x.shape[-1] // 2
        angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] / 10.0 ** torch.arange(half, dtype=x.dtype)
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()], -1)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Language(nn.Module):
    """A language model of one block, with its loss."""

    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(30, 16), nn.Embedding(12, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 30, bias=False)

    def forward(self, words):
        x = self.words(words) + self.positions(torch.arange(words.shape[1]))
        return F.cross_entropy(self.head(self.norm(self.block(x)))[:, :-1].flatten(0, 1), words[:, 1:].flatten())


class Recurrent(nn.Module):
    """A gated cell, run for each token."""

    def __init__(self):
        super().__init__()
        self.of_input, self.of_state = nn.Linear(6, 24), nn.Linear(8, 24)

    def forward(self, x):
        state, states = x.new_zeros(x.shape[0], 8), []
        for token in x.unbind(1):
            ri, zi, ni = self.of_input(token).chunk(3, -1)
            rs, zs, ns = self.of_state(state).chunk(3, -1)
            reset, update = torch.sigmoid(ri + rs), torch.sigmoid(zi + zs)
            state = (1 - update) * torch.tanh(ni + reset * ns) + update * state
            states.append(state)
        return torch.stack(states, 1)


class Selection(nn.Module):
    """Sorting, gathering, scattering and masks."""

    def forward(self, x):
        values, places = x.topk(3, -1)
        picked = torch.gather(x.cumsum(-1), -1, places)
        spread = torch.zeros_like(x).scatter_add(-1, places, values * picked)
        masked = torch.where(x > 0, x, spread).masked_fill(x < -1, 0.5)
        return masked.sort(-1, descending=True).values, spread.amax(0), masked.var(-1), (masked > 0.1).sum(0)


class Images(nn.Module):
    """Layers that change the size of images."""

    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ConvTranspose2d(4, 2, 2, stride=2)
        self.norm = nn.InstanceNorm2d(4, affine=True)

    def forward(self, x):
        y = F.leaky_relu(self.norm(self.down(F.pad(x, (1, 1, 1, 1), mode="reflect"))))
        y = F.interpolate(self.up(y), size=x.shape[-2:], mode="bilinear", align_corners=False)
        return torch.sigmoid(y + F.avg_pool2d(x, 3, 1, 1))


def losses(x):
    """Returns the sum of several losses."""
    y = x.detach().flip(0)
    of_points = F.mse_loss(x, y) + F.smooth_l1_loss(x, y) + F.huber_loss(x, y) + F.softplus(x).mean()
    return of_points + F.binary_cross_entropy_with_logits(x, y.sigmoid()) + F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean")


def step(parameter, gradient, first, second):
    """Makes one step of AdamW, in place."""
    first.lerp_(gradient, 0.1)
    second.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
    parameter.mul_(0.99).addcdiv_(first / 0.1, (second / 0.01).sqrt().add_(1e-8), value=-0.01)


def perceptron():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4), nn.Tanh())


# Each model: how it is made, the shapes of its inputs (of integers below the second number, if it is a pair), and whether it is
# trained.
MODELS = {
    "perceptron": (perceptron, [(5, 8)], True),
    "classifier": (Classifier, [(2, 3, 8, 8)], True),
    "classifier in evaluation": (lambda: Classifier().eval(), [(2, 3, 8, 8)], False),
    "block": (Block, [(2, 5, 16)], True),
    "language": (Language, [((2, 7), 30)], True),
    "recurrent": (Recurrent, [(2, 3, 6)], True),
    "selection": (Selection, [(4, 7)], True),
    "images": (Images, [(1, 2, 8, 8)], True),
    "losses": (lambda: losses, [(4, 6)], True),
    "step": (lambda: step, [(4, 3)] * 4, False),
}

# The models whose stored graphs take sizes as integers.
DYNAMIC = {"block", "recurrent"}
