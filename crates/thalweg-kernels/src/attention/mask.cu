// The gradient of the mask that is added to the scores. A block owns 64 queries × TILE keys of it (fewer along repeated dimensions),
// and goes through the scores to which these mask elements are added: of one part of the heads along which the mask repeats.
#include "tiles.cuh"

constexpr u32 OWN_BYTES = 64 * HEAD * SIZE, TILE_BYTES = TILE * HEAD * SIZE;

struct range {
    i64 from, to;
};

// The block iterates over a repeated dimension; of any other dimension it owns a part.
DEVICE range range_of(i64& item, const i64 stride, const i64 count) {
    if (stride == 0) { return {0, count}; }
    const i64 own = item % count;
    item /= count;
    return {own, own + 1};
}

// Adds the gradients of a tile of scores.
DEVICE void add_gradients(f32 (&sum)[TILE / 2], const arguments& x, const place at, const i64 key, const u32 q, const u32 k) {
    const u32 g = q + OWN_BYTES, v = k + TILE_BYTES, lane = threadIdx.x % 32;
    const i64 row = at.first + threadIdx.x / 32 * 16 + lane / 4, head = at.batch * x.heads + at.head;
    f32 s[TILE / 2], gp[TILE / 2];
    const mask added = mask_of(x, at.batch, at.head);
    mask_of_queries<TILE / 2> tile;
    tile.load(tile, added, row, key);
    product_of_rows<TILE, 64>(s, q, k);
    product_of_rows<TILE, 64>(gp, g, v);
#if DROPPED
    drop(gp, draws_of(x, head), row, key);
#endif
    tile.add(s, tile, added, row, key);
    #pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const i64 query = row + half * 8;
        const bool is = query < x.queries;
        const f32* const sums = x.sums + head * x.padded + query;
        const f32 logarithm = is ? sums[0] : INFINITE, product = is ? sums[x.all_heads * x.padded] : 0;
        i64 limit = x.keys - key;
        if (is_causal(x) && query + 1 - key < limit) { limit = query + 1 - key; }
        const i32 seen = i32(limit < 0 ? 0 : limit > TILE ? TILE : limit) - i32(lane % 4 * 2);
        #pragma unroll
        for (u32 j = 0; j < TILE / 8; ++j) {
            #pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const u32 place = j * 4 + half * 2 + i;
                const f32 weight = exp2_of(__fmaf_rn(s[place], x.scale, -logarithm));
                if (i32(j * 8 + i) < seen) { sum[place] += weight * __fmaf_rn(gp[place], RESCALE, -product); }
            }
        }
    }
}

// Sums the elements that repeat within a tile, and writes the sums.
DEVICE void store_gradients(const arguments& x, f32* const part, f32* const tile, const f32 (&sum)[TILE / 2], const range batches, const range heads, const range queries, const range keys) {
    const u32 thread = threadIdx.x, lane = thread % 32;
    constexpr u32 ROW = TILE + 1;
    __syncthreads();
    #pragma unroll
    for (u32 i = 0; i < TILE / 2; ++i) {
        tile[(thread / 32 * 16 + lane / 4 + i / 2 % 2 * 8) * ROW + i / 4 * 8 + lane % 4 * 2 + i % 2] = sum[i];
    }
    __syncthreads();
    f32* const to = part + batches.from * x.grad_mask.batch + heads.from * x.grad_mask.head;
    const u32 rows = x.grad_mask.row ? 64 : 1, columns = x.grad_mask_key ? TILE : 1;
    for (u32 at = thread; at < rows * columns; at += THREADS) {
        const u32 row = at / columns, column = at % columns;
        const i64 query = rows == 1 ? 0 : queries.from * 64 + row, key = columns == 1 ? 0 : keys.from * TILE + column;
        if (query >= x.queries || key >= x.keys) { continue; }
        f32 all = 0;
        for (u32 i = row; i < (rows == 1 ? 64 : row + 1); ++i) {
            for (u32 j = column; j < (columns == 1 ? TILE : column + 1); ++j) { all += tile[i * ROW + j]; }
        }
        to[query * x.grad_mask.row + key * x.grad_mask_key] = all;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) NAME(const __grid_constant__ arguments x) {
    extern __shared__ __align__(1024) u8 memory[];
    const u32 aligned = (shared_address(memory) + 1023) / 1024 * 1024, q = aligned, k = q + 2 * OWN_BYTES;
    i64 item = blockIdx.x;
    const range keys = range_of(item, x.grad_mask_key, (x.keys + TILE - 1) / TILE);
    const range queries = range_of(item, x.grad_mask.row, (x.queries + 63) / 64);
    const range heads = range_of(item, x.grad_mask.head, x.heads);
    const range batches = range_of(item, x.grad_mask.batch, x.all_heads / x.heads);
    // What remains is the number of the part.
    const i64 across = heads.to - heads.from, pairs = (batches.to - batches.from) * across;
    const range own = {item * pairs / x.grad_mask_parts, (item + 1) * pairs / x.grad_mask_parts};
    f32 sum[TILE / 2];
    #pragma unroll
    for (u32 i = 0; i < TILE / 2; ++i) { sum[i] = 0; }
    for (i64 pair = own.from; pair < own.to; ++pair) {
        const i64 batch = batches.from + pair / across, head = heads.from + pair % across, kv_head = head / x.shared;
        for (i64 query = queries.from; query < queries.to; ++query) {
            const place at = {batch, head, query * 64};
            __syncthreads();
            copy_tile<64, THREADS>(q, x.q.at + batch * x.q.batch + head * x.q.head, x.q.row, at.first, x.queries, x.columns, threadIdx.x);
            copy_tile<64, THREADS>(q + OWN_BYTES, x.grad_o.at + batch * x.grad_o.batch + head * x.grad_o.head, x.grad_o.row, at.first, x.queries, x.columns, threadIdx.x);
            for (i64 key = keys.from; key < keys.to; ++key) {
                __syncthreads();
                copy_tile<TILE, THREADS>(k, x.k.at + batch * x.k.batch + kv_head * x.k.head, x.k.row, key * TILE, x.keys, x.columns, threadIdx.x);
                copy_tile<TILE, THREADS>(k + TILE_BYTES, x.v.at + batch * x.v.batch + kv_head * x.v.head, x.v.row, key * TILE, x.keys, x.columns, threadIdx.x);
                copies_commit();
                copies_wait<0>();
                __syncthreads();
                add_gradients(sum, x, at, key * TILE, q, k);
            }
        }
    }
    f32* const part = x.grad_mask_at + item * x.grad_mask_part;
    store_gradients(x, part, (f32*)(memory + (aligned - shared_address(memory))), sum, batches, heads, queries, keys);
}
