#pragma once
// Tiles of floats in shared memory, and products of them.
//
// A tile has rows of HEAD elements, in panels whose rows take 128 bytes: 64 elements of 16 bits, or 32 of 32 bits (WIDE). The eight
// chunks of 16 bytes of such a row are exchanged by the row's place among eight. So a warp reads chunks of 16-bit elements of eight
// rows without conflicts, and the tensor cores of sm_90a read the same layout ("128-byte swizzle"). Wide elements have another
// exchange, because a warp reads four chunks of each row for one product, and one chunk of every second row for another.
#ifndef NAME
#define HALF
#include "../defaults.cuh"
#define HEAD 64
#define GROUPS 2
#define TILE 64
#define STAGES 2
#define QUERY_BUFFERS 1
#define THREADS 256
#define OWNS_KEYS 1
#ifndef WARP_GROUPS
#define WARP_GROUPS 0
#endif
#define IS_BF16 0
#define WIDE 0
#define RESIDENT 1
#define MASKED 1
#define DROPPED 1
#define SPLIT 1
#define TURNS 0
#define COPIER_REGISTERS "40"
#define SUMMER_REGISTERS "232"
#endif
#include "draws.cuh"
#include "../shared/barriers.cuh"
#if WARP_GROUPS
#include "../shared/warp_groups.cuh"
#endif

#if WIDE
typedef f32 element;
typedef u32 number_bits;
typedef u64 pair_bits;
DEVICE u32 exchange_of(const u32 row) { return (row & 6) ^ (row & 1) << 2; }
#else
typedef u16 element;
typedef u16 number_bits;
typedef u32 pair_bits;
DEVICE constexpr u32 exchange_of(const u32 row) { return row % 8; }
#endif
// The elements of a chunk of 16 bytes, and the chunks of a row; the registers of a tile of scores as the left factor of a product.
constexpr u32 SIZE = sizeof(element), PER_CHUNK = 16 / SIZE, CHUNKS = HEAD / PER_CHUNK, FACTORS = TILE * SIZE / 8;
// The features of a product that one thread sums: with SPLIT, groups of warps share the features of the same rows.
constexpr u32 COLUMNS = HEAD / SPLIT;

DEVICE u32 shared_address(const void* at) { return u32(__cvta_generic_to_shared(at)); }

#if !WIDE
// Two floats as a pair of elements, the first in the low half.
DEVICE u32 pair(const f32 low, const f32 high) {
    u32 bits;
    asm("cvt.rn." ELEMENT_NAME "x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
#endif

#if WIDE
DEVICE f32 low_of(const u64 x) { return __uint_as_float(u32(x)); }
DEVICE f32 high_of(const u64 x) { return __uint_as_float(u32(x >> 32)); }
#elif IS_BF16
DEVICE f32 low_of(const u32 x) { return __uint_as_float(x << 16); }
DEVICE f32 high_of(const u32 x) { return __uint_as_float(x & 0xffff0000u); }
#else
DEVICE f32 half_of(const u16 x) { f32 y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
DEVICE f32 low_of(const u32 x) { return half_of(u16(x)); }
DEVICE f32 high_of(const u32 x) { return half_of(u16(x >> 16)); }
#endif

DEVICE f32 exp2_of(const f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE void copy_chunk(const u32 to, const void* from, const bool is) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(is ? 16u : 0u) : "memory");
}
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <u32 PENDING> DEVICE void copies_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"); }

struct operand {
    element* at;
    i64 batch, head, row;
};

#define INFINITE __int_as_float(0x7f800000)

struct arguments {
    operand q, k, v, o, grad_o, grad_q, grad_k, grad_v;
    f32* lse;
    // For each query: the logarithm to base 2 of its sum, and the sum over o · grad_o. First the logarithms of all `padded` rows,
    // then the sums.
    f32* sums;
    // The number of heads of queries, and how many of them share one head of keys; the blocks of a head, and the heads of a band.
    i64 heads, shared, queries, keys, padded, blocks, band, all_heads;
    u32 columns, flags;
    // The factor of scores in base 2, and the factor itself.
    f32 scale, factor;
    u64 dtype, pass;
    // The mask that is added to the scores: strides along batches, heads, queries and keys; 0 along repeated dimensions.
    operand mask;
    i64 mask_key;
    // The gradient of the mask: the sums over each part of the heads along which it repeats, in the layout of the mask, with this
    // number of elements from one part to the next, and the number of parts.
    f32* grad_mask_at;
    struct {
        i64 batch, head, row;
    } grad_mask;
    i64 grad_mask_key, grad_mask_part, grad_mask_parts;
    // Seed and offset of the draws, the share of kept weights in units of 2⁻¹⁶, and the factor of the kept weights.
    const u64* state;
    u32 kept;
    f32 rescale;
};

struct place {
    i64 batch, head, first;
};

DEVICE bool is_causal(const arguments& x) { return x.flags & 1; }

#if DROPPED

// Sets the dropped weights of a tile of scores to 0: of 16 queries beginning at `query`, and COUNT · 2 keys, piece by piece.
template <u32 COUNT> DEVICE void drop(f32 (&s)[COUNT], const draws& d, const i64 query, const i64 first) {
    const u64 piece = d.first + u64(query / 16) * d.across + u64(first / 16);
    #pragma unroll
    for (u32 i = 0; i < COUNT / 8; ++i) {
        u32 words[4];
        words_of(words, d, piece + i);
        #pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            s[i * 8 + j * 2] = low_is_kept(d, words[j]) ? s[i * 8 + j * 2] : 0;
            s[i * 8 + j * 2 + 1] = high_is_kept(d, words[j]) ? s[i * 8 + j * 2 + 1] : 0;
        }
    }
}

// The same in two steps: drawing the random words of a tile, while products are in progress, and applying them.
template <u32 COUNT> struct row_draws {
    u32 words[COUNT / 8][4];

    DEVICE void draw(row_draws& x, const draws& d, const i64 query, const i64 first) {
        const u64 piece = d.first + u64(query / 16) * d.across + u64(first / 16);
        #pragma unroll
        for (u32 i = 0; i < COUNT / 8; ++i) { words_of(x.words[i], d, piece + i); }
    }

    DEVICE void drop(f32 (&s)[COUNT], const row_draws& x, const draws& d) {
        #pragma unroll
        for (u32 i = 0; i < COUNT; i += 2) {
            const u32 word = x.words[i / 8][i / 2 % 4];
            s[i] = low_is_kept(d, word) ? s[i] : 0;
            s[i + 1] = high_is_kept(d, word) ? s[i + 1] : 0;
        }
    }
};

// The bits of a tile of the transposed matrix: of 16 keys beginning at `key`, and COUNT · 2 queries. Lanes exchange the words that
// they drew.
template <u32 COUNT> struct kept_columns {
    u32 bits[(COUNT + 31) / 32][2];

    DEVICE void draw(kept_columns& x, const draws& d, const i64 key, const i64 first) {
        const u64 piece = d.first + u64(first / 16) * d.across + u64(key / 16);
        const u32 lane = threadIdx.x % 32;
        #pragma unroll
        for (u32 word = 0; word < (COUNT + 31) / 32; ++word) {
            u32 own = 0;
            #pragma unroll
            for (u32 i = 0; i < 4 && word * 4 + i < COUNT / 8; ++i) { own |= kept_of(d, piece + (word * 4 + i) * d.across) << i * 8; }
            #pragma unroll
            for (u32 i = 0; i < 2; ++i) { x.bits[word][i] = __shfl_sync(0xffffffffu, own, (lane % 4 * 2 + i) * 4 + lane / 8) >> lane / 4 % 2; }
        }
    }

    DEVICE bool is(const kept_columns& x, const u32 i) { return x.bits[i / 32][i % 2] >> (i / 8 % 4 * 8 + i / 2 % 2 * 4 + i / 4 % 2 * 2) & 1; }
};

#define RESCALE x.rescale
#else
#define RESCALE 1
#endif

#if MASKED
// The mask that is added to the scores of a head before they are scaled; `inverse` is the inverse of the scale. Its elements are
// numbers of the operands' dtype, or truth values of one byte that are true for visible keys.
struct mask {
    const u8* at;
    i64 query, key, queries, keys;
    f32 inverse, lowest;
    // Whether two neighbouring keys are one load.
    bool pairs, truths;
};

DEVICE mask mask_of(const arguments& x, const i64 batch, const i64 head) {
    const bool truths = x.flags & 4;
    const u8* const at = (const u8*)x.mask.at + (batch * x.mask.batch + head * x.mask.head) * (truths ? 1 : SIZE);
    const bool pairs = x.mask_key == 1 && x.mask.row % 2 == 0 && u64(at) % (truths ? 2 : 2 * SIZE) == 0;
    return {at, x.mask.row, x.mask_key, x.queries, x.keys, 1 / x.factor, -131072 / x.scale, pairs, truths};
}

#if WIDE
constexpr number_bits LOWEST = 0xff800000u;
#else
constexpr number_bits LOWEST = IS_BF16 ? 0xff80 : 0xfc00;
#endif

// Converts loaded bits to the numbers of a pair of keys, or to one number in the low half.
DEVICE pair_bits numbers_of(const mask& m, const pair_bits x) {
    return m.truths ? pair_bits(x & 0xffu ? 0 : LOWEST) | pair_bits(x & 0xff00u ? 0 : LOWEST) << SIZE * 8 : x;
}

// Loads at fixed positions in the program, so that they are in progress while products are.
DEVICE pair_bits load_pair(const mask& m, const u8* at, const u32 pair) {
    pair_bits x;
    if (m.truths) {
        u16 two;
        asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(two) : "l"(at + pair * 2));
        x = two;
    } else {
#if WIDE
        asm volatile("ld.global.nc.u64 %0, [%1];" : "=l"(x) : "l"(at + pair * 8));
#else
        asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(x) : "l"(at + pair * 4));
#endif
    }
    return x;
}
DEVICE number_bits load_one(const mask& m, const i64 place) {
    number_bits x;
#if WIDE
    if (m.truths) {
        asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(x) : "l"(m.at + place));
    } else {
        asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(x) : "l"(m.at + place * 4));
    }
#else
    if (m.truths) {
        asm volatile("ld.global.nc.u8 %0, [%1];" : "=h"(x) : "l"(m.at + place));
    } else {
        asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(x) : "l"(m.at + place * 2));
    }
#endif
    return x;
}
// Adds a mask's number to a score. Of wide elements no finite number makes a score so low that the logarithm of a row's sum would have no
// digits for it: a row all of whose keys have the lowest number has equal weights.
DEVICE f32 masked(const mask& m, const f32 number, const f32 score) {
    const f32 sum = __fmaf_rn(number, m.inverse, score);
#if WIDE
    return number == -INFINITE ? number : fmaxf(sum, m.lowest);
#else
    return sum;
#endif
}
DEVICE f32 mask_at(const mask& m, const i64 place) { return low_of(numbers_of(m, load_one(m, place))); }

// The number of keys up to the last visible one, if the mask is the same for all queries: later keys can be skipped. At least one, so
// that there is a tile.
DEVICE i64 keys_seen(const mask& m) {
    if (m.query != 0) { return m.keys; }
    constexpr u32 EACH = 8;
    const u32 lane = threadIdx.x % 32;
    for (i64 end = m.keys; end > 0; end -= 32 * EACH) {
        const i64 start = end - 32 * EACH;
        u32 last = 0;
        #pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            const i64 key = start + lane * EACH + i;
            const bool is_seen = number_bits(numbers_of(m, load_one(m, (key < 0 ? 0 : key) * m.key))) != LOWEST;
            if (key >= 0 && is_seen) { last = lane * EACH + i + 1; }
        }
        last = __reduce_max_sync(0xffffffffu, last);
        if (last > 0) { return start + last; }
    }
    return 1;
}

// The mask of the scores of query `query` and of the query eight rows later, and of COUNT · 2 keys beginning at `first`, two per
// lane. Queries or keys beyond the end get the last one's mask: their scores are not used.
template <u32 COUNT> struct mask_of_queries {
    pair_bits upper[COUNT / 4], lower[COUNT / 4];
    bool is_loaded;

    DEVICE i64 row(const mask& m, const i64 query) { return (query < m.queries ? query : m.queries - 1) * m.query; }

    // Most masks depend only on the key, so that both queries have the same mask.
    DEVICE void load(mask_of_queries& x, const mask& m, const i64 query, const i64 first) {
        x.is_loaded = m.pairs && first + COUNT * 2 <= m.keys;
        if (x.is_loaded) {
            const i64 column = first + threadIdx.x % 4 * 2;
            const u32 size = m.truths ? 1 : SIZE;
            const u8 *const a = m.at + (row(m, query) + column) * size, *const b = m.at + (row(m, query + 8) + column) * size;
            #pragma unroll
            for (u32 j = 0; j < COUNT / 4; ++j) { x.upper[j] = load_pair(m, a, j * 4); }
            if (m.query != 0) {
                #pragma unroll
                for (u32 j = 0; j < COUNT / 4; ++j) { x.lower[j] = load_pair(m, b, j * 4); }
            }
        }
    }

    DEVICE void add(f32 (&s)[COUNT], const mask_of_queries& x, const mask& m, const i64 query, const i64 first) {
        if (x.is_loaded) {
            #pragma unroll
            for (u32 j = 0; j < COUNT / 4; ++j) {
                const pair_bits upper = x.upper[j], lower = m.query == 0 ? upper : x.lower[j];
                if (m.truths) {
                    s[j * 4] = upper & 0xffu ? s[j * 4] : -INFINITE;
                    s[j * 4 + 1] = upper & 0xff00u ? s[j * 4 + 1] : -INFINITE;
                    s[j * 4 + 2] = lower & 0xffu ? s[j * 4 + 2] : -INFINITE;
                    s[j * 4 + 3] = lower & 0xff00u ? s[j * 4 + 3] : -INFINITE;
                } else {
                    s[j * 4] = masked(m, low_of(upper), s[j * 4]);
                    s[j * 4 + 1] = masked(m, high_of(upper), s[j * 4 + 1]);
                    s[j * 4 + 2] = masked(m, low_of(lower), s[j * 4 + 2]);
                    s[j * 4 + 3] = masked(m, high_of(lower), s[j * 4 + 3]);
                }
            }
            return;
        }
        const i64 a = row(m, query), b = row(m, query + 8);
        #pragma unroll
        for (u32 j = 0; j < COUNT / 4; ++j) {
            #pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const i64 key = first + threadIdx.x % 4 * 2 + j * 8 + i, at = (key < m.keys ? key : m.keys - 1) * m.key;
                s[j * 4 + i] = masked(m, mask_at(m, a + at), s[j * 4 + i]);
                s[j * 4 + 2 + i] = masked(m, mask_at(m, b + at), s[j * 4 + 2 + i]);
            }
        }
    }
};

// The same for the transposed matrix: for key `key` and the key eight rows later, and queries beginning at `first`.
template <u32 COUNT> struct mask_of_keys {
    number_bits each[COUNT];

    DEVICE i64 row(const mask& m, const i64 key) { return (key < m.keys ? key : m.keys - 1) * m.key; }

    DEVICE void load(mask_of_keys& x, const mask& m, const i64 key, const i64 first) {
        const i64 a = row(m, key), b = row(m, key + 8);
        if (m.query == 0) {
            x.each[0] = load_one(m, a);
            x.each[2] = load_one(m, b);
            return;
        }
        const i64 column = first + threadIdx.x % 4 * 2;
        const bool is_whole = first + COUNT * 2 <= m.queries;
        #pragma unroll
        for (u32 j = 0; j < COUNT / 4; ++j) {
            #pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const i64 query = column + j * 8 + i, at = (is_whole || query < m.queries ? query : m.queries - 1) * m.query;
                x.each[j * 4 + i] = load_one(m, a + at);
                x.each[j * 4 + 2 + i] = load_one(m, b + at);
            }
        }
    }

    DEVICE void add(f32 (&s)[COUNT], const mask_of_keys& x, const mask& m) {
        if (m.query == 0) {
            const f32 upper = low_of(numbers_of(m, x.each[0])), lower = low_of(numbers_of(m, x.each[2]));
            #pragma unroll
            for (u32 i = 0; i < COUNT; ++i) { s[i] = masked(m, i / 2 % 2 ? lower : upper, s[i]); }
            return;
        }
        #pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            s[i] = m.truths ? (x.each[i] ? s[i] : -INFINITE) : masked(m, low_of(x.each[i]), s[i]);
        }
    }
};
#endif

// The head and the rows that a block of threads owns. Heads are grouped in bands whose operands fit in the cache; within a band,
// blocks with the most work come first.
DEVICE place place_of(const arguments& x, const i64 heads, const u32 rows, const bool descends, const i64 all_heads, const i64 item) {
    const i64 per_band = x.band * x.blocks, band = item / per_band, within = item % per_band;
    const i64 left = all_heads - band * x.band, width = left < x.band ? left : x.band;
    const i64 head = band * x.band + within % width, block = within / width;
    return {head / heads, head % heads, (descends ? x.blocks - 1 - block : block) * rows};
}

// Copies ROWS rows beginning at `first` into a tile, by COPIERS threads; rows and columns beyond the end are zeros.
template <u32 ROWS, u32 COPIERS>
DEVICE void copy_tile(const u32 tile, const element* from, const i64 stride, const i64 first, const i64 rows, const u32 columns, const u32 thread) {
    constexpr u32 STEP = COPIERS / CHUNKS;
    const u32 chunk = thread % CHUNKS, row = thread / CHUNKS;
    static_assert((STEP & (STEP - 1)) == 0, "the exchange of a row is that of its place in the step and that of the step");
    const u32 to = tile + chunk / 8 * (ROWS * 128) + row * 128;
    const element* source = from + (first + row) * stride + chunk * PER_CHUNK;
    const bool is_column = chunk * PER_CHUNK < columns;
    #pragma unroll
    for (u32 i = 0; i < ROWS / STEP; ++i) {
        const bool is = is_column && first + row + i * STEP < rows;
        copy_chunk(to + i * STEP * 128 + ((chunk ^ exchange_of(row)) % 8 ^ exchange_of(i * STEP)) * 16, is ? source : from, is);
        source += stride * STEP;
    }
}

#if WARP_GROUPS
// Keeps operands of a product from being computed after the product has begun.
template <u32 COUNT> DEVICE void keep(u32 (&x)[COUNT]) {
    #pragma unroll
    for (u32 i = 0; i < COUNT; ++i) { asm volatile("" : "+r"(x[i]) :: "memory"); }
}

// Arrives at the barrier when the earlier copies of this thread are done, without waiting.
DEVICE void copies_arrive(const u32 at) { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(at) : "memory"); }
DEVICE void copies_finish() { asm volatile("cp.async.wait_all;" ::: "memory"); }
DEVICE void to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The descriptor of a panel of rows of 128 bytes; `apart` is the distance between panels in bytes.
DEVICE u64 panel(const u32 at, const u32 apart) {
    return u64(at >> 4 & 0x3fff) | u64(apart >> 4) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}

// x = a · bᵀ: 64 rows of A (of a tile of A_ROWS), B_ROWS rows of B, summed over HEAD.
template <u32 B_ROWS, u32 A_ROWS>
DEVICE void product_of_rows(f32 (&x)[B_ROWS / 2], const u32 a, const u32 b) {
    #pragma unroll
    for (u32 k = 0; k < HEAD / 16; ++k) {
        const u32 at = k % 4 * 32;
        group_rows(x, panel(a + k / 4 * (A_ROWS * 128) + at, 0), panel(b + k / 4 * (B_ROWS * 128) + at, 0), k != 0);
    }
}

// x += a · b: A in registers (64 × TERMS), B a tile of TERMS rows.
template <u32 TERMS>
DEVICE void product_of_registers(f32 (&x)[HEAD / 2], const u32 (&a)[TERMS / 4], const u32 b, const u32 = 0) {
    #pragma unroll
    for (u32 k = 0; k < TERMS / 16; ++k) {
        group_registers(x, a[k * 4], a[k * 4 + 1], a[k * 4 + 2], a[k * 4 + 3], panel(b + k * 2048, TERMS * 128));
    }
}
#else
DEVICE void products_begin() {}
DEVICE void products_commit() {}
template <u32 PENDING> DEVICE void products_wait() {}
template <class T, u32 COUNT> DEVICE void keep(T (&x)[COUNT]) {}

#if WIDE
// An f32 as two numbers of tensor cores, which read the upper 19 bits: together they have 21 digits.
struct parts {
    u32 high, low;
};
DEVICE parts parts_of(const f32 x) {
    const u32 high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    return {high, __float_as_uint(x - __uint_as_float(high))};
}

DEVICE void multiply(f32* x, const u32 a0, const u32 a1, const u32 a2, const u32 a3, const u32 b0, const u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Adds to four blocks of sums the products of 16 × 8 and 8 × 8 elements: of all parts but the lower ones of both.
DEVICE void multiply(f32* x, const parts (&a)[4], const parts (&b)[4][2]) {
    #pragma unroll
    for (u32 n = 0; n < 4; ++n) { multiply(x + n * 4, a[0].low, a[1].low, a[2].low, a[3].low, b[n][0].high, b[n][1].high); }
    #pragma unroll
    for (u32 n = 0; n < 4; ++n) { multiply(x + n * 4, a[0].high, a[1].high, a[2].high, a[3].high, b[n][0].low, b[n][1].low); }
    #pragma unroll
    for (u32 n = 0; n < 4; ++n) { multiply(x + n * 4, a[0].high, a[1].high, a[2].high, a[3].high, b[n][0].high, b[n][1].high); }
}

// Loads a chunk of a row of a tile of ROWS rows.
template <u32 ROWS> DEVICE float4 chunk_of(const u32 tile, const u32 row, const u32 chunk) {
    float4 x;
    const u32 at = tile + chunk / 8 * (ROWS * 128) + row * 128 + ((chunk ^ exchange_of(row)) % 8) * 16;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(at) : "memory");
    return x;
}

// A thread's four features of a chunk are those of two products of eight, in the order of the chunk for both factors.
template <u32 B_ROWS, u32 A_ROWS>
DEVICE void product_of_rows(f32 (&x)[B_ROWS / 2], const u32 a, const u32 b) {
    const u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    #pragma unroll
    for (u32 i = 0; i < B_ROWS / 2; ++i) { x[i] = 0; }
    #pragma unroll
    for (u32 k = 0; k < HEAD / 16; ++k) {
        const float4 upper = chunk_of<A_ROWS>(a, row, k * 4 + lane % 4), lower = chunk_of<A_ROWS>(a, row + 8, k * 4 + lane % 4);
        const parts first[4] = {parts_of(upper.x), parts_of(lower.x), parts_of(upper.y), parts_of(lower.y)};
        const parts second[4] = {parts_of(upper.z), parts_of(lower.z), parts_of(upper.w), parts_of(lower.w)};
        #pragma unroll
        for (u32 n = 0; n < B_ROWS / 8; n += 4) {
            parts left[4][2], right[4][2];
            #pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const float4 each = chunk_of<B_ROWS>(b, (n + i) * 8 + lane / 4, k * 4 + lane % 4);
                left[i][0] = parts_of(each.x), left[i][1] = parts_of(each.y), right[i][0] = parts_of(each.z), right[i][1] = parts_of(each.w);
            }
            multiply(x + n * 4, first, left);
            multiply(x + n * 4, second, right);
        }
    }
}

// Processes the columns beginning at `column`. The columns of four blocks of sums are 32 features, of which each thread has eight neighbours: those of a
// chunk's four places are columns of four blocks. Tensor cores cut off the digits of a sum beyond its last one each time they add, always towards 0, so a sum
// over many tiles is added up here.
template <u32 TERMS>
DEVICE void product_of_registers(f32 (&x)[COLUMNS / 2], const u32 (&a)[TERMS / 2], const u32 b, const u32 column = 0) {
    const u32 lane = threadIdx.x % 32;
    #pragma unroll
    for (u32 n = 0; n < COLUMNS / 32; ++n) {
        f32 sums[16];
        #pragma unroll
        for (u32 i = 0; i < 16; ++i) { sums[i] = 0; }
        #pragma unroll
        for (u32 k = 0; k < TERMS / 8; ++k) {
            parts left[4];
            #pragma unroll
            for (u32 i = 0; i < 4; ++i) { left[i] = parts_of(__uint_as_float(a[k * 4 + i / 2 + i % 2 * 2])); }
            const u32 chunk = column / 4 + n * 8 + lane / 4, row = k * 8 + lane % 4 * 2;
            const float4 even = chunk_of<TERMS>(b, row, chunk), odd = chunk_of<TERMS>(b, row + 1, chunk);
            const parts right[4][2] = {{parts_of(even.x), parts_of(odd.x)}, {parts_of(even.y), parts_of(odd.y)}, {parts_of(even.z), parts_of(odd.z)}, {parts_of(even.w), parts_of(odd.w)}};
            multiply(sums, left, right);
        }
        #pragma unroll
        for (u32 i = 0; i < 16; ++i) { x[n * 16 + i] += sums[i]; }
    }
}
#else
DEVICE void multiply(f32* x, const u32 (&a)[4], const u32 b0, const u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT_NAME "." ELEMENT_NAME ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <bool TRANSPOSED> DEVICE void matrices(u32 (&x)[4], const u32 at) {
    if (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at) : "memory");
    }
}

// The address of a chunk of a row of a tile of ROWS rows.
template <u32 ROWS> DEVICE u32 chunk_at(const u32 tile, const u32 row, const u32 chunk) {
    return tile + chunk / 8 * (ROWS * 128) + row * 128 + ((chunk ^ row) % 8) * 16;
}

template <u32 B_ROWS, u32 A_ROWS>
DEVICE void product_of_rows(f32 (&x)[B_ROWS / 2], const u32 a, const u32 b) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    #pragma unroll
    for (u32 i = 0; i < B_ROWS / 2; ++i) { x[i] = 0; }
    #pragma unroll
    for (u32 k = 0; k < HEAD / 16; ++k) {
        u32 left[4];
        matrices<false>(left, chunk_at<A_ROWS>(a, warp * 16 + lane % 16, k * 2 + lane / 16));
        #pragma unroll
        for (u32 n = 0; n < B_ROWS / 16; ++n) {
            u32 right[4];
            matrices<false>(right, chunk_at<B_ROWS>(b, n * 16 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
            multiply(x + n * 8, left, right[0], right[1]);
            multiply(x + n * 8 + 4, left, right[2], right[3]);
        }
    }
}

// Processes the columns beginning at `column`.
template <u32 TERMS>
DEVICE void product_of_registers(f32 (&x)[COLUMNS / 2], const u32 (&a)[TERMS / 4], const u32 b, const u32 column = 0) {
    const u32 lane = threadIdx.x % 32;
    #pragma unroll
    for (u32 k = 0; k < TERMS / 16; ++k) {
        const u32 left[4] = {a[k * 4], a[k * 4 + 1], a[k * 4 + 2], a[k * 4 + 3]};
        #pragma unroll
        for (u32 n = 0; n < COLUMNS / 16; ++n) {
            u32 right[4];
            matrices<true>(right, chunk_at<TERMS>(b, k * 16 + lane % 16, column / 8 + n * 2 + lane / 16));
            multiply(x + n * 8, left, right[0], right[1]);
            multiply(x + n * 8 + 4, left, right[2], right[3]);
        }
    }
}
#endif
#endif

// Rounds 64 × COUNT·2 sums to elements that can be the left factor of the next product.
#if WIDE
template <u32 COUNT> DEVICE void round_to_elements(u32 (&to)[COUNT], const f32 (&x)[COUNT]) {
    #pragma unroll
    for (u32 i = 0; i < COUNT; ++i) { to[i] = __float_as_uint(x[i]); }
}
#else
template <u32 COUNT> DEVICE void round_to_elements(u32 (&to)[COUNT / 2], const f32 (&x)[COUNT]) {
    #pragma unroll
    for (u32 i = 0; i < COUNT / 2; ++i) { to[i] = pair(x[i * 2], x[i * 2 + 1]); }
}
#endif

// Writes 64 rows of sums of the columns beginning at `from`, multiplied by a factor per row half, up to the last row and column.
DEVICE void store_rows(element* to, const i64 stride, const i64 first, const i64 rows, const u32 from, const u32 columns, const f32 (&x)[COLUMNS / 2], const f32 upper, const f32 lower) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const i64 row = first + warp * 16 + lane / 4;
#if WIDE
    #pragma unroll
    for (u32 n = 0; n < COLUMNS / 32; ++n) {
        const u32 column = from + n * 32 + lane % 4 * 8;
        #pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 at = column + i % 2 * 4;
            const i64 own = row + i / 2 * 8;
            const f32 factor = i / 2 ? lower : upper, *const sums = x + n * 16 + i / 2 * 2 + i % 2;
            if (at < columns && own < rows) { *(float4*)(to + own * stride + at) = {sums[0] * factor, sums[4] * factor, sums[8] * factor, sums[12] * factor}; }
        }
    }
#else
    #pragma unroll
    for (u32 j = 0; j < COLUMNS / 8; ++j) {
        const u32 column = from + j * 8 + lane % 4 * 2;
        if (from + j * 8 < columns) {
            if (row < rows) { *(u32*)(to + row * stride + column) = pair(x[j * 4] * upper, x[j * 4 + 1] * upper); }
            if (row + 8 < rows) { *(u32*)(to + (row + 8) * stride + column) = pair(x[j * 4 + 2] * lower, x[j * 4 + 3] * lower); }
        }
    }
#endif
}
