#pragma once
#ifndef NAME
#include "../defaults.cuh"
#endif

// Returns the sum over the threads of a block of COUNT warps; every thread gets the same bits. With ENDS, `parts` can be reused
// immediately.
template <u32 COUNT = 8, bool ENDS = true> static __device__ __forceinline__ f32 over_block(f32 sum, f32* parts) {
    #pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2) {
        sum = sum + __shfl_xor_sync(0xffffffffu, sum, apart);
    }
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    sum = parts[0];
    #pragma unroll
    for (u32 warp = 1; warp < COUNT; ++warp) {
        sum = sum + parts[warp];
    }
    if (ENDS) {
        __syncthreads();
    }
    return sum;
}
