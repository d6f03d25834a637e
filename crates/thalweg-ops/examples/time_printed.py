"""Times the kernels that `cargo run -p thalweg-ops --example printed -- FOLDER` wrote, next to PyTorch's kernels and a copy.

`time_printed.py FOLDER [PATTERN]` times all cases, or those whose line contains the pattern; with F32=1 in the environment, those of
float32. Outputs are poisoned before each check. The reference is PyTorch's result in float64, over the first rows if there are many.
"""
import ctypes as C
import os
import re
import struct
import sys

import torch
import torch.nn.functional as F

folder = sys.argv[1]
nvrtc, cuda = C.CDLL("libnvrtc.so.13"), C.CDLL("libcuda.so.1")
F32 = bool(os.environ.get('F32'))
BF16, N, W = (torch.float32 if F32 else torch.bfloat16), 1 << 28, (2 if F32 else 1)
FIRST = slice(0, 256)


def check(code):
    if code:
        raise RuntimeError(f"CUDA error {code}")


def compiled(symbol):
    program, size = C.c_void_p(), C.c_size_t()
    text = open(f"{folder}/{symbol}.cu").read().encode()
    check(nvrtc.nvrtcCreateProgram(C.byref(program), text, b"printed.cu", 0, None, None))
    options = [b"--std=c++17", b"--fmad=false", b"-arch=sm_90", b"--ptxas-options=-v"]
    check(nvrtc.nvrtcCompileProgram(program, len(options), (C.c_char_p * len(options))(*options)))
    nvrtc.nvrtcGetProgramLogSize(program, C.byref(size))
    log = C.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcGetCUBINSize(program, C.byref(size))
    code = C.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, code)
    return code.raw, log.value.decode()


def load(symbol):
    code, log = codes[symbol]
    module, function = C.c_void_p(), C.c_void_p()
    check(cuda.cuModuleLoadData(C.byref(module), code))
    check(cuda.cuModuleGetFunction(C.byref(function), module, symbol.encode()))
    if smem[symbol] > 0:
        check(cuda.cuFuncSetAttribute(function, 8, smem[symbol]))
    used = [re.search(p, log) for p in (r"Used (\d+) registers", r"(\d+) bytes spill stores")]
    return function, tuple(int(m.group(1)) if m else 0 for m in used)


class Config(C.Structure):
    _fields_ = [("grid", C.c_uint * 3), ("block", C.c_uint * 3), ("smem", C.c_uint), ("stream", C.c_void_p), ("attrs", C.c_void_p), ("count", C.c_uint)]


class Attr(C.Structure):
    _fields_ = [("id", C.c_int), ("pad", C.c_int), ("value", C.c_uint * 16)]


def launcher(case, tensors, scalars=()):
    """Returns a call that launches a case on these tensors; integers and floats are passed as 8 bytes."""
    bits = [struct.unpack("<Q", struct.pack("<d" if isinstance(s, float) else "<q", s))[0] for s in scalars]
    words = [t.data_ptr() for t in tensors] + bits + [int(w) for w in case[7].split(",") if w]
    packed = (C.c_uint64 * len(words))(*words)
    pointer = (C.c_void_p * 1)(C.cast(packed, C.c_void_p))
    grid = int(case[2])
    if m := re.search(r'_b(\d)g', case[1]):
        c = int(m.group(1))
        config, attr, active = Config(), Attr(), C.c_int()
        config.block, config.smem, config.grid = (int(case[3]), 1, 1), int(case[8]), (c, 1, 1)
        attr.id = 4
        attr.value[0], attr.value[1], attr.value[2] = c, 1, 1
        config.attrs, config.count = C.cast(C.pointer(attr), C.c_void_p), 1
        check(cuda.cuOccupancyMaxActiveClusters(C.byref(active), functions[case[1]][0], C.byref(config)))
        grid = min(grid, active.value * c)
    function, stream = functions[case[1]][0], C.c_void_p(torch.cuda.current_stream().cuda_stream)
    return lambda: check(cuda.cuLaunchKernel(function, grid, 1, 1, int(case[3]), 1, 1, int(case[8]), stream, pointer, None))


def seconds(run, count=11):
    """Returns the median time of a call by events, after a warm-up."""
    for _ in range(2):
        run()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for start, end in events:
        start.record(), run(), end.record()
    torch.cuda.synchronize()
    return sorted(start.elapsed_time(end) for start, end in events)[count // 2] * 1e-3


def report(case, run, outputs, moved, theirs, references):
    """Checks a case and prints its line. `moved` is in bytes; each reference comes with the part of the output that it covers."""
    for output in outputs:
        output.fill_(float("nan"))
    run()
    torch.cuda.synchronize()
    errors = []
    for output, (reference, part) in zip(outputs, references):
        found = (output if part is None else output[part]).double()
        errors.append("%.1e" % ((found - reference).norm() / reference.norm()).item())
        del found
    whole = not any(torch.isnan(output).any().item() for output in outputs)
    moved *= W
    ours, other = moved / seconds(run) / 1e9, moved / seconds(theirs) / 1e9
    used = functions[case[1]][1]
    print(f"{case[0]:32s} {ours:6.0f} {other:6.0f} {100 * ours / copy:6.1f}% {used} {' '.join(errors)}{'' if whole else ' NAN'} {case[1]}", flush=True)


torch.manual_seed(1)
cases = [c for c in ([line.rstrip("\n").split("\t") for line in open(f"{folder}/cases.tsv")]) if len(sys.argv) < 3 or re.search(sys.argv[2], " ".join(c))]
x0, z0 = (torch.randn(N, device="cuda").to(BF16) for _ in range(2))
y0 = torch.empty_like(x0)
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(16) as pool:
    codes = dict(zip([case[1] for case in cases], pool.map(compiled, [case[1] for case in cases])))
smem = {case[1]: int(case[8]) for case in cases}
functions = {case[1]: load(case[1]) for case in cases}
copy = W * 4 * N / seconds(lambda: y0.copy_(x0)) / 1e9
print(torch.cuda.get_device_name(0), torch.__version__, f"copy {copy:.0f} GB/s")
print(f"{'case':32s} {'ours':>6s} {'theirs':>6s}  of copy (registers, spilled bytes) errors, kernel")


def rows(case, name, r, p):
    n = r * p
    x, y, z = x0[:n].view(r, p), y0[:n].view(r, p), z0[:n].view(r, p)
    first = x[FIRST].double()
    native = torch.ops.aten
    if name == "softmax":
        report(case, launcher(case, [x, y]), [y], 4 * n, lambda: torch.softmax(x, 1), [(torch.softmax(first, 1), FIRST)])
    elif name == "log_softmax":
        report(case, launcher(case, [x, y]), [y], 4 * n, lambda: torch.log_softmax(x, 1), [(torch.log_softmax(first, 1), FIRST)])
    elif name == "sum":
        out = torch.empty(r, device="cuda", dtype=BF16)
        report(case, launcher(case, [x, out]), [out], 2 * n, lambda: x.sum(1), [(first.sum(1), FIRST)])
    elif name == "column_sum":
        out = torch.empty(p, device="cuda", dtype=BF16)
        report(case, launcher(case, [x, out]), [out], 2 * n, lambda: x.sum(0), [(x.double().sum(0), None)])
    elif name == "column_parts":
        parts, out = torch.empty(r // 1024, p, device="cuda"), torch.empty(p, device="cuda")
        rest = next(other for other in cases if other[0] == f"column_rest {r // 1024}x{p}")
        stages = [launcher(case, [x, parts]), launcher(rest, [parts, out])]
        report(case, lambda: [stage() for stage in stages], [out], 2 * n, lambda: x.sum(0), [(x.double().sum(0), None)])
    elif name == "layer_norm":
        w, b = (torch.randn(p, device="cuda").to(BF16) for _ in range(2))
        mean, inverse = (torch.empty(r, device="cuda") for _ in range(2))
        deviation = (first.var(1, correction=0) + 1e-5).sqrt()
        expected = F.layer_norm(first, (p,), w.double(), b.double())
        references = [(expected, FIRST), (first.mean(1), FIRST), (1 / deviation, FIRST)]
        run = launcher(case, [x, w, b, y, mean, inverse], [float(p), 1e-5])
        report(case, run, [y, mean, inverse], 4 * n, lambda: F.layer_norm(x, (p,), w, b), references)
    elif name == "layer_norm_backward":
        w = torch.randn(p, device="cuda").to(BF16)
        _, mean, inverse = native.native_layer_norm(x, (p,), w, None, 1e-5)
        leaf = first.clone().requires_grad_()
        F.layer_norm(leaf, (p,), w.double(), None, 1e-5).backward(z[FIRST].double())
        theirs = lambda: native.native_layer_norm_backward(z, x, (p,), mean, inverse, w, None, [True, False, False])
        report(case, launcher(case, [x, w, mean, inverse, z, y], [float(p)]), [y], 6 * n, theirs, [(leaf.grad, FIRST)])
    elif name == "cross_entropy":
        target = torch.randint(p, (r,), device="cuda")
        out, log_sum = torch.empty(r, device="cuda", dtype=BF16), torch.empty(r, device="cuda")
        theirs = lambda: F.cross_entropy(x, target, reduction="none")
        references = [(F.cross_entropy(first, target[FIRST], reduction="none"), FIRST), (torch.logsumexp(first, 1), FIRST)]
        report(case, launcher(case, [x, target, out, log_sum], [p, -100]), [out, log_sum], 2 * n, theirs, references)
    elif name == "cross_entropy_backward":
        target, g = torch.randint(p, (r,), device="cuda"), torch.randn(r, device="cuda").to(BF16)
        target[1] = -100
        log_sum = torch.cat([torch.logsumexp(part.float(), 1) for part in x.split(256)])
        leaf = x.detach().requires_grad_()
        loss = F.cross_entropy(leaf, target, reduction="none")
        theirs = lambda: torch.autograd.grad(loss, leaf, g, retain_graph=True)
        of_rows = torch.where(target[FIRST] == -100, 0, g[FIRST].double())[:, None]
        classes = F.one_hot(target[FIRST].clamp(0), p)
        references = [((torch.softmax(first, 1) - classes) * of_rows, FIRST)]
        report(case, launcher(case, [x, target, log_sum, g, y], [p, -100]), [y], 4 * n, theirs, references)
        # The result may overwrite the scores, with the same bits.
        over = x.clone()
        launcher(case, [over, target, log_sum, g, over], [p, -100])()
        print(f"{'':32s} over the scores: {'equal' if torch.equal(over, y) else 'DIFFERENT'}")
    elif name == "softmax_backward":
        s = torch.softmax(x, 1)
        of, g = s[FIRST].double(), z[FIRST].double()
        expected = of * (g - (g * of).sum(1, keepdim=True))
        theirs = lambda: native._softmax_backward_data(z, s, 1, BF16)
        report(case, launcher(case, [s, z, y]), [y], 6 * n, theirs, [(expected, FIRST)])


def points(case, name):
    side, first = 16_384, slice(0, 1 << 24)
    if name in ("gelu", "add", "cast"):
        out = torch.empty(N, device="cuda") if name == "cast" else y0
        theirs = {"gelu": lambda x, z: F.gelu(x), "add": lambda x, z: x + z, "cast": lambda x, z: x.float()}[name]
        wide = {"gelu": lambda x, z: F.gelu(x), "add": lambda x, z: x + z, "cast": lambda x, z: x}[name]
        tensors = [x0, z0, out] if name == "add" else [x0, out]
        reference = wide(x0[first].double(), z0[first].double())
        report(case, launcher(case, tensors), [out], (4 if name == "gelu" else 6) * N, lambda: theirs(x0, z0), [(reference, first)])
    elif name.startswith("transpose") or name == "add_transposed":
        x = torch.randn(side, side, device="cuda") if name.endswith("f32") else x0.view(side, side)
        z, out = z0.view(side, side), torch.empty_like(x)
        theirs = (lambda: x.t() + z) if name.startswith("add") else (lambda: x.t().contiguous())
        tensors = [x, z, out] if name.startswith("add") else [x, out]
        moved = len(tensors) * x.element_size() * N
        report(case, launcher(case, tensors), [out], moved, theirs, [(theirs().double(), None)])
    elif name == "heads":
        n = 256 * 1024 * 768
        x, out = x0[:n].view(256, 1024, 12, 64).transpose(1, 2), torch.empty(256, 12, 1024, 64, device="cuda", dtype=BF16)
        report(case, launcher(case, [x, out]), [out], 4 * n, lambda: x.contiguous(), [(x.double(), None)])


for case in cases:
    name, _, extents = case[0].partition(" ")
    rows(case, name, *map(int, extents.split("x"))) if extents else points(case, name)
    torch.cuda.empty_cache()
