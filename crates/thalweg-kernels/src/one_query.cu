// Attention of one query: a block, or the blocks of a cluster, process the keys of a head.
#ifndef NAME
#include "defaults.cuh"
#define THREADS 512
#define SPLIT 1
#define TEAM 16
#endif

struct arguments {
    const Element* query;
    Element* key;
    Element* value;
    const u8* mask;
    Element* result;
    u64 batch;
    u64 heads;
    u64 kv_heads;
    u64 keys;
    u64 features;
    u64 scale;
    u64 query_batch;
    u64 query_head;
    u64 key_batch;
    u64 key_head;
    u64 key_key;
    u64 value_batch;
    u64 value_head;
    u64 value_key;
    u64 mask_batch;
    u64 mask_head;
    u64 mask_key;
    u64 flags;
    const Element* new_key;
    const Element* new_value;
    const i64* position;
    u64 new_key_batch;
    u64 new_key_head;
    u64 new_value_batch;
    u64 new_value_head;
};

#define WIDTH u32(16 / sizeof(Element))
#define WARPS (THREADS / 32)
typedef pack<Element, WIDTH> quad;

// A sum of weighted values; the exponents of the weights are relative to the greatest one.
struct weighted {
    f32 greatest;
    f32 total;
    f32 sums[WIDTH];
};

// The factor that converts a sum relative to one greatest exponent to another that is at least as great.
static __device__ __forceinline__ f32 to_greatest(const f32 from, const f32 to) {
    return from == to ? 1.0f : expf(from - to);
}

// Blocks of a cluster share the keys of a head; before compute capability 9.0 the first block processes all of them.
#if SPLIT > 1 && __CUDA_ARCH__ >= 900
#define PARTS SPLIT
#define CLUSTER __cluster_dims__(1, SPLIT, 1)
#else
#define PARTS 1
#define CLUSTER
#endif

// Waits for all threads of the cluster.
static __device__ __forceinline__ void meet() {
#if PARTS > 1
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// The number in the shared memory of another block of the cluster, at the address of a number of this block.
static __device__ __forceinline__ f32 of_part(const f32* own, const u32 part) {
#if PARTS > 1
    u32 at, place = u32(__cvta_generic_to_shared(own));
    f32 value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(place), "r"(part));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
    return value;
#else
    return *own;
#endif
}

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS) NAME(const __grid_constant__ arguments x) {
    __shared__ f32 greatest[WARPS], totals[WARPS], values[WARPS][TEAM * WIDTH];
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
    // With a new key, only the keys up to its position count; the new key is the last of them if its position is in range.
    u32 keys = u32(x.keys), fresh = 0xffffffffu;
    if ((x.flags >> 9) != 0) {
        const i64 position = *x.position;
        fresh = position >= 0 && position < i64(keys) ? u32(position) : fresh;
        keys = position < 0 ? 0 : fresh < keys ? fresh + 1 : keys;
    }
    const u32 share = (keys + PARTS - 1) / PARTS, begin = min(keys, share * blockIdx.y), end = min(keys, begin + share);
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
        for (u32 start = begin + team; start < end + team; start += 4 * (THREADS / TEAM)) {
            // The bound is the same for the block, so that all lanes of a warp take part.
            quad key[4], value[4];
            bool counts[4];
            #pragma unroll
            for (u32 ahead = 0; ahead < 4; ++ahead) {
                const u32 place = start + ahead * (THREADS / TEAM);
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
            #pragma unroll
            for (u32 ahead = 0; ahead < 4; ++ahead) {
                f32 score = 0.0f;
                #pragma unroll
                for (u32 i = 0; i < WIDTH; ++i) {
                    score = fmaf(LOAD(query.element[i]), LOAD(key[ahead].element[i]), score);
                }
                #pragma unroll
                for (u32 step = TEAM / 2; step > 0; step /= 2) {
                    score = score + __shfl_xor_sync(0xffffffffu, score, step);
                }
                if (counts[ahead]) {
                    score = score * scale;
                    const f32 next = own.greatest < score ? score : own.greatest;
                    const f32 before = to_greatest(own.greatest, next), weight = to_greatest(score, next);
                    own.greatest = next;
                    own.total = fmaf(own.total, before, weight);
                    #pragma unroll
                    for (u32 i = 0; i < WIDTH; ++i) {
                        own.sums[i] = fmaf(own.sums[i], before, weight * LOAD(value[ahead].element[i]));
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
        if (threadIdx.x < x.features) {
            f32 most = greatest[0];
            #pragma unroll
            for (u32 other = 1; other < WARPS; ++other) {
                most = most < greatest[other] ? greatest[other] : most;
            }
            f32 total = 0.0f, sum = 0.0f;
            #pragma unroll
            for (u32 other = 0; other < WARPS; ++other) {
                const f32 factor = to_greatest(greatest[other], most);
                total = fmaf(totals[other], factor, total);
                sum = fmaf(values[other][threadIdx.x], factor, sum);
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
            f32 most = block_greatest;
            #pragma unroll
            for (u32 part = 1; part < PARTS; ++part) {
                const f32 other = of_part(&block_greatest, part);
                most = most < other ? other : most;
            }
            f32 total = 0.0f, sum = 0.0f;
            #pragma unroll
            for (u32 part = 0; part < PARTS; ++part) {
                const f32 factor = to_greatest(of_part(&block_greatest, part), most);
                total = fmaf(of_part(&block_total, part), factor, total);
                sum = fmaf(of_part(&block_sums[threadIdx.x], part), factor, sum);
            }
            x.result[block * x.features + threadIdx.x] = STORE(total == 0.0f ? 0.0f : sum / total);
        }
        meet();
        __syncthreads();
    }
}
