// The operands of attention of one query, and what blocks that share the keys of a head tell each other.
#pragma once

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

#define WARPS (THREADS / 32)

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

// Determines a block's keys, and the number of the new key, if there is one in range: only the keys up to its position count then, and it is the
// last of them.
static __device__ __forceinline__ void share_of(const arguments& x, u32& begin, u32& end, u32& fresh) {
    u32 keys = u32(x.keys);
    fresh = 0xffffffffu;
    if ((x.flags >> 9) != 0) {
        const i64 position = *x.position;
        fresh = position >= 0 && position < i64(keys) ? u32(position) : fresh;
        keys = position < 0 ? 0 : fresh < keys ? fresh + 1 : keys;
    }
    const u32 share = (keys + PARTS - 1) / PARTS;
    begin = min(keys, share * blockIdx.y);
    end = min(keys, begin + share);
}

// The weighted mean of values from the sums of all blocks that share keys, by the addresses of this block's own; 0 if no key counts.
static __device__ __forceinline__ f32 of_all_parts(const f32* greatest, const f32* total, const f32* sum) {
    f32 most = *greatest;
    #pragma unroll
    for (u32 part = 1; part < PARTS; ++part) {
        const f32 other = of_part(greatest, part);
        most = most < other ? other : most;
    }
    f32 all = 0.0f, weighted = 0.0f;
    #pragma unroll
    for (u32 part = 0; part < PARTS; ++part) {
        const f32 factor = to_greatest(of_part(greatest, part), most);
        all = fmaf(of_part(total, part), factor, all);
        weighted = fmaf(of_part(sum, part), factor, weighted);
    }
    return all == 0.0f ? 0.0f : weighted / all;
}
