// Writes which weights are kept: a warp writes one piece after another.
#ifndef NAME
#include "../defaults.cuh"
#endif
#include "draws.cuh"

struct arguments {
    const u64* state;
    u8* to;
    i64 heads, queries, keys;
    u32 kept, rest;
};

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const i64 across = (x.keys + 15) / 16, down = (x.queries + 15) / 16, all = x.heads * across * down;
    const draws drawn = draws_of(x, 0);
    const u32 lane = threadIdx.x % 32;
    for (i64 piece = i64(blockIdx.x) * 8 + threadIdx.x / 32; piece < all; piece += i64(gridDim.x) * 8) {
        const u32 bits = kept_of(drawn, u64(piece));
        const i64 query = piece / across % down * 16 + lane / 4, key = piece % across * 16 + lane % 4 * 2;
        u8* const head = x.to + piece / (across * down) * x.queries * x.keys;
        #pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const i64 row = query + i / 2 % 2 * 8, column = key + i / 4 * 8 + i % 2;
            if (row < x.queries && column < x.keys) { head[row * x.keys + column] = bits >> i & 1; }
        }
    }
}
