"""Writes pytorch.txt for ../it/goldens.rs: the results of PyTorch's CUDA backend. Run it on a machine with PyTorch and
a GPU:

    python3 make.py > pytorch.txt

One case per block: a line `case NAME key=number ...`, then a line per tensor, `in|param|grad|out NAME dtype shape : values`, where
floats are written as the hexadecimal digits of their bits. Inputs are drawn from a fixed seed.
"""
import struct, sys, torch, torch.nn.functional as F

torch.manual_seed(20261121)
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
dev = "cuda"

BITS = {torch.float32: ("float32", torch.int32, 8), torch.float64: ("float64", torch.int64, 16),
        torch.float16: ("float16", torch.int16, 4), torch.bfloat16: ("bfloat16", torch.int16, 4)}

def line(kind, name, t):
    t = t.detach().contiguous().cpu()
    shape = ",".join(map(str, t.shape)) or "-"
    if t.dtype in BITS:
        label, ints, digits = BITS[t.dtype]
        mask = (1 << digits * 4) - 1
        numbers = [format(v & mask, f"0{digits}x") for v in t.view(ints).flatten().tolist()]
    else:
        label = {torch.int64: "int64", torch.int32: "int32", torch.uint8: "uint8", torch.bool: "bool"}[t.dtype]
        numbers = [str(int(v)) for v in t.flatten().tolist()]
    print(kind, name, label, shape, ":", *numbers)

def case(name, function, inputs, grads=True, **numbers):
    print("case", name, *[f"{k}={v}" for k, v in numbers.items()])
    leaves = [t.to(dev).requires_grad_(grads and t.is_floating_point()) for t in inputs]
    for i, t in enumerate(leaves): line("in", str(i), t)
    out = function(*leaves)
    line("out", "0", out)
    if grads and out.is_floating_point():
        g = torch.randn(out.shape, dtype=torch.float64).to(out.dtype).to(dev)
        line("grad", "out", g)
        out.backward(g)
        for i, t in enumerate(leaves):
            if t.grad is not None: line("grad", str(i), t.grad)

def normal(*shape, dtype=torch.float32): return torch.randn(*shape, dtype=torch.float64).to(dtype)
def positive(*shape, dtype=torch.float32): return (torch.rand(*shape, dtype=torch.float64) * 3 + 0.1).to(dtype)

unary = dict(neg=torch.neg, abs=torch.abs, sign=torch.sign, square=torch.square, reciprocal=torch.reciprocal, exp=torch.exp,
    expm1=torch.expm1, sin=torch.sin, cos=torch.cos, tanh=torch.tanh, sigmoid=torch.sigmoid, silu=F.silu, softplus=F.softplus,
    gelu=F.gelu, gelu_tanh=lambda x: F.gelu(x, approximate="tanh"), relu=F.relu, floor=torch.floor, ceil=torch.ceil, trunc=torch.trunc, round=torch.round)
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for name, f in unary.items(): case(name, f, [normal(12, dtype=dtype) * 2])
    for name in ("sqrt", "rsqrt", "log", "log1p"): case(name, getattr(torch, name), [positive(12, dtype=dtype)])
    for name in ("add", "sub", "mul", "div", "maximum", "minimum"):
        case(name, getattr(torch, name), [normal(3, 4, dtype=dtype), normal(4, dtype=dtype)])
    case("pow", torch.pow, [positive(12, dtype=dtype), normal(12, dtype=dtype)])
case("leaky_relu_rising", lambda x: F.leaky_relu(x, 0.25), [normal(12)], negative_slope=0.25)
case("clamp", lambda x: x.clamp(-0.5, 0.75), [normal(12)], min=-0.5, max=0.75)
case("pow_scalar", lambda x: x ** 3.0, [normal(12)], exponent=3.0)
case("lerp", lambda x, y: torch.lerp(x, y, 0.25), [normal(12), normal(12)], weight=0.25)
# Kinks and specials.
special = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 1e-40])
for name in ("abs", "sign", "relu", "sqrt", "exp", "log", "tanh", "sigmoid", "floor", "round"):
    case(name, unary.get(name) or getattr(torch, name), [special])
other = torch.tensor([0.0, 0.0, float("nan"), -1.0, 1.0, float("-inf"), 2.0, 1e-40])
for name in ("add", "mul", "div", "maximum", "minimum"): case(name, getattr(torch, name), [special, other])
for name in ("eq", "ne", "lt", "le", "gt", "ge"): case(name, getattr(torch, name), [special, other], grads=False)
for name in ("add", "sub", "mul", "maximum", "minimum"):
    ints = [torch.tensor([-7, 0, 5, 2**31 - 1], dtype=torch.int32), torch.tensor([3, -2, 5, 1], dtype=torch.int32)]
    case(name, getattr(torch, name), ints, grads=False)
case("div", torch.div, [torch.tensor([-7, 0, 5], dtype=torch.int64), torch.tensor([2, 3, 4], dtype=torch.int64)], grads=False)

for dtype in (torch.float32, torch.float16, torch.bfloat16):
    case("sum", lambda x: x.sum(1), [normal(4, 37, dtype=dtype)], dim=1)
    case("mean", lambda x: x.mean(0), [normal(40, 3, dtype=dtype)], dim=0)
    case("softmax", lambda x: x.softmax(1), [normal(3, 20, dtype=dtype)], dim=1)
    case("log_softmax", lambda x: x.log_softmax(1), [normal(3, 20, dtype=dtype)], dim=1)
case("amax", lambda x: x.amax(1), [torch.randint(0, 4, (4, 9)).float()], dim=1)
case("amin", lambda x: x.amin(1), [torch.randint(0, 4, (4, 9)).float()], dim=1)
case("argmax", lambda x: x.argmax(1), [torch.randint(0, 4, (6, 9)).float()], grads=False, dim=1)
case("cross_entropy", F.cross_entropy, [normal(6, 10), torch.randint(0, 10, (6,))])
for smoothing in (0.0, 0.25):
    for reduction in ("none", "mean", "sum"):
        case("cross_entropy", lambda x, t: F.cross_entropy(x, t, ignore_index=2, label_smoothing=smoothing, reduction=reduction),
             [normal(6, 5), torch.tensor([4, 0, 2, 2, 1, 3])], ignore_index=2, label_smoothing=smoothing,
             reduction=("none", "mean", "sum").index(reduction))
case("cross_entropy", F.cross_entropy, [normal(2, 5, 3), torch.randint(0, 5, (2, 3))])
case("nll_loss", F.nll_loss, [normal(6, 5), torch.randint(0, 5, (6,))])
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    case("layer_norm", lambda x, w, b: F.layer_norm(x, (20,), w, b),
         [normal(3, 20, dtype=dtype), normal(20, dtype=dtype), normal(20, dtype=dtype)])
case("layer_norm", lambda x, w, b: F.layer_norm(x, (3, 4), w, b), [normal(5, 3, 4), normal(3, 4), normal(3, 4)])
case("embedding", lambda w, i: F.embedding(i, w), [normal(5, 3), torch.randint(0, 5, (2, 4))])
case("embedding", lambda w, i: F.embedding(i, w, padding_idx=1), [normal(5, 3), torch.randint(0, 3, (8,))], padding_idx=1)
for causal in (0, 1):
    case("scaled_dot_product_attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=bool(causal)),
         [normal(2, 2, 4, 6), normal(2, 2, 5, 6), normal(2, 2, 5, 6)], is_causal=causal)
case("scaled_dot_product_attention", lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
     [normal(2, 2, 4, 6), normal(2, 2, 5, 6), normal(2, 2, 5, 6), normal(4, 5)])
# Random numbers: the seed, then what two draws in a row give.
for dtype in (torch.float32, torch.float16):
    for name, draw in (("rand", torch.rand), ("randn", torch.randn)):
        generator = torch.Generator(dev).manual_seed(81985529216486895)
        for offset in (0, 4):
            out = draw(700, dtype=dtype, device=dev, generator=generator)
            print("case", name, f"offset={offset}"); line("in", "0", torch.empty(0, dtype=dtype)); line("out", "0", out)
case("matmul", torch.matmul, [normal(5, 7), normal(7, 3)])
case("matmul", torch.matmul, [normal(2, 5, 7), normal(7, 3)])
for stride, padding, dilation in ((1, 1, 1), (2, 0, 1), (2, 2, 2)):
    case("conv2d", lambda x, w, b: F.conv2d(x, w, b, stride, padding, dilation),
         [normal(2, 3, 8, 7), normal(4, 3, 3, 2), normal(4)], stride=stride, padding=padding, dilation=dilation)
for stride, padding, dilation in ((2, 0, 1), (1, 1, 1), (2, 1, 2)):
    case("max_pool2d", lambda x: F.max_pool2d(x, (3, 2), stride, padding, dilation),
         [torch.randint(0, 5, (2, 2, 8, 7)).float()], kernel_height=3, kernel_width=2, stride=stride, padding=padding,
         dilation=dilation)

# Five steps of Adam on given gradients.
print("case adam lr=0.05 weight_decay=0.01")
p = normal(6).to(dev).requires_grad_()
line("in", "0", p)
opt = torch.optim.Adam([p], lr=0.05, weight_decay=0.01, fused=True)
for step in range(5):
    p.grad = normal(6).to(dev)
    line("grad", str(step), p.grad)
    opt.step()
line("out", "0", p)

# The promotion table.
names = {"bool": torch.bool, "uint8": torch.uint8, "int32": torch.int32, "int64": torch.int64, "float16": torch.float16,
         "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
for a in names:
    for b in names:
        result = torch.promote_types(names[a], names[b])
        print("promote", a, b, next(n for n, d in names.items() if d == result))
print(f"# torch {torch.__version__}, {torch.cuda.get_device_name()}", file=sys.stderr)
print("end")
