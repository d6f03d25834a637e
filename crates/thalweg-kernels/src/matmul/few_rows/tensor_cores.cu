// A warp processes eight rows of W at a time, which are the right factor of tensor-core products; the left factor is the rows of A.
// If these rows are long or few, the warps of a block share eight rows of W and take their terms alternately.
#ifndef NAME
#define HALF
#include "../../defaults.cuh"
#define ROWS 8
#define HAS_NORM 1
#endif
#include "../../shared/combine.cuh"
#include "../../shared/multiply_eight.cuh"
#include "../../shared/pieces.cuh"
#include "finish.cuh"
#include "normalize.cuh"

// The number of steps whose terms of A are loaded together: DEPTH, and half of it.
#define GROUP 4

#if __CUDA_ARCH__ >= 800
extern "C" __global__ void __launch_bounds__(256, 2) NAME(const __grid_constant__ arguments x) {
    extern __shared__ uint4 slots[];
    __shared__ f32 parts[2][8][ROWS / 4][32];
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const u32 split = 1u << u32(x.flags & 7), part = warp % split;
    const u32 columns = u32(x.n), terms = u32(x.k), rows = u32(x.m), groups = (columns + 7) / 8;
    const u32 each = 8 / split, apart = gridDim.x * each;
    // The row of A that the lane has, and its first term.
    const u32 line = lane / 4, begin = part * 32 + lane % 4 * 8, step = split * 32;
    // The same number of steps for each warp, GROUP of them at a time.
    const u32 steps = ((terms + step - 1) / step + GROUP - 1) / GROUP * GROUP;
    u32 group = blockIdx.x * each + warp / split;
    pieces<Element> weights{x.b, x.b_leading_dimension, columns, terms, group, apart, begin, step, steps, 0, nullptr, slots + thread};
    weights.find_row();
    // While the previous kernel is running, weights are prefetched to the L2 cache, 128 bytes per lane.
    launch_dependents();
    for (u32 at = (part * 4 + lane % 4) * 64; at < terms; at += split * 256) {
        prefetch(weights.row + at);
    }
    wait_for_previous();
    weights.start();
#if HAS_NORM
    Element* const normal = (Element*)(slots + DEPTH * 256);
    normalize(x, normal, terms + 8, parts[0][0][0]);
    const Element* const upper_row = normal + line * (terms + 8);
#else
    const Element* const upper_row = x.a + line * x.a_leading_dimension;
#endif
    const bool has_upper = line < rows, has_lower = ROWS > 8 && line + 8 < rows;
    const Element* const lower_row = x.a + (line + 8) * x.a_leading_dimension;
    u32 slot = 0;
    for (u32 turn = 0; group - warp / split < groups; ++turn) {
        f32 sums[2][4] = {};
        for (u32 start = 0; start < steps; start += GROUP) {
            uint4 upper[GROUP], lower[GROUP];
            #pragma unroll
            for (u32 i = 0; i < GROUP; ++i) {
                const u32 at = begin + (start + i) * step;
                upper[i] = at < terms && has_upper ? *(const uint4*)(upper_row + at) : uint4{};
                lower[i] = at < terms && has_lower ? *(const uint4*)(lower_row + at) : uint4{};
            }
            #pragma unroll
            for (u32 i = 0; i < GROUP; ++i) {
                multiply(sums[i % 2], weights.take(slot + i), upper[i], lower[i]);
            }
            slot = (slot + GROUP) % DEPTH;
        }
        // The other half of the memory may still be read.
        combine(sums, split, parts[turn % 2]);
        #pragma unroll
        for (u32 i = 0; i < ROWS / 4; ++i) {
            const u32 row = line + i / 2 * 8, column = group * 8 + lane % 4 * 2 + i % 2;
            if (part == 0 && row < rows && column < columns) {
                finish(x, row, column, sums[0][i]);
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
