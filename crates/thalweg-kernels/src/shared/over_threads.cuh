#pragma once
#ifndef NAME
#include "../defaults.cuh"
#endif

// Sums over the threads of a block, of which a multiple of 32 are running.

// Returns the sum of the values of the warp's lanes up to and including this one.
template <class T> static __device__ __forceinline__ T sum_of_lanes(T value) {
    #pragma unroll
    for (u32 distance = 1; distance < 32; distance *= 2) {
        const T left = __shfl_up_sync(~0u, value, distance);
        value += threadIdx.x % 32 >= distance ? left : T(0);
    }
    return value;
}

// Returns the sum of the values of the threads before this one, and sets `total` to that of all. `sums` has room for a value of
// each warp. Synchronises the block, before and after its use of `sums`.
template <u32 THREADS, class T>
static __device__ __forceinline__ T sum_before(const T value, T& total, T* const sums) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const T up_to_here = sum_of_lanes(value);
    __syncthreads();
    if (lane == 31) {
        sums[warp] = up_to_here;
    }
    __syncthreads();
    T before = up_to_here - value;
    total = T(0);
    #pragma unroll
    for (u32 other = 0; other < THREADS / 32; ++other) {
        const T sum = sums[other];
        before += other < warp ? sum : T(0);
        total += sum;
    }
    return before;
}
