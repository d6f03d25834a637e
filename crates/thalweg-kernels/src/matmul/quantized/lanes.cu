// A warp has a row of integer weights, and multiplies it lane by lane with up to ROWS rows of A.
#ifndef NAME
#include "../../defaults.cuh"
#define ROWS 8
#define IS_INT8 0
#endif
#include "operands.cuh"

// The elements that are loaded at a time, and the terms of 16 bytes of weights.
#define WIDTH u32(16 / sizeof(Element))
#define TERMS (IS_INT8 ? 16 : 32)
typedef pack<Element, WIDTH> several;

// The number of a term of 16 bytes of weights. An integer is placed in the lower bits of a float of 2²³ or more, which costs less than
// a conversion. Of two numbers of four bits, the first is in the upper half of a byte.
static __device__ __forceinline__ f32 number_of(const u32 (&word)[4], const u32 i) {
#if IS_INT8
    return __uint_as_float(__byte_perm(word[i / 4] ^ 0x80808080u, 0x4b000000u, 0x7440 + i % 4)) - 8388736.0f;
#else
    return __uint_as_float((word[i / 8] >> (i % 8 / 2 * 8 + (i % 2 == 0 ? 4 : 0)) & 15u) | 0x4b000000u) - 8388616.0f;
#endif
}

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    launch_dependents();
    wait_for_previous();
    const u32 column = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.y * ROWS;
    if (column >= x.n) {
        return;
    }
    const u32 chunks = u32(x.k) / TERMS;
    const uint4* const weight = (const uint4*)x.weight + u64(column) * chunks;
    const u32 rows = x.m - first < ROWS ? u32(x.m) - first : ROWS;
    f32 sums[ROWS] = {};
    #pragma unroll 2
    for (u32 chunk = lane; chunk < chunks; chunk += 32) {
        const uint4 loaded = weight[chunk];
        const u32 word[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#if !IS_INT8
        const Element* const of_group = x.scales + (u64(chunk * TERMS / u32(x.group)) * x.n + column) * 2;
        const f32 group_scale = LOAD(of_group[0]), group_zero = LOAD(of_group[1]);
        f32 total[ROWS] = {};
#endif
        f32 dot[ROWS] = {};
        #pragma unroll
        for (u32 part = 0; part < TERMS / WIDTH; ++part) {
            several values[ROWS];
            #pragma unroll
            for (u32 r = 0; r < ROWS; ++r) {
                if (r < rows) {
                    values[r] = *(const several*)(x.input + (first + r) * x.k + chunk * TERMS + part * WIDTH);
                }
            }
            #pragma unroll
            for (u32 e = 0; e < WIDTH; ++e) {
                const u32 i = part * WIDTH + e;
                const f32 number = number_of(word, i);
                #pragma unroll
                for (u32 r = 0; r < ROWS; ++r) {
                    if (r < rows) {
                        const f32 value = LOAD(values[r].element[e]);
                        dot[r] = dot[r] + number * value;
#if !IS_INT8
                        total[r] = total[r] + value;
#endif
                    }
                }
            }
        }
        #pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
#if IS_INT8
            sums[r] = sums[r] + dot[r];
#else
            sums[r] = sums[r] + (group_scale * dot[r] + group_zero * total[r]);
#endif
        }
    }
    #pragma unroll
    for (u32 r = 0; r < ROWS; ++r) {
        #pragma unroll
        for (u32 step = 16; step > 0; step /= 2) {
            sums[r] = sums[r] + __shfl_xor_sync(0xffffffffu, sums[r], step);
        }
        if (lane == 0 && r < rows) {
            x.result[(first + r) * x.n + column] = STORE(IS_INT8 ? sums[r] * LOAD(x.scales[column]) : sums[r]);
        }
    }
}
