// Rows that replace those at a list of indices.
#ifndef NAME
#include "../defaults.cuh"
#define CALL replace_rows<u32, 1>(x)
#endif

struct arguments {
    const i64* index;
    const u32* last;
    const void* source;
    void* result;
    u64 outer;
    u64 extent;
    u64 count;
    u64 inner;
    u64 index_stride;
    u64 source_strides[3];
    u64 dtype;
};

constexpr u32 THREADS = 256;

// Replaces each row by the one at the last index that names it; a single index is the last one. T is the part of a row that a thread copies, in elements of WIDTH.
template <class T, u32 WIDTH> static __device__ __forceinline__ void replace_rows(const arguments& x) {
    const u64 parts = x.inner / WIDTH, items = x.outer * x.count * parts;
    for (u64 item = u64(blockIdx.x) * THREADS + threadIdx.x; item < items; item += u64(gridDim.x) * THREADS) {
        u64 part, o, k;
        if (items <= 0xffffffffu) {
            const u32 row = u32(item) / u32(parts);
            part = u32(item) - row * u32(parts);
            o = row / u32(x.count);
            k = row - u32(o) * u32(x.count);
        } else {
            part = item % parts;
            k = item / parts % x.count;
            o = item / parts / x.count;
        }
        const i64 row = x.index[k * x.index_stride];
        if (u64(row) < x.extent && (x.count == 1 || x.last[row] == u32(k) + 1)) {
            const u64 from = o * x.source_strides[0] + k * x.source_strides[1] + part * WIDTH * x.source_strides[2];
            const u64 to = (o * x.extent + u64(row)) * x.inner + part * WIDTH;
            ((T*)x.result)[to / WIDTH] = ((const T*)x.source)[from / WIDTH];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ arguments x) {
    CALL;
}
