"""Writes extremes.gz for ../it/extremes.rs: the results of PyTorch's CUDA backend at extreme points, with value,
gradient and second gradient of every elementwise entry of the table that takes floats. Run it on a machine with PyTorch
and a GPU:

    python3 extremes.py extremes.gz

Unpacked: the length of the header (u64, little-endian), the header (JSON), raw bytes.

    grids     name -> dtype -> [begin, points, operands]: the operands one after the other
    cases     entry, grid, numbers, wrt (the operands that have gradients), dtype, begin of its arrays, arrays

An array has an element per point, in the case's dtype: the value, then for each operand of `wrt` its gradient for a result's gradient
of 1, and then for each of these its gradients by each operand of `wrt`, where PyTorch has them (`seconds`). A truth value is a byte.
What is computed in 16 bits comes twice: as it is, and (`wide`) by the same functions in 32 bits, rounded at the end: PyTorch's
formulas round between their steps, where a kernel of ours does not.
"""
import gzip, json, math, struct, sys, torch, torch.nn.functional as F
from torch import special as S

dev = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
inf, nan = math.inf, math.nan
SIZES = (0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 6.0, 8.0, 20.0, 30.0, 88.7, 100.0, 710.0, 1e4, inf)
PAIRS = (-inf, -3.0, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0, 88.7, inf, nan)
TRIPLES = (-inf, -1.0, -0.0, 1.0, inf, nan)

OPERANDS = dict(points=1, pairs=2, triples=3, probabilities=2)

def grid(name, dtype):
    tiny, largest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps, torch.finfo(dtype).max
    points = dict(points=[s * v for v in (0.0, tiny, *SIZES, largest) for s in (1, -1)] + [nan, math.exp(-100)],
                  pairs=PAIRS + (tiny, largest, -largest), triples=TRIPLES,
                  probabilities=(0.0, tiny, math.exp(-100), 0.25, 0.5, 1.0))[name]
    columns = torch.tensor(points, dtype=torch.float64).to(dtype)
    return [x.flatten() for x in torch.meshgrid(*[columns] * OPERANDS[name], indexing="ij")]

CASES = []
def case(entry, function, *numbers, grid="points", wrt=None, derivative=None):
    CASES.append((entry, function, numbers, grid, wrt if wrt is not None else list(range(OPERANDS[grid])), derivative))

for name in """neg abs sign reciprocal sqrt rsqrt exp expm1 log log1p sin cos tanh floor ceil trunc round logical_not signbit exp2 log2
        log10 tan asin acos atan sinh cosh asinh acosh atanh erf erfc lgamma digamma isnan isinf isfinite isposinf isneginf frac
        deg2rad rad2deg sinc angle erfinv i0 sigmoid""".split():
    case(name, getattr(torch, name))
for name in "silu relu relu6 hardsigmoid hardswish mish selu softsign".split(): case(name, getattr(F, name))
for name in "i0e i1 i1e entr erfcx ndtr log_ndtr ndtri".split(): case(name, getattr(S, name))
# PyTorch has no gradients of these; the derivatives are by its other functions.
case("modified_bessel_i0", S.modified_bessel_i0, derivative=S.modified_bessel_i1)
case("modified_bessel_i1", S.modified_bessel_i1, derivative=lambda x: torch.where(x == 0, 0.5, S.modified_bessel_i0(x) - S.modified_bessel_i1(x) / x))
case("modified_bessel_k0", S.modified_bessel_k0, derivative=lambda x: -S.modified_bessel_k1(x))
case("modified_bessel_k1", S.modified_bessel_k1, derivative=lambda x: -S.modified_bessel_k0(x) - S.modified_bessel_k1(x) / x)
case("scaled_modified_bessel_k0", S.scaled_modified_bessel_k0,
     derivative=lambda x: S.scaled_modified_bessel_k0(x) - S.scaled_modified_bessel_k1(x))
case("scaled_modified_bessel_k1", S.scaled_modified_bessel_k1,
     derivative=lambda x: S.scaled_modified_bessel_k1(x) - S.scaled_modified_bessel_k0(x) - S.scaled_modified_bessel_k1(x) / x)
case("bessel_j0", S.bessel_j0, derivative=lambda x: -S.bessel_j1(x))
case("bessel_j1", S.bessel_j1, derivative=lambda x: torch.where(x == 0, 0.5, S.bessel_j0(x) - S.bessel_j1(x) / x))
case("bessel_y0", S.bessel_y0, derivative=lambda x: -S.bessel_y1(x))
case("bessel_y1", S.bessel_y1, derivative=lambda x: S.bessel_y0(x) - S.bessel_y1(x) / x)
case("spherical_bessel_j0", S.spherical_bessel_j0)
case("airy_ai", S.airy_ai)
case("log_sigmoid", F.logsigmoid)
case("gelu", F.gelu); case("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"))
case("leaky_relu_rising", F.leaky_relu, 0.25); case("leaky_relu_of", F.leaky_relu, -0.25)
case("celu", F.celu, 1.5)
for numbers in ((1.0, 1.0, 1.0), (0.5, 2.0, 1.5)): case("elu", torch.ops.aten.elu.default, *numbers)
case("hardshrink", F.hardshrink, 0.5); case("softshrink_of", F.softshrink, 0.5); case("softshrink_of", F.softshrink, 0.0)
case("threshold", F.threshold, 1.0, 3.0); case("hardtanh_of", F.hardtanh, -1.0, 1.0); case("hardtanh_exact", F.hardtanh, -1.0, 1.0)
case("softplus_of", F.softplus, 1.0, 20.0); case("softplus_of", F.softplus, 2.0, 6.0)
case("fraction_of_power", lambda x: torch.frexp(x)[0]); case("exponent_of_power", lambda x: torch.frexp(x)[1].to(x.dtype))
case("conj_of", lambda x: x * 1); case("square_of", torch.square); case("logit_of", torch.logit)
case("nan_to_num_of", lambda x, a, b, c: torch.nan_to_num(x, a, b, c), 0.5, 2.0, -2.0)
for number in (3.0, 0.0, inf, nan):
    case("mul_scalar", torch.mul, number); case("add_scalar", torch.add, number); case("div_scalar", torch.div, number)
    case("rsub_scalar", lambda x, other, alpha: torch.rsub(x, other, alpha=alpha), number, 2.0)
    for name in "eq gt ne lt le ge fmod remainder copysign".split(): case(name + "_scalar", getattr(torch, name), number)
    case("trunc_divide_scalar", lambda x, y: torch.div(x, y, rounding_mode="trunc"), number)
    case("floor_divide_scalar", lambda x, y: torch.div(x, y, rounding_mode="floor"), number)
    case("clamp_min", lambda x, bound: x.clamp(min=bound), number); case("clamp_max", lambda x, bound: x.clamp(max=bound), number)
case("clamp", torch.clamp, -1.0, 1.0); case("clamp", torch.clamp, 1.0, -1.0)
for exponent in (2.0, 0.0, 1.0, -2.0, inf): case("power_scalar", torch.pow, exponent)
for exponent in (0.0, 1.0, 2.0, 3.0, 4.0, 2.5, 1.5, 0.25, -1.0, -3.0, -1.5): case("power_scalar", torch.pow, exponent)
case("power_2", lambda x: x ** 2); case("power_3", lambda x: x ** 3); case("power_minus_2", lambda x: x ** -2)

for name in """mul div maximum minimum eq ne lt le gt ge logical_and logical_or logical_xor fmod remainder atan2 hypot logaddexp
        logaddexp2 xlogy fmax fmin heaviside add sub""".split():
    case(name, getattr(torch, name), grid="pairs")
case("prelu", torch.ops.aten._prelu_kernel, grid="pairs"); case("xlog1py", S.xlog1py, grid="pairs")
case("lerp", torch.lerp, 0.25, grid="pairs"); case("lerp", torch.lerp, 0.75, grid="pairs")
for name in ("add", "sub"):
    case(name + "_scaled", lambda x, y, alpha, f=getattr(torch, name): f(x, y, alpha=alpha), 2.0, grid="pairs")
case("masked_scale", lambda x, mask, scale: x * mask * scale, 2.0, grid="pairs")
case("trunc_divide", lambda x, y: torch.div(x, y, rounding_mode="trunc"), grid="pairs")
case("floor_divide_of", lambda x, y: torch.div(x, y, rounding_mode="floor"), grid="pairs")
case("clamp_above", lambda x, y: torch.clamp(x, min=y), grid="pairs")
case("clamp_below", lambda x, y: torch.clamp(x, max=y), grid="pairs")
case("power", torch.pow, grid="pairs"); case("copysign_of", torch.copysign, grid="pairs")
case("clamp_between", torch.clamp, grid="triples"); case("lerp_tensor", torch.lerp, grid="triples")
case("select_where", lambda c, x, y: torch.where(c != 0, x, y), grid="triples", wrt=[1, 2])
for name in ("addcmul", "addcdiv"):
    case(name, lambda x, y, z, value, f=getattr(torch, name): f(x, y, z, value=value), 2.0, grid="triples")

# Losses of elements.
plain = dict(reduction="none")
case("mse_loss_elements", lambda x, y: F.mse_loss(x, y, **plain), grid="pairs")
case("l1_loss_elements", lambda x, y: F.l1_loss(x, y, **plain), grid="pairs")
case("smooth_l1_loss_elements", lambda x, y, beta: F.smooth_l1_loss(x, y, beta=beta, **plain), 2.0, grid="pairs")
case("huber_loss_elements", lambda x, y, delta: F.huber_loss(x, y, delta=delta, **plain), 2.0, grid="pairs")
case("binary_cross_entropy_with_logits_elements", lambda x, y: F.binary_cross_entropy_with_logits(x, y, **plain), grid="pairs")
case("kl_div_elements", lambda x, y: F.kl_div(x, y, **plain), grid="pairs")
case("kl_div_of_logarithms_elements", lambda x, y: F.kl_div(x, y, log_target=True, **plain), grid="pairs")
case("soft_margin_loss_elements", lambda x, y: F.soft_margin_loss(x, y, **plain), grid="pairs", wrt=[0])
# PyTorch stops with an assertion on the device where an input is not a probability.
case("binary_cross_entropy_elements", lambda x, y: F.binary_cross_entropy(x, y, **plain), grid="probabilities")

def arrays(function, numbers, columns, wrt, derivative):
    leaves = [x.detach().clone().requires_grad_(i in wrt) for i, x in enumerate(columns)]
    value = function(*leaves, *numbers)
    results, seconds = [value.detach()], False
    zero = lambda gradient, x: torch.zeros_like(x) if gradient is None else gradient
    if derivative: return results + [derivative(columns[0])], False
    if not value.dtype.is_floating_point or not value.requires_grad: return results, False
    try:
        wanted = [leaves[i] for i in wrt]
        first = torch.autograd.grad(value, wanted, torch.ones_like(value), create_graph=True, allow_unused=True)
    except (RuntimeError, NotImplementedError): return results, False
    first = [zero(g, x) for g, x in zip(first, wanted)]
    results += [g.detach() for g in first]
    try:
        second = []
        for g in first:
            if not g.requires_grad: second += [torch.zeros_like(x) for x in wanted]; continue
            parts = torch.autograd.grad(g, wanted, torch.ones_like(g), retain_graph=True, allow_unused=True)
            second += [zero(p, x).detach() for p, x in zip(parts, wanted)]
        return results + second, True
    except (RuntimeError, NotImplementedError): return results, False

raw, header = bytearray(), {"torch": torch.__version__, "device": torch.cuda.get_device_name() if dev == "cuda" else "cpu", "grids": {}, "cases": []}
def put(tensor):
    tensor = torch.zeros_like(tensor) if tensor._is_zerotensor() else tensor
    tensor = tensor.detach().contiguous().cpu().flatten()
    ints = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[tensor.element_size()]
    raw.extend(tensor.view(ints).numpy().tobytes())

# Numbers of one meaning lie next to each other: dtype by dtype.
for dtype_name, dtype in DTYPES.items():
    for name in OPERANDS:
        columns = grid(name, dtype)
        header["grids"].setdefault(name, {})[dtype_name] = [len(raw), columns[0].numel(), len(columns)]
        for column in columns: put(column)
    for entry, function, numbers, name, wrt, derivative in CASES:
        columns = [x.to(dev) for x in grid(name, dtype)]
        try: results, seconds = arrays(function, numbers, columns, wrt, derivative)
        except (RuntimeError, NotImplementedError) as error:
            print(entry, dtype_name, str(error)[:90], file=sys.stderr); continue
        described = dict(entry=entry, grid=name, numbers=[str(n) for n in numbers], wrt=wrt, dtype=dtype_name,
                         begin=len(raw), arrays=len(results), seconds=seconds, is_bool=results[0].dtype == torch.bool, wide=False)
        for r in results: put(r)
        if dtype in (torch.float16, torch.bfloat16) and results[0].dtype == dtype:
            wide, _ = arrays(function, numbers, [x.float() for x in columns], wrt, derivative)
            wide = [w.to(dtype) for w in wide]
            if any(not torch.equal(torch.nan_to_num(w, 0.5), torch.nan_to_num(r, 0.5)) for w, r in zip(wide, results)):
                described["wide"] = True
                for w in wide: put(w)
        header["cases"].append(described)
text = json.dumps(header).encode()
with open(sys.argv[1], "wb") as file:
    file.write(gzip.compress(struct.pack("<Q", len(text)) + text + bytes(raw), 9, mtime=0))
print(len(CASES), "cases,", len(raw), "bytes", file=sys.stderr)
