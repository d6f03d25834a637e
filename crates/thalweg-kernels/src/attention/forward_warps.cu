// Every warp copies and computes.
#include "forward.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) NAME(const __grid_constant__ arguments x) {
    extern __shared__ __align__(1024) u8 memory[];
    const u32 q = (shared_address(memory) + 1023) / 1024 * 1024, k = q + QUERY_BYTES, v = k + STAGES * TILE_BYTES;
    const place at = place_of(x, x.heads, QUERIES, true, i64(gridDim.x) / x.blocks, blockIdx.x);
    const i64 kv_head = at.head / x.shared;
    const element* const q_from = x.q.at + at.batch * x.q.batch + at.head * x.q.head;
    const element* const k_from = x.k.at + at.batch * x.k.batch + kv_head * x.k.head;
    const element* const v_from = x.v.at + at.batch * x.v.batch + kv_head * x.v.head;
    const u32 thread = threadIdx.x, group = thread / 128;
    const i64 first = at.first + group * 64, query = first + thread / 32 % 4 * 16 + thread % 32 / 4;
    const u32 tiles = tiles_seen(x, at.first + QUERIES, at.batch, at.head), whole_tiles = tiles_seen_whole(x, first);
    // Empty copies are counted too.
    const auto copy = [&](const u32 to, const element* from, const i64 row, const u32 j) {
        if (j < tiles) { copy_tile<TILE, THREADS>(to + j % STAGES * TILE_BYTES, from, row, i64(j) * TILE, x.keys, x.columns, thread); }
        copies_commit();
    };
    copy_tile<QUERIES, THREADS>(q, q_from, x.q.row, at.first, x.queries, x.columns, thread);
    for (u32 j = 0; j < STAGES; ++j) {
        copy(k, k_from, x.k.row, j);
        copy(v, v_from, x.v.row, j);
    }
    f32 o[HEAD / 2], s[TILE / 2], factor[2];
    u32 p[FACTORS];
    rows_state rows = {{-INFINITE, -INFINITE}, {0, 0}};
#if MASKED
    const mask added = mask_of(x, at.batch, at.head);
#endif
#if DROPPED
    const draws drawn = draws_of(x, at.batch * x.heads + at.head);
#endif
    #pragma unroll
    for (u32 i = 0; i < HEAD / 2; ++i) { o[i] = 0; }
    for (u32 j = 0; j < tiles; ++j) {
        copies_wait<2 * STAGES - 1>();
        __syncthreads();
        MASK_LOAD(query, i64(j) * TILE);
        product_of_rows<TILE, QUERIES>(s, q + group * 64 * 128, k + j % STAGES * TILE_BYTES);
        __syncthreads();
        copy(k, k_from, x.k.row, j + STAGES);
        MASK_ADD(s, query, i64(j) * TILE);
        if (j >= whole_tiles) { limit_scores(s, x, query, i64(j) * TILE); }
        soften(s, rows, factor, x.scale);
        DROP(s, query, i64(j) * TILE);
        rescale(o, factor);
        round_to_elements(p, s);
        copies_wait<2 * STAGES - 1>();
        __syncthreads();
        product_of_registers<TILE>(o, p, v + j % STAGES * TILE_BYTES);
        __syncthreads();
        copy(v, v_from, x.v.row, j + STAGES);
    }
    finish_rows(x, at, first, o, rows);
}
