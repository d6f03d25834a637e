// The positions of set flags, and the elements at these positions.
#ifndef NAME
#include "../defaults.cuh"
#define CALL values<u32>(x)
#endif
#include "../shared/over_threads.cuh"

struct arguments {
    const u8* flags;
    u64* counts;
    const void* source;
    const void* other;
    void* result;
    u64 elements;
    u64 part;
    u64 parts;
    u64 limit;
    i64 fill;
    u64 element_bytes;
    u64 work;
    u64 row_stride;
    u64 column_stride;
    u64 rank;
    u64 extents[16];
};

// The flags of a thread and of a tile of a block, in the order of memory.
constexpr u32 THREADS = 256, OWN = 16, TILE = THREADS * OWN;

// An element of 16 bytes.
struct alignas(16) two_words {
    u64 words[2];
};

// Returns the flags of a thread in a tile, as bits.
static __device__ __forceinline__ u32 flags_of(const arguments& x, const u64 tile) {
    const u64 first = tile + threadIdx.x * OWN;
    u32 bits = 0;
    if (first + OWN <= x.elements && u64(x.flags) % 16 == 0) {
        const uint4 words = *(const uint4*)(x.flags + first);
        const u32 four[4] = {words.x, words.y, words.z, words.w};
        #pragma unroll
        for (u32 i = 0; i < OWN; ++i) {
            bits |= u32((four[i / 4] >> i % 4 * 8 & 0xff) != 0) << i;
        }
        return bits;
    }
    for (u32 i = 0; i < OWN && first + i < x.elements; ++i) {
        bits |= u32(x.flags[first + i] != 0) << i;
    }
    return bits;
}

// Counts the flags of each part.
static __device__ __forceinline__ void count(const arguments& x) {
    __shared__ u64 sums[THREADS / 32];
    for (u64 part = blockIdx.x; part < x.parts; part += gridDim.x) {
        const u64 end = min(x.elements, (part + 1) * x.part);
        u64 own = 0, total;
        for (u64 tile = part * x.part; tile < end; tile += TILE) {
            own += __popc(flags_of(x, tile));
        }
        sum_before<THREADS>(own, total, sums);
        if (threadIdx.x == 0) {
            x.counts[part] = total;
        }
    }
}

// The number of set flags before a part, and in all parts.
struct compact_place {
    u64 before, total;
};

static __device__ __forceinline__ compact_place place_of(const arguments& x, const u64 part, u64* const sums) {
    u64 before = 0, all = 0;
    compact_place place;
    for (u64 other = threadIdx.x; other < x.parts; other += THREADS) {
        const u64 flags = x.counts[other];
        all += flags;
        before += other < part ? flags : 0;
    }
    sum_before<THREADS>(before, place.before, sums);
    sum_before<THREADS>(all, place.total, sums);
    return place;
}

// Writes the coordinates of an element.
template <class NUMBER>
static __device__ __forceinline__ void write_coordinates(const arguments& x, i64* to, NUMBER element) {
    for (u32 dimension = u32(x.rank); dimension-- > 0;) {
        const NUMBER extent = NUMBER(x.extents[dimension]);
        const NUMBER outer = dimension == 0 ? NUMBER(0) : element / extent;
        to[dimension * x.column_stride] = i64(element - outer * extent);
        element = outer;
    }
}

// Calls a function with the index of each set flag of a part, and its rank among all set flags.
template <class F>
static __device__ __forceinline__ void each_set(const arguments& x, const u64 part, u64 rank, u32* const sums, F call) {
    __shared__ u16 set[TILE];
    const u64 end = min(x.elements, (part + 1) * x.part);
    for (u64 tile = part * x.part; tile < end; tile += TILE) {
        u32 bits = flags_of(x, tile), total;
        u32 at = sum_before<THREADS>(u32(__popc(bits)), total, sums);
        while (bits != 0) {
            set[at++] = u16(threadIdx.x * OWN + __ffs(i32(bits)) - 1);
            bits &= bits - 1;
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < total; i += THREADS) {
            call(tile + set[i], rank + i);
        }
        rank += total;
    }
}

// Calls a function for each flag of a part, with its index, whether it is set, and the number of set flags before it.
template <class F>
static __device__ __forceinline__ void each_flag(const arguments& x, const u64 part, u64 rank, u32* const sums, F call) {
    __shared__ u32 bits_of[THREADS], before[THREADS];
    const u64 end = min(x.elements, (part + 1) * x.part);
    for (u64 tile = part * x.part; tile < end; tile += TILE) {
        const u32 bits = flags_of(x, tile);
        u32 total;
        before[threadIdx.x] = sum_before<THREADS>(u32(__popc(bits)), total, sums);
        bits_of[threadIdx.x] = bits;
        __syncthreads();
        for (u32 i = threadIdx.x; i < TILE && tile + i < end; i += THREADS) {
            const u32 owner = i / OWN, bit = i % OWN;
            call(tile + i, bits_of[owner] >> bit & 1, rank + before[owner] + __popc(bits_of[owner] & ((1u << bit) - 1)));
        }
        rank += total;
    }
}

// Writes the coordinates of the set flags, and rows of a number after them up to the limit.
static __device__ __forceinline__ void coordinates(const arguments& x) {
    __shared__ u64 wide_sums[THREADS / 32];
    __shared__ u32 sums[THREADS / 32];
    i64* const result = (i64*)x.result;
    const bool is_narrow = x.elements >> 32 == 0;
    u64 total = 0;
    for (u64 part = blockIdx.x; part < x.parts; part += gridDim.x) {
        const compact_place place = place_of(x, part, wide_sums);
        total = place.total;
        each_set(x, part, place.before, sums, [&](const u64 element, const u64 rank) {
            if (rank >= x.limit) {
                return;
            }
            i64* const to = result + rank * x.row_stride;
            if (x.rank == 1) {
                *to = i64(element);
            } else if (is_narrow) {
                write_coordinates(x, to, u32(element));
            } else {
                write_coordinates(x, to, element);
            }
        });
    }
    for (u64 row = total + u64(blockIdx.x) * THREADS + threadIdx.x; row < x.limit; row += u64(gridDim.x) * THREADS) {
        for (u64 column = 0; column < x.rank; ++column) {
            result[row * x.row_stride + column * x.column_stride] = x.fill;
        }
    }
}

// Writes the elements whose flags are set, in order.
template <class T> static __device__ __forceinline__ void values(const arguments& x) {
    __shared__ u64 wide_sums[THREADS / 32];
    __shared__ u32 sums[THREADS / 32];
    for (u64 part = blockIdx.x; part < x.parts; part += gridDim.x) {
        const u64 before = place_of(x, part, wide_sums).before;
        each_set(x, part, before, sums, [&](const u64 element, const u64 rank) {
            if (rank < x.limit) {
                ((T*)x.result)[rank] = ((const T*)x.source)[element];
            }
        });
    }
}

// Writes all elements; those with set flags are replaced by the elements of another operand, in order.
template <class T> static __device__ __forceinline__ void replaced(const arguments& x) {
    __shared__ u64 wide_sums[THREADS / 32];
    __shared__ u32 sums[THREADS / 32];
    for (u64 part = blockIdx.x; part < x.parts; part += gridDim.x) {
        const u64 before = place_of(x, part, wide_sums).before;
        each_flag(x, part, before, sums, [&](const u64 element, const bool is_set, const u64 rank) {
            const bool is_replaced = is_set && rank < x.limit;
            ((T*)x.result)[element] = is_replaced ? ((const T*)x.other)[rank] : ((const T*)x.source)[element];
        });
    }
}

// Writes the rank of each element: the number of set flags up to and including its own, minus 1. An order contains the position at
// which each rank is written.
static __device__ __forceinline__ void ranks(const arguments& x) {
    __shared__ u64 wide_sums[THREADS / 32];
    __shared__ u32 sums[THREADS / 32];
    const i64* const order = (const i64*)x.other;
    for (u64 part = blockIdx.x; part < x.parts; part += gridDim.x) {
        const u64 before = place_of(x, part, wide_sums).before;
        each_flag(x, part, before, sums, [&](const u64 element, const bool is_set, const u64 rank) {
            const u64 to = order == nullptr ? element : u64(order[element]);
            ((i64*)x.result)[to] = i64(rank) + i64(is_set) - 1;
        });
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ arguments x) {
    CALL;
}
