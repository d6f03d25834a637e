"""Modules of `torch.nn`, each with fixed weights and inputs: the program's only import of a tensor library is `torch`."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence, unpad_sequence


def numbers(shape, place=0):
    count = 1
    for size in shape:
        count *= size
    values = torch.sin(torch.arange(count, dtype=torch.float64) * 12.9898 + place) * 43758.5453
    return (values - torch.floor(values) - 0.5).float().view(shape)


def weights(model):
    with torch.no_grad():
        for place, (_, parameter) in enumerate(sorted(model.named_parameters())):
            parameter.copy_(numbers(parameter.shape, place + 1))
    return model


def layers():
    """Yields modules with their inputs."""
    line, image, volume = numbers((2, 4, 9)), numbers((2, 4, 7, 6)), numbers((1, 4, 5, 6, 4))
    yield nn.MaxPool1d(3, 2, padding=1), (line,)
    yield nn.MaxPool1d(2, dilation=2), (line,)
    yield nn.MaxPool3d((2, 3, 2), ceil_mode=True), (volume,)
    yield nn.MaxPool3d(2, return_indices=True), (volume,)
    yield nn.AvgPool1d(3, 2, padding=1, count_include_pad=False), (line,)
    yield nn.AvgPool3d(2), (volume,)
    for dims, input in ((1, line), (2, image), (3, volume)):
        yield getattr(nn, f"AdaptiveAvgPool{dims}d")(3), (input,)
        yield getattr(nn, f"AdaptiveMaxPool{dims}d")(2, return_indices=True), (input,)
        yield getattr(nn, f"ConvTranspose{dims}d")(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), (input,)
        yield getattr(nn, f"InstanceNorm{dims}d")(4, affine=True), (input,)
        yield getattr(nn, f"ConstantPad{dims}d")(1, 3.5), (input,)
        yield getattr(nn, f"ZeroPad{dims}d")(tuple(range(2 * dims))), (input,)
        yield getattr(nn, f"ReflectionPad{dims}d")(2), (input,)
        yield getattr(nn, f"ReplicationPad{dims}d")(2), (input,)
        yield getattr(nn, f"CircularPad{dims}d")((1, 2) * dims), (input,)
    yield nn.AdaptiveAvgPool3d((None, 2, 1)), (volume,)
    yield nn.ConvTranspose1d(4, 4, 2, stride=3, dilation=2, bias=False), (line,)
    tracked = nn.InstanceNorm2d(4, track_running_stats=True)
    yield tracked, (image,)
    yield tracked.eval(), (image,)
    yield nn.InstanceNorm1d(4), (line[0],)
    indices, offsets = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 3, 3, 5])
    for mode in ("sum", "mean", "max"):
        yield nn.EmbeddingBag(10, 3, mode=mode), (indices, offsets)
        yield nn.EmbeddingBag(10, 3, mode=mode, padding_idx=4), (indices.view(2, 4),)
    yield nn.EmbeddingBag(10, 3, mode="sum"), (indices, offsets, numbers((8,)))
    yield nn.EmbeddingBag(10, 3, include_last_offset=True), (indices, torch.tensor([0, 3, 8]))
    x, h, c = numbers((3, 5)), numbers((3, 4), 7), numbers((3, 4), 8)
    for cell, state in ((nn.RNNCell(5, 4), h), (nn.RNNCell(5, 4, nonlinearity="relu"), h), (nn.GRUCell(5, 4, bias=False), h),
                        (nn.LSTMCell(5, 4), (h, c))):
        yield cell, (x, state)
        yield cell, (x[0],)
    yield from more(line.clone().requires_grad_(), image.clone().requires_grad_(), volume.clone().requires_grad_())


def more(line, image, volume):
    """Yields modules whose inputs also require gradients."""
    for dims, input in ((1, line), (2, image), (3, volume)):
        yield getattr(nn, f"LPPool{dims}d")(2, 2, ceil_mode=True), (input,)
        yield getattr(nn, f"LPPool{dims}d")(4.0, 3, stride=1), (input,)
        yield nn.LocalResponseNorm(dims + 1, alpha=0.5, k=2.0), (input,)
    yield nn.LPPool2d(2, (3, 2), stride=(1, 2)), (image,)
    yield nn.PixelShuffle(2), (image,)
    yield nn.PixelUnshuffle(3), (image.detach()[..., :6, :].clone().requires_grad_(),)
    yield nn.Bilinear(9, 6, 5), (line.detach()[0], image.detach()[0, :, 0])
    yield nn.Bilinear(9, 9, 2, bias=False), (line, line)
    yield nn.Conv1d(4, 2, 4, padding="same"), (line,)
    yield nn.Conv2d(4, 2, (2, 3), padding="same", dilation=(3, 2)), (image,)
    for mode in ("reflect", "replicate", "circular"):
        yield nn.Conv1d(4, 2, 4, padding="same", padding_mode=mode), (line,)
        yield nn.Conv2d(4, 2, 3, stride=2, padding=(2, 1), padding_mode=mode), (image,)
    yield nn.Conv3d(4, 2, 2, padding=1, padding_mode="replicate"), (volume,)
    for options in (dict(size=4, mode="area"), dict(scale_factor=1.7, mode="area"), dict(scale_factor=(0.6, 1.7), mode="nearest-exact"),
                    dict(size=(3, 4), mode="bilinear", antialias=True), dict(scale_factor=0.5, mode="bicubic", antialias=True, align_corners=False),
                    dict(scale_factor=1.7, mode="bilinear", recompute_scale_factor=True), dict(scale_factor=1.7, recompute_scale_factor=True)):
        yield Resized(**options), (image,)
    yield Resized(size=5, mode="area"), (line,)
    query, key, value = line.detach()[..., :8], numbers((2, 3, 6), 2), numbers((2, 3, 5), 4)
    padding = torch.tensor([[False, False, True], [False, False, False]])
    for batch_first in (True, False):
        inputs = [tensor if batch_first else tensor.transpose(0, 1) for tensor in (query, key, value)]
        yield nn.MultiheadAttention(8, 2, kdim=6, vdim=5, batch_first=batch_first), (*inputs, padding)
        yield nn.MultiheadAttention(8, 4, bias=False, add_bias_kv=True, add_zero_attn=True, kdim=6, vdim=5, batch_first=batch_first), (*inputs, padding)
    yield nn.MultiheadAttention(8, 2, add_zero_attn=True), (query, query, query)
    yield Resized(scale_factor=1.3, mode="nearest-exact"), (volume,)
    yield from losses()


def losses():
    """Yields losses, and modules without parameters, with inputs that require gradients."""
    def wanted(*shape, place=0):
        return numbers(shape, place).requires_grad_()
    signs = torch.tensor([1.0, -1.0, 1.0])
    yield nn.MarginRankingLoss(0.2), (wanted(3), wanted(3, place=2), signs)
    yield nn.HingeEmbeddingLoss(0.7), (wanted(3), signs)
    yield nn.SoftMarginLoss(reduction="sum"), (wanted(3), signs)
    yield nn.CosineEmbeddingLoss(0.1), (wanted(3, 5), wanted(3, 5, place=2), signs)
    yield nn.TripletMarginLoss(0.8, swap=True), (wanted(3, 5), wanted(3, 5, place=2), wanted(3, 5, place=4))
    yield nn.MultiMarginLoss(p=2, weight=torch.tensor([1.0, 2.0, 0.5, 1.0])), (wanted(3, 4), torch.tensor([0, 3, 1]))
    yield nn.MultiLabelMarginLoss(), (wanted(2, 4), torch.tensor([[3, 0, -1, 1], [1, -1, 2, 0]]))
    yield nn.MultiLabelSoftMarginLoss(), (wanted(2, 4), torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]]))
    yield nn.PoissonNLLLoss(full=True), (wanted(3), torch.tensor([0.0, 2.0, 5.0]))
    yield nn.GaussianNLLLoss(full=True), (wanted(3, 2), numbers((3, 2), 3), (numbers((3, 2), 5) + 0.6).requires_grad_())
    scores = F.log_softmax(wanted(6, 2, 5), 2)
    yield nn.CTCLoss(), (scores.detach().requires_grad_(), torch.tensor([[1, 2, 2], [3, 1, 4]]), torch.tensor([6, 5]), torch.tensor([3, 2]))
    for kind in (nn.LogSigmoid, nn.Softsign, nn.Tanhshrink, nn.Softmax2d):
        yield kind(), (wanted(2, 3, 4, 4),)
    for kind in (nn.Hardshrink, nn.Softshrink):
        yield kind(0.2), (wanted(3, 4),)
    yield nn.Threshold(0.1, -2.0), (wanted(3, 4),)
    yield nn.RReLU().eval(), (wanted(3, 4),)
    yield nn.PairwiseDistance(keepdim=True), (wanted(3, 4), wanted(3, 4, place=1))
    yield nn.CosineSimilarity(), (wanted(3, 4), wanted(3, 4, place=1))
    yield nn.Unfold((2, 3), padding=1, stride=2), (wanted(2, 3, 5, 6),)
    yield nn.Fold((5, 6), (2, 3), padding=1, stride=2), (wanted(2, 18, 9),)
    yield nn.ChannelShuffle(2), (wanted(1, 4, 2, 2),)
    yield nn.UpsamplingBilinear2d(scale_factor=2), (wanted(1, 2, 3, 3),)
    yield nn.UpsamplingNearest2d((5, 7)), (wanted(1, 2, 3, 3),)
    for kind in (nn.Dropout1d, nn.AlphaDropout, nn.FeatureAlphaDropout):
        yield kind(0.0), (wanted(2, 3, 4),)
    yield Unpooled(1, 2), (wanted(2, 3, 8),)
    yield Unpooled(1, 2, output_size=(9,)), (wanted(2, 3, 9),)
    yield Unpooled(2, 2), (wanted(2, 3, 6, 8),)
    yield Unpooled(3, 2), (wanted(1, 2, 4, 6, 2),)
    grid = (numbers((1, 3, 3, 2), 3) * 2.2).requires_grad_()
    for mode in ("bilinear", "nearest"):
        yield Sampled(mode), (wanted(1, 2, 4, 5), grid if mode == "bilinear" else grid.detach())


class Unpooled(nn.Module):
    """A pool followed by the corresponding unpool."""

    def __init__(self, dims, *options, **sizes):
        super().__init__()
        self.pool = getattr(nn, f"MaxPool{dims}d")(*options, return_indices=True)
        self.unpool, self.sizes = getattr(nn, f"MaxUnpool{dims}d")(*options), sizes

    def forward(self, input):
        values, places = self.pool(input)
        return self.unpool(values, places, **self.sizes)


class Resized(nn.Module):
    """`interpolate` as a module."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, input):
        return F.interpolate(input, **self.options)


class Sampled(nn.Module):
    """`grid_sample` as a module."""

    def __init__(self, mode):
        super().__init__()
        self.mode = mode

    def forward(self, image, grid):
        return F.grid_sample(image, grid, mode=self.mode, padding_mode="border", align_corners=False)


def sequences():
    """Yields outputs of recurrent networks over sequences of different lengths."""
    rows = [numbers((length, 3), length) for length in (2, 5, 3)]
    padded = pad_sequence(rows, batch_first=True, padding_value=-1.0)
    yield padded
    yield pad_sequence(rows, padding_side="left")
    yield from unpad_sequence(padded, torch.tensor([2, 5, 3]), batch_first=True)
    packed = pack_padded_sequence(padded, torch.tensor([2, 5, 3]), batch_first=True, enforce_sorted=False)
    yield packed.data
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        net = weights(kind(3, 4, num_layers=2, bidirectional=True))
        output, state = net(packed)
        back, lengths = pad_packed_sequence(output, batch_first=True, total_length=6)
        yield back
        yield lengths.float()
        start = numbers((4, 3, 4), 5)
        again, last = net(packed, (start, start * 0.5) if kind is nn.LSTM else start)
        yield again.data
        for state in (state, last):
            yield from state if isinstance(state, tuple) else (state,)
    yield pack_sequence([rows[1], rows[2], rows[0]]).batch_sizes.float()


def train():
    """Returns, for each output, its shape, its sum and a weighted sum, and a weighted sum of each gradient of a parameter or an
    input."""
    found = []

    def note(tensor):
        flat = tensor.detach().double().reshape(-1).to("cpu")
        place = torch.arange(flat.numel(), dtype=torch.float64) + 1
        found.append([*tensor.shape, flat.sum().item(), (flat * torch.cos(place)).sum().item()])

    for module, inputs in layers():
        weights(module)
        outputs = module(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for output in outputs:
            note(output)
        wanting = [input for input in inputs if torch.is_tensor(input) and input.requires_grad]
        if list(module.parameters()) or wanting:
            (outputs[0] * numbers(outputs[0].shape, 3)).sum().backward()
            for _, parameter in sorted(module.named_parameters()):
                if parameter.grad is not None:
                    note(parameter.grad)
                    parameter.grad = None
            for input in wanting:
                if input.grad is not None:
                    note(input.grad)
                    input.grad = None
    for output in sequences():
        note(output)
    return found


if __name__ == "__main__":
    print(train())
