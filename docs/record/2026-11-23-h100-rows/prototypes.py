"""Prototypes of row kernels: how operands are held, and what they cost. Prints GB/s and % of a copy in the same run."""
import ctypes as C, re, sys, time
from concurrent.futures import ThreadPoolExecutor
import torch, torch.nn.functional as F
nvrtc, cuda = C.CDLL("libnvrtc.so.13"), C.CDLL("libcuda.so.1")
BF16 = torch.bfloat16
def check(c):
    if c: raise RuntimeError(f"CUDA error {c}")
PRE = r'''
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64; typedef long long i64; typedef float f32;
struct bf16 { u16 bits; };
struct alignas(16) pack { bf16 element[8]; };
static __device__ __forceinline__ f32 up(const bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
static __device__ __forceinline__ bf16 down(const f32 x) { bf16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }
#if NANMAX
static __device__ __forceinline__ f32 maximum(f32 a, f32 b) { f32 y; asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
#else
static __device__ __forceinline__ f32 maximum(f32 a, f32 b) { return a > b || a != a ? a : b; }
#endif
static __device__ __forceinline__ f32 plus(f32 a, f32 b) { return a + b; }
template <class O> static __device__ __forceinline__ f32 vec(f32 (&l)[8], O op) {
    #pragma unroll
    for (u32 s = 1; s < 8; s *= 2)
        #pragma unroll
        for (u32 i = 0; i + s < 8; i += 2 * s) l[i] = op(l[i], l[i + s]);
    return l[0];
}
template <u32 L, class O> static __device__ __forceinline__ f32 warp(f32 v, O op) {
    #pragma unroll
    for (u32 s = 1; s < L; s *= 2) v = op(v, __shfl_down_sync(0xffffffffu, v, s, L));
    return __shfl_sync(0xffffffffu, v, 0, L);
}
template <u32 L, class O> static __device__ __forceinline__ f32 block(f32 v, f32* w, O op) {
    v = warp<32>(v, op);
    if (threadIdx.x % 32 == 0) w[threadIdx.x / 32] = v;
    __syncthreads();
    return warp<L / 32>(w[threadIdx.x % (L / 32)], op);
}
static __device__ __forceinline__ void async(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(u32(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}
static __device__ __forceinline__ void arrived() { asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory"); }
'''
class Op:
    def __init__(s, inputs, passes, final, row, outs, extra=()):
        s.inputs, s.passes, s.final, s.row, s.outs, s.extra = inputs, passes, final, row, outs, extra
# a pass: [(name, op, neutral, expression)], and what follows for the row
DIV = {"d": "exp_ / S", "m": "exp_ * (1.0f / S)"}
OPS = {
    "softmax": Op("x", [[("M", "maximum", "-INFINITY", "x")], [("S", "plus", "0.0f", "expf(x - M)")]], ["expf(x - M) / S"], "", 1),
    "softmaxm": Op("x", [[("M", "maximum", "-INFINITY", "x")], [("S", "plus", "0.0f", "expf(x - M)")]], ["expf(x - M) * (1.0f / S)"], "", 1),
    "cef": Op("x", [[("M", "maximum", "-INFINITY", "x")], [("S", "plus", "0.0f", "expf(x - M)")]], [], "const i64 t = a.target[row]; const f32 l = logf(S); a.loss[row] = t >= 0 && t < points ? l - (up(a.x[start + t]) - M) : 0.0f; a.lse[row] = M + l;", 0),
    "smb": Op("xg", [[("S", "plus", "0.0f", "x * g")]], ["x * (g - S)"], "", 1),
    "lnf": Op("x", [[("A", "plus", "0.0f", "x")], [("V", "plus", "0.0f", "(x - A / points) * (x - A / points)")]], ["(x - A / points) * (1.0f / sqrtf(V / points + 1e-5f)) * w + b"], "", 1, "wb"),
    "lnb": Op("xg", [[("A", "plus", "0.0f", "g * w"), ("B", "plus", "0.0f", "g * w * ((x - mean) * inv)")]], ["inv * (g * w - A / points - (x - mean) * inv * (B / points))"], "", 1, "w"),
}
def source(op, name, T, H, hold, P, B, nan, values=False, exact=False):
    o = OPS[op]
    w = [f"#define NANMAX {int(nan)}\n#define INFINITY __uint_as_float(0x7f800000u)", PRE]
    w.append("struct args { const bf16* x; const bf16* g; const bf16* w; const bf16* b; bf16* out; const i64* target; f32* loss; f32* lse; f32* mean; f32* inv; u64 rows; u64 points; };")
    w.append(f'extern "C" __global__ void __launch_bounds__({T}, {B}) {name}(const __grid_constant__ args a) {{')
    nred = sum(len(p) for p in o.passes)
    w.append(f"__shared__ f32 shared[{2 if P else 1}][{nred}][{max(1, T // 32)}];\nextern __shared__ pack slots[];")
    w.append("const u32 lane = threadIdx.x, points = u32(a.points); const u32 rows = u32(a.rows); u32 turn = 0;")
    smem = [i for i, h in zip(o.inputs, hold) if h == "s"]
    regs = [i for i, h in zip(o.inputs, hold) if h == "r"]
    def guard(body, k="k"):
        cond = "" if exact else "if (first < points) "
        return f"const u32 first = ({k} * {T} + lane) * 8; {cond}{{ {body} }}"
    def load(i, start):
        if i in regs: return f"r_{i}[k] = *(const pack*)(a.{i} + {start} + first);"
        return f"async(&slots[({smem.index(i)} * {H} + k) * {T} + lane], a.{i} + {start} + first);"
    def loop(body): return f"\n#pragma unroll\nfor (u32 k = 0; k < {H}; ++k) {{ {body} }}"
    for i in regs: w.append(f"pack r_{i}[{H}];")
    allloads = lambda start: loop(guard(" ".join(load(i, start) for i in regs + smem))) if regs or smem else ""
    if P: w.append(f"u32 row = blockIdx.x; const u32 first_start = row * points; if (row < rows) {{ {allloads('first_start')} }}\nfor (; row < rows; row += gridDim.x) {{ turn ^= 1;")
    else: w.append("for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {")
    w.append("const u32 start = row * points, next = start + gridDim.x * points; const bool more = row + gridDim.x < rows;")
    if "lnb" in op: w.append("const f32 mean = a.mean[row], inv = a.inv[row];")
    if not P: w.append(allloads("start"))
    if smem: w.append("arrived();")
    if values: w.append(f"f32 held[{H}][8];")
    def element(pass_, last):
        need = [i for i in o.inputs]
        body = ""
        for i, h in zip(o.inputs, hold):
            if h == "s": body += f"const pack p_{i} = slots[({smem.index(i)} * {H} + k) * {T} + lane];"
            elif h == "l": body += f"const pack p_{i} = *(const pack*)(a.{i} + start + first);"
            else: body += f"const pack p_{i} = r_{i}[k];"
        for i in o.extra: body += f"const pack p_{i} = *(const pack*)(a.{i} + first);" if pass_ == "out" or op == "lnb" else ""
        if pass_ == "out": body += "pack y;"
        body += "\n#pragma unroll\nfor (u32 e = 0; e < 8; ++e) {"
        for i in o.inputs: body += f"const f32 {i} = up(p_{i}.element[e]);"
        for i in o.extra: body += f"const f32 {i} = up(p_{i}.element[e]);" if pass_ == "out" or op == "lnb" else ""
        if pass_ == "out":
            f = o.final[0]
            if values: f = f.replace("expf(x - M)", "held[k][e]")
            body += f"y.element[e] = down({f}); }} *(pack*)(a.out + start + first) = y;"
        else:
            for n, opn, _, ex in pass_:
                if values and "expf" in ex: body += f"held[k][e] = {ex};"; ex = "held[k][e]"
                body += f"l_{n}[e] = {opn}(l_{n}[e], {ex});"
            body += "}"
        if last and P:
            ld = " ".join(load(i, "next") for i in regs + smem)
            if ld: body += f"if (more) {{ {ld} }}"
        return body
    red = 0
    for number, p in enumerate(o.passes):
        for n, _, neutral, _ in p:
            w.append(f"f32 l_{n}[8];\n#pragma unroll\nfor (u32 e = 0; e < 8; ++e) l_{n}[e] = {neutral};")
        w.append(loop(guard(element(p, number == len(o.passes) - 1 and not o.final))))
        for n, opn, _, _ in p:
            fn = f"[](f32 x, f32 y) {{ return {opn}(x, y); }}"
            comb = f"block<{T}>(vec(l_{n}, {fn}), shared[{'turn' if P else '0'}][{red}], {fn})" if T > 32 else f"warp<{T}>(vec(l_{n}, {fn}), {fn})"
            w.append(f"const f32 {n} = {comb};"); red += 1
    if o.row: w.append(f"if (lane == 0) {{ {o.row} }}")
    if o.final: w.append(loop(guard(element("out", True))))
    if not P and nred == 1: w.append("__syncthreads();")
    w.append("} }")
    return "\n".join(w)
def streaming(name, T, U):
    """Cross entropy in one pass: each thread keeps a maximum and a sum that follows it."""
    return f"#define NANMAX 1\n#define INFINITY __uint_as_float(0x7f800000u)" + PRE + f'''
struct args {{ const bf16* x; const bf16* g; const bf16* w; const bf16* b; bf16* out; const i64* target; f32* loss; f32* lse; f32* mean; f32* inv; u64 rows; u64 points; }};
extern "C" __global__ void __launch_bounds__({T}) {name}(const __grid_constant__ args a) {{
    __shared__ f32 shared[2][{T // 32}];
    const u32 lane = threadIdx.x, points = u32(a.points), row = blockIdx.x, start = row * points;
    f32 m = -INFINITY, s = 0.0f;
    #pragma unroll {U}
    for (u32 first = lane * 8; first < points; first += {T} * 8) {{
        const pack p = *(const pack*)(a.x + start + first);
        f32 v[8], c[8];
        #pragma unroll
        for (u32 e = 0; e < 8; ++e) c[e] = v[e] = up(p.element[e]);
        const f32 n = maximum(m, vec(c, [](f32 x, f32 y) {{ return maximum(x, y); }}));
        #pragma unroll
        for (u32 e = 0; e < 8; ++e) v[e] = expf(v[e] - n);
        s = s * expf(m - n) + vec(v, [](f32 x, f32 y) {{ return x + y; }}); m = n;
    }}
    const f32 M = block<{T}>(m, shared[0], [](f32 x, f32 y) {{ return maximum(x, y); }});
    const f32 S = block<{T}>(s * expf(m - M), shared[1], [](f32 x, f32 y) {{ return x + y; }});
    if (lane == 0) {{ const i64 t = a.target[row]; const f32 l = logf(S); a.loss[row] = t >= 0 && t < points ? l - (up(a.x[start + t]) - M) : 0.0f; a.lse[row] = M + l; }}
}}'''
def backward(name, T, U, cache=""):
    """The gradient of cross entropy from the row's logarithm of the sum."""
    ld = f"*(const pack*)(a.x + start + first)"
    return f"#define NANMAX 1\n#define INFINITY __uint_as_float(0x7f800000u)" + PRE + f'''
struct args {{ const bf16* x; const bf16* g; const bf16* w; const bf16* b; bf16* out; const i64* target; f32* loss; f32* lse; f32* mean; f32* inv; u64 rows; u64 points; }};
extern "C" __global__ void __launch_bounds__({T}) {name}(const __grid_constant__ args a) {{
    const u32 lane = threadIdx.x, points = u32(a.points), row = {'gridDim.x - 1 - ' if cache == 'rev' else ''}blockIdx.x, start = row * points;
    const i64 t = a.target[row]; const f32 lse = a.lse[row], g = a.mean[row];
    #pragma unroll {U}
    for (u32 first = lane * 8; first < points; first += {T} * 8) {{
        const pack p = {ld};
        pack y;
        #pragma unroll
        for (u32 e = 0; e < 8; ++e) y.element[e] = down((expf(up(p.element[e]) - lse) - (i64(first + e) == t ? 1.0f : 0.0f)) * g);
        *(pack*)(a.out + start + first) = y;
    }}
}}'''
def compile_(job):
    name, text = job
    program, size = C.c_void_p(), C.c_size_t()
    check(nvrtc.nvrtcCreateProgram(C.byref(program), text.encode(), b"p.cu", 0, None, None))
    options = [b"--std=c++17", b"--fmad=false", b"-arch=sm_90", b"--ptxas-options=-v"]
    code = nvrtc.nvrtcCompileProgram(program, len(options), (C.c_char_p * len(options))(*options))
    nvrtc.nvrtcGetProgramLogSize(program, C.byref(size))
    log = C.create_string_buffer(size.value); nvrtc.nvrtcGetProgramLog(program, log)
    if code: return name, None, log.value.decode()[:600]
    nvrtc.nvrtcGetCUBINSize(program, C.byref(size))
    cubin = C.create_string_buffer(size.value); nvrtc.nvrtcGetCUBIN(program, cubin)
    used = [re.search(p, log.value.decode()) for p in (r"Used (\d+) registers", r"(\d+) bytes spill stores")]
    return name, cubin.raw, tuple(int(m.group(1)) if m else 0 for m in used)
def seconds(run, count=9):
    for _ in range(2): run()
    ev = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for s, e in ev: s.record(), run(), e.record()
    torch.cuda.synchronize()
    return sorted(s.elapsed_time(e) for s, e in ev)[count // 2] * 1e-3
jobs, plan = [], []
def add(op, shape, T, H, hold="r", P=0, B=1, nan=1, values=False):
    name = f"{op}_{shape[1]}_t{T}_h{H}_{hold}_p{P}_b{B}_n{nan}{'_v' if values else ''}"
    exact = T * H * 8 == shape[1]
    jobs.append((name, source(op, name, T, H, hold, P, B, nan, values, exact=False)))
    smem = hold.count("s") * H * T * 16
    plan.append((op, shape, name, T, smem, P, B))
A, Bs, Cs = (262144, 1024), (32768, 8192), (4096, 65536)
CE = (16384, 50304)
for nan in (0, 1):
    for op in ("softmax", "softmaxm"):
        add(op, A, 32, 4, nan=nan, values=True) if False else None
        add(op, Bs, 256, 4, nan=nan, values=True)
        add(op, Cs, 1024, 8, nan=nan)
    add("cef", CE, 1024, 7, nan=nan)
add("softmaxm", Bs, 256, 4, nan=1)
add("softmaxm", Bs, 512, 2, nan=1, values=True)
add("softmaxm", Bs, 256, 4, P=1, B=2, nan=1, values=True)
add("softmaxm", Bs, 256, 4, P=1, B=4, nan=1)
for P in (0, 1):
    add("softmaxm", Cs, 1024, 8, "s", P=P)
    add("softmaxm", Cs, 512, 16, "r", P=P)
    add("softmaxm", Cs, 512, 16, "s", P=P)
    if P: add("softmaxm", Cs, 1024, 8, "r", P=P)
    add("cef", CE, 1024, 7, "s", P=P, B=2)
    add("cef", CE, 512, 13, "s", P=P, B=2)
    add("cef", CE, 512, 13, "r", P=P, B=2)
    if P: add("cef", CE, 1024, 7, "r", P=P)
add("cef", CE, 1024, 7, "l"); add("cef", CE, 1024, 7, "l", B=2); add("cef", CE, 512, 13, "l", B=2)
for hold in ("ll", "rl", "rs", "lr", "ss"):
    for P in ((0, 1) if "l" not in hold or hold == "rl" else (0,)):
        if hold == "ss": continue
        add("smb", Cs, 1024, 8, hold, P=P)
        add("lnb", Cs, 1024, 8, hold, P=P)
add("smb", Cs, 512, 16, "ll", B=2); add("lnb", Cs, 512, 16, "ll", B=2); add("smb", Cs, 512, 16, "rs"); add("lnb", Cs, 512, 16, "rs")
add("lnb", Bs, 512, 2, "rr"); add("lnb", Bs, 256, 4, "rr"); add("lnb", Bs, 256, 4, "rr", P=1, B=2)
for P in (0, 1):
    add("lnf", Cs, 1024, 8, "r", P=P); add("lnf", Cs, 1024, 8, "s", P=P)
for T, U in ((256, 1), (256, 2), (256, 4), (512, 2), (512, 4), (1024, 1), (1024, 2)):
    name = f"stream_t{T}_u{U}"; jobs.append((name, streaming(name, T, U))); plan.append(("cef", CE, name, T, 0, 0, 1))
for T, U in ((256, 1), (256, 2), (256, 4), (512, 2), (512, 4), (1024, 1), (1024, 2), (1024, 4)):
    name = f"ceb_t{T}_u{U}"; jobs.append((name, backward(name, T, U))); plan.append(("ceb", CE, name, T, 0, 0, 1))
name = "ceb_t512_u2_rev"; jobs.append((name, backward(name, 512, 2, "rev"))); plan.append(("ceb", CE, name, 512, 0, 0, 1))
start = time.time()
compiled = {n: (c, u) for n, c, u in ThreadPoolExecutor(14).map(compile_, jobs)}
print("compiled", len(jobs), f"{time.time() - start:.1f} s", flush=True)
if "--compile" in sys.argv: 
    for n, (c, u) in compiled.items(): print(n, u)
    sys.exit()
torch.manual_seed(1)
NT = CE[0] * CE[1]
x0, g0 = (torch.randn(NT, device="cuda").to(BF16) for _ in range(2))
y0 = torch.empty_like(x0)
N = 1 << 28
copy = 4 * N / seconds(lambda: y0[:N].copy_(x0[:N])) / 1e9
print(torch.cuda.get_device_name(0), torch.__version__, f"copy {copy:.0f} GB/s")
target = torch.randint(0, CE[1], (CE[0],), device="cuda")
loss, lse, mean, inv = (torch.zeros(262144, device="cuda") for _ in range(4))
w, b = (torch.randn(65536, device="cuda").to(BF16) for _ in range(2))
last = None
for op, (r, p), name, T, smem, P, B in plan:
    if (op, p) != last: print(f"-- {op} {r}x{p}"); last = (op, p)
    code, used = compiled[name]
    if code is None: print(name, "FAILED", used); continue
    module, function = C.c_void_p(), C.c_void_p()
    check(cuda.cuModuleLoadData(C.byref(module), code)); check(cuda.cuModuleGetFunction(C.byref(function), module, name.encode()))
    if smem > 48 * 1024 - 2048:
        if cuda.cuFuncSetAttribute(function, 8, smem): print(name, "no room"); continue
    n = r * p
    x, g, y = x0[:n].view(r, p), g0[:n].view(r, p), y0[:n].view(r, p)
    if op == "lnb": mean[:r], inv[:r] = x.float().mean(1), 1 / (x.float().var(1, correction=0) + 1e-5).sqrt()
    if op == "ceb":
        lse[:r] = torch.cat([torch.logsumexp(part.float(), 1) for part in x.split(1024)]); mean.fill_(1.0 / 16)
    words = [t.data_ptr() for t in (x, g, w, b, y, target, loss, lse, mean, inv)] + [r, p]
    packed = (C.c_uint64 * 12)(*words); pointer = (C.c_void_p * 1)(C.cast(packed, C.c_void_p))
    grid = min(r, 132 * (B if P else r))
    stream = C.c_void_p(torch.cuda.current_stream().cuda_stream)
    def run(): check(cuda.cuLaunchKernel(function, grid, 1, 1, T, 1, 1, smem, stream, pointer, None))
    y.fill_(float("nan")); loss.fill_(float("nan"))
    try:
        run(); torch.cuda.synchronize()
    except RuntimeError as error: print(name, error); continue
    parts = [slice(0, 64), slice(r - 64, r)]
    err = 0.0
    for part in parts:
        d, gd = x[part].double(), g[part].double()
        if op.startswith("softmax"): want, got = torch.softmax(d, 1), y[part]
        elif op == "cef": want, got = F.cross_entropy(d, target[part], reduction="none"), loss[part]
        elif op == "ceb": want, got = (torch.softmax(d, 1) - F.one_hot(target[part], p)) / 16, y[part]
        elif op == "smb": want, got = d * (gd - (d * gd).sum(1, keepdim=True)), y[part]
        elif op == "lnf": want, got = F.layer_norm(d, (p,), w[:p].double(), b[:p].double()), y[part]
        elif op == "lnb":
            leaf = d.clone().requires_grad_(); F.layer_norm(leaf, (p,), w[:p].double(), None, 1e-5).backward(gd); want, got = leaf.grad, y[part]
        err = max(err, ((got.double() - want).norm() / want.norm()).item())
    moved = {"softmax": 4, "softmaxm": 4, "cef": 2, "ceb": 4, "smb": 6, "lnf": 4, "lnb": 6}[op] * n
    s = seconds(run)
    print(f"{name:36s} {s * 1e6:7.0f} us {moved / s / 1e9:6.0f} GB/s {100 * moved / s / 1e9 / copy:6.1f}%  {used} {err:.1e}", flush=True)
s = seconds(lambda: y0.copy_(x0)); print(f"copy of the scores {s * 1e6:.0f} us {4 * NT / s / 1e9:.0f} GB/s")
# the gradient over the scores
