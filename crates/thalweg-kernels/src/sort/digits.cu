// Sorts by digits of 8 bits.
#ifndef NAME
#include "../defaults.cuh"
#define CALL count_digits<elements_of<u32, 0>, 4>(x)
#endif
#include "../shared/over_threads.cuh"
#include "keys.cuh"

struct arguments {
    const void* source;
    void* values;
    void* places;
    const void* keys_from;
    void* keys_to;
    const u32* marks_from;
    u32* marks_to;
    u32* counts;
    u32* sums;
    u64 outer;
    u64 length;
    u64 inner;
    u64 flags;
    u64 limit;
    u64 digits;
    u64 digit;
    u64 tiles;
    u64 dtype;
    u64 work_digit;
    u64 work;
};

constexpr u32 THREADS = 256;

// The most tiles whose counts are added by a warp.
constexpr u32 FEW_TILES = 128;

// Returns how many points with this digit precede this thread's point in the warp, and counts the point.
static __device__ __forceinline__ u32 rank_of(u16* const counts, const u32 digit) {
    // By ballots, because the time of a match over all values grows with the number of different values.
    u32 same = ~0u;
    #pragma unroll
    for (u32 bit = 0; bit < 8; ++bit) {
        const bool is_set = (digit >> bit & 1u) != 0;
        const u32 lanes = __ballot_sync(~0u, is_set);
        same &= is_set ? lanes : ~lanes;
    }
    const u32 before = __popc(same & ((1u << (threadIdx.x & 31u)) - 1u));
    u32 base = 0;
    if (before == 0) {
        base = counts[digit];
        counts[digit] = u16(base + __popc(same));
    }
    __syncwarp();
    return __shfl_sync(~0u, base, __ffs(i32(same)) - 1) + before;
}

// The position of a block's points within the block, sorted by one digit. The points of a warp are neighbours, beginning with each
// lane's first item.
template <class KEY, u32 ITEMS> struct block_order {
    u16 counts[8][256];
    u32 sums[8];

    __device__ __forceinline__ void order(const KEY* const key, const u32 shift, u32* const rank) {
        const u32 warp = threadIdx.x / 32;
        for (u32 other = 0; other < 8; ++other) {
            counts[other][threadIdx.x] = 0;
        }
        __syncthreads();
        #pragma unroll
        for (u32 item = 0; item < ITEMS; ++item) {
            rank[item] = rank_of(counts[warp], u32(key[item] >> shift) & 255u);
        }
        __syncthreads();
        u32 total = 0, all;
        for (u32 other = 0; other < 8; ++other) {
            total += counts[other][threadIdx.x];
        }
        u32 before = sum_before<THREADS>(total, all, sums);
        for (u32 other = 0; other < 8; ++other) {
            const u32 count = counts[other][threadIdx.x];
            counts[other][threadIdx.x] = u16(before);
            before += count;
        }
        __syncthreads();
        #pragma unroll
        for (u32 item = 0; item < ITEMS; ++item) {
            rank[item] += counts[warp][u32(key[item] >> shift) & 255u];
        }
    }
};

// Sorts rows that fit in a block.
template <class OF, u32 ITEMS> static __device__ __forceinline__ void sort_rows(const arguments& x) {
    typedef typename OF::key KEY;
    __shared__ block_order<KEY, ITEMS> block;
    __shared__ KEY keys[THREADS * ITEMS];
    __shared__ u16 places[THREADS * ITEMS];
    const u32 begin = threadIdx.x / 32 * 32 * ITEMS + threadIdx.x % 32;
    for (u64 row = blockIdx.x; row < x.outer * x.inner; row += gridDim.x) {
        const u64 first = first_of(x, row);
        KEY key[ITEMS];
        u32 place[ITEMS], rank[ITEMS];
        #pragma unroll
        for (u32 item = 0; item < ITEMS; ++item) {
            place[item] = begin + item * 32;
            // Points beyond the end are sorted after all equal points.
            key[item] = place[item] < x.length ? OF::at(x, first + place[item] * x.inner) : OF::mask;
        }
        for (u32 shift = 0; shift < u32(x.digits) * 8; shift += 8) {
            block.order(key, shift, rank);
            #pragma unroll
            for (u32 item = 0; item < ITEMS; ++item) {
                keys[rank[item]] = key[item];
                places[rank[item]] = u16(place[item]);
            }
            __syncthreads();
            #pragma unroll
            for (u32 item = 0; item < ITEMS; ++item) {
                key[item] = keys[begin + item * 32];
                place[item] = places[begin + item * 32];
            }
        }
        #pragma unroll
        for (u32 item = 0; item < ITEMS; ++item) {
            const u32 to = begin + item * 32;
            if (to < x.length) {
                OF::write(x, first, to, key[item], place[item]);
            }
        }
        __syncthreads();
    }
}

// Sorts rows of up to 32 points, one row per warp: a point's position is the number of points that come before it.
template <class OF> static __device__ __forceinline__ void sort_tiny_rows(const arguments& x) {
    const u32 lane = threadIdx.x % 32, length = u32(x.length);
    const u64 rows = x.outer * x.inner;
    for (u64 row = (u64(blockIdx.x) * THREADS + threadIdx.x) / 32; row < rows; row += u64(gridDim.x) * (THREADS / 32)) {
        const u64 first = first_of(x, row);
        const typename OF::key key = lane < length ? OF::at(x, first + lane * x.inner) : OF::mask;
        u32 rank = 0;
        for (u32 other = 0; other < length; ++other) {
            const typename OF::key its = __shfl_sync(~0u, key, other);
            rank += its < key || (its == key && other < lane);
        }
        if (lane < length) {
            OF::write(x, first, rank, key, lane);
        }
    }
}

// Returns the key of a point of a long row, before it is moved by the launch's digit.
template <class OF> static __device__ __forceinline__ typename OF::key key_at(const arguments& x, const u64 row, const u64 at) {
    if (x.digit == 0) {
        return OF::at(x, first_of(x, row) + at * x.inner);
    }
    return typename OF::key(((const typename OF::moved*)x.keys_from)[row * x.length + at]);
}

// Counts the values of a digit in every tile.
template <class OF, u32 ITEMS> static __device__ __forceinline__ void count_digits(const arguments& x) {
    __shared__ u32 counts[4][256];
    const u32 shift = u32(x.digit) * 8;
    for (u64 tile = blockIdx.x; tile < x.outer * x.inner * x.tiles; tile += gridDim.x) {
        const u64 row = tile / x.tiles, number = tile % x.tiles, begin = number * THREADS * ITEMS;
        for (u32 copy = 0; copy < 4; ++copy) {
            counts[copy][threadIdx.x] = 0;
        }
        __syncthreads();
        #pragma unroll
        for (u32 item = 0; item < ITEMS; ++item) {
            const u64 at = begin + item * THREADS + threadIdx.x;
            if (at < x.length) {
                atomicAdd(&counts[threadIdx.x / 64][u32(key_at<OF>(x, row, at) >> shift) & 255u], 1u);
            }
        }
        __syncthreads();
        u32 sum = 0;
        for (u32 copy = 0; copy < 4; ++copy) {
            sum += counts[copy][threadIdx.x];
        }
        x.counts[(row * 256 + threadIdx.x) * x.tiles + number] = sum;
        __syncthreads();
    }
}

// Sums the counts of each digit over the tiles: a warp if there are few tiles, otherwise a block.
static __device__ __forceinline__ void add_counts(const arguments& x) {
    __shared__ u32 sums[THREADS / 32];
    constexpr u32 OWN = 8;
    const u32 lane = threadIdx.x & 31u;
    const u64 lines = x.outer * x.inner * 256;
    if (x.tiles > FEW_TILES) {
        for (u64 line = blockIdx.x; line < lines; line += gridDim.x) {
            u32 carried = 0;
            for (u64 begin = 0; begin < x.tiles; begin += THREADS * OWN) {
                u32* const own = x.counts + line * x.tiles + begin + threadIdx.x * OWN;
                const u64 before = begin + threadIdx.x * OWN, left = before < x.tiles ? x.tiles - before : 0;
                u32 counts[OWN], sum = 0, all;
                #pragma unroll
                for (u32 i = 0; i < OWN; ++i) {
                    counts[i] = i < left ? own[i] : 0;
                    sum += counts[i];
                }
                u32 running = carried + sum_before<THREADS>(sum, all, sums);
                #pragma unroll
                for (u32 i = 0; i < OWN; ++i) {
                    if (i < left) {
                        own[i] = running;
                    }
                    running += counts[i];
                }
                carried += all;
            }
            if (threadIdx.x == 0) {
                x.sums[line] = carried;
            }
        }
        return;
    }
    for (u64 line = u64(blockIdx.x) * 8 + threadIdx.x / 32; line < lines; line += u64(gridDim.x) * 8) {
        u32 carried = 0;
        for (u64 begin = 0; begin < x.tiles; begin += 32) {
            const u64 tile = begin + lane;
            const u32 count = tile < x.tiles ? x.counts[line * x.tiles + tile] : 0;
            const u32 sum = sum_of_lanes(count);
            if (tile < x.tiles) {
                x.counts[line * x.tiles + tile] = carried + sum - count;
            }
            carried += __shfl_sync(~0u, sum, 31);
        }
        if (lane == 0) {
            x.sums[line] = carried;
        }
    }
}

// Moves points to the positions that follow from the counts of a digit.
template <class OF, u32 ITEMS> static __device__ __forceinline__ void place_points(const arguments& x) {
    typedef typename OF::key KEY;
    __shared__ block_order<KEY, ITEMS> block;
    __shared__ KEY keys[THREADS * ITEMS];
    __shared__ u32 marks[THREADS * ITEMS];
    // The destination of the points of each digit, relative to where they begin in the tile.
    __shared__ u32 offsets[256];
    const u32 shift = u32(x.digit) * 8;
    const u32 start = threadIdx.x / 32 * 32 * ITEMS + threadIdx.x % 32;
    for (u64 tile = blockIdx.x; tile < x.outer * x.inner * x.tiles; tile += gridDim.x) {
        const u64 row = tile / x.tiles, number = tile % x.tiles;
        const u64 first = first_of(x, row), begin = number * THREADS * ITEMS;
        KEY key[ITEMS];
        u32 mark[ITEMS], rank[ITEMS];
        #pragma unroll
        for (u32 item = 0; item < ITEMS; ++item) {
            const u64 at = begin + start + item * 32;
            // Points beyond the end are placed after all points of the last digit.
            key[item] = OF::mask;
            mark[item] = 0;
            if (at < x.length) {
                key[item] = key_at<OF>(x, row, at);
                mark[item] = x.digit == 0 ? u32(at) : x.marks_from[row * x.length + at];
            }
        }
        block.order(key, shift, rank);
        // The counts of the first warp are the positions at which each digit begins.
        const u32 line = x.sums[row * 256 + threadIdx.x];
        u32 all;
        const u32 before = sum_before<THREADS>(line, all, block.sums);
        offsets[threadIdx.x] =
            before + x.counts[(row * 256 + threadIdx.x) * x.tiles + number] - block.counts[0][threadIdx.x];
        #pragma unroll
        for (u32 item = 0; item < ITEMS; ++item) {
            keys[rank[item]] = key[item];
            marks[rank[item]] = mark[item];
        }
        __syncthreads();
        const u64 left = x.length - begin;
        #pragma unroll
        for (u32 item = 0; item < ITEMS; ++item) {
            const u32 at = item * THREADS + threadIdx.x;
            if (at < left) {
                const KEY moved = keys[at];
                // Positions in a row have 32 bits, and so do their differences.
                const u32 to = at + offsets[u32(moved >> shift) & 255u];
                if (x.digit + 1 == x.digits) {
                    OF::write(x, first, to, moved, marks[at]);
                } else {
                    ((typename OF::moved*)x.keys_to)[row * x.length + to] = typename OF::moved(moved);
                    x.marks_to[row * x.length + to] = marks[at];
                }
            }
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ arguments x) {
    CALL;
}
