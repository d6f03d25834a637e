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
