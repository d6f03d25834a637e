// One group of warps copies, the others compute. Blocks of threads are persistent and process one block of queries after another,
// alternately from both ends, because the blocks with the most work come first.
#ifndef NAME
#define WARP_GROUPS 1
#endif
#include "forward.cuh"

DEVICE i64 item_of(const u32 turn) {
    return i64(turn) * gridDim.x + (turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const __grid_constant__ arguments x) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) u8 memory[];
    const u32 base = (shared_address(memory) + 1023) / 1024 * 1024;
    const u32 q = base, k = q + QUERY_BUFFERS * QUERY_BYTES, v = k + STAGES * TILE_BYTES;
    const u32 thread = threadIdx.x;
    const u32 barriers = v + STAGES * TILE_BYTES;
    const u32 k_there = barriers, v_there = k_there + 8 * STAGES, k_free = v_there + 8 * STAGES, v_free = k_free + 8 * STAGES, q_free = v_free + 8 * STAGES;
    if (thread == 0) {
        for (u32 i = 0; i < STAGES; ++i) {
            barrier_make(k_there + 8 * i, 128);
            barrier_make(v_there + 8 * i, 128);
            barrier_make(k_free + 8 * i, GROUPS * 4);
            barrier_make(v_free + 8 * i, GROUPS * 4);
        }
        for (u32 i = 0; i < QUERY_BUFFERS; ++i) { barrier_make(q_free + 8 * i, GROUPS * 4); }
        to_tensor_cores();
    }
    __syncthreads();
    const i64 items = x.blocks * x.all_heads;
    if (thread < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 " COPIER_REGISTERS ";");
        u32 n = 0, turn = 0;
        for (i64 item = item_of(0); item < items; item = item_of(++turn)) {
            const place at = place_of(x, x.heads, QUERIES, true, x.all_heads, item);
            const i64 kv_head = at.head / x.shared;
            const u16* const q_from = x.q.at + at.batch * x.q.batch + at.head * x.q.head;
            const u16* const k_from = x.k.at + at.batch * x.k.batch + kv_head * x.k.head;
            const u16* const v_from = x.v.at + at.batch * x.v.batch + kv_head * x.v.head;
            const u32 end = n + tiles_seen(x, at.first + QUERIES, at.batch, at.head);
            const u32 buffer = turn % QUERY_BUFFERS;
            if (turn >= QUERY_BUFFERS) { barrier_wait(q_free + 8 * buffer, (turn / QUERY_BUFFERS - 1) % 2); }
            copy_tile<QUERIES, 128>(q + buffer * QUERY_BYTES, q_from, x.q.row, at.first, x.queries, x.columns, thread);
            i64 row = 0;
            for (; n < end; ++n, row += TILE) {
                const u32 stage = n % STAGES, phase = n / STAGES % 2;
                if (n >= STAGES) { barrier_wait(k_free + 8 * stage, 1 - phase); }
                copy_tile<TILE, 128>(k + stage * TILE_BYTES, k_from, x.k.row, row, x.keys, x.columns, thread);
                copies_arrive(k_there + 8 * stage);
                if (n >= STAGES) { barrier_wait(v_free + 8 * stage, 1 - phase); }
                copy_tile<TILE, 128>(v + stage * TILE_BYTES, v_from, x.v.row, row, x.keys, x.columns, thread);
                copies_arrive(v_there + 8 * stage);
            }
        }
        copies_finish();
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 " SUMMER_REGISTERS ";");
    const u32 group = thread / 128 - 1;
    #define TAKE_KEYS(j) barrier_wait(k_there + 8 * ((j) % STAGES), (j) / STAGES % 2); to_tensor_cores()
    #define TAKE_VALUES(j) barrier_wait(v_there + 8 * ((j) % STAGES), (j) / STAGES % 2); to_tensor_cores()
    #define GIVE(at) if (thread % 32 == 0) { barrier_arrive(at); }
    f32 o[HEAD / 2], s[TILE / 2], factor[2];
    u32 p[TILE / 4];
    // With TURNS, the groups issue their products alternately, so that one group computes exponentials while another multiplies.
#if TURNS
    if (group == GROUPS - 1) { asm volatile("bar.arrive 1, 256;" ::: "memory"); }
#endif
    u32 n = 0, turn = 0;
    for (i64 item = item_of(0); item < items; item = item_of(++turn)) {
        const u32 buffer = turn % QUERY_BUFFERS, own_q = q + buffer * QUERY_BYTES + group * 64 * 128;
        const place at = place_of(x, x.heads, QUERIES, true, x.all_heads, item);
        const i64 first = at.first + group * 64, query = first + thread / 32 % 4 * 16 + thread % 32 / 4;
        const u32 tiles = tiles_seen(x, at.first + QUERIES, at.batch, at.head), whole_tiles = tiles_seen_whole(x, first);
        rows_state rows = {{-INFINITE, -INFINITE}, {0, 0}};
#if MASKED
        const mask added = mask_of(x, at.batch, at.head);
#endif
#if DROPPED
        const draws drawn = draws_of(x, at.batch * x.heads + at.head);
#endif
        #pragma unroll
        for (u32 i = 0; i < HEAD / 2; ++i) { o[i] = 0; }
        TAKE_KEYS(n);
        keep(s);
        products_begin();
        product_of_rows<TILE, QUERIES>(s, own_q, k + n % STAGES * TILE_BYTES);
        products_commit();
        {
            MASK_LOAD(query, 0);
            products_wait<0>();
            keep(s);
            MASK_ADD(s, query, 0);
            GIVE(k_free + 8 * (n % STAGES));
            if (whole_tiles == 0) { limit_scores(s, x, query, 0); }
            soften(s, rows, factor, x.scale);
            DROP(s, query, 0);
            round_to_elements(p, s);
        }
        for (u32 j = 1; j < tiles; ++j) {
            ++n;
            TAKE_KEYS(n);
#if TURNS
            asm volatile("bar.sync %0, 256;" :: "r"(1 + group) : "memory");
#endif
            keep(s);
            products_begin();
            product_of_rows<TILE, QUERIES>(s, own_q, k + n % STAGES * TILE_BYTES);
            products_commit();
            TAKE_VALUES(n - 1);
            keep(o);
            keep(p);
            products_begin();
            product_of_registers<TILE>(o, p, v + (n - 1) % STAGES * TILE_BYTES);
            products_commit();
#if TURNS
            asm volatile("bar.arrive %0, 256;" :: "r"(1 + (group + 1) % GROUPS) : "memory");
#endif
            MASK_LOAD(query, i64(j) * TILE);
            products_wait<1>();
            keep(s);
            GIVE(k_free + 8 * (n % STAGES));
            MASK_ADD(s, query, i64(j) * TILE);
            if (j >= whole_tiles) { limit_scores(s, x, query, i64(j) * TILE); }
            soften(s, rows, factor, x.scale);
            DROP(s, query, i64(j) * TILE);
            products_wait<0>();
            keep(o);
            GIVE(v_free + 8 * ((n - 1) % STAGES));
            rescale(o, factor);
            round_to_elements(p, s);
        }
        GIVE(q_free + 8 * buffer);
        TAKE_VALUES(n);
        keep(o);
        keep(p);
        products_begin();
        product_of_registers<TILE>(o, p, v + n % STAGES * TILE_BYTES);
        products_commit();
        products_wait<0>();
        keep(o);
        GIVE(v_free + 8 * (n % STAGES));
        ++n;
        finish_rows(x, at, first, o, rows);
    }
#endif
}
