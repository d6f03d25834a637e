"""Checks and times the layers' kernel and the head's, for the sizes of GPT-2 (or SIZES=layers,features,hidden,heads,context) in bf16.

KERNELS is the folder `src` of thalweg-kernels; arguments are `#define`s beside those of the host: `python step.py "" NAME=VALUE`, a variant each.
A result is held to operators in f32 that round where the kernel does: distances of the row, of the caches, and whether the token is the same.
"""
import os
import struct
import sys

import torch

import cuda

SOURCES = os.environ.get("KERNELS", "crates/thalweg-kernels/src")
L, F, H, HEADS, CTX = map(int, os.environ.get("SIZES", "12,768,3072,12,1024").split(","))
W, VOC, EPS, BF = F // HEADS, 50257, 1e-5, torch.bfloat16
PLACES = sorted({0, 1, min(47, CTX - 1), CTX // 4 - 1, CTX - 1})
PRELUDE = """typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef float f32;
static __device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }
static __device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
static __device__ __forceinline__ void prefetch(const void* at) { asm volatile("prefetch.global.L2 [%0];" :: "l"(__cvta_generic_to_global(at))); }
struct bf16 { u16 bits; };
static __device__ __forceinline__ f32 f32_from_bf16(const bf16 x) { return __uint_as_float((u32)x.bits << 16); }
static __device__ __forceinline__ bf16 bf16_from_f32(const f32 x) { u16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x)); return {y}; }
"""


def text_of(file, name, defines):
    read = lambda path: open(f"{SOURCES}/{path}").read()
    code = read(file).replace("MULTIPLY_EIGHT", read("shared/multiply_eight.cu")).replace("OVER_BLOCK", read("shared/over_block.cu"))
    for word, by in (("NAME", name), ("ELEMENT", "bf16"), ("MMA", "bf16"), ("MOST_FEATURES", "4096"), ("LOAD", "f32_from_bf16"), ("STORE", "bf16_from_f32")):
        code = code.replace(word, by)
    return PRELUDE + "".join(f"#define {name} {value}\n" for name, value in defines.items()) + code


def cluster_of(blocks):
    return 8 if blocks >= 8 * HEADS else 4


def share(rows, blocks):
    return -(-(rows // 2) // blocks) * 2


def shared_bytes(blocks):
    """The shared memory of a block, as `DecoderLayers::shared_bytes` has it."""
    stride = lambda terms: terms * 2 // 128 * 128 + (64 if terms * 2 % 128 == 0 else 192)
    cluster = cluster_of(blocks)
    products = [(3 * W // cluster, F), (share(F, blocks), F), (share(H, blocks), F), (share(F, blocks), H)]
    most, slots = max(rows for rows, _ in products), 1 if W > 64 else 2
    weights = sum(-(-(-(-rows // 8) * 8 * stride(terms)) // 128) * 128 for rows, terms in products)
    rest = slots * 2 * 96 * W * 2 + 2 * max(F, H) + 96 * most + 6 * W + cluster * 12 * (W // cluster * 4 + 8)
    return weights + rest + 8 * F + 6 * W + 6 * most + 32 * 14 * 8 + 1024


def blocks_for(processors):
    for cluster in (8, 4):
        for blocks in range(HEADS * cluster, processors - 16 + 1, cluster):
            has_rows = all(-(-rows // share(rows, blocks)) == blocks for rows in (F, H))
            if cluster_of(blocks) == cluster and has_rows and shared_bytes(blocks) <= 227 << 10:
                return blocks


def layers_text(variant, blocks):
    sizes = dict(FEATURES=F, HIDDEN=H, HEADS=HEADS, WIDTH=W, BLOCKS=blocks, CLUSTER=cluster_of(blocks), LAYERS=32)
    sizes.update(SHARED_BYTES=shared_bytes(blocks), THREADS=384, SLOTS=1 if W > 64 else 2)
    sizes.update(part.split("=") for part in variant.split(",") if part)
    return text_of("decoder_layers/kernel.cu", "layers", sizes)


properties = torch.cuda.get_device_properties(0)
print(properties.name, torch.__version__)
torch.manual_seed(3)
rand = lambda *shape, by=1.0, plus=0.0: (torch.randn(*shape, device="cuda") * by + plus).to(BF)
rounded = lambda x: x.to(BF).float()
norms = lambda: [rand(F, by=0.2, plus=1), rand(F, by=0.3)]
product = lambda rows, terms: [rand(rows, terms, by=terms**-0.5), rand(rows, by=0.3)]
layers = [
    dict(
        norms=norms() + norms(),
        products=product(3 * F, F) + product(F, F) + product(H, F) + product(F, H),
        caches=[rand(HEADS, CTX, W), rand(HEADS, CTX, W)],
    )
    for _ in range(L)
]
tokens, positions, norm = rand(VOC, F), rand(CTX, F), norms()
result, exchange = torch.empty(F, device="cuda", dtype=BF), torch.zeros(1 << 20, device="cuda", dtype=torch.int32)
token, position, history, meeting, told = (torch.zeros(n, device="cuda", dtype=torch.int64) for n in (1, 1, CTX, 2, 2))


def normal(x, weight, bias):
    return rounded(torch.nn.functional.layer_norm(x, (F,), weight.float(), bias.float(), EPS))


def reference(t, p, caches):
    x = rounded(tokens[t].float() + positions[p].float())
    for layer, (keys, values) in zip(layers, caches):
        n, w = layer["norms"], [part.float() for part in layer["products"]]
        q, k, v = (part.view(HEADS, W) for part in rounded(w[0] @ normal(x, n[0], n[1]) + w[1]).split(F))
        keys[:, p], values[:, p] = k, v
        weights = torch.softmax(torch.einsum("hw,hkw->hk", q, keys[:, : p + 1]) * W**-0.5, 1)
        mixed = rounded(torch.einsum("hk,hkw->hw", weights, values[:, : p + 1]).reshape(F))
        x = x + w[2] @ mixed + w[3]
        hidden = rounded(torch.nn.functional.gelu(w[4] @ normal(x, n[2], n[3]) + w[5], approximate="tanh"))
        x = x + w[6] @ hidden + w[7]
    return x


saved = [[part.clone() for part in layer["caches"]] for layer in layers]
expected = {}
for p in PLACES:
    caches = [[part.float() for part in pair] for pair in saved]
    x = reference(17 * p + 5, p, caches)
    scores = rounded(torch.nn.functional.linear(normal(rounded(x), norm[0], norm[1]), tokens.float()))
    expected[p] = (x, [(k[:, p].clone(), v[:, p].clone()) for k, v in caches], int(scores.argmax()))

stream = torch.cuda.Stream()
s = stream.cuda_stream
bits = lambda x: struct.unpack("<I", struct.pack("<f", x))[0]
at = lambda *tensors: [tensor.data_ptr() for tensor in tensors]
words = at(tokens, result, position, exchange, token, positions) + [L, CTX, bits(W**-0.5), bits(EPS), VOC]
for layer in layers:
    words += at(*layer["norms"], *layer["products"], *layer["caches"])
words += [0] * (11 + 32 * 14 - len(words)) + [F | H << 16 | HEADS << 32]
head_words = at(result, tokens, *norm, token, position, history, meeting) + [VOC, CTX, F, bits(EPS), 0] + at(told)
head = cuda.Function(cuda.compiled(text_of("next_token.cu", "head", {}))[0], "head")
choose = head.launcher(head_words, min(-(-VOC // 64), properties.multi_processor_count * 3), 256, s, programmatic=True)


def microseconds(run, count):
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    for _ in range(3):
        run()
    events[0].record(stream)
    for _ in range(count):
        run()
    events[1].record(stream)
    torch.cuda.synchronize()
    return events[0].elapsed_time(events[1]) / count * 1e3


def captured(p, what):
    position.fill_(p), token.fill_(7), torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        what()
    with torch.cuda.stream(stream):
        return microseconds(graph.replay, 100)


def distances(run):
    for p in PLACES:
        for layer, pair in zip(layers, saved):
            for cache, of in zip(layer["caches"], pair):
                cache.copy_(of)
        result.fill_(float("nan")), token.fill_(17 * p + 5), position.fill_(p), torch.cuda.synchronize()
        run(), choose(), torch.cuda.synchronize()
        x, rows, best = expected[p]
        apart = lambda a, b: ((a.float() - b).norm() / b.norm()).item()
        cache = max(apart(layer["caches"][i][:, p], rows[n][i]) for n, layer in enumerate(layers) for i in (0, 1))
        same = "=" if (int(token), int(position)) == (best, p + 1) else "another token"
        yield f"{apart(result, x):.4f}/{cache:.4f}/{same}"


blocks = blocks_for(properties.multi_processor_count)
for variant in sys.argv[1:] or [""]:
    code, used = cuda.compiled(layers_text(variant, blocks))
    run = cuda.Function(code, "layers", shared_bytes(blocks)).launcher(words, blocks, 416, s, cooperative=True)
    exchange.zero_()
    apart = " ".join(distances(run))
    times = []
    for p in PLACES[2:]:
        position.fill_(p), token.fill_(7), torch.cuda.synchronize()
        times.append(f"{microseconds(run, 60):.1f}")
    step = captured(min(200, CTX - 130), lambda: (run(), choose()))
    print(f"{variant:30s} {used} layers at {PLACES[2:]}: {' '.join(times)}; step captured {step:.1f}  {apart}", flush=True)
