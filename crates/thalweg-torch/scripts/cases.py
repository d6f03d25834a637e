"""Operators on shapes, for `kernels.py`: calls, and their results by formulas in float64."""

import math

import torch

aten = torch.ops.aten
ALL = ["_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm",
       "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward", "native_batch_norm", "native_batch_norm_backward",
       "embedding_dense_backward", "_fused_rms_norm",
       "_fused_rms_norm_backward"]
# Rows of a table of embeddings.
EMBEDDINGS = 50304


def numbers(shape, dtype, device, seed):
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)


class Case:
    """An operator on one shape: `call()` returns its results."""

    def __init__(self, operator, dtype, rows, columns, device):
        self.operator, self.dtype, self.rows, self.columns, self.device = operator, dtype, rows, columns, device
        shape = (rows, columns)
        self.x, self.gradient = numbers(shape, dtype, device, 1), numbers(shape, dtype, device, 2)
        if "layer_norm" in operator:
            self.weight = numbers((columns,), dtype, device, 3) + 1
            self.bias = numbers((columns,), dtype, device, 4)
            _, self.mean, self.deviation = self.norm(self.x, self.weight, self.bias)
        elif "group_norm" in operator:
            # A row is a group of channels of an instance.
            self.groups, self.channels = 8 if rows % 8 == 0 else rows, 2 if columns % 2 == 0 else 1
            self.x, self.gradient = (
                values.view(rows // self.groups, self.groups * self.channels, columns // self.channels) for values in (self.x, self.gradient))
            self.weight, self.bias = (numbers(self.x.shape[1:2], dtype, device, seed) + 1 for seed in (3, 4))
            _, self.mean, self.deviation = self.group_norm()
        elif "batch_norm" in operator:
            # A row is a channel of an instance; parameters are in float32, as under autocast. PyTorch has a block for each channel: few channels are slow.
            self.channels = math.gcd(rows, 256) if rows % 8 == 0 else rows
            self.x, self.gradient = (values.view(rows // self.channels, self.channels, columns) for values in (self.x, self.gradient))
            self.weight, self.bias = (numbers((self.channels,), torch.float32, device, seed) + 1 for seed in (3, 4))
            self.running = [torch.zeros(self.channels, device=device), torch.ones(self.channels, device=device)]
            _, self.mean, self.deviation = self.batch_norm()
        elif "rms_norm" in operator:
            self.weight = numbers((columns,), dtype, device, 3) + 1
            _, self.root = aten._fused_rms_norm(self.x, [columns], self.weight, 1e-5)
        elif operator == "embedding_dense_backward":
            # Few are frequent, as words are: the first one is 2.7 % of them.
            uniform = torch.rand((rows,), generator=torch.Generator(device).manual_seed(5), device=device)
            self.table = EMBEDDINGS if rows > 64 else 64
            self.indices = (uniform**3 * self.table).long().clamp_max(self.table - 1)
        elif operator == "cross_entropy_loss":
            self.x.requires_grad_()
            self.target = torch.randint(0, columns, (rows,), device=device)
        elif "backward" in operator:
            function = aten._softmax if operator == "_softmax_backward_data" else aten._log_softmax
            self.x = function(self.x, 1, False)

    def group_norm(self):
        return aten.native_group_norm(self.x, self.weight, self.bias, *self.x.shape, self.groups, 1e-5)

    def batch_norm(self):
        return aten.native_batch_norm(self.x, self.weight, self.bias, *self.running, True, 0.1, 1e-5)

    def norm(self, x, weight, bias):
        return aten.native_layer_norm(x, [self.columns], weight, bias, 1e-5)

    def call(self):
        if self.operator == "cross_entropy_loss":
            return torch.autograd.grad(torch.nn.functional.cross_entropy(self.x, self.target), self.x)
        if self.operator in ("_softmax", "_log_softmax"):
            return (getattr(aten, self.operator)(self.x, 1, False),)
        if "data" in self.operator:
            return (getattr(aten, self.operator)(self.gradient, self.x, 1, self.dtype),)
        if self.operator == "embedding_dense_backward":
            return (aten.embedding_dense_backward(self.gradient, self.indices, self.table, -1, False),)
        if self.operator == "native_group_norm":
            return self.group_norm()
        if self.operator == "native_group_norm_backward":
            arguments = self.gradient, self.x, self.mean, self.deviation, self.weight, *self.x.shape, self.groups
            return aten.native_group_norm_backward(*arguments, [True, True, True])
        if self.operator == "native_batch_norm":
            return self.batch_norm()
        if self.operator == "native_batch_norm_backward":
            arguments = self.gradient, self.x, self.weight, *self.running, self.mean, self.deviation
            return aten.native_batch_norm_backward(*arguments, True, 1e-5, [True, True, True])
        if self.operator == "_fused_rms_norm":
            return aten._fused_rms_norm(self.x, [self.columns], self.weight, 1e-5)
        if self.operator == "_fused_rms_norm_backward":
            arguments = self.gradient, self.x, [self.columns], self.root, self.weight
            return aten._fused_rms_norm_backward(*arguments, [True, False])[:1]
        if self.operator == "native_layer_norm":
            return self.norm(self.x, self.weight, self.bias)
        arguments = self.gradient, self.x, [self.columns], self.mean, self.deviation, self.weight, self.bias
        return aten.native_layer_norm_backward(*arguments, [True, False, False])[:1]

    def exact(self):
        """Returns the results by formulas in float64."""
        x, gradient = self.x.double(), self.gradient.double()
        if self.operator == "_softmax":
            return (torch.exp(x - x.amax(1, True)) / torch.exp(x - x.amax(1, True)).sum(1, keepdim=True),)
        if self.operator == "_log_softmax":
            shifted = x - x.amax(1, True)
            return (shifted - torch.exp(shifted).sum(1, keepdim=True).log(),)
        if self.operator == "_softmax_backward_data":
            return (x * (gradient - (x * gradient).sum(1, keepdim=True)),)
        if self.operator == "_log_softmax_backward_data":
            return (gradient - torch.exp(x) * gradient.sum(1, keepdim=True),)
        if self.operator == "embedding_dense_backward":
            zeros = torch.zeros(self.table, self.columns, dtype=torch.float64, device=self.device)
            return (zeros.index_add_(0, self.indices, gradient),)
        weight = self.weight.double()
        if self.operator == "_fused_rms_norm":
            root = 1 / (x.square().mean(1, keepdim=True) + 1e-5).sqrt()
            return x * root * weight, root
        if self.operator == "_fused_rms_norm_backward":
            root = self.root.double()
            slope = (gradient * weight * x * root).mean(1, keepdim=True)
            return (root * (gradient * weight - x * root * slope),)
        bias = self.bias.double()
        if "batch_norm" in self.operator:
            return self.exact_batch(x, gradient, weight[:, None], bias[:, None])
        if self.operator == "native_group_norm":
            parts = x.view(-1, self.groups, self.channels * x.shape[2])
            mean = parts.mean(2, keepdim=True)
            deviation = 1 / ((parts - mean).square().mean(2, keepdim=True) + 1e-5).sqrt()
            result = ((parts - mean) * deviation).view(x.shape) * weight[:, None] + bias[:, None]
            return result, mean[..., 0], deviation[..., 0]
        if self.operator == "native_group_norm_backward":
            parts = x.view(-1, self.groups, self.channels * x.shape[2])
            deviation = self.deviation.double()[..., None]
            normalized = (parts - self.mean.double()[..., None]) * deviation
            weighted = (gradient * weight[:, None]).view(parts.shape)
            slope = (weighted * normalized).mean(2, keepdim=True)
            of_input = deviation * (weighted - weighted.mean(2, keepdim=True) - normalized * slope)
            return of_input.view(x.shape), (gradient * normalized.view(x.shape)).sum((0, 2)), gradient.sum((0, 2))
        if self.operator == "native_layer_norm":
            mean = x.mean(1, keepdim=True)
            deviation = 1 / ((x - mean).square().mean(1, keepdim=True) + 1e-5).sqrt()
            return (x - mean) * deviation * weight + bias, mean, deviation
        normalized = (x - self.mean.double()) * self.deviation.double()
        gradient = gradient * weight
        slope = (gradient * normalized).mean(1, keepdim=True)
        return (self.deviation.double() * (gradient - gradient.mean(1, keepdim=True) - normalized * slope),)

    def exact_batch(self, x, gradient, weight, bias):
        mean = x.mean((0, 2), keepdim=True)
        deviation = 1 / ((x - mean).square().mean((0, 2), keepdim=True) + 1e-5).sqrt()
        if self.operator == "native_batch_norm":
            return (x - mean) * deviation * weight + bias, mean.flatten(), deviation.flatten()
        mean, deviation = (part.double()[:, None] for part in (self.mean, self.deviation))
        normalized = (x - mean) * deviation
        along, total = ((part * gradient).mean((0, 2), keepdim=True) for part in (normalized, torch.ones_like(x)))
        of_input = deviation * weight * (gradient - total - normalized * along)
        return of_input, (gradient * normalized).sum((0, 2)), gradient.sum((0, 2))

    def bytes(self):
        if self.operator == "embedding_dense_backward":
            return (self.rows + self.table) * self.columns * self.x.element_size()
        tensors = 3 if "backward" in self.operator or "cross" in self.operator else 2
        return tensors * self.x.numel() * self.x.element_size()


REDUCTIONS = ["sum.dim_IntList", "mean.dim", "amax", "logsumexp"]
COLUMNS = ["_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", *REDUCTIONS]


class Formed:
    """An operator on rows, on columns (runs of `columns` points among `after` neighbours), or a copy that transposes."""

    def __init__(self, operator, form, dtype, before, columns, after, device):
        self.operator, self.form, self.dtype, self.columns, self.device = operator, form, dtype, columns, device
        self.rows = before * after
        if form == "transposed":
            self.x = numbers((before, after, columns), dtype, device, 1).transpose(1, 2)
            self.columns = after
            return
        shape = (before, columns) if form == "rows" else (before, columns, after)
        self.x, self.gradient = numbers(shape, dtype, device, 1), numbers(shape, dtype, device, 2)
        if "backward" in operator:
            function = aten._softmax if operator == "_softmax_backward_data" else aten._log_softmax
            self.x = function(self.x, 1, False)

    def call(self):
        if self.form == "transposed":
            return (self.x.clone(memory_format=torch.contiguous_format),)
        if self.operator in ("_softmax", "_log_softmax"):
            return (getattr(aten, self.operator)(self.x, 1, False),)
        if "data" in self.operator:
            return (getattr(aten, self.operator)(self.gradient, self.x, 1, self.dtype),)
        name, _, overload = self.operator.partition(".")
        return (getattr(getattr(aten, name), overload or "default")(self.x, [1]),)

    def exact(self):
        x = self.x.double()
        if self.form == "transposed":
            return (x.contiguous(),)
        if self.operator in REDUCTIONS:
            return (getattr(torch, self.operator.partition(".")[0])(x, 1),)
        if self.operator == "_softmax":
            return (torch.softmax(x, 1),)
        if self.operator == "_log_softmax":
            return (torch.log_softmax(x, 1),)
        gradient = self.gradient.double()
        if self.operator == "_softmax_backward_data":
            return (x * (gradient - (x * gradient).sum(1, keepdim=True)),)
        return (gradient - torch.exp(x) * gradient.sum(1, keepdim=True),)

    def bytes(self):
        tensors = 1 if self.operator in REDUCTIONS else 3 if "backward" in self.operator else 2
        return tensors * self.x.numel() * self.x.element_size()


def formed_cases(elements=1 << 26):
    """Operator, form, dtype, before, columns, after."""
    for dtype in (torch.bfloat16, torch.float32):
        for columns in (64, 256, 1024, 4096, 16384, 65536):
            for operator in REDUCTIONS:
                yield operator, "rows", dtype, elements // columns, columns, 1
        for operator in COLUMNS:
            for before, columns, after in ((1, 4096, 1024), (1, 4096, 16384), (1, 65536, 1024), (16, 1024, 512), (64, 1024, 1024), (64, 128, 8192), (4096, 64, 256), (8192, 16, 512)):
                yield operator, "columns", dtype, before, columns, after
        for before, columns, after in ((1, 8192, 8192), (1, 1024, 65536), (1, 65536, 1024), (192, 1024, 64), (192, 64, 1024), (16, 1024, 768), (256, 512, 512), (1 << 16, 32, 32)):
            yield "clone", "transposed", dtype, before, columns, after
