// Rows of 16-byte vectors at indices.
#ifndef NAME
#include "defaults.cuh"
#endif

struct alignas(16) vector {
    u64 words[2];
};

struct arguments {
    const vector* source;
    const i64* index;
    vector* result;
    u64 outer;
    u64 extent;
    u64 count;
    u64 row_bytes;
    u64 index_stride;
    u64 fill;
    u64 vectors;
    volatile i64* report;
};

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64 width = x.row_bytes / 16, vectors = x.outer * x.count * width;
    const u32 own = u32(x.vectors);
    for (u64 block = u64(blockIdx.x) * (own * 256); block < vectors; block += u64(gridDim.x) * (own * 256)) {
        vector values[4];
        #pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u64 at = block + i * 256 + threadIdx.x;
            if (i >= own || at >= vectors) {
                continue;
            }
            u64 part, o, k;
            if (vectors <= 0xffffffffu) {
                const u32 row = u32(at) / u32(width);
                part = u32(at) - row * u32(width);
                o = x.outer == 1 ? 0 : row / u32(x.count);
                k = row - u32(o) * u32(x.count);
            } else {
                part = at % width;
                k = at / width % x.count;
                o = at / width / x.count;
            }
            const i64 named = x.index[k * x.index_stride];
            if (u64(named) < x.extent) {
                values[i] = x.source[(o * x.extent + u64(named)) * width + part];
            } else {
                values[i] = {x.fill, x.fill};
                x.report[0] = named;
                x.report[1] = i64(x.extent) + 1;
            }
        }
        #pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u64 at = block + i * 256 + threadIdx.x;
            if (i < own && at < vectors) {
                x.result[at] = values[i];
            }
        }
    }
}
