#pragma once
#ifndef NAME
#include "../defaults.cuh"
#endif

// Adds the two parts of a lane's sums and then, in this memory, the sums of the `split` warps that share eight rows of weights. The
// first of these warps gets the total, in the first part.
template <u32 QUARTERS> static __device__ __forceinline__ void combine(f32 (&sums)[2][4], const u32 split, f32 (*const at)[QUARTERS][32]) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    #pragma unroll
    for (u32 i = 0; i < QUARTERS; ++i) {
        sums[0][i] = sums[0][i] + sums[1][i];
    }
    if (split > 1) {
        #pragma unroll
        for (u32 i = 0; i < QUARTERS; ++i) {
            at[warp][i][lane] = sums[0][i];
        }
        __syncthreads();
        for (u32 other = 1; warp % split == 0 && other < split; ++other) {
            #pragma unroll
            for (u32 i = 0; i < QUARTERS; ++i) {
                sums[0][i] = sums[0][i] + at[warp + other][i][lane];
            }
        }
    }
}
