"""Classes of tensors without elements of their own, with gradients above them: programs that run here and in PyTorch.

`python wrappers.py torch` prints PyTorch's results, which `tests/test_wrappers.py` holds."""

import importlib
import json
import sys


def rounded(value):
    return [rounded(one) for one in value] if isinstance(value, list) else round(value, 5)


def classes(torch):
    """Returns a class that wraps a tensor and computes every operator with it, and a class of weights in 8 bits."""
    tree_map = torch.utils._pytree.tree_map

    class Wrapped(torch.Tensor):
        """A tensor that counts its operators."""

        seen = []

        @staticmethod
        def __new__(cls, elements, requires_grad=False):
            return torch.Tensor._make_wrapper_subclass(cls, elements.shape, strides=elements.stride(), dtype=elements.dtype, device=elements.device,
                                                       requires_grad=requires_grad)

        def __init__(self, elements, requires_grad=False):
            self.elements = elements

        def __tensor_flatten__(self):
            return ["elements"], None

        def __repr__(self):
            return f"Wrapped({self.elements})"

        __torch_function__ = torch._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            cls.seen.append(str(func))
            plain = tree_map(lambda value: value.elements if isinstance(value, cls) else value, (args, kwargs or {}))
            result = func(*plain[0], **plain[1])
            if func._schema.is_mutable:
                return args[0]
            return tree_map(lambda value: cls(value) if isinstance(value, torch.Tensor) else value, result)

    class Quantized(torch.Tensor):
        """A matrix of 8-bit integers with a scale for each row."""

        @staticmethod
        def __new__(cls, integers, scales):
            return torch.Tensor._make_wrapper_subclass(cls, integers.shape, dtype=scales.dtype, device=integers.device)

        def __init__(self, integers, scales):
            self.integers, self.scales = integers, scales

        @classmethod
        def of(cls, weight):
            scales = weight.detach().abs().amax(1) / 127
            return cls((weight.detach() / scales[:, None]).round().to(torch.int8), scales)

        def dequantized(self):
            return self.integers.to(self.scales.dtype) * self.scales[:, None]

        def __repr__(self):
            return "Quantized"

        __torch_function__ = torch._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            name = str(func)
            if name in ("aten.detach.default", "aten.alias.default"):
                return cls(args[0].integers, args[0].scales)
            args = [value.dequantized() if isinstance(value, cls) else value for value in args]
            if name == "aten.t.default":
                return args[0].t()
            return func(*args, **(kwargs or {}))
    return Wrapped, Quantized


def functions(torch):
    """Yields results and gradients of functions of wrapped tensors."""
    Wrapped, _ = classes(torch)
    F = torch.nn.functional
    x = torch.arange(12.0).view(3, 4).sin()
    y = torch.arange(12.0).view(3, 4).cos() + 1.5
    cases = {
        "elements": lambda x, y: (x * y + 2 * x - y / 3).tanh() / (y * y + 1) - x.exp().sqrt() + y.log() * (1 - x),
        "product": lambda x, y: x @ y.t(), "linear": lambda x, y: F.linear(x, y, y[:, 0]), "rows": lambda x, y: F.linear(x.view(3, 2, 2), y[:2, :2]),
        "sums": lambda x, y: x.sum(0) * y.mean(1, keepdim=True) + x.mean(), "shapes": lambda x, y: x.reshape(2, 6).transpose(0, 1).unsqueeze(0) * 2,
        "many": lambda x, y: torch.matmul(x.view(3, 2, 2), y.view(3, 2, 2)), "joined": lambda x, y: torch.cat([x, y], 1)[1:, ::2].relu(),
        "activations": lambda x, y: F.gelu(x) + F.silu(y) + torch.sigmoid(x) * F.softmax(y, 1) + F.log_softmax(x, 0),
        "powers": lambda x, y: y ** 2 + y.rsqrt() + x.clamp(-0.5, 0.5) + x.abs() + torch.where(x > 0, x, y), "copies": lambda x, y: x.clone().double().float() + y}
    for name, function in cases.items():
        one, other = Wrapped(x, True), Wrapped(y, True)
        result = function(one, other)
        (result * result).sum().backward()
        kinds = [type(value).__name__ for value in (result, one.grad, other.grad)]
        yield name, kinds, [rounded(value.elements.tolist()) if value is not None else None for value in (result, one.grad, other.grad)]


def lora(torch):
    """Trains the two factors beside a quantized weight, and returns the losses."""
    Wrapped, Quantized = classes(torch)
    nn = torch.nn

    class Adapted(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = nn.Parameter(Quantized.of(weight), requires_grad=False)
            self.a = nn.Parameter(torch.arange(8.0).view(2, 4).sin() / 4)
            self.b = nn.Parameter(torch.zeros(3, 2))

        def forward(self, x):
            return nn.functional.linear(x, self.weight) + x @ self.a.t() @ self.b.t()
    net = nn.Sequential(nn.Linear(4, 4), Adapted(torch.arange(12.0).view(3, 4).cos()))
    with torch.no_grad():
        net[0].weight.copy_(torch.arange(16.0).view(4, 4).cos())
        net[0].bias.zero_()
    assert isinstance(net[1].weight, nn.Parameter) and isinstance(net[1].weight, Quantized) and len(list(net.parameters())) == 5
    optimizer = torch.optim.SGD([one for one in net.parameters() if one.requires_grad], lr=0.05)
    x, y, losses = torch.arange(20.0).view(5, 4).sin(), torch.arange(15.0).view(5, 3).cos(), []
    for _ in range(5):
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return rounded(losses)


def trained(torch):
    """Trains a network whose parameters are wrapped, and returns the losses and a gradient of a gradient."""
    Wrapped, _ = classes(torch)
    nn = torch.nn
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    for number, (part, name) in enumerate((part, name) for part in (net[0], net[2]) for name in ("weight", "bias")):
        own = getattr(part, name)
        setattr(part, name, nn.Parameter(Wrapped((torch.arange(float(own.numel())) + number).sin().view(own.shape))))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
    x, y, losses = torch.arange(20.0).view(5, 4).sin(), torch.arange(10.0).view(5, 2).cos(), []
    for _ in range(4):
        loss = ((net(Wrapped(x)) - Wrapped(y)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.elements.item())
    v = Wrapped(torch.tensor([1.0, 2.0]), True)
    first, = torch.autograd.grad((v * v * v).sum(), v, create_graph=True)
    first.sum().backward()
    w = Wrapped(torch.tensor([1.0, 2.0]), True)
    y = w * 2
    y.sum().backward()
    try:
        y.sum().backward()
        again = "runs again"
    except RuntimeError as error:
        again = str(error)[:44]
    return rounded(losses), rounded(v.grad.elements.tolist()), rounded([float(value) for value in w.grad.elements]), again


def custom(torch):
    """Passes a wrapped weight through a function with its own backward pass."""
    _, Quantized = classes(torch)

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight.dequantized().t()

        @staticmethod
        def backward(ctx, gradient):
            x, weight = ctx.saved_tensors
            assert type(weight) is Quantized
            return gradient @ weight.dequantized(), gradient.t() @ x
    weight = torch.nn.Parameter(Quantized.of(torch.arange(6.0).view(2, 3).cos()))
    x = torch.arange(12.0).view(4, 3).sin().requires_grad_()
    seen = []
    weight.register_hook(lambda gradient: seen.append(type(gradient).__name__))
    for _ in range(2):
        Product.apply(x, weight).square().sum().backward()
    return seen, type(weight.grad).__name__, rounded(weight.grad.tolist()), rounded(x.grad.tolist())


def results(torch):
    return {"functions": list(map(list, functions(torch))), "lora": lora(torch), "trained": list(trained(torch)), "custom": list(custom(torch))}


if __name__ == "__main__":
    print(json.dumps(results(importlib.import_module(sys.argv[1]))))
