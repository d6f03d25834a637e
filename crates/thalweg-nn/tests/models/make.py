"""Writes complete models of PyTorch with their results, one file per model: gpt2.pt.gz, bert.pt.gz, …

    python3 make.py FOLDER          # small models, which the tests read
    python3 make.py FOLDER full     # GPT-2 with 124 million parameters and ResNet-50, two files of 1 GB and 0.3 GB: gpt2_full.pt, resnet_full.pt

It needs PyTorch 2.11. Names and layouts of weights are those of Hugging Face's transformers (GPT-2, BERT, Llama) and of
torchvision (ResNet). A file is a dictionary:

- `weights`: the state at the start, rounded to 1/256;
- `batches`: dictionaries of inputs;
- `output`, `loss`, `gradients`, `buffers`: of the first batch, in f64 (`output` and `gradients` are saved in f32);
- `losses`, `losses64`: of 50 steps of training in f32 and in f64, with the batches in turn;
- `errors`, of full models: by how much PyTorch is off in f32 from that in f64, relative to the greatest number of each tensor;
- `half`, where the model has it: under autocast to bfloat16, `loss`, and by how much each gradient is off in the L2 norm,
  relative to that of the gradient in f64.
"""

import copy
import gzip
import io
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

STEPS = 50


class Conv1D(nn.Module):
    """A linear layer with its weight as (in, out), as GPT-2 has it."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.1)
        self.bias = nn.Parameter(torch.randn(outputs) * 0.02)

    def forward(self, x):
        return x @ self.weight + self.bias


def heads_apart(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def heads_together(x):
    return x.transpose(-2, -3).flatten(-2)


class GPT2Attention(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.c_attn = Conv1D(features, 3 * features)
        self.c_proj = Conv1D(features, features)
        self.heads = heads

    def forward(self, x):
        q, k, v = (heads_apart(part, self.heads) for part in self.c_attn(x).chunk(3, dim=-1))
        return self.c_proj(heads_together(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class GPT2MLP(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.c_fc = Conv1D(features, 4 * features)
        self.c_proj = Conv1D(4 * features, features)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class GPT2Block(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(features)
        self.attn = GPT2Attention(features, heads)
        self.ln_2 = nn.LayerNorm(features)
        self.mlp = GPT2MLP(features)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2Model(nn.Module):
    def __init__(self, vocabulary, context, features, heads, layers):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, features)
        self.wpe = nn.Embedding(context, features)
        self.h = nn.ModuleList([GPT2Block(features, heads) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(features)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class GPT2(nn.Module):
    def __init__(self, vocabulary=61, context=16, features=32, heads=4, layers=2):
        super().__init__()
        self.transformer = GPT2Model(vocabulary, context, features, heads, layers)
        nn.init.normal_(self.transformer.wte.weight, std=0.1)
        nn.init.normal_(self.transformer.wpe.weight, std=0.1)
        self.lm_head = nn.Linear(features, vocabulary, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, batch):
        return self.lm_head(self.transformer(batch["tokens"]))

    def loss(self, output, batch):
        return F.cross_entropy(output.flatten(0, 1), batch["next"].flatten())

    def batch(self):
        start, stride = torch.randint(61, (4, 1)), torch.randint(1, 5, (4, 1))
        text = (start + stride * torch.arange(17)) % 61
        return {"tokens": text[:, :-1].contiguous(), "next": text[:, 1:].contiguous()}

    def optimizer(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.1)


class FullGPT2(GPT2):
    """GPT-2 with 124 million parameters, whose weights are as small as those that its training starts with."""

    def __init__(self):
        super().__init__(50257, 1024, 768, 12, 12)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def batch(self):
        text = torch.randint(50257, (2, 65))
        return {"tokens": text[:, :-1].contiguous(), "next": text[:, 1:].contiguous()}


class BertEmbeddings(nn.Module):
    def __init__(self, vocabulary, context, features):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, features, padding_idx=0)
        self.position_embeddings = nn.Embedding(context, features)
        self.token_type_embeddings = nn.Embedding(2, features)
        self.LayerNorm = nn.LayerNorm(features, eps=1e-12)

    def forward(self, tokens, types):
        positions = torch.arange(tokens.shape[1])
        x = self.word_embeddings(tokens) + self.token_type_embeddings(types) + self.position_embeddings(positions)
        return self.LayerNorm(x)


class BertSelfAttention(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.query = nn.Linear(features, features)
        self.key = nn.Linear(features, features)
        self.value = nn.Linear(features, features)
        self.heads = heads

    def forward(self, x, mask):
        q, k, v = (heads_apart(layer(x), self.heads) for layer in (self.query, self.key, self.value))
        return heads_together(F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :]))


class BertOutput(nn.Module):
    def __init__(self, inputs, features):
        super().__init__()
        self.dense = nn.Linear(inputs, features)
        self.LayerNorm = nn.LayerNorm(features, eps=1e-12)

    def forward(self, x, past):
        return self.LayerNorm(self.dense(x) + past)


class BertAttention(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.self = BertSelfAttention(features, heads)
        self.output = BertOutput(features, features)

    def forward(self, x, mask):
        return self.output(self.self(x, mask), x)


class BertIntermediate(nn.Module):
    def __init__(self, features, wide):
        super().__init__()
        self.dense = nn.Linear(features, wide)

    def forward(self, x):
        return F.gelu(self.dense(x))


class BertLayer(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.attention = BertAttention(features, heads)
        self.intermediate = BertIntermediate(features, 2 * features)
        self.output = BertOutput(2 * features, features)

    def forward(self, x, mask):
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class BertEncoder(nn.Module):
    def __init__(self, features, heads, layers):
        super().__init__()
        self.layer = nn.ModuleList([BertLayer(features, heads) for _ in range(layers)])

    def forward(self, x, mask):
        for layer in self.layer:
            x = layer(x, mask)
        return x


class BertPooler(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.dense = nn.Linear(features, features)

    def forward(self, x):
        return torch.tanh(self.dense(x[:, 0]))


class BertModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = BertEmbeddings(50, 12, 32)
        self.encoder = BertEncoder(32, 4, 2)
        self.pooler = BertPooler(32)

    def forward(self, tokens, types, mask):
        return self.pooler(self.encoder(self.embeddings(tokens, types), mask))


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = BertModel()
        self.classifier = nn.Linear(32, 3)

    def forward(self, batch):
        tokens = batch["tokens"]
        return self.classifier(self.bert(tokens, batch["types"], tokens != 0))

    def loss(self, output, batch):
        return F.cross_entropy(output, batch["classes"])

    def batch(self):
        tokens = torch.randint(1, 50, (6, 12))
        lengths = torch.randint(4, 13, (6, 1))
        places = torch.arange(12)
        tokens[places >= lengths] = 0
        types = ((places >= lengths // 2) & (places < lengths)).long()
        return {"tokens": tokens, "types": types, "classes": tokens.sum(1) % 3}

    def optimizer(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


class LlamaAttention(nn.Module):
    """Attention with fewer heads of keys than of queries, and positions as rotations."""

    def __init__(self, features, heads, key_heads):
        super().__init__()
        width = features // heads
        self.q_proj = nn.Linear(features, heads * width, bias=False)
        self.k_proj = nn.Linear(features, key_heads * width, bias=False)
        self.v_proj = nn.Linear(features, key_heads * width, bias=False)
        self.o_proj = nn.Linear(heads * width, features, bias=False)
        self.heads, self.key_heads = heads, key_heads

    def forward(self, x, cos, sin):
        def rotated(x):
            first, second = x.chunk(2, dim=-1)
            return x * cos + torch.cat([-second, first], dim=-1) * sin

        q = rotated(heads_apart(self.q_proj(x), self.heads))
        k = rotated(heads_apart(self.k_proj(x), self.key_heads))
        v = heads_apart(self.v_proj(x), self.key_heads)
        shared = self.heads // self.key_heads
        k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        return self.o_proj(heads_together(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class LlamaMLP(nn.Module):
    def __init__(self, features, wide):
        super().__init__()
        self.gate_proj = nn.Linear(features, wide, bias=False)
        self.up_proj = nn.Linear(features, wide, bias=False)
        self.down_proj = nn.Linear(wide, features, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.self_attn = LlamaAttention(features, 4, 2)
        self.mlp = LlamaMLP(features, 48)
        self.input_layernorm = nn.RMSNorm(features, eps=1e-5)
        self.post_attention_layernorm = nn.RMSNorm(features, eps=1e-5)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(53, 32)
        nn.init.normal_(self.embed_tokens.weight, std=0.2)
        self.layers = nn.ModuleList([LlamaLayer(32) for _ in range(2)])
        self.norm = nn.RMSNorm(32, eps=1e-5)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        rates = 10000.0 ** (-torch.arange(0, 8, 2, dtype=x.dtype) / 8)
        angles = torch.outer(torch.arange(tokens.shape[1], dtype=x.dtype), rates)
        angles = torch.cat([angles, angles], dim=-1)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.norm(x)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = LlamaModel()
        self.lm_head = nn.Linear(32, 53, bias=False)

    def forward(self, batch):
        return self.lm_head(self.model(batch["tokens"]))

    def loss(self, output, batch):
        return F.cross_entropy(output.flatten(0, 1), batch["next"].flatten())

    def batch(self):
        start, stride = torch.randint(53, (4, 1)), torch.randint(1, 5, (4, 1))
        text = (start + stride * torch.arange(13)) % 53
        return {"tokens": text[:, :-1].contiguous(), "next": text[:, 1:].contiguous()}

    def optimizer(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride, downsample):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = None
        if downsample:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        past = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + past)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Bottleneck(8, 4, 1, True), Bottleneck(16, 4, 1, False))
        self.layer2 = nn.Sequential(Bottleneck(16, 8, 2, True), Bottleneck(32, 8, 1, False))
        self.fc = nn.Linear(32, 5)

    def forward(self, batch):
        x = F.relu(self.bn1(self.conv1(batch["images"])))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.layer2(self.layer1(x))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))

    def loss(self, output, batch):
        return F.cross_entropy(output, batch["classes"])

    def batch(self):
        classes = torch.randint(5, (8,))
        wave = torch.sin(torch.arange(32) * (1 + classes[:, None]) / 4)
        images = wave[:, None, :, None] * wave[:, None, None, :] + 0.5 * torch.randn(8, 3, 32, 32)
        return {"images": (images * 32).round() / 32, "classes": classes}

    def optimizer(self):
        return torch.optim.SGD(self.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-4)


class FullResNet(ResNet):
    """ResNet-50."""

    def __init__(self):
        nn.Module.__init__(self)
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inputs = 64
        for layer, (width, count) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
            blocks = []
            for block in range(count):
                blocks.append(Bottleneck(inputs, width, 2 if layer and not block else 1, not block))
                inputs = 4 * width
            setattr(self, f"layer{layer + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, 1000)

    def forward(self, batch):
        x = F.relu(self.bn1(self.conv1(batch["images"])))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))

    def batch(self):
        return {"images": torch.randn(4, 3, 224, 224), "classes": torch.randint(1000, (4,))}


class Twice(nn.Sequential):
    """A convolution with its normalization, twice."""

    def __init__(self, inputs, outputs):
        def once(inputs):
            return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

        super().__init__(*once(inputs), *once(outputs))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1 = Twice(1, 8)
        self.down2 = Twice(8, 16)
        self.middle = Twice(16, 24)
        self.up2 = nn.ConvTranspose2d(24, 16, 2, stride=2)
        self.merge2 = Twice(32, 16)
        self.up1 = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1)
        self.merge1 = Twice(16, 8)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, batch):
        one = self.down1(batch["images"])
        two = self.down2(F.max_pool2d(one, 2))
        x = self.up2(self.middle(F.max_pool2d(two, 2)))
        x = self.merge2(torch.cat([two, x], dim=1))
        x = self.merge1(torch.cat([one, self.up1(x)], dim=1))
        return self.out(x)

    def loss(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch["masks"])

    def batch(self):
        middle, radius = torch.randint(4, 12, (4, 2, 1, 1)), torch.randint(2, 5, (4, 1, 1))
        places = torch.arange(16)
        far = (places[:, None] - middle[:, 0]) ** 2 + (places - middle[:, 1]) ** 2
        masks = (far <= radius**2).float()[:, None]
        images = masks + 0.5 * torch.randn(4, 1, 16, 16)
        return {"images": (images * 32).round() / 32, "masks": masks}

    def optimizer(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(40, 24)
        self.rnn = nn.LSTM(24, 24, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(24, 40)
        self.decoder.weight = self.encoder.weight

    def forward(self, batch):
        packed = pack_padded_sequence(
            self.encoder(batch["tokens"]), batch["lengths"], batch_first=True, enforce_sorted=False
        )
        result, _ = self.rnn(packed)
        return self.decoder(result.data)

    def loss(self, output, batch):
        wanted = pack_padded_sequence(batch["next"], batch["lengths"], batch_first=True, enforce_sorted=False)
        return F.cross_entropy(output, wanted.data)

    def batch(self):
        start, stride = torch.randint(40, (6, 1)), torch.randint(1, 4, (6, 1))
        text = (start + stride * torch.arange(11)) % 40
        lengths = torch.randint(3, 11, (6,))
        return {"tokens": text[:, :-1].contiguous(), "next": text[:, 1:].contiguous(), "lengths": lengths}

    def optimizer(self):
        return torch.optim.SGD(self.parameters(), lr=1.0, momentum=0.5, nesterov=True)


class Messages(nn.Module):
    """A layer of a graph network: the sum of the neighbours' messages changes a node's state."""

    def __init__(self, features):
        super().__init__()
        self.message = nn.Linear(2 * features + 2, features)
        self.update = nn.GRUCell(features, features)

    def forward(self, nodes, edges, of_edges):
        source, target = edges[0], edges[1]
        pairs = torch.cat([nodes[source], nodes.index_select(0, target), of_edges], dim=1)
        messages = F.silu(self.message(pairs))
        collected = torch.zeros_like(nodes).index_add(0, target, messages)
        return self.update(collected, nodes)


class GraphNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(5, 16)
        self.layers = nn.ModuleList([Messages(16) for _ in range(3)])
        self.decode = nn.Linear(16, 2)

    def forward(self, batch):
        nodes = torch.tanh(self.encode(batch["nodes"]))
        for layer in self.layers:
            nodes = layer(nodes, batch["edges"], batch["of_edges"])
        graphs = batch["graphs"][:, None].expand_as(nodes)
        sums = torch.zeros(3, 16, dtype=nodes.dtype).scatter_add(0, graphs, nodes)
        return self.decode(sums)

    def loss(self, output, batch):
        return F.mse_loss(output, batch["wanted"])

    def batch(self):
        graphs = torch.arange(3).repeat_interleave(torch.tensor([5, 8, 7]))
        first = torch.tensor([0, 5, 13])
        sizes = torch.tensor([5, 8, 7])
        of = torch.randint(3, (40,))
        ends = [first[of] + torch.randint(100, (40,)) % sizes[of] for _ in range(2)]
        nodes = torch.randint(-8, 9, (20, 5)) / 8
        wanted = torch.zeros(3, 2).index_add(0, graphs, nodes[:, :2])
        of_edges = torch.randint(-8, 9, (40, 2)) / 8
        return {"nodes": nodes, "edges": torch.stack(ends), "of_edges": of_edges, "graphs": graphs, "wanted": wanted}

    def optimizer(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-3, amsgrad=True)


def in_dtype(batch, dtype):
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in batch.items()}


def losses(model, batches, dtype):
    model = copy.deepcopy(model).to(dtype)
    optimizer, found = model.optimizer(), []
    for step in range(STEPS):
        batch = in_dtype(batches[step % len(batches)], dtype)
        optimizer.zero_grad()
        loss = model.loss(model(batch), batch)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def once(model, batch, dtype, autocast=False):
    """Returns output, loss and gradients of a model. The call changes only the model's statistics."""
    model, batch = copy.deepcopy(model).to(dtype), in_dtype(batch, dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model(batch)
        loss = model.loss(output, batch)
    loss.backward()
    return model, output, loss, {name: parameter.grad for name, parameter in model.named_parameters()}


def results(model, batches):
    """Returns everything that a file contains of a model except its training."""
    after, output, loss, gradients = once(model, batches[0], torch.float64)
    golden = {
        # Plain dictionaries, and no storage that is larger than its tensor.
        "weights": dict(model.state_dict()),
        "batches": batches,
        "output": output.detach().float(),
        "loss": loss.item(),
        "gradients": {key: value.float() for key, value in gradients.items()},
        "buffers": {key: value.float() for key, value in after.named_buffers()},
    }
    return golden, gradients


def write_full(folder):
    for name, kind in {"gpt2_full": FullGPT2, "resnet_full": FullResNet}.items():
        torch.manual_seed(11)
        model = kind()
        golden, gradients = results(model, [model.batch()])
        after, output, loss, found = once(model, golden["batches"][0], torch.float32)
        pairs = [("output", output, golden["output"]), ("loss", loss, torch.tensor(golden["loss"]))]
        pairs += [(key, found[key], value) for key, value in gradients.items()]
        pairs += [(key, value, golden["buffers"][key]) for key, value in after.named_buffers()]
        off = lambda found, exact: ((found - exact).abs().max() / exact.abs().max()).item()
        golden["errors"] = {key: off(found, exact) for key, found, exact in pairs}
        torch.save(golden, f"{folder}/{name}.pt")
        numbers = sum(parameter.numel() for parameter in model.parameters())
        print(name, numbers, "parameters; loss", golden["loss"], "; in f32 off by at most", max(golden["errors"].values()))


def main():
    if sys.argv[2:] == ["full"]:
        return write_full(sys.argv[1])
    models = {
        "gpt2": (GPT2, True),
        "bert": (Bert, False),
        "llama": (Llama, False),
        "resnet": (ResNet, True),
        "unet": (UNet, False),
        "lstm": (LanguageModel, False),
        "graph": (GraphNetwork, False),
    }
    for name, (kind, has_half) in models.items():
        torch.manual_seed(11)
        model = kind()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(256).round_().div_(256)
        batches = [model.batch() for _ in range(4)]
        golden, gradients = results(model, batches)
        golden["losses"] = losses(model, batches, torch.float32)
        golden["losses64"] = losses(model, batches, torch.float64)
        if has_half:
            _, _, half_loss, half = once(model, batches[0], torch.float32, autocast=True)
            errors = {key: ((half[key] - value).norm() / value.norm()).item() for key, value in gradients.items()}
            golden["half"] = {"loss": half_loss.item(), "errors": errors}
        raw = io.BytesIO()
        torch.save(golden, raw)
        path = f"{sys.argv[1]}/{name}.pt.gz"
        with open(path, "wb") as out, gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) as file:
            file.write(raw.getvalue())
        numbers = sum(parameter.numel() for parameter in model.parameters())
        print(name, numbers, "parameters; losses", golden["losses"][0], golden["losses"][-1], golden["losses64"][-1])


if __name__ == "__main__":
    main()
