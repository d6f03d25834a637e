// Attention of one query in 16 bits: a block, or the blocks of a cluster, process the keys of a head, for up to four heads of the query that
// share it. A warp multiplies eight keys at a time by tensor cores, whose rows are the heads.
//
// A product's terms may have any order. So each lane reads 16 bytes of a key, or of a value, at a time, and these are what it has of the
// matrix: the features of a key are divided among four lanes, and those of two values among eight.
#ifndef NAME
#define HALF
#include "../defaults.cuh"
#define THREADS 512
#define SPLIT 1
#define HEAD 128
#define GROUP 4
#endif
#include "parts.cuh"

// The keys of a warp's step, and the parts of a key and of a value that a lane reads.
#define KEYS 8
#define KEY_PARTS (HEAD / 32)
#define VALUE_PARTS (HEAD / 64)

// The elements of 16 bytes, in pairs.
union piece {
    uint4 whole;
    u32 pairs[4];
};

// A product has 16 rows, of which the second half are zeros here: its sums are dropped.

// Adds the products of 16 features of the heads and of eight keys.
DEVICE void add_scores(f32 (&sums)[2], const u32 first, const u32 second, const u32 key_first, const u32 key_second) {
    asm("{\n.reg .f32 a, b;\n"
        "mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT_NAME "." ELEMENT_NAME ".f32 {%0, %1, a, b}, {%2, %3, %4, %3}, {%5, %6}, {%0, %1, %7, %7};\n}"
        : "+f"(sums[0]), "+f"(sums[1])
        : "r"(first), "r"(0), "r"(second), "r"(key_first), "r"(key_second), "f"(0.0f));
}

// Adds eight values of eight features, times the weights that the heads give them.
DEVICE void add_values(f32 (&sums)[2], const u32 weights, const u32 values) {
    asm("{\n.reg .f32 a, b;\n"
        "mma.sync.aligned.m16n8k8.row.col.f32." ELEMENT_NAME "." ELEMENT_NAME ".f32 {%0, %1, a, b}, {%2, %3}, {%4}, {%0, %1, %5, %5};\n}"
        : "+f"(sums[0]), "+f"(sums[1])
        : "r"(weights), "r"(0), "r"(values), "f"(0.0f));
}

DEVICE u32 pair_of(const f32 first, const f32 second) {
    union {
        Element elements[2];
        u32 bits;
    } pair;
    pair.elements[0] = STORE(first);
    pair.elements[1] = STORE(second);
    return pair.bits;
}

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS) NAME(const __grid_constant__ arguments x) {
    __shared__ f32 greatest[WARPS][GROUP], totals[WARPS][GROUP], factors[WARPS][GROUP], values[WARPS][GROUP][HEAD];
    __shared__ f32 block_greatest[GROUP], block_totals[GROUP], block_sums[GROUP][HEAD];
    launch_dependents();
    wait_for_previous();
#if PARTS == 1
    if (blockIdx.y != 0) {
        return;
    }
#endif
    const f32 infinite = __int_as_float(0x7f800000);
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // A lane's row and column of each matrix: a key or a head, and a quarter of the features or a pair of keys.
    const u32 row = lane / 4, column = lane % 4;
    u32 begin, end, fresh;
    share_of(x, begin, end, fresh);
    const bool is_masked = (x.flags >> 8 & 1) != 0;
    const u32 features = u32(x.features);
    const f32 scale = __uint_as_float(u32(x.scale));
    const u64 sharing = x.heads / x.kv_heads, groups = (sharing + GROUP - 1) / GROUP;
    for (u64 block = blockIdx.x; block < x.batch * x.kv_heads * groups; block += gridDim.x) {
        const u64 item = block / groups / x.kv_heads, shared = block / groups % x.kv_heads, group = block % groups;
        // The first head of the query, and the number of heads.
        const u64 head = shared * sharing + group * GROUP;
        const u32 heads = u32(min(u64(GROUP), sharing - group * GROUP));
        Element* const own_keys = x.key + item * x.key_batch + shared * x.key_head;
        Element* const own_values = x.value + item * x.value_batch + shared * x.value_head;
        const Element* const new_key = x.new_key + item * x.new_key_batch + shared * x.new_key_head;
        const Element* const new_value = x.new_value + item * x.new_value_batch + shared * x.new_value_head;
        const u8* const mask = x.mask + item * x.mask_batch + head * x.mask_head;
        piece query[KEY_PARTS];
        #pragma unroll
        for (u32 i = 0; i < KEY_PARTS; ++i) {
            const u32 feature = column * 8 + i * 32;
            query[i].whole = make_uint4(0, 0, 0, 0);
            if (row < heads && feature < features) {
                query[i].whole = *(const uint4*)(x.query + item * x.query_batch + (head + row) * x.query_head + feature);
            }
        }
        f32 most = -infinite, total = 0.0f, sums[VALUE_PARTS][8][2];
        #pragma unroll
        for (u32 j = 0; j < VALUE_PARTS; ++j) {
            #pragma unroll
            for (u32 i = 0; i < 8; ++i) { sums[j][i][0] = sums[j][i][1] = 0.0f; }
        }
        for (u32 start = begin + warp * KEYS; start < end; start += WARPS * KEYS) {
            // Keys that no head sees are not read.
            const u32 own = start + row;
            bool is_seen = own < end;
            if (is_seen && is_masked) {
                is_seen = mask[own * x.mask_key] != 0;
                for (u32 other = 1; x.mask_head != 0 && other < heads; ++other) {
                    is_seen = is_seen || mask[other * x.mask_head + own * x.mask_key] != 0;
                }
            }
            piece key[KEY_PARTS], value[2][VALUE_PARTS];
            #pragma unroll
            for (u32 i = 0; i < KEY_PARTS; ++i) {
                const u32 feature = column * 8 + i * 32;
                key[i].whole = make_uint4(0, 0, 0, 0);
                if (feature < features) {
                    uint4* const place = (uint4*)(own_keys + own * x.key_key + feature);
                    if (own == fresh && own < end) {
                        // Among the blocks that share keys, the first one stores them, and the others do not read them from there.
                        key[i].whole = *(const uint4*)(new_key + feature);
                        if (group == 0) { *place = key[i].whole; }
                    } else if (is_seen) {
                        key[i].whole = *place;
                    }
                }
            }
            bool counts[2];
            #pragma unroll
            for (u32 second = 0; second < 2; ++second) {
                const u32 number = 2 * column + second, at = start + number;
                counts[second] = __shfl_sync(0xffffffffu, u32(is_seen), number * 4) != 0;
                #pragma unroll
                for (u32 j = 0; j < VALUE_PARTS; ++j) {
                    const u32 feature = row * 8 + j * 64;
                    value[second][j].whole = make_uint4(0, 0, 0, 0);
                    if (feature < features) {
                        uint4* const place = (uint4*)(own_values + at * x.value_key + feature);
                        if (at == fresh && at < end) {
                            value[second][j].whole = *(const uint4*)(new_value + feature);
                            if (group == 0) { *place = value[second][j].whole; }
                        } else if (counts[second]) {
                            value[second][j].whole = *place;
                        }
                    }
                }
                if (counts[second] && is_masked && x.mask_head != 0) {
                    counts[second] = row < heads && mask[row * x.mask_head + at * x.mask_key] != 0;
                }
            }
            f32 scores[2] = {0.0f, 0.0f};
            #pragma unroll
            for (u32 i = 0; i < KEY_PARTS; ++i) {
                add_scores(scores, query[i].pairs[0], query[i].pairs[1], key[i].pairs[0], key[i].pairs[1]);
                add_scores(scores, query[i].pairs[2], query[i].pairs[3], key[i].pairs[2], key[i].pairs[3]);
            }
            f32 next = most;
            #pragma unroll
            for (u32 second = 0; second < 2; ++second) {
                scores[second] = scores[second] * scale;
                next = counts[second] && next < scores[second] ? scores[second] : next;
            }
            #pragma unroll
            for (u32 step = 1; step < 4; step *= 2) {
                const f32 other = __shfl_xor_sync(0xffffffffu, next, step);
                next = next < other ? other : next;
            }
            const f32 before = to_greatest(most, next);
            most = next;
            f32 weights[2];
            #pragma unroll
            for (u32 second = 0; second < 2; ++second) {
                weights[second] = counts[second] ? to_greatest(scores[second], next) : 0.0f;
            }
            total = fmaf(total, before, weights[0] + weights[1]);
            const u32 pair = pair_of(weights[0], weights[1]);
            #pragma unroll
            for (u32 j = 0; j < VALUE_PARTS; ++j) {
                #pragma unroll
                for (u32 i = 0; i < 8; ++i) {
                    sums[j][i][0] *= before;
                    sums[j][i][1] *= before;
                    const u32 both = __byte_perm(value[0][j].pairs[i / 2], value[1][j].pairs[i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
                    add_values(sums[j][i], pair, both);
                }
            }
        }
        #pragma unroll
        for (u32 step = 1; step < 4; step *= 2) {
            total += __shfl_xor_sync(0xffffffffu, total, step);
        }
        if (row < GROUP) {
            #pragma unroll
            for (u32 j = 0; j < VALUE_PARTS; ++j) {
                #pragma unroll
                for (u32 i = 0; i < 8; ++i) {
                    values[warp][row][column * 16 + j * 64 + i] = sums[j][i][0];
                    values[warp][row][column * 16 + j * 64 + i + 8] = sums[j][i][1];
                }
            }
            if (column == 0) {
                greatest[warp][row] = most;
                totals[warp][row] = total;
            }
        }
        __syncthreads();
        if (threadIdx.x < WARPS * GROUP) {
            // Each sum's factor, once for all features.
            const u32 part = threadIdx.x / GROUP, own = threadIdx.x % GROUP;
            f32 most_of_block = greatest[0][own];
            #pragma unroll
            for (u32 other = 1; other < WARPS; ++other) {
                most_of_block = most_of_block < greatest[other][own] ? greatest[other][own] : most_of_block;
            }
            factors[part][own] = to_greatest(greatest[part][own], most_of_block);
            if (part == 0) { block_greatest[own] = most_of_block; }
        }
        __syncthreads();
        for (u32 at = threadIdx.x; at < heads * HEAD; at += THREADS) {
            const u32 own = at / HEAD, feature = at % HEAD;
            f32 all = 0.0f, sum = 0.0f;
            #pragma unroll
            for (u32 other = 0; other < WARPS; ++other) {
                all = fmaf(totals[other][own], factors[other][own], all);
                sum = fmaf(values[other][own][feature], factors[other][own], sum);
            }
            block_sums[own][feature] = sum;
            if (feature == 0) { block_totals[own] = all; }
        }
        __syncthreads();
        meet();
        for (u32 at = threadIdx.x; blockIdx.y == 0 && at < heads * HEAD; at += THREADS) {
            const u32 own = at / HEAD, feature = at % HEAD;
            if (feature < features) {
                const f32 mean = of_all_parts(&block_greatest[own], &block_totals[own], &block_sums[own][feature]);
                x.result[(item * x.heads + head + own) * features + feature] = STORE(mean);
            }
        }
        meet();
        __syncthreads();
    }
}
