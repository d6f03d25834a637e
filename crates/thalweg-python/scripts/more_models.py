"""Times training steps of fifteen more models, of kinds that are missing in `models.py`, with the same options and
columns.

    PYTHONPATH=python python scripts/more_models.py LIBRARY [NAME ...] [--compile [--mode MODE] [--backend BACKEND]] [--steps N] [--tiny] [--out FILE]
"""

import math

import models
from models import definition, entropy, model, words

models.MODELS.clear()
torch = nn = F = None


@definition
def define():
    """Defines the classes of the models below."""
    global torch, nn, F
    torch, nn, F = models.torch, models.nn, models.F

    class RelativeAttention(nn.Module):
        """Attention of T5: no scale, a bias of positions that is learned, causal or over another sequence."""
        def __init__(self, features, heads):
            super().__init__()
            self.heads = heads
            self.q, self.k, self.v, self.o = (nn.Linear(features, features, bias=False) for _ in range(4))

        def forward(self, x, memory, bias):
            rows, tokens, features = x.shape
            q = self.q(x).view(rows, tokens, self.heads, -1).transpose(1, 2)
            k, v = (part(memory).view(rows, memory.shape[1], self.heads, -1).transpose(1, 2) for part in (self.k, self.v))
            scores = q @ k.transpose(-1, -2)
            if bias is not None:
                scores = scores + bias
            y = F.softmax(scores.float(), dim=-1).to(v.dtype) @ v
            return self.o(y.transpose(1, 2).reshape(rows, tokens, features))

    class T5Layer(nn.Module):
        def __init__(self, features, heads, hidden, crossed):
            super().__init__()
            self.first, self.own = nn.RMSNorm(features), RelativeAttention(features, heads)
            self.crossed = crossed
            if crossed:
                self.between, self.cross = nn.RMSNorm(features), RelativeAttention(features, heads)
            self.last, self.up, self.down = nn.RMSNorm(features), nn.Linear(features, hidden, bias=False), nn.Linear(hidden, features, bias=False)
            self.drop = nn.Dropout(0.0)

        def forward(self, x, bias, memory=None):
            y = self.first(x)
            x = x + self.drop(self.own(y, y, bias))
            if self.crossed:
                x = x + self.drop(self.cross(self.between(x), memory, None))
            return x + self.drop(self.down(F.relu(self.up(self.last(x)))))

    class T5(nn.Module):
        def __init__(self, vocabulary, features, layers, heads, hidden):
            super().__init__()
            self.words = nn.Embedding(vocabulary, features)
            self.near, self.past = nn.Embedding(32, heads), nn.Embedding(32, heads)
            self.encoder = nn.ModuleList([T5Layer(features, heads, hidden, False) for _ in range(layers)])
            self.decoder = nn.ModuleList([T5Layer(features, heads, hidden, True) for _ in range(layers)])
            self.a, self.b = nn.RMSNorm(features), nn.RMSNorm(features)

        def bias(self, table, tokens, causal, device):
            places = torch.arange(tokens, device=device)
            distance = places[None, :] - places[:, None]
            far = distance.clamp(max=0).neg() if causal else distance.abs()
            bucket = torch.where(far < 8, far, (8 + (far.float().clamp(min=8) / 8).log() / math.log(16) * 8).long().clamp(max=15))
            if not causal:
                bucket = bucket + (distance > 0).long() * 16
            bias = table(bucket).permute(2, 0, 1)[None]
            return bias.masked_fill(distance > 0, float("-inf")) if causal else bias

        def forward(self, source, target):
            x, bias = self.words(source), self.bias(self.near, source.shape[1], False, source.device)
            for layer in self.encoder:
                x = layer(x, bias)
            memory = self.a(x)
            x, bias = self.words(target), self.bias(self.past, target.shape[1], True, source.device)
            for layer in self.decoder:
                x = layer(x, bias, memory)
            return self.b(x) @ self.words.weight.t().to(x.dtype)

    class Window(nn.Module):
        """A block of Swin: attention within windows, shifted ones in every other block."""
        def __init__(self, features, heads, size, window, shift):
            super().__init__()
            self.heads, self.window, self.shift = heads, window, shift
            self.first, self.second = nn.LayerNorm(features), nn.LayerNorm(features)
            self.mix, self.out = nn.Linear(features, 3 * features), nn.Linear(features, features)
            self.up, self.down = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)
            self.table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
            places = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
            between = places[:, :, None] - places[:, None, :] + window - 1
            self.register_buffer("index", between[0] * (2 * window - 1) + between[1])
            mask = None
            if shift:
                part = torch.zeros(size, size)
                for i, rows in enumerate((slice(0, -window), slice(-window, -shift), slice(-shift, None))):
                    for j, columns in enumerate((slice(0, -window), slice(-window, -shift), slice(-shift, None))):
                        part[rows, columns] = 3 * i + j
                part = part.view(size // window, window, size // window, window).permute(0, 2, 1, 3).reshape(-1, window * window)
                mask = (part[:, None, :] != part[:, :, None]).float() * -100.0
            self.register_buffer("mask", mask)

        def attention(self, x):
            windows, tokens, features = x.shape
            q, k, v = self.mix(x).reshape(windows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
            scores = scores + self.table[self.index.flatten()].view(tokens, tokens, -1).permute(2, 0, 1)[None]
            if self.mask is not None:
                count = self.mask.shape[0]
                scores = (scores.view(windows // count, count, self.heads, tokens, tokens) + self.mask[None, :, None]).view(-1, self.heads, tokens, tokens)
            y = scores.softmax(dim=-1).to(v.dtype) @ v
            return self.out(y.transpose(1, 2).reshape(windows, tokens, features))

        def forward(self, x):
            rows, height, width, features = x.shape
            window, y = self.window, self.first(x)
            if self.shift:
                y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
            y = y.view(rows, height // window, window, width // window, window, features).permute(0, 1, 3, 2, 4, 5)
            y = self.attention(y.reshape(-1, window * window, features))
            y = y.view(rows, height // window, width // window, window, window, features).permute(0, 1, 3, 2, 4, 5).reshape(rows, height, width, features)
            if self.shift:
                y = torch.roll(y, (self.shift, self.shift), (1, 2))
            x = x + y
            return x + self.down(F.gelu(self.up(self.second(x))))

    class Merge(nn.Module):
        def __init__(self, features):
            super().__init__()
            self.norm, self.less = nn.LayerNorm(4 * features), nn.Linear(4 * features, 2 * features, bias=False)

        def forward(self, x):
            return self.less(self.norm(torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], dim=-1)))

    class Swin(nn.Module):
        def __init__(self, size, features, depths, window, classes):
            super().__init__()
            self.patches, self.enter = nn.Conv2d(3, features, 4, stride=4), nn.LayerNorm(features)
            stages, size = [], size // 4
            for stage, depth in enumerate(depths):
                if stage:
                    stages.append(Merge(features))
                    features, size = 2 * features, size // 2
                stages += [Window(features, features // 32, size, window, window // 2 if block % 2 and size > window else 0) for block in range(depth)]
            self.stages, self.norm, self.head = nn.Sequential(*stages), nn.LayerNorm(features), nn.Linear(features, classes)

        def forward(self, x):
            x = self.enter(self.patches(x).permute(0, 2, 3, 1))
            return self.head(self.norm(self.stages(x)).mean((1, 2)))

    class ConvNextBlock(nn.Module):
        def __init__(self, features):
            super().__init__()
            self.deep, self.norm = nn.Conv2d(features, features, 7, padding=3, groups=features), nn.LayerNorm(features, eps=1e-6)
            self.up, self.down = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)
            self.scale = nn.Parameter(torch.full((features,), 1e-6))

        def forward(self, x):
            y = self.norm(self.deep(x).permute(0, 2, 3, 1))
            y = (self.down(F.gelu(self.up(y))) * self.scale).permute(0, 3, 1, 2)
            if self.training:
                kept = torch.rand(x.shape[0], 1, 1, 1, device=x.device) < 1.0
                y = y * kept
            return x + y

    class Channels(nn.LayerNorm):
        """Layer norm over the second dimension."""
        def forward(self, x):
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    class ConvNext(nn.Module):
        def __init__(self, depths, widths, classes):
            super().__init__()
            parts = [nn.Conv2d(3, widths[0], 4, stride=4), Channels(widths[0])]
            for stage, (depth, width) in enumerate(zip(depths, widths)):
                if stage:
                    parts += [Channels(widths[stage - 1]), nn.Conv2d(widths[stage - 1], width, 2, stride=2)]
                parts += [ConvNextBlock(width) for _ in range(depth)]
            self.body, self.norm, self.head = nn.Sequential(*parts), nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], classes)

        def forward(self, x):
            return self.head(self.norm(self.body(x).mean((2, 3))))

    class Inverted(nn.Module):
        """A block of EfficientNet: expansion, depthwise convolution, squeeze and excitation, projection."""
        def __init__(self, inputs, outputs, expand, kernel, stride):
            super().__init__()
            middle = inputs * expand
            self.same = stride == 1 and inputs == outputs
            self.enter = nn.Sequential(nn.Conv2d(inputs, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.SiLU()) if expand > 1 else nn.Identity()
            self.deep = nn.Sequential(nn.Conv2d(middle, middle, kernel, stride, kernel // 2, groups=middle, bias=False), nn.BatchNorm2d(middle), nn.SiLU())
            self.less, self.more = nn.Conv2d(middle, max(inputs // 4, 1), 1), nn.Conv2d(max(inputs // 4, 1), middle, 1)
            self.leave = nn.Sequential(nn.Conv2d(middle, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

        def forward(self, x):
            y = self.deep(self.enter(x))
            y = y * torch.sigmoid(self.more(F.silu(self.less(y.mean((2, 3), keepdim=True)))))
            y = self.leave(y)
            return x + y if self.same else y

    class EfficientNet(nn.Module):
        def __init__(self, stages, width, classes):
            super().__init__()
            parts, inputs = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.SiLU()], width
            for expand, outputs, count, stride, kernel in stages:
                for place in range(count):
                    parts.append(Inverted(inputs, outputs, expand, kernel, stride if place == 0 else 1))
                    inputs = outputs
            parts += [nn.Conv2d(inputs, 4 * inputs, 1, bias=False), nn.BatchNorm2d(4 * inputs), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
            self.body, self.drop, self.head = nn.Sequential(*parts), nn.Dropout(0.0), nn.Linear(4 * inputs, classes)

        def forward(self, x):
            return self.head(self.drop(self.body(x)))

    class DitBlock(nn.Module):
        """A block of a diffusion transformer: the step and the class scale, shift and gate."""
        def __init__(self, features, heads):
            super().__init__()
            self.heads = heads
            self.first, self.second = (nn.LayerNorm(features, elementwise_affine=False, eps=1e-6) for _ in range(2))
            self.mix, self.out = nn.Linear(features, 3 * features), nn.Linear(features, features)
            self.up, self.down = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)
            self.condition = nn.Sequential(nn.SiLU(), nn.Linear(features, 6 * features))

        def forward(self, x, c):
            rows, tokens, features = x.shape
            shift, scale, gate, shift2, scale2, gate2 = self.condition(c)[:, None].chunk(6, dim=-1)
            q, k, v = self.mix(self.first(x) * (1 + scale) + shift).view(rows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, tokens, features)
            x = x + gate * self.out(y)
            y = self.second(x) * (1 + scale2) + shift2
            return x + gate2 * self.down(F.gelu(self.up(y), approximate="tanh"))

    class Dit(nn.Module):
        def __init__(self, size, features, layers, heads):
            super().__init__()
            self.size, self.features = size, features
            self.patches, self.places = nn.Conv2d(4, features, 2, stride=2), nn.Parameter(torch.zeros(1, (size // 2) ** 2, features))
            self.time = nn.Sequential(nn.Linear(256, features), nn.SiLU(), nn.Linear(features, features))
            self.classes = nn.Embedding(1001, features)
            self.blocks = nn.ModuleList([DitBlock(features, heads) for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(features, elementwise_affine=False), nn.Linear(features, 16)

        def forward(self, x, time, classes):
            rates = torch.exp(-math.log(10000) * torch.arange(128, device=x.device) / 128)
            angles = time[:, None].float() * rates
            c = self.time(torch.cat((angles.cos(), angles.sin()), dim=-1)) + self.classes(classes)
            y, side = self.patches(x).flatten(2).transpose(1, 2) + self.places, self.size // 2
            for block in self.blocks:
                y = block(y, c)
            y = self.head(self.norm(y)).view(-1, side, side, 2, 2, 4)
            return torch.einsum("nhwpqc->nchpwq", y).reshape(-1, 4, self.size, self.size)

    class StateBlock(nn.Module):
        """A diagonal state space, whose convolution over all tokens is a product of Fourier transforms."""
        def __init__(self, features, states):
            super().__init__()
            self.norm, self.out = nn.LayerNorm(features), nn.Linear(features, 2 * features)
            self.rate = nn.Parameter(torch.linspace(-6.9, -2.3, features))
            self.real = nn.Parameter(torch.full((features, states), -0.693))
            self.imaginary = nn.Parameter(math.pi * torch.arange(states).float().repeat(features, 1))
            self.c = nn.Parameter(torch.ones(features, states, 2))
            self.skip = nn.Parameter(torch.ones(features))

        def kernel(self, tokens):
            step = self.rate.exp()[:, None]
            a = torch.complex(-self.real.exp(), self.imaginary)
            c = torch.view_as_complex(self.c) * ((a * step).exp() - 1.0) / a
            powers = ((a * step)[..., None] * torch.arange(tokens, device=a.device)).exp()
            return 2 * torch.einsum("hn,hnl->hl", c, powers).real

        def forward(self, x):
            tokens = x.shape[1]
            u = self.norm(x).float().transpose(1, 2)
            k = torch.fft.rfft(self.kernel(tokens), n=2 * tokens)
            y = torch.fft.irfft(torch.fft.rfft(u, n=2 * tokens) * k, n=2 * tokens)[..., :tokens] + u * self.skip[:, None]
            return x + F.glu(self.out(F.gelu(y).transpose(1, 2)), dim=-1)

    class States(nn.Module):
        def __init__(self, features, layers, states, classes):
            super().__init__()
            self.enter = nn.Linear(3, features)
            self.blocks, self.head = nn.ModuleList([StateBlock(features, states) for _ in range(layers)]), nn.Linear(features, classes)

        def forward(self, x):
            x = self.enter(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(1))

    class Dlrm(nn.Module):
        """Recommendation: bags of embeddings, dot products of all pairs, two stacks of layers."""
        def __init__(self, tables, rows, features, dense, top):
            super().__init__()
            self.bags = nn.ModuleList([nn.EmbeddingBag(rows, features, mode="sum") for _ in range(tables)])
            self.bottom, count = stack([13, *dense, features]), tables + 1
            self.top = stack([features + count * (count - 1) // 2, *top, 1])
            self.register_buffer("pairs", torch.tril_indices(count, count, offset=-1))

        def forward(self, dense, sparse):
            x = self.bottom(dense)
            y = torch.stack([x] + [bag(index) for bag, index in zip(self.bags, sparse.unbind(0))], dim=1)
            dots = torch.bmm(y, y.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
            return self.top(torch.cat((x, dots), dim=1))[:, 0]

    class GraphAttention(nn.Module):
        """Graph attention: a softmax over the edges of each node."""
        def __init__(self, inputs, outputs, heads):
            super().__init__()
            self.heads, self.size = heads, outputs // heads
            self.mix = nn.Linear(inputs, outputs, bias=False)
            self.a, self.b = nn.Parameter(torch.full((heads, self.size), 0.1)), nn.Parameter(torch.full((heads, self.size), 0.2))

        def forward(self, x, sources, targets):
            h = self.mix(x).view(-1, self.heads, self.size)
            scores = F.leaky_relu((h * self.a).sum(-1)[sources] + (h * self.b).sum(-1)[targets], 0.2)
            index = targets[:, None].expand_as(scores)
            most = torch.full((x.shape[0], self.heads), float("-inf"), device=x.device).scatter_reduce(0, index, scores.detach(), "amax")
            e = (scores - most[targets]).exp()
            total = torch.zeros(x.shape[0], self.heads, device=x.device).index_add(0, targets, e)
            weights = e / total[targets].clamp(min=1e-16)
            result = torch.zeros_like(h).index_add(0, targets, h[sources] * weights[..., None])
            return result.flatten(1)

    class Gat(nn.Module):
        def __init__(self, inputs, features, heads, classes):
            super().__init__()
            self.first, self.second = GraphAttention(inputs, features, heads), GraphAttention(features, features, heads)
            self.head = nn.Linear(features, classes)

        def forward(self, x, sources, targets):
            return self.head(F.elu(self.second(F.elu(self.first(x, sources, targets)), sources, targets)))

    class Radiance(nn.Module):
        """A radiance field with the rendering of its rays."""
        def __init__(self, features, bands):
            super().__init__()
            self.bands = bands
            inputs = 3 + 6 * bands
            self.first = nn.ModuleList([nn.Linear(inputs if place == 0 else features, features) for place in range(4)])
            self.second = nn.ModuleList([nn.Linear(inputs + features if place == 0 else features, features) for place in range(4)])
            self.density, self.color = nn.Linear(features, 1), nn.Sequential(nn.Linear(features, features // 2), nn.ReLU(), nn.Linear(features // 2, 3))

        def encoded(self, x):
            waves = x[..., None] * 2.0 ** torch.arange(self.bands, device=x.device)
            return torch.cat((x, waves.sin().flatten(-2), waves.cos().flatten(-2)), dim=-1)

        def forward(self, origins, directions, depths):
            x = self.encoded(origins[:, None] + directions[:, None] * depths[..., None])
            y = x
            for layer in self.first:
                y = F.relu(layer(y))
            y = torch.cat((x, y), dim=-1)
            for layer in self.second:
                y = F.relu(layer(y))
            density, color = F.relu(self.density(y)[..., 0]), torch.sigmoid(self.color(y))
            steps = torch.cat((depths[:, 1:] - depths[:, :-1], torch.full_like(depths[:, :1], 1e10)), dim=-1)
            alpha = 1 - torch.exp(-density * steps)
            passed = torch.cumprod(torch.cat((torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10), dim=-1), dim=-1)[:, :-1]
            return ((alpha * passed)[..., None] * color).sum(1)

    class Wave(nn.Module):
        """WaveNet: dilated convolutions with gates and skips."""
        def __init__(self, features, layers, classes):
            super().__init__()
            self.words = nn.Embedding(classes, features)
            self.deep = nn.ModuleList([nn.Conv1d(features, 2 * features, 2, dilation=2 ** (place % 9)) for place in range(layers)])
            self.out, self.skip = (nn.ModuleList([nn.Conv1d(features, features, 1) for _ in range(layers)]) for _ in range(2))
            self.end = nn.Sequential(nn.ReLU(), nn.Conv1d(features, features, 1), nn.ReLU(), nn.Conv1d(features, classes, 1))

        def forward(self, tokens):
            x, total = self.words(tokens).transpose(1, 2), 0
            for deep, out, skip in zip(self.deep, self.out, self.skip):
                a, b = deep(F.pad(x, (deep.dilation[0], 0))).chunk(2, dim=1)
                y = torch.tanh(a) * torch.sigmoid(b)
                x, total = x + out(y), total + skip(y)
            return self.end(total).transpose(1, 2)

    class Translator(nn.Module):
        """A bidirectional GRU that is read by a GRU with additive attention, all steps at once."""
        def __init__(self, vocabulary, features):
            super().__init__()
            self.source, self.target = nn.Embedding(vocabulary, features), nn.Embedding(vocabulary, features)
            self.encoder = nn.GRU(features, features, 2, batch_first=True, bidirectional=True)
            self.decoder = nn.GRU(features, features, 2, batch_first=True)
            self.q, self.k, self.v = nn.Linear(features, features), nn.Linear(2 * features, features), nn.Linear(features, 1)
            self.head = nn.Linear(3 * features, vocabulary)

        def forward(self, source, target):
            memory, y = self.encoder(self.source(source))[0], self.decoder(self.target(target))[0]
            scores = self.v(torch.tanh(self.q(y)[:, :, None] + self.k(memory)[:, None]))[..., 0]
            context = F.softmax(scores, dim=-1) @ memory
            return self.head(torch.cat((y, context), dim=-1))

    class Autoencoder(nn.Module):
        def __init__(self, width, latent):
            super().__init__()
            parts, inputs = [], 3
            for step in range(4):
                parts += [nn.Conv2d(inputs, width << step, 3, 2, 1), nn.GroupNorm(4, width << step), nn.SiLU()]
                inputs = width << step
            self.encoder, self.mean, self.spread = nn.Sequential(*parts), nn.Conv2d(inputs, latent, 1), nn.Conv2d(inputs, latent, 1)
            parts = [nn.Conv2d(latent, inputs, 1)]
            for step in reversed(range(4)):
                outputs = width << max(step - 1, 0)
                parts += [nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), nn.Conv2d(inputs, outputs, 3, 1, 1), nn.GroupNorm(4, outputs), nn.SiLU()]
                inputs = outputs
            self.decoder = nn.Sequential(*parts, nn.Conv2d(inputs, 3, 3, 1, 1))

        def forward(self, x):
            h = self.encoder(x)
            mean, spread = self.mean(h), self.spread(h).clamp(-10, 5)
            z = mean + torch.exp(0.5 * spread) * torch.zeros_like(mean).normal_()
            loss = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).mean()
            return F.mse_loss(self.decoder(z).float(), x) + 1e-3 * loss.float()

    class Points(nn.Module):
        """PointNet: layers of each point, the largest over all points."""
        def __init__(self, sizes, classes):
            super().__init__()
            parts, inputs = [], 3
            for outputs in sizes:
                parts += [nn.Conv1d(inputs, outputs, 1, bias=False), nn.BatchNorm1d(outputs), nn.ReLU(inplace=True)]
                inputs = outputs
            self.body = nn.Sequential(*parts)
            self.head = nn.Sequential(nn.Linear(inputs, inputs // 2), nn.BatchNorm1d(inputs // 2), nn.ReLU(), nn.Linear(inputs // 2, classes))

        def forward(self, x):
            return self.head(self.body(x).max(dim=-1).values)

    class Sharper(nn.Module):
        """Super-resolution: residual convolutions, then pixels from channels."""
        def __init__(self, width, blocks):
            super().__init__()
            self.enter = nn.Conv2d(3, width, 3, padding=1)
            self.blocks = nn.ModuleList([nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.PReLU(), nn.Conv2d(width, width, 3, padding=1))
                                         for _ in range(blocks)])
            self.leave = nn.Sequential(nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(width, 3, 3, padding=1))

        def forward(self, x):
            x = first = self.enter(x)
            for block in self.blocks:
                x = x + 0.1 * block(x)
            return self.leave(x + first)

    class Towers(nn.Module):
        """A tower for images and one for words, compared within the batch."""
        def __init__(self, size, patch, features, layers, heads, vocabulary, tokens):
            super().__init__()
            self.patches, self.places = nn.Conv2d(3, features, patch, stride=patch, bias=False), nn.Parameter(torch.zeros((size // patch) ** 2, features))
            self.words, self.order = nn.Embedding(vocabulary, features), nn.Parameter(torch.zeros(tokens, features))
            self.seen, self.read = (nn.ModuleList([models.Block(features, heads) for _ in range(layers)]) for _ in range(2))
            self.a, self.b, self.scale = nn.LayerNorm(features), nn.LayerNorm(features), nn.Parameter(torch.tensor(2.659))

        def forward(self, images, texts):
            x, y = self.patches(images).flatten(2).transpose(1, 2) + self.places, self.words(texts) + self.order
            for seen, read in zip(self.seen, self.read):
                x, y = seen(x), read(y)
            x, y = F.normalize(self.a(x).mean(1), dim=-1), F.normalize(self.b(y)[:, -1], dim=-1)
            scores = self.scale.exp() * x @ y.t()
            places = torch.arange(scores.shape[0], device=scores.device)
            return (F.cross_entropy(scores.float(), places) + F.cross_entropy(scores.t().float(), places)) / 2

    globals().update({key: value for key, value in locals().items() if isinstance(value, type)})


def stack(sizes):
    """Returns linear layers with ReLU between them."""
    parts = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        parts += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def images(rows, size, channels=3):
    return torch.randn(rows, channels, size, size)


@model()
def t5(tiny):
    vocabulary, rows, source, target = (97, 2, 16, 12) if tiny else (32128, 32, 512, 128)
    network = T5(vocabulary, *((32, 2, 4, 64) if tiny else (512, 6, 8, 2048)))
    return network, lambda m, x, y: entropy(m(x, y), y), [words(vocabulary, rows, source), words(vocabulary, rows, target)]


@model()
def swin(tiny):
    network = Swin(*((32, 32, (2, 2), 4, 10) if tiny else (224, 96, (2, 2, 6, 2), 7, 1000)))
    return network, lambda m, x, y: entropy(m(x), y), [images(*((2, 32) if tiny else (96, 224))), words(10, 2 if tiny else 96)]


@model(channels_last=True)
def convnext(tiny):
    network = ConvNext(*(((1, 1), (8, 16), 10) if tiny else ((3, 3, 9, 3), (96, 192, 384, 768), 1000)))
    return network, lambda m, x, y: entropy(m(x), y), [images(*((2, 32) if tiny else (96, 224))), words(10, 2 if tiny else 96)]


@model(channels_last=True)
def efficientnet(tiny):
    stages = [(1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)]
    network = EfficientNet(*(([(1, 8, 1, 1, 3), (2, 8, 2, 2, 5)], 8, 10) if tiny else (stages, 32, 1000)))
    return network, lambda m, x, y: entropy(m(x), y), [images(*((2, 32) if tiny else (128, 224))), words(10, 2 if tiny else 128)]


@model()
def dit(tiny):
    rows, size = (2, 8) if tiny else (64, 32)
    network = Dit(size, *((32, 2, 2) if tiny else (768, 12, 12)))
    batch = [images(rows, size, 4), words(1000, rows), words(1000, rows), images(rows, size, 4)]
    return network, lambda m, x, t, c, y: F.mse_loss(m(x, t, c).float(), y), batch


@model()
def states(tiny):
    rows, tokens = (2, 16) if tiny else (32, 1024)
    network = States(*((8, 1, 4, 10) if tiny else (256, 6, 32, 10)))
    return network, lambda m, x, y: entropy(m(x), y), [torch.randn(rows, tokens, 3), words(10, rows)]


@model(autocast=False)
def dlrm(tiny):
    tables, entries, rows, each = (3, 11, 4, 2) if tiny else (26, 100_000, 4096, 10)
    network = Dlrm(tables, entries, *((4, [8], [8]) if tiny else (64, [512, 256], [1024, 512])))
    batch = [torch.randn(rows, 13), words(entries, tables, rows, each), (words(2, rows)).float()]
    return network, lambda m, x, s, y: F.binary_cross_entropy_with_logits(m(x, s), y), batch


@model(autocast=False)
def gat(tiny):
    nodes, edges, inputs = (20, 80, 8) if tiny else (50_000, 1_000_000, 128)
    network = Gat(inputs, *((8, 2, 4) if tiny else (256, 8, 16)))
    batch = [torch.randn(nodes, inputs), words(nodes, edges), words(nodes, edges), words(4, nodes)]
    return network, lambda m, x, s, t, y: entropy(m(x, s, t), y), batch


@model(autocast=False)
def radiance(tiny):
    rays, steps = (4, 8) if tiny else (4096, 64)
    depths = torch.linspace(2.0, 6.0, steps).repeat(rays, 1)
    network = Radiance(*((16, 2) if tiny else (256, 10)))
    return network, lambda m, o, d, t, y: F.mse_loss(m(o, d, t), y), [torch.randn(rays, 3), torch.randn(rays, 3), depths, torch.randn(rays, 3)]


@model()
def wave(tiny):
    rows, tokens, classes = (2, 16, 16) if tiny else (16, 8192, 256)
    network = Wave(*((8, 2) if tiny else (128, 18)), classes)
    return network, lambda m, x, y: entropy(m(x), y), [words(classes, rows, tokens), words(classes, rows, tokens)]


@model(autocast=False)
def translator(tiny):
    vocabulary, rows, source, target = (31, 2, 6, 5) if tiny else (8000, 64, 48, 40)
    network = Translator(vocabulary, 8 if tiny else 512)
    return network, lambda m, x, y: entropy(m(x, y), y), [words(vocabulary, rows, source), words(vocabulary, rows, target)]


@model()
def autoencoder(tiny):
    network = Autoencoder(*((4, 4) if tiny else (64, 16)))
    return network, lambda m, x: m(x), [images(*((2, 32) if tiny else (64, 128)))]


@model()
def points(tiny):
    rows, count = (2, 16) if tiny else (64, 4096)
    network = Points(*(((8, 16), 4) if tiny else ((64, 64, 128, 1024), 40)))
    return network, lambda m, x, y: entropy(m(x), y), [torch.randn(rows, 3, count), words(4, rows)]


@model()
def sharper(tiny):
    rows, size = (2, 8) if tiny else (16, 96)
    network = Sharper(*((4, 1) if tiny else (64, 16)))
    return network, lambda m, x, y: F.l1_loss(m(x).float(), y), [images(rows, size), images(rows, 2 * size)]


@model()
def towers(tiny):
    vocabulary, rows, tokens = (97, 2, 8) if tiny else (49408, 128, 77)
    network = Towers(*((32, 8, 32, 1, 2) if tiny else (224, 32, 512, 8, 8)), vocabulary, tokens)
    return network, lambda m, x, y: m(x, y), [images(rows, 32 if tiny else 224), words(vocabulary, rows, tokens)]


if __name__ == "__main__":
    models.main()
