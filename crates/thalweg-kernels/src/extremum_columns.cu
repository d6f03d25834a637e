// The positions of the greatest or smallest elements of columns: first for parts of the columns, as ranked numbers, then over the
// parts.
#ifndef NAME
#include "defaults.cuh"
#define IS_PARTS 1
#endif
#include "shared/ranked.cuh"

struct arguments {
    const void* from;
    void* to;
    u64 outer;
    u64 length;
    u64 inner;
    u64 smallest;
    u64 dtype;
    u64 phase;
    u64 parts;
};

#if IS_PARTS
#define WIDTH u32(16 / sizeof(Element))
typedef pack<Element, WIDTH> several;

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    __shared__ u64 shared[8][32 * WIDTH];
    launch_dependents();
    wait_for_previous();
    const u32 lane = threadIdx.x / 32, column = (blockIdx.x * 32 + threadIdx.x % 32) * WIDTH, inner = u32(x.inner);
    const bool smallest = x.smallest != 0, active = column < inner;
    const u32 length = u32(x.length), part = u32((x.length + x.parts - 1) / x.parts);
    const u64 begin = u64(blockIdx.y) * part, limit = begin + part;
    const u32 end = limit < x.length ? u32(limit) : length;
    const Element* const values = (const Element*)x.from + u64(blockIdx.z) * x.length * x.inner + column;
    // Numbers are ordered with their sign, and the first of equal ones is kept: a lane's rows come in order. A NaN is greater than
    // all that follow.
    const f32 sign = smallest ? -1.0f : 1.0f;
    f32 best[WIDTH];
    u32 places[WIDTH];
    #pragma unroll
    for (u32 i = 0; i < WIDTH; ++i) {
        best[i] = __uint_as_float(0xff800000u);
        places[i] = u32(begin) + lane;
    }
    const bool any = active && begin + lane < end;
    if (any) {
        for (u64 row = begin + lane; row < end; row += 8 * 4) {
            several loaded[4];
            #pragma unroll
            for (u32 k = 0; k < 4; ++k) {
                if (row + k * 8 < end) {
                    loaded[k] = *(const several*)(values + (row + k * 8) * x.inner);
                }
            }
            #pragma unroll
            for (u32 k = 0; k < 4; ++k) {
                if (row + k * 8 < end) {
                    #pragma unroll
                    for (u32 i = 0; i < WIDTH; ++i) {
                        const f32 value = sign * LOAD(loaded[k].element[i]);
                        const bool better = !(value <= best[i]) && best[i] == best[i];
                        best[i] = better ? value : best[i];
                        places[i] = better ? u32(row) + k * 8 : places[i];
                    }
                }
            }
        }
    }
    #pragma unroll
    for (u32 i = 0; i < WIDTH; ++i) {
        // Arranged by thread, not by column, so that no two threads use the same bank at once.
        shared[lane][i * 32 + threadIdx.x % 32] = any ? ranked(sign * best[i], places[i], smallest) : 0;
    }
    __syncthreads();
    u64* const numbers = (u64*)x.to + (u64(blockIdx.z) * x.parts + blockIdx.y) * x.inner;
    for (u32 at = threadIdx.x; at < 32 * WIDTH; at += 256) {
        u64 most = 0;
        #pragma unroll
        for (u32 other = 0; other < 8; ++other) {
            most = greater(most, shared[other][at]);
        }
        const u32 place = (blockIdx.x * 32 + at % 32) * WIDTH + at / 32;
        if (place < inner) {
            numbers[place] = most;
        }
    }
}
#else
extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    launch_dependents();
    wait_for_previous();
    const u64 column = u64(blockIdx.x) * 256 + threadIdx.x;
    if (column >= x.inner) {
        return;
    }
    const u64* const numbers = (const u64*)x.from + u64(blockIdx.z) * x.parts * x.inner + column;
    u64 most = 0;
    #pragma unroll 8
    for (u64 part = 0; part < x.parts; ++part) {
        const u64 number = numbers[part * x.inner];
        most = most < number ? number : most;
    }
    ((i64*)x.to)[u64(blockIdx.z) * x.inner + column] = i64(u32(~u32(most)));
}
#endif
