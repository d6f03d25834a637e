"""Epilogues of cuBLASLt at the shapes of a step of GPT-2, beside the plain product; us, top of the heuristic and best of eight."""
import ctypes as C, glob, os, sys, torch
paths = glob.glob("/usr/local/cuda*/lib64/libcublasLt.so*") + glob.glob("/usr/local/cuda*/targets/*/lib/libcublasLt.so*")
import nvidia
base = list(nvidia.__path__)[0]
own = glob.glob(base + "/**/libcublasLt.so*", recursive=True)
path = (sorted(own) or sorted(paths))[-1]
lt = C.CDLL(path)
lt.cublasLtGetVersion.restype = C.c_size_t
print("cublasLt", path, lt.cublasLtGetVersion())
H = C.c_void_p()
assert lt.cublasLtCreate(C.byref(H)) == 0
BF, F32 = 14, 0
fmt = {torch.bfloat16: BF, torch.float32: F32}
class Heur(C.Structure):
    _fields_ = [("algo", C.c_uint64 * 8), ("ws", C.c_size_t), ("status", C.c_int), ("waves", C.c_float), ("res", C.c_int * 4)]
def ok(s, what):
    if s != 0: raise RuntimeError(f"{what}: {s}")
def setd(d, a, v, t):
    x = t(v); ok(lt.cublasLtMatmulDescSetAttribute(d, a, C.byref(x), C.sizeof(x)), f"desc {a}")
def layout(t):  # row-major tensor as the column-major transpose
    l = C.c_void_p(); r, c = t.shape
    ok(lt.cublasLtMatrixLayoutCreate(C.byref(l), fmt[t.dtype], C.c_uint64(c), C.c_uint64(r), C.c_int64(t.stride(0))), "layout")
    return l
flush = torch.empty(64 << 20, device="cuda", dtype=torch.int32)
def product(name, a, b, d, ta=False, tb=False, epi=1, bias=None, aux=None, beta=0.0, ws=4 << 20, many=8):
    """d[m,n] = op(a) op(b), row-major; ta: a is stored [k,m]."""
    desc = C.c_void_p(); ok(lt.cublasLtMatmulDescCreate(C.byref(desc), 68, F32), "desc")
    setd(desc, 3, 1 if tb else 0, C.c_int32); setd(desc, 4, 1 if ta else 0, C.c_int32)
    setd(desc, 7, epi, C.c_uint32)
    if bias is not None:
        setd(desc, 8, bias.data_ptr(), C.c_uint64); setd(desc, 26, fmt[bias.dtype], C.c_int32)
    if aux is not None:
        setd(desc, 11, aux.data_ptr(), C.c_uint64); setd(desc, 12, aux.stride(0), C.c_int64)
        setd(desc, 22, fmt[aux.dtype], C.c_int32)
    la, lb, ld = layout(b), layout(a), layout(d)
    pref = C.c_void_p(); ok(lt.cublasLtMatmulPreferenceCreate(C.byref(pref)), "pref")
    w = C.c_uint64(ws); ok(lt.cublasLtMatmulPreferenceSetAttribute(pref, 1, C.byref(w), 8), "ws")
    res = (Heur * many)(); n = C.c_int()
    s = lt.cublasLtMatmulAlgoGetHeuristic(H, desc, la, lb, ld, ld, pref, many, res, C.byref(n))
    if s != 0 or n.value == 0:
        print(f"{name:58s} no algorithm ({s})"); return None
    work = torch.empty(ws, device="cuda", dtype=torch.uint8)
    one, be = C.c_float(1.0), C.c_float(beta)
    st = C.c_void_p(torch.cuda.current_stream().cuda_stream)
    def run(i):
        ok(lt.cublasLtMatmul(H, desc, C.byref(one), C.c_void_p(b.data_ptr()), la, C.c_void_p(a.data_ptr()), lb, C.byref(be),
           C.c_void_p(d.data_ptr()), ld, C.c_void_p(d.data_ptr()), ld, C.byref(res[i].algo), C.c_void_p(work.data_ptr()), C.c_size_t(ws), st), "matmul")
    times = []
    for i in range(n.value):
        try:
            for _ in range(2): run(i)
            e = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            e[0].record()
            for _ in range(12): run(i)
            e[1].record(); torch.cuda.synchronize()
            times.append(e[0].elapsed_time(e[1]) / 12 * 1e3)
        except RuntimeError as x:
            times.append(float("inf"))
    run(0); torch.cuda.synchronize()
    fl = 2 * d.shape[0] * d.shape[1] * (a.shape[0] if ta else a.shape[1])
    print(f"{name:58s} {times[0]:8.1f} us {fl/times[0]/1e6:6.0f} TF/s  best {min(times):8.1f} (#{times.index(min(times))})  {[round(t,1) for t in times]}", flush=True)
    return times[0]
T = 16384
g = torch.Generator("cuda").manual_seed(1)
r = lambda *s, dt=torch.bfloat16, k=1.0: (torch.randn(*s, device="cuda", generator=g) * k).to(dt)
x, w, b = r(T, 768), r(3072, 768, k=0.03), r(3072)
d, aux = r(T, 3072), r(T, 3072)
for ws in (4 << 20, 32 << 20):
    print("workspace", ws)
    product("expand forward", x, w, d, tb=True, ws=ws)
    product("expand forward, bias", x, w, d, tb=True, epi=4, bias=b, ws=ws)
    product("expand forward, gelu bias", x, w, d, tb=True, epi=36, bias=b, ws=ws)
    product("expand forward, gelu bias f32", x, w, d, tb=True, epi=36, bias=b.float(), ws=ws)
    product("expand forward, gelu aux bias", x, w, d, tb=True, epi=164, bias=b, aux=aux, ws=ws)
    pre = x.float() @ w.float().t() + b.float()
    print("   error of aux", (aux.float() - pre).abs().max().item(), "of gelu", (d.float() - torch.nn.functional.gelu(pre, approximate="tanh")).abs().max().item(),
          "of erf gelu", (d.float() - torch.nn.functional.gelu(pre)).abs().max().item())
    dy2, w2 = r(T, 768), r(768, 3072, k=0.03)
    product("contract backward of input", dy2, w2, d, ws=ws)
    product("contract backward of input, dgelu", dy2, w2, d, epi=192, aux=aux, ws=ws)
    gb = torch.zeros(3072, device="cuda", dtype=torch.bfloat16)
    product("contract backward of input, dgelu bgrad", dy2, w2, d, epi=208, aux=aux, bias=gb, ws=ws)
    pre = aux.float().requires_grad_(); y = torch.nn.functional.gelu(pre, approximate="tanh"); y.backward(dy2.float() @ w2.float())
    print("   error of dgelu", ((d.float() - pre.grad).abs().max() / pre.grad.abs().max()).item(), "of bgrad", ((gb.float() - pre.grad.sum(0)).abs().max() / pre.grad.sum(0).abs().max()).item())
    gf = torch.zeros(3072, device="cuda")
    product("contract backward of input, dgelu bgrad f32", dy2, w2, d, epi=208, aux=aux, bias=gf, ws=ws)
    del pre, y
    for o, i in [(3072, 768), (768, 3072), (2304, 768), (768, 768)]:
        dy, xi = r(T, o), r(T, i)
        for dt in (torch.bfloat16, torch.float32):
            dw = torch.zeros(o, i, device="cuda", dtype=dt)
            n = f"gradient of weight {o}x{i} {str(dt)[6:]}"
            product(n, dy, xi, dw, ta=True, ws=ws)
            product(n + " beta 1", dy, xi, dw, ta=True, beta=1.0, ws=ws)
            for bt in (torch.bfloat16, torch.float32):
                gb = torch.zeros(o, device="cuda", dtype=bt)
                if product(n + f" bgradb {str(bt)[6:]}", dy, xi, dw, ta=True, epi=512, bias=gb, ws=ws):
                    ref = dy.float().sum(0)
                    print("   error of bgradb", ((gb.float() - ref).abs().max() / ref.abs().max()).item())
        del dy, xi
    if ws == 4 << 20:
        dy = r(T, 50304, k=0.01)
        for dt in (torch.bfloat16, torch.float32):
            dw = torch.zeros(50304, 768, device="cuda", dtype=dt)
            product(f"gradient of table {str(dt)[6:]}", dy, x, dw, ta=True, ws=ws)
            product(f"gradient of table {str(dt)[6:]} beta 1", dy, x, dw, ta=True, beta=1.0, ws=ws)
        wt = r(50304, 768, k=0.02)
        product("scores", x, wt, dy, tb=True, ws=ws)
        dx = r(T, 768)
        product("gradient of scores' input", dy, wt, dx, ws=ws)
        del dy, wt
    for o, i in [(2304, 768), (768, 768), (768, 3072)]:
        xi, wi, di, bi = r(T, i), r(o, i, k=.03), r(T, o), r(o)
        product(f"forward {o}x{i} bias", xi, wi, di, tb=True, epi=4, bias=bi, ws=ws)
        product(f"backward of input {o}x{i}", di, wi, xi, ws=ws)
