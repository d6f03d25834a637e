"""Three models in eager PyTorch with kernels inside (`thalweg_torch.enable_kernels`) and without: losses of the same training, and the time of a step.

    python models.py [--models gpt2,bert,resnet50] [--steps 50] [--rounds 5] [--everywhere] [--out FILE]
    python models.py --device cpu         small models without a GPU, by loops on the host: what this script does

GPT-2 (124M), an encoder of BERT-base's size that learns masked words, and ResNet-50, written of `torch.nn`'s modules, in bfloat16 by autocast, from the same seeds on the same
random data. Each trains for `--steps` steps four times: in float32 without kernels, which is taken for the truth; without kernels; with them; and without them from parameters that are off by
half a unit of bfloat16. How far each of the last three is from the truth is the median over the steps, since now and then a step of a training is far off in each of them. Then both ways take
turns for the time of a step. The exit status is the number of models that are further from the truth with kernels than one and a half times as far as the further of the two without.
"""

import argparse
import json
import statistics
import sys
import time

import torch
import thalweg_torch
from training_step import Gpt2

nn = torch.nn


class Encoder(nn.Module):
    """BERT's encoder, with a head that predicts masked words; the vocabulary is padded to a multiple of 64."""

    def __init__(self, features=768, heads=12, layers=12, vocabulary=30528, tokens=512):
        super().__init__()
        self.words, self.positions, self.norm = nn.Embedding(vocabulary, features), nn.Embedding(tokens, features), nn.LayerNorm(features)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(features, heads, 4 * features, dropout=0.0, activation="gelu", batch_first=True) for _ in range(layers))
        self.transform, self.transform_norm = nn.Linear(features, features), nn.LayerNorm(features)
        self.head = nn.Linear(features, vocabulary)

    def forward(self, words, masked):
        x = self.norm(self.words(words) + self.positions.weight)
        for layer in self.layers:
            x = layer(x)
        scores = self.head(self.transform_norm(nn.functional.gelu(self.transform(x))))
        return nn.functional.cross_entropy(scores.view(-1, scores.shape[-1]), masked.view(-1))


class Bottleneck(nn.Module):
    """A block of ResNet's: three convolutions around a shortcut."""

    def __init__(self, before, width, stride):
        super().__init__()
        after = 4 * width

        def convolution(inputs, outputs, size, step=1):
            return nn.Sequential(nn.Conv2d(inputs, outputs, size, step, size // 2, bias=False), nn.BatchNorm2d(outputs))

        self.body = nn.Sequential(
            convolution(before, width, 1), nn.ReLU(inplace=True), convolution(width, width, 3, stride), nn.ReLU(inplace=True), convolution(width, after, 1))
        self.shortcut = convolution(before, after, 1, stride) if stride > 1 or before != after else nn.Identity()

    def forward(self, x):
        return nn.functional.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-50."""

    def __init__(self, width=64, blocks=(3, 4, 6, 3), classes=1000):
        super().__init__()
        layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        before = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                layers.append(Bottleneck(before, width << stage, 2 if stage > 0 and block == 0 else 1))
                before = 4 * (width << stage)
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(before, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, images, labels):
        return nn.functional.cross_entropy(self.head(self.layers(images).mean((2, 3))), labels)


class Training:
    """A model with an optimizer and batches that are used in turn, all drawn from one seed."""

    def __init__(self, name, device, off=False, exact=False):
        torch.manual_seed(0)
        self.exact = exact
        small = device == "cpu"
        draw = torch.Generator().manual_seed(1)
        if name == "resnet50":
            self.model = ResNet(8, (1, 1, 1, 1), 16) if small else ResNet()
            batch, side, classes = (4, 64, 16) if small else (128, 224, 1000)
            batches = [(torch.randn(batch, 3, side, side, generator=draw), torch.randint(classes, (batch,), generator=draw)) for _ in range(8)]
        else:
            kind = Gpt2 if name == "gpt2" else Encoder
            sizes = dict(features=32, heads=2, layers=2, vocabulary=128, tokens=24) if small else {}
            self.model = kind(**sizes)
            vocabulary, tokens = self.model.state_dict()["tokens.weight" if name == "gpt2" else "words.weight"].shape[0], (24 if small else 1024 if name == "gpt2" else 512)
            batch = 2 if small else 16 if name == "gpt2" else 32
            batches = [torch.randint(vocabulary, (2, batch, tokens), generator=draw).unbind(0) for _ in range(8)]
            if name == "bert":
                batches = [(words, following.masked_fill(torch.rand(words.shape, generator=draw) > 0.15, -100)) for words, following in batches]
            for module in self.model.modules():
                if isinstance(module, nn.Embedding):
                    nn.init.normal_(module.weight, std=0.02)
        self.model.to(device)
        self.batches = [tuple(part.to(device) for part in batch) for batch in batches]
        if off:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.mul_(1 + 2**-9 * (2 * torch.rand(parameter.shape, generator=draw).to(device) - 1))
        if name == "resnet50":
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
        else:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.device, self.steps = device, 0

    def step(self):
        batch = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, torch.bfloat16, enabled=not self.exact):
            loss = self.model(*batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def losses(self, steps):
        return torch.stack([self.step() for _ in range(steps)]).float().tolist()

    def time(self, steps):
        """Milliseconds of a step."""
        synchronize(self.device)
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        synchronize(self.device)
        return 1000 * (time.perf_counter() - begin) / steps


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def switch(on, options):
    thalweg_torch.disable_kernels()
    if on:
        thalweg_torch.enable_kernels(device=options.device, everywhere=options.everywhere or options.device == "cpu")


def counts():
    return {kernel.operator: (kernel.taken, kernel.passed_on) for kernel in thalweg_torch.kernels()}


def distance(losses, others):
    """Returns the median of the differences of two rows of losses, in parts of the mean loss."""
    return statistics.median(abs(a - b) for a, b in zip(losses, others)) / statistics.mean(others)


def set_tf32(allowed):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def measure(name, options):
    """Losses and times of a model: a row of the table."""
    rows = {}
    for way, on, off in (("exact", False, False), ("without", False, False), ("with", True, False), ("off", False, True)):
        switch(on, options)
        set_tf32(way != "exact")
        before = counts()
        training = Training(name, options.device, off, exact=way == "exact")
        rows[way] = training.losses(options.steps)
        if on:
            calls = {operator: [now - then for now, then in zip(after, before.get(operator, (0, 0)))] for operator, after in counts().items()}
        print(f"{name} {way}: losses {[round(loss, 4) for loss in rows[way]]}", flush=True)
        if off:
            break
        del training
    times = {False: [], True: []}
    for number in range(options.rounds + 1):
        for on in (False, True) if number % 2 == 0 else (True, False):
            switch(on, options)
            times[on].append(training.time(options.timed_steps))
    ratio = statistics.median(a / b for a, b in zip(times[False][1:], times[True][1:]))
    calls = {operator: pair for operator, pair in calls.items() if any(pair)}
    return dict(
        model=name, parameters=sum(part.numel() for part in training.model.parameters()), without_ms=statistics.median(times[False][1:]),
        with_ms=statistics.median(times[True][1:]), ratio=ratio, from_exact={way: distance(rows[way], rows["exact"]) for way in ("without", "with", "off")},
        calls=calls, losses=rows, times={"without": times[False], "with": times[True]})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="gpt2,bert,resnet50")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--steps", type=int, default=50, help="steps whose losses are compared")
    parser.add_argument("--rounds", type=int, default=5, help="turns of both ways whose time is taken")
    parser.add_argument("--timed-steps", type=int, default=10, help="steps of a turn")
    parser.add_argument("--everywhere", action="store_true", help="take every call, also those that the table leaves to PyTorch")
    parser.add_argument("--out", help="where all of it is written, one JSON object a model")
    options = parser.parse_args()
    rows = []
    for name in options.models.split(","):
        rows.append(measure(name, options))
        if options.out:
            with open(options.out, "a") as out:
                print(json.dumps(rows[-1]), file=out)
    print(f"\n{'model':10} {'parameters':>11} {'without':>10} {'with':>10} {'':7} losses from those of float32: {'without':>9} {'off':>9} {'with':>9}")
    wrong = 0
    for row in rows:
        without, off, ours = (row["from_exact"][way] for way in ("without", "off", "with"))
        is_too_far = not ours <= 1.5 * max(without, off)
        wrong += is_too_far
        print(f"{row['model']:10} {row['parameters']:11,} {row['without_ms']:7.2f} ms {row['with_ms']:7.2f} ms  x{row['ratio']:.3f} {'':30} {without:9.1e} {off:9.1e} {ours:9.1e}"
              + (" TOO FAR" if is_too_far else ""))
    for row in rows:
        print(f"{row['model']}: calls taken and passed on: " + ", ".join(f"{operator} {taken} {passed_on}" for operator, (taken, passed_on) in row["calls"].items()))
    return wrong


if __name__ == "__main__":
    sys.exit(main())
