// A warp reads 512 bytes of each of its LINES rows of W at once, and AHEAD such chunks before it uses the first; rows that are long, or few, are shared by the
// warps of a block, which take chunks in turn. A lane's products are summed in registers, then over the warp, then over the warps in shared memory.
#ifndef NAME
#include "../../defaults.cuh"
#define ROWS 4
#define LINES 4
#define HAS_NORM 1
#endif
#include "finish.cuh"
#include "normalize.cuh"

#define AHEAD (LINES == 1 ? 4 : 2)

// Finds the warp's rows of W, beginning at `first`; rows beyond the last are replaced with the last.
#define FIND_LINES \
    _Pragma("unroll") \
    for (u32 i = 0; i < LINES; ++i) { \
        const u32 nearest = first + i < columns ? first + i : columns - 1; \
        lines[i] = x.b + u64(nearest) * x.b_leading_dimension; \
    }

// Loads the next chunks of the warp's rows of W.
#define READ_WEIGHTS \
    _Pragma("unroll") \
    for (u32 ahead = 0; ahead < AHEAD; ++ahead) { \
        _Pragma("unroll") \
        for (u32 i = 0; i < LINES; ++i) { \
            if (start + ahead * step < terms) { \
                weights[ahead][i] = *(const quad*)(lines[i] + start + ahead * step); \
            } \
        } \
    }


extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    __shared__ f32 parts[8][ROWS * LINES < 8 ? 8 : ROWS * LINES];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 split = 1u << u32(x.flags & 7), part = warp % split;
    const u32 columns = u32(x.n), terms = u32(x.k), rows = u32(x.m);
    const u32 each = 8 / split * LINES, own_line = warp / split * LINES;
    u32 first = blockIdx.x * each + own_line;
    const f32* lines[LINES];
    FIND_LINES
    // While the previous kernel is running, weights are prefetched to the L2 cache.
    launch_dependents();
    for (u32 at = (part * 32 + lane) * (8 * 4); at < terms; at += split * 32 * (8 * 4)) {
        #pragma unroll
        for (u32 i = 0; i < LINES; ++i) {
            prefetch(lines[i] + at);
        }
    }
    wait_for_previous();
    quad weights[AHEAD][LINES];
    const u32 step = split * 32 * 4, begin = (part * 32 + lane) * 4;
    u32 start = begin;
    READ_WEIGHTS
#if HAS_NORM
    extern __shared__ __align__(16) f32 normal[];
    normalize(x, normal, terms + 4, parts[0]);
    const f32* const left_rows = normal;
    const u64 left_step = terms + 4;
#else
    const f32* const left_rows = x.a;
    const u64 left_step = x.a_leading_dimension;
#endif
    // A block that has more rows of W begins to read the next ones while the sums of these are combined.
    for (u32 line = first; line - own_line < columns; line = first) {
        f32 sums[ROWS][LINES] = {};
        while (start < terms) {
            #pragma unroll
            for (u32 ahead = 0; ahead < AHEAD; ++ahead) {
                const u32 at = start + ahead * step;
                if (at < terms) {
                    #pragma unroll
                    for (u32 row = 0; row < ROWS; ++row) {
                        if (row < rows) {
                            const quad left = *(const quad*)(left_rows + row * left_step + at);
                            #pragma unroll
                            for (u32 i = 0; i < LINES; ++i) {
                                #pragma unroll
                                for (u32 term = 0; term < 4; ++term) {
                                    sums[row][i] = fmaf(weights[ahead][i].element[term], left.element[term], sums[row][i]);
                                }
                            }
                        }
                    }
                }
            }
            start += AHEAD * step;
            READ_WEIGHTS
        }
        #pragma unroll
        for (u32 row = 0; row < ROWS; ++row) {
            #pragma unroll
            for (u32 i = 0; i < LINES; ++i) {
                f32 sum = sums[row][i];
                #pragma unroll
                for (u32 apart = 1; apart < 32; apart *= 2) {
                    sum = sum + __shfl_down_sync(0xffffffffu, sum, apart);
                }
                if (lane == 0) {
                    parts[warp][row * LINES + i] = sum;
                }
            }
        }
        __syncthreads();
        first = line + gridDim.x * each;
        start = begin;
        if (first - own_line < columns) {
            FIND_LINES
            READ_WEIGHTS
        }
        // A thread of the first of the warps that share a row adds up their sums.
        for (u32 own = lane; part == 0 && own < ROWS * LINES; own += 32) {
            const u32 row = own / LINES, column = line + own % LINES;
            if (row < rows && column < columns) {
                f32 value = parts[warp][own];
                for (u32 other = 1; other < split; ++other) {
                    value = value + parts[warp + other][own];
                }
                finish(x, row, column, value);
            }
        }
        __syncthreads();
    }
}
