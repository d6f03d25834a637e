// The position of the greatest or smallest element of each row.
#ifndef NAME
#include "defaults.cuh"
#endif
#include "shared/ranked.cuh"

struct arguments {
    const Element* values;
    i64* places;
    u64 rows;
    u64 length;
    u64 smallest;
    u64 dtype;
};

#define WIDTH u32(16 / sizeof(Element))
typedef pack<Element, WIDTH> quad;

#if __CUDA_ARCH__ >= 900
#define PARTS 8
#define CLUSTER __cluster_dims__(8, 1, 1)
#else
#define PARTS 1
#define CLUSTER
#endif

static __device__ __forceinline__ u64 of_warp(u64 best) {
    #pragma unroll
    for (u32 step = 16; step > 0; step /= 2) {
        best = greater(best, __shfl_xor_sync(0xffffffffu, best, step));
    }
    return best;
}

extern "C" __global__ void CLUSTER __launch_bounds__(512) NAME(const __grid_constant__ arguments x) {
    __shared__ u64 warps[16];
#if PARTS > 1
    __shared__ u64 block;
#endif
    launch_dependents();
    wait_for_previous();
#if PARTS == 1
    if (blockIdx.x != 0) {
        return;
    }
#endif
    const u32 length = u32(x.length), own = blockIdx.x * 512 + threadIdx.x;
    const bool smallest = x.smallest != 0;
    const Element* const row = x.values + blockIdx.y * x.length;
    // Elements before the first multiple of 16 bytes and after the last one are compared one by one.
    const u32 before = u32((16 - u64(row) % 16) % 16 / sizeof(Element)), front = before < length ? before : length;
    const u32 count = (length - front) / WIDTH, back = front + count * WIDTH;
    u64 best = 0;
    #pragma unroll 4
    for (u32 at = own; at < count; at += PARTS * 512) {
        const u32 place = front + at * WIDTH;
        const quad values = *(const quad*)(row + place);
        #pragma unroll
        for (u32 i = 0; i < WIDTH; ++i) {
            best = greater(best, ranked(LOAD(values.element[i]), place + i, smallest));
        }
    }
    if (own < front) {
        best = greater(best, ranked(LOAD(row[own]), own, smallest));
    }
    if (own < length - back) {
        best = greater(best, ranked(LOAD(row[back + own]), back + own, smallest));
    }
    best = of_warp(best);
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = best;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        best = of_warp(threadIdx.x < 16 ? warps[threadIdx.x] : 0);
#if PARTS > 1
        block = best;
#endif
    }
    __syncthreads();
#if PARTS > 1
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    if (own < PARTS) {
        u32 at;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(u32(__cvta_generic_to_shared(&block))), "r"(own));
        asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(best) : "r"(at) : "memory");
        #pragma unroll
        for (u32 step = PARTS / 2; step > 0; step /= 2) {
            best = greater(best, __shfl_xor_sync((1u << PARTS) - 1, best, step));
        }
    }
#endif
    if (own == 0) {
        x.places[blockIdx.y] = i64(u32(~u32(best)));
    }
#if PARTS > 1
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}
