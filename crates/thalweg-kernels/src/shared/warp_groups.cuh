#pragma once
#ifndef NAME
#include "../defaults.cuh"
#endif

// Groups of four warps (`wgmma`, compute capability 9.0): asynchronous products that run concurrently with the issuing code.

static __device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <u32 PENDING> static __device__ __forceinline__ void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory"); }

// The results of products are not read before this point.
template <u32 COUNT> static __device__ __forceinline__ void keep(f32 (&x)[COUNT]) {
    #pragma unroll
    for (u32 i = 0; i < COUNT; ++i) { asm volatile("" : "+f"(x[i]) :: "memory"); }
}
