#pragma once
// GROUPS groups of four warps, of 64 queries each; TILE keys at a time.
#include "tiles.cuh"

constexpr u32 QUERIES = GROUPS * 64;
constexpr u32 QUERY_BYTES = QUERIES * HEAD * SIZE, TILE_BYTES = TILE * HEAD * SIZE;

// Excludes masked scores from a tile of keys that begins at `first`.
DEVICE void limit_scores(f32 (&s)[TILE / 2], const arguments& x, const i64 query, const i64 first) {
    const u32 lane = threadIdx.x % 32;
    #pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        i64 limit = x.keys - first;
        if (is_causal(x) && query + half * 8 + 1 - first < limit) { limit = query + half * 8 + 1 - first; }
        const i32 seen = i32(limit < 0 ? 0 : limit > TILE ? TILE : limit) - i32(lane % 4 * 2);
        #pragma unroll
        for (u32 j = 0; j < TILE / 8; ++j) {
            #pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                if (i32(j * 8 + i) >= seen) { s[j * 4 + half * 2 + i] = -INFINITE; }
            }
        }
    }
}

#if MASKED
typedef mask_of_queries<TILE / 2> mask_tile;
#define MASK_LOAD(query, first) mask_tile tile; mask_tile::load(tile, added, query, first)
#define MASK_ADD(s, query, first) mask_tile::add(s, tile, added, query, first)
#else
#define MASK_LOAD(query, first)
#define MASK_ADD(s, query, first)
#endif

#if DROPPED
// Drawing needs more registers than are free while products are in progress.
#define DROP(s, query, first) drop(s, drawn, query, first)
#else
#define DROP(s, query, first)
#endif

// The running maximum and sum of two rows of a thread.
struct rows_state {
    f32 maximum[2], sum[2];
};

// Converts scores to weights relative to the new maximum; returns the factors by which the earlier sums must be rescaled.
DEVICE void soften(f32 (&s)[TILE / 2], rows_state& rows, f32 (&factor)[2], const f32 scale) {
    #pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        f32 most = rows.maximum[half];
        #pragma unroll
        for (u32 j = 0; j < TILE / 8; ++j) { most = fmaxf(most, fmaxf(s[j * 4 + half * 2], s[j * 4 + half * 2 + 1])); }
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        const f32 least = most == -INFINITE ? 0 : most, base = least * scale;
        // Exactly 1 if the maximum is the earlier one.
        factor[half] = exp2_of((rows.maximum[half] - least) * scale);
        rows.maximum[half] = most;
        f32 sums[2] = {0, 0};
        #pragma unroll
        for (u32 j = 0; j < TILE / 8; ++j) {
            #pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                f32& value = s[j * 4 + half * 2 + i];
                value = exp2_of(__fmaf_rn(value, scale, -base));
                sums[i] += value;
            }
        }
        rows.sum[half] = __fmaf_rn(rows.sum[half], factor[half], sums[0] + sums[1]);
    }
}

DEVICE void rescale(f32 (&o)[HEAD / 2], const f32 (&factor)[2]) {
    #pragma unroll
    for (u32 j = 0; j < HEAD / 8; ++j) {
        o[j * 4] *= factor[0];
        o[j * 4 + 1] *= factor[0];
        o[j * 4 + 2] *= factor[1];
        o[j * 4 + 3] *= factor[1];
    }
}

// Divides the rows by their sums and writes them, with the logarithms of the sums.
DEVICE void finish_rows(const arguments& x, const place at, const i64 first, f32 (&o)[HEAD / 2], const rows_state& rows) {
    const u32 thread = threadIdx.x;
    const i64 query = first + thread / 32 % 4 * 16 + thread % 32 / 4;
    f32* const lse = x.lse + (at.batch * x.heads + at.head) * x.queries;
    f32 inverse[2];
    #pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        f32 sum = rows.sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        inverse[half] = sum == 0 ? 0 : RESCALE / sum;
        if (thread % 4 == 0 && query + half * 8 < x.queries) {
            lse[query + half * 8] = sum == 0 ? -INFINITE : (rows.maximum[half] * x.scale + log2f(sum)) * 0.693147180559945309f;
        }
    }
    element* const to = x.o.at + at.batch * x.o.batch + at.head * x.o.head;
    store_rows(to, x.o.row, first, x.queries, 0, x.columns, o, inverse[0], inverse[1]);
}

// The number of tiles of keys that queries before `end` attend to, and how many of these tiles are visible entirely.
DEVICE u32 tiles_seen(const arguments& x, const i64 end, const i64 batch, const i64 head) {
#if MASKED
    const i64 keys = keys_seen(mask_of(x, batch, head));
#else
    const i64 keys = x.keys;
#endif
    return u32(((is_causal(x) && end < keys ? end : keys) + TILE - 1) / TILE);
}
DEVICE u32 tiles_seen_whole(const arguments& x, const i64 first) {
    return u32((is_causal(x) && first + 1 < x.keys ? first + 1 : x.keys) / TILE);
}

