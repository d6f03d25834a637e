// Narrow rows that are combined at one short list of indices, which all outer elements share.
#ifndef NAME
#include "../defaults.cuh"
#define CALL combine_narrow<f32>(x)
#endif
#include "../shared/elements.cuh"
#include "combinations.cuh"

struct arguments {
    const u32* keys;
    const u32* order;
    const void* source;
    const void* target;
    void* result;
    u64 outer;
    u64 extent;
    u64 count;
    u64 inner;
    u64 source_strides[3];
    u64 combine;
    u64 from_zeros;
    u64 dtype;
};

constexpr u32 THREADS = 256, MOST = 4096;

// The value that means no position of the list.
constexpr u16 NONE = 0xffff;

// Each thread combines elements with those at the positions with the same index, which a block finds in the sorted list.
template <class T> static __device__ __forceinline__ void combine_narrow(const arguments& x) {
    typedef typename combined<T>::type SUM;
    __shared__ u16 firsts[MOST], keys[MOST], order[MOST];
    const u32 extent = u32(x.extent), inner = u32(x.inner), count = u32(x.count);
    for (u32 i = threadIdx.x; i < extent; i += THREADS) {
        firsts[i] = NONE;
    }
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        keys[i] = u16(x.keys[i]);
        order[i] = u16(x.order[i]);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const u32 key = keys[i];
        if (key < extent && (i == 0 || keys[i - 1] != key)) {
            firsts[key] = u16(i);
        }
    }
    __syncthreads();
    const T* const target = (const T*)x.target;
    T* const result = (T*)x.result;
    const u32 line = extent * inner;
    const u64 all = x.outer * line;
    for (u64 at = u64(blockIdx.x) * THREADS + threadIdx.x; at < all; at += u64(gridDim.x) * THREADS) {
        const u64 o = all <= 0xffffffffu ? u64(u32(at) / line) : at / line;
        const u32 own = u32(at - o * line), row = inner == 1 ? own : own / inner;
        const T* const source = (const T*)x.source + o * x.source_strides[0] + (own - row * inner) * x.source_strides[2];
        u32 place = firsts[row];
        SUM sum = SUM(0);
        if (!x.from_zeros) {
            sum = widened(target[at]);
        }
        if (place != NONE) {
            SUM added = widened(source[order[place] * x.source_strides[1]]);
            for (++place; place < count && keys[place] == row; ++place) {
                added = combine<SUM>(x.combine, added, widened(source[order[place] * x.source_strides[1]]));
            }
            sum = x.from_zeros ? added : combine<SUM>(x.combine, sum, added);
        }
        result[at] = narrowing<T>::of(sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ arguments x) {
    CALL;
}
