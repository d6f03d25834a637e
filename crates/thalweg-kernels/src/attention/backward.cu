// The two kernels that compute the gradient's products; a translation unit contains one of them. With OWNS_KEYS, a block owns keys
// and values and sums their gradients while it goes through the queries. Otherwise it owns queries and goes through keys and values.
//
// GROUPS groups of four warps own 64 rows each; the other side passes in tiles of TILE rows. With SPLIT, that many groups own the same rows and each sums
// COLUMNS of their features. Where keys are owned, scores are those of the transposed matrix, so that weights and the gradients of scores are left factors as
// they lie in registers.
#include "tiles.cuh"

constexpr u32 ROWS = GROUPS / SPLIT * 64, OWN_BYTES = ROWS * HEAD * SIZE, TILE_BYTES = TILE * HEAD * SIZE;
constexpr u32 STAGE_BYTES = 2 * TILE_BYTES + (OWNS_KEYS ? 1024 : 0);

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) NAME(const __grid_constant__ arguments x) {
#if !WARP_GROUPS || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) u8 memory[];
    const u32 own = (shared_address(memory) + 1023) / 1024 * 1024, stages = own + 2 * OWN_BYTES;
    const u32 thread = threadIdx.x;
    const i64 own_heads = OWNS_KEYS ? x.heads / x.shared : x.heads;
    const place at = place_of(x, own_heads, ROWS, !OWNS_KEYS, i64(gridDim.x) / x.blocks, blockIdx.x);
#if OWNS_KEYS
    const operand &own_first = x.k, &own_second = x.v, &first = x.q, &second = x.grad_o;
    const i64 own_rows = x.keys, rows = x.queries;
    // Queries before the first key do not attend to any key of this block.
    const i64 begin = is_causal(x) ? at.first / TILE : 0;
    i64 end = (rows + TILE - 1) / TILE;
#if MASKED
    // If all keys are masked, no query attends to them either.
    if ((x.mask.head == 0 || x.shared == 1) && at.first >= keys_seen(mask_of(x, at.batch, at.head * x.shared))) { end = 0; }
#endif
    const u32 per_head = end > begin ? u32(end - begin) : 0, tiles = per_head * u32(x.shared);
#else
    const operand &own_first = x.q, &own_second = x.grad_o, &first = x.k, &second = x.v;
    const i64 own_rows = x.queries, rows = x.keys;
#if MASKED
    i64 seen = keys_seen(mask_of(x, at.batch, at.head));
#else
    i64 seen = x.keys;
#endif
    if (is_causal(x) && at.first + ROWS < seen) { seen = at.first + ROWS; }
    const u32 tiles = u32((seen + TILE - 1) / TILE);
#endif
    const element* const own_first_from = own_first.at + at.batch * own_first.batch + at.head * own_first.head;
    const element* const own_second_from = own_second.at + at.batch * own_second.batch + at.head * own_second.head;
#if WARP_GROUPS
    constexpr u32 COPIERS = 128;
    const u32 copier = thread;
#else
    constexpr u32 COPIERS = THREADS;
    const u32 copier = thread;
#endif
    const auto copy_own = [&]() {
        copy_tile<ROWS, COPIERS>(own, own_first_from, own_first.row, at.first, own_rows, x.columns, copier);
        copy_tile<ROWS, COPIERS>(own + OWN_BYTES, own_second_from, own_second.row, at.first, own_rows, x.columns, copier);
    };
    const auto copy_stage = [&](const u32 n) {
        const u32 stage = stages + n % STAGES * STAGE_BYTES;
#if OWNS_KEYS
        const i64 head = at.head * x.shared + n / per_head, row = (begin + n % per_head) * TILE;
        const f32* const sums = x.sums + (at.batch * x.heads + head) * x.padded + row;
        if (copier < TILE / 4) { copy_chunk(stage + 2 * TILE_BYTES + copier * 16, sums + copier * 4, true); }
        else if (copier < TILE / 2) { copy_chunk(stage + 2 * TILE_BYTES + copier * 16, sums + x.all_heads * x.padded + (copier - TILE / 4) * 4, true); }
#else
        const i64 head = at.head / x.shared, row = i64(n) * TILE;
#endif
        copy_tile<TILE, COPIERS>(stage, first.at + at.batch * first.batch + head * first.head, first.row, row, rows, x.columns, copier);
        copy_tile<TILE, COPIERS>(stage + TILE_BYTES, second.at + at.batch * second.batch + head * second.head, second.row, row, rows, x.columns, copier);
    };
#if WARP_GROUPS
    const u32 there = stages + STAGES * STAGE_BYTES, free = there + 8 * STAGES;
    if (thread == 0) {
        for (u32 i = 0; i < STAGES; ++i) {
            barrier_make(there + 8 * i, 128);
            barrier_make(free + 8 * i, GROUPS * 4);
        }
        to_tensor_cores();
    }
    __syncthreads();
    if (thread < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 " COPIER_REGISTERS ";");
        copy_own();
        for (u32 n = 0; n < tiles; ++n) {
            if (n >= STAGES) { barrier_wait(free + 8 * (n % STAGES), 1 - n / STAGES % 2); }
            copy_stage(n);
            copies_arrive(there + 8 * (n % STAGES));
        }
        copies_finish();
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 " SUMMER_REGISTERS ";");
    const u32 group = thread / 128 - 1;
    #define TAKE(n) barrier_wait(there + 8 * ((n) % STAGES), (n) / STAGES % 2); to_tensor_cores()
    #define GIVE(n) if (thread % 32 == 0) { barrier_arrive(free + 8 * ((n) % STAGES)); }
#else
    const u32 group = thread / 128;
    copy_own();
    for (u32 n = 0; n < STAGES; ++n) {
        if (n < tiles) { copy_stage(n); }
        copies_commit();
    }
    #define TAKE(n) copies_wait<STAGES - 1>(); __syncthreads()
    #define GIVE(n) __syncthreads(); if ((n) + STAGES < tiles) { copy_stage((n) + STAGES); } copies_commit()
#endif
    const u32 part = group / SPLIT, column = group % SPLIT * COLUMNS;
    const u32 a = own + part * 64 * 128, b = a + OWN_BYTES;
    const u32 lane = thread % 32;
    const i64 first_row = at.first + part * 64, row = first_row + thread / 32 % 4 * 16 + lane / 4;
    f32 s[TILE / 2], gp[TILE / 2], sum[COLUMNS / 2];
    u32 gs[FACTORS];
    #pragma unroll
    for (u32 i = 0; i < COLUMNS / 2; ++i) { sum[i] = 0; }
#if OWNS_KEYS
    f32 values[COLUMNS / 2];
    u32 p[FACTORS];
    #pragma unroll
    for (u32 i = 0; i < COLUMNS / 2; ++i) { values[i] = 0; }
#else
    f32 logarithm[2], product[2];
    #pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const f32* const sums = x.sums + (at.batch * x.heads + at.head) * x.padded + row + half * 8;
        const bool is = row + half * 8 < x.queries;
        logarithm[half] = is ? sums[0] : INFINITE;
        product[half] = is ? sums[x.all_heads * x.padded] : 0;
    }
#endif
#if !OWNS_KEYS && MASKED
    const mask added = mask_of(x, at.batch, at.head);
#endif
#if DROPPED
    const draws drawn = draws_of(x, at.batch * x.heads + (OWNS_KEYS ? at.head * x.shared : at.head));
#endif
    for (u32 n = 0; n < tiles; ++n) {
        const u32 stage = stages + n % STAGES * STAGE_BYTES;
        TAKE(n);
        products_begin();
        product_of_rows<TILE, ROWS>(s, a, stage);
        products_commit();
        product_of_rows<TILE, ROWS>(gp, b, stage + TILE_BYTES);
        products_commit();
#if MASKED && OWNS_KEYS
        const mask added = mask_of(x, at.batch, at.head * x.shared + n / per_head);
        mask_of_keys<TILE / 2> tile;
        tile.load(tile, added, row, (begin + n % per_head) * TILE);
#elif MASKED
        mask_of_queries<TILE / 2> tile;
        tile.load(tile, added, row, i64(n) * TILE);
#endif
#if DROPPED && OWNS_KEYS
        kept_columns<TILE / 2> kept;
        draws of_head = drawn;
        of_head.first += n / per_head * drawn.all;
        kept.draw(kept, of_head, row, (begin + n % per_head) * TILE);
#elif DROPPED
        row_draws<TILE / 2> words;
        words.draw(words, drawn, row, i64(n) * TILE);
#endif
        products_wait<1>();
        keep(s);
#if OWNS_KEYS
        const i64 query = (begin + n % per_head) * TILE;
#if MASKED
        tile.add(s, tile, added);
#endif
        const bool is_masked = is_causal(x) && query < first_row + 63;
        // The first query of the tile that may attend to the key of this row.
        const i32 from = i32(row - query) - i32(lane % 4 * 2);
        const f32* const sums = (const f32*)(memory + (stage + 2 * TILE_BYTES - shared_address(memory)));
        #pragma unroll
        for (u32 j = 0; j < TILE / 8; ++j) {
            const float2 logarithm = *(const float2*)(sums + j * 8 + lane % 4 * 2);
            #pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                f32& value = s[j * 4 + i];
                value = exp2_of(__fmaf_rn(value, x.scale, -(i % 2 ? logarithm.y : logarithm.x)));
                if (is_masked && i32(j * 8 + i % 2) < from + i32(i / 2 * 8)) { value = 0; }
            }
        }
#if DROPPED
        f32 used[TILE / 2];
        #pragma unroll
        for (u32 i = 0; i < TILE / 2; ++i) { used[i] = kept.is(kept, i) ? s[i] : 0; }
        round_to_elements(p, used);
#else
        round_to_elements(p, s);
#endif
        products_begin();
        product_of_registers<TILE>(values, p, stage + TILE_BYTES, column);
        products_commit();
        products_wait<1>();
        keep(gp);
        #pragma unroll
        for (u32 j = 0; j < TILE / 8; ++j) {
            const float2 product = *(const float2*)(sums + TILE + j * 8 + lane % 4 * 2);
            #pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                f32& gradient = gp[j * 4 + i];
#if DROPPED
                gradient = kept.is(kept, j * 4 + i) ? gradient : 0;
#endif
                s[j * 4 + i] *= __fmaf_rn(gradient, RESCALE, -(i % 2 ? product.y : product.x));
            }
        }
#else
        const i64 key = i64(n) * TILE;
#if MASKED
        tile.add(s, tile, added, row, key);
#endif
        const bool is_masked = key + TILE > x.keys || (is_causal(x) && key + TILE > first_row + 1);
        i32 seen[2];
        #pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            i64 limit = x.keys - key;
            if (is_causal(x) && row + half * 8 + 1 - key < limit) { limit = row + half * 8 + 1 - key; }
            seen[half] = i32(limit < 0 ? 0 : limit > TILE ? TILE : limit) - i32(lane % 4 * 2);
        }
        #pragma unroll
        for (u32 j = 0; j < TILE / 8; ++j) {
            #pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                f32& value = s[j * 4 + i];
                value = exp2_of(__fmaf_rn(value, x.scale, -logarithm[i / 2]));
                if (is_masked && i32(j * 8 + i % 2) >= seen[i / 2]) { value = 0; }
            }
        }
        products_wait<0>();
        keep(gp);
#if DROPPED
        words.drop(gp, words, drawn);
#endif
        #pragma unroll
        for (u32 i = 0; i < TILE / 2; ++i) { s[i] *= __fmaf_rn(gp[i], RESCALE, -product[i / 2 % 2]); }
#endif
        round_to_elements(gs, s);
        products_begin();
        product_of_registers<TILE>(sum, gs, stage, column);
        products_commit();
        products_wait<0>();
        keep(sum);
#if OWNS_KEYS
        keep(values);
#endif
        GIVE(n);
    }
    const operand& to = OWNS_KEYS ? x.grad_k : x.grad_q;
    store_rows(to.at + at.batch * to.batch + at.head * to.head, to.row, first_row, own_rows, column, x.columns, sum, x.factor, x.factor);
#if OWNS_KEYS
    store_rows(x.grad_v.at + at.batch * x.grad_v.batch + at.head * x.grad_v.head, x.grad_v.row, first_row, own_rows, column, x.columns, values, RESCALE, RESCALE);
#endif
#endif
}
