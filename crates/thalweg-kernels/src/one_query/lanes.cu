// Attention of one query in 32 bits: a block, or the blocks of a cluster, process the keys of a head.
#ifndef NAME
#include "../defaults.cuh"
#define THREADS 512
#define SPLIT 1
#define TEAM 16
#endif
#include "parts.cuh"

#define WIDTH u32(16 / sizeof(Element))
// The keys between a thread's keys, and the number of keys that it loads at once.
#define TEAMS (THREADS / TEAM)
#define AHEAD 4
typedef pack<Element, WIDTH> quad;

// A sum of weighted values; the exponents of the weights are relative to the greatest one.
struct weighted {
    f32 greatest;
    f32 total;
    f32 sums[WIDTH];
};

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS) NAME(const __grid_constant__ arguments x) {
    __shared__ f32 greatest[WARPS], totals[WARPS], factors[WARPS], values[WARPS][TEAM * WIDTH];
    __shared__ f32 block_greatest, block_total, block_sums[TEAM * WIDTH];
    launch_dependents();
    wait_for_previous();
#if PARTS == 1
    if (blockIdx.y != 0) {
        return;
    }
#endif
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, team = threadIdx.x / TEAM;
    const u32 feature = threadIdx.x % TEAM * WIDTH;
    u32 begin, end, fresh;
    share_of(x, begin, end, fresh);
    const bool is_active = feature < x.features, is_masked = (x.flags >> 8 & 1) != 0;
    const f32 scale = __uint_as_float(u32(x.scale));
    for (u64 block = blockIdx.x; block < x.batch * x.heads; block += gridDim.x) {
        const u64 item = block / x.heads, head = block % x.heads, shared = head / (x.heads / x.kv_heads);
        Element* const own_keys = x.key + item * x.key_batch + shared * x.key_head + feature;
        Element* const own_values = x.value + item * x.value_batch + shared * x.value_head + feature;
        const u8* const mask = x.mask + item * x.mask_batch + head * x.mask_head;
        quad query = {};
        if (is_active) {
            query = *(const quad*)(x.query + item * x.query_batch + head * x.query_head + feature);
        }
        weighted own = {};
        own.greatest = -__int_as_float(0x7f800000);
        for (u32 start = begin + team; start < end + team; start += AHEAD * TEAMS) {
            // The bound is the same for the block, so that all lanes of a warp take part.
            quad key[AHEAD], value[AHEAD];
            bool counts[AHEAD];
            #pragma unroll
            for (u32 ahead = 0; ahead < AHEAD; ++ahead) {
                const u32 place = start + ahead * TEAMS;
                counts[ahead] = place < end && (!is_masked || mask[place * x.mask_key] != 0);
                key[ahead] = {};
                value[ahead] = {};
                if (place == fresh && place < end && is_active) {
                    // Among the heads that share keys, the first head stores them, and the others do not read them from there.
                    const quad new_key = *(const quad*)(x.new_key + item * x.new_key_batch + shared * x.new_key_head + feature);
                    const quad new_value =
                        *(const quad*)(x.new_value + item * x.new_value_batch + shared * x.new_value_head + feature);
                    if (head % (x.heads / x.kv_heads) == 0) {
                        *(quad*)(own_keys + place * x.key_key) = new_key;
                        *(quad*)(own_values + place * x.value_key) = new_value;
                    }
                    key[ahead] = new_key;
                    value[ahead] = new_value;
                } else if (counts[ahead] && is_active) {
                    key[ahead] = *(const quad*)(own_keys + place * x.key_key);
                    value[ahead] = *(const quad*)(own_values + place * x.value_key);
                }
            }
            // The sums so far are converted once for all keys that were loaded.
            f32 score[AHEAD], next = own.greatest;
            #pragma unroll
            for (u32 ahead = 0; ahead < AHEAD; ++ahead) {
                score[ahead] = 0.0f;
                #pragma unroll
                for (u32 i = 0; i < WIDTH; ++i) {
                    score[ahead] = fmaf(LOAD(query.element[i]), LOAD(key[ahead].element[i]), score[ahead]);
                }
                #pragma unroll
                for (u32 step = TEAM / 2; step > 0; step /= 2) {
                    score[ahead] = score[ahead] + __shfl_xor_sync(0xffffffffu, score[ahead], step);
                }
                score[ahead] = score[ahead] * scale;
                next = counts[ahead] && next < score[ahead] ? score[ahead] : next;
            }
            const f32 before = to_greatest(own.greatest, next);
            own.greatest = next;
            own.total *= before;
            #pragma unroll
            for (u32 i = 0; i < WIDTH; ++i) {
                own.sums[i] *= before;
            }
            #pragma unroll
            for (u32 ahead = 0; ahead < AHEAD; ++ahead) {
                if (counts[ahead]) {
                    const f32 weight = to_greatest(score[ahead], next);
                    own.total += weight;
                    #pragma unroll
                    for (u32 i = 0; i < WIDTH; ++i) {
                        own.sums[i] = fmaf(weight, LOAD(value[ahead].element[i]), own.sums[i]);
                    }
                }
            }
        }
        #pragma unroll
        for (u32 step = TEAM; step < 32; step *= 2) {
            const f32 other = __shfl_xor_sync(0xffffffffu, own.greatest, step);
            const f32 next = own.greatest < other ? other : own.greatest;
            const f32 mine = to_greatest(own.greatest, next), theirs = to_greatest(other, next);
            own.greatest = next;
            own.total = own.total * mine + __shfl_xor_sync(0xffffffffu, own.total, step) * theirs;
            #pragma unroll
            for (u32 i = 0; i < WIDTH; ++i) {
                own.sums[i] = own.sums[i] * mine + __shfl_xor_sync(0xffffffffu, own.sums[i], step) * theirs;
            }
        }
        if (lane < TEAM) {
            #pragma unroll
            for (u32 i = 0; i < WIDTH; ++i) {
                values[warp][feature + i] = own.sums[i];
            }
        }
        if (lane == 0) {
            greatest[warp] = own.greatest;
            totals[warp] = own.total;
        }
        __syncthreads();
        // Each warp computes the factor of its sum once, for all features.
        f32 most = greatest[0];
        #pragma unroll
        for (u32 other = 1; other < WARPS; ++other) {
            most = most < greatest[other] ? greatest[other] : most;
        }
        if (lane == 0) {
            factors[warp] = to_greatest(own.greatest, most);
        }
        __syncthreads();
        if (threadIdx.x < x.features) {
            f32 total = 0.0f, sum = 0.0f;
            #pragma unroll
            for (u32 other = 0; other < WARPS; ++other) {
                total = fmaf(totals[other], factors[other], total);
                sum = fmaf(values[other][threadIdx.x], factors[other], sum);
            }
            block_sums[threadIdx.x] = sum;
            if (threadIdx.x == 0) {
                block_greatest = most;
                block_total = total;
            }
        }
        __syncthreads();
        meet();
        if (blockIdx.y == 0 && threadIdx.x < x.features) {
            x.result[block * x.features + threadIdx.x] = STORE(of_all_parts(&block_greatest, &block_total, &block_sums[threadIdx.x]));
        }
        meet();
        __syncthreads();
    }
}
