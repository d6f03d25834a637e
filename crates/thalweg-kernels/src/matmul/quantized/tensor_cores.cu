// Pieces of eight rows of an integer weight are converted to floats of A's dtype, and are the right factor of tensor-core products;
// the left factor is the rows of A. If these rows are long or few, the warps of a block share eight rows and take their pieces
// alternately.
#ifndef NAME
#define HALF
#include "../../defaults.cuh"
#define ROWS 8
#define TOGETHER 4
#define IS_INT8 0
#define IS_BF16 0
#endif
#include "../../shared/combine.cuh"
#include "../../shared/multiply_eight.cuh"
#include "../../shared/pieces.cuh"
#include "operands.cuh"

#if __CUDA_ARCH__ >= 800
// Two numbers of 16 bits: the first times the second plus the third.
static __device__ __forceinline__ u32 fma_pair(const u32 a, const u32 b, const u32 c) {
    u32 d;
    asm("fma.rn." ELEMENT_NAME "x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

#if IS_INT8
// Pieces of A that belong to a piece of the weight.
#define EACH 2
// Four bytes as two pairs.
static __device__ __forceinline__ void convert(const u32 word, u32& first, u32& second) {
#if IS_BF16
    const u32 a = __byte_perm(word, 0, 0x4140), b = __byte_perm(word, 0, 0x4342);
    // 128 and the lower seven bits, less 128 or, of a negative number, 256.
    first = fma_pair((a & 0x00800080u) | 0x43004300u, 0xbf80bf80u, (a & 0x007f007fu) | 0x43004300u);
    second = fma_pair((b & 0x00800080u) | 0x43004300u, 0xbf80bf80u, (b & 0x007f007fu) | 0x43004300u);
#else
    const u32 up = word ^ 0x80808080u;
    // 1024 + 128 and the number.
    first = fma_pair(__byte_perm(up, 0x64646464u, 0x4140), 0x3c003c00u, 0xe480e480u);
    second = fma_pair(__byte_perm(up, 0x64646464u, 0x4342), 0x3c003c00u, 0xe480e480u);
#endif
}
static __device__ __forceinline__ uint4 converted(const u32 low, const u32 high) {
    uint4 numbers;
    convert(low, numbers.x, numbers.y);
    convert(high, numbers.z, numbers.w);
    return numbers;
}
#else
#define EACH 4
#if IS_BF16
#define MAGIC 0x43004300u
#define LESS 0xc308c308u
#define ONE 0x3f803f80u
#else
#define MAGIC 0x64006400u
#define LESS 0xe408e408u
#define ONE 0x3c003c00u
#endif
// The lower four bits of each half of a word as a float, in one instruction.
static __device__ __forceinline__ u32 lower_bits(const u32 word) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(word), "r"(0x000f000fu), "r"(MAGIC));
    return d;
}
// Eight numbers of a word in pairs of the first and the fifth, and so on, times a scale plus a zero.
static __device__ __forceinline__ uint4 converted(const u32 word, const u32 scale, const u32 zero) {
    uint4 numbers;
    numbers.x = fma_pair(fma_pair(lower_bits(word >> 4), ONE, LESS), scale, zero);
    numbers.y = fma_pair(fma_pair(lower_bits(word), ONE, LESS), scale, zero);
    numbers.z = fma_pair(fma_pair(lower_bits(word >> 12), ONE, LESS), scale, zero);
    numbers.w = fma_pair(fma_pair(lower_bits(word >> 8), ONE, LESS), scale, zero);
    return numbers;
}
// Eight numbers of A, in the same pairs.
static __device__ __forceinline__ uint4 paired(const uint4 row) {
    return {__byte_perm(row.x, row.z, 0x5410), __byte_perm(row.x, row.z, 0x7632),
            __byte_perm(row.y, row.w, 0x5410), __byte_perm(row.y, row.w, 0x7632)};
}
#endif

extern "C" __global__ void __launch_bounds__(256, 2) NAME(const __grid_constant__ arguments x) {
    extern __shared__ uint4 slots[];
    __shared__ f32 parts[2][8][ROWS / 4][32];
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const u32 split = u32(x.split), part = warp % split;
    const u32 columns = u32(x.n), rows = u32(x.m), groups = (columns + 7) / 8;
    const u32 terms = u32(x.k), bytes = terms / (8 * EACH / 16);
    const u32 each = 8 / split, apart = gridDim.x * each;
    const u32 line = lane / 4, begin = part * 64 + lane % 4 * 16, step = split * 64;
    const u32 steps = ((bytes + step - 1) / step + TOGETHER - 1) / TOGETHER * TOGETHER;
    u32 group = blockIdx.x * each + warp / split;
    pieces<u8> weights{x.weight, bytes, columns, bytes, group, apart, begin, step, steps, 0, nullptr, slots + thread};
    weights.find_row();
    launch_dependents();
    for (u32 at = (part * 4 + lane % 4) * 128; at < bytes; at += split * 512) {
        prefetch(weights.row + at);
    }
    wait_for_previous();
    weights.start();
    const bool has_upper = line < rows, has_lower = ROWS > 8 && line + 8 < rows;
    const u32 each_step = step * (8 * EACH / 16), first = begin * (8 * EACH / 16);
    const Element* const upper_row = x.input + u64(has_upper ? line : rows - 1) * terms + first;
    const Element* const lower_row = x.input + u64(has_lower ? line + 8 : rows - 1) * terms + first;
#if IS_INT8
    const u32 full = 0;
#else
    // The steps in which every lane has terms. A lane without a row loads the last row: products for rows that the result does not
    // have are not stored.
    const u32 last = part * 64 + 48, full = last < bytes ? ((bytes - last - 1) / step + 1) / TOGETHER * TOGETHER : 0;
    const u32 group_bits = 31 - __clz(u32(x.group));
#endif
    u32 slot = 0;
    for (u32 turn = 0; group - warp / split < groups; ++turn) {
        f32 sums[2][4] = {};
#if !IS_INT8
        const Element* const of_line = x.scales + (group * 8 + line < columns ? group * 8 + line : columns - 1) * 2;
#endif
#if !IS_INT8
        for (u32 start = 0; start < full; start += TOGETHER) {
#define IS_FULL true
#include "steps.cuh"
#undef IS_FULL
        }
#endif
        for (u32 start = full; start < steps; start += TOGETHER) {
#define IS_FULL false
#include "steps.cuh"
#undef IS_FULL
        }
        // The other half of the memory may still be read.
        combine(sums, split, parts[turn % 2]);
        #pragma unroll
        for (u32 i = 0; i < ROWS / 4; ++i) {
            const u32 row = line + i / 2 * 8, column = group * 8 + lane % 4 * 2 + i % 2;
            if (part == 0 && row < rows && column < columns) {
                x.result[u64(row) * x.n + column] = STORE(IS_INT8 ? sums[0][i] * LOAD(x.scales[column]) : sums[0][i]);
            }
        }
        group = group + apart;
    }
}
#else
// Nothing to launch when the host compiles this file.
extern "C" __global__ void NAME(const __grid_constant__ arguments x) {
    launch_dependents();
}
#endif
