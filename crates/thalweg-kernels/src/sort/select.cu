// The first elements of each row in order, or one element.
#ifndef NAME
#include "../defaults.cuh"
#define BLOCK 256
#define CALL select_first<elements_of<u32, 0>, BLOCK>(x)
#endif
#include "../shared/over_threads.cuh"
#include "keys.cuh"

struct arguments {
    const void* source;
    void* values;
    void* places;
    u64 outer;
    u64 length;
    u64 inner;
    u64 flags;
    u64 count;
    u64 dtype;
};

// The number of values of a digit, and its bits.
constexpr u32 VALUES = 2048, DIGIT = 11;

// The shared memory of a block that selects from a row.
struct select_block {
    u32 counts[VALUES];
    u32 sums[32];
    // The digit of the last wanted point, the number of points with a smaller digit, and the number of points with this digit.
    u32 digit;
    u32 below;
    u32 same;
    u32 filled;
};

// Calls a function with the key and the position of each point that the thread handles; eight points are read at once.
template <class OF, u32 THREADS, class F>
static __device__ __forceinline__ void each_point(const arguments& x, const u64 begin, F call) {
    const u32 length = u32(x.length);
    for (u64 first = threadIdx.x; first < length; first += THREADS * 8) {
        typename OF::key keys[8] = {};
        #pragma unroll
        for (u32 item = 0; item < 8; ++item) {
            const u64 at = first + item * THREADS;
            if (at < length) {
                keys[item] = OF::at(x, begin + at * x.inner);
            }
        }
        #pragma unroll
        for (u32 item = 0; item < 8; ++item) {
            const u64 at = first + item * THREADS;
            if (at < length) {
                call(keys[item], u32(at));
            }
        }
    }
}

// Finds the digit at which the sum of the counts reaches the wanted position. Synchronises the block.
template <u32 THREADS> static __device__ __forceinline__ void find_digit(select_block& block, const u32 wanted) {
    constexpr u32 OWN = VALUES / THREADS;
    u32 counts[OWN], sum = 0, all;
    #pragma unroll
    for (u32 i = 0; i < OWN; ++i) {
        counts[i] = block.counts[threadIdx.x * OWN + i];
        sum += counts[i];
    }
    u32 before = sum_before<THREADS>(sum, all, block.sums);
    #pragma unroll
    for (u32 i = 0; i < OWN; ++i) {
        if (before < wanted && wanted <= before + counts[i]) {
            block.digit = threadIdx.x * OWN + i;
            block.below = before;
            block.same = counts[i];
        }
        before += counts[i];
    }
    __syncthreads();
}

// Counts one digit of the points that have the given prefix in the digits above it.
template <class OF, u32 THREADS, class POINT, class F>
static __device__ __forceinline__ void count_digit(const arguments& x, select_block& block, const u64 begin,
    const POINT prefix, const u32 above, const u32 shift, const u32 bits, F point_of) {
    for (u32 value = threadIdx.x; value < VALUES; value += THREADS) {
        block.counts[value] = 0;
    }
    __syncthreads();
    const u32 digits = (1u << (above - shift)) - 1u;
    each_point<OF, THREADS>(x, begin, [&](const typename OF::key key, const u32 place) {
        const POINT point = point_of(key, place);
        if (above == bits || point >> above == prefix) {
            atomicAdd(&block.counts[u32(point >> shift) & digits], 1u);
        }
    });
    __syncthreads();
}

// Sorts the gathered points, after which there is room up to a power of two. Synchronises the block.
template <u32 THREADS> static __device__ __forceinline__ void sort_gathered(u64* const gathered, const u32 filled) {
    u32 size = 2;
    while (size < filled) {
        size *= 2;
    }
    for (u32 at = threadIdx.x; at < size; at += THREADS) {
        if (at >= filled) {
            gathered[at] = ~0ull;
        }
    }
    __syncthreads();
    for (u32 length = 2; length <= size; length *= 2) {
        for (u32 distance = length / 2; distance > 0; distance /= 2) {
            // A thread has one pair, because there are not more pairs than threads.
            if (threadIdx.x < size / 2) {
                const u32 left = threadIdx.x / distance * distance * 2 + threadIdx.x % distance;
                const u64 a = gathered[left], b = gathered[left + distance];
                const bool is_rising = (left & length) == 0;
                if ((a > b) == is_rising) {
                    gathered[left] = b;
                    gathered[left + distance] = a;
                }
            }
            __syncthreads();
        }
    }
}

// Writes the first points of each row, in order. A point's key followed by its position is a unique number.
template <class OF, u32 THREADS> static __device__ __forceinline__ void select_first(const arguments& x) {
    constexpr u32 BITS = 32 + OF::width, GATHERED = 2 * THREADS;
    __shared__ select_block block;
    __shared__ u64 gathered[GATHERED];
    const auto point_of = [](const typename OF::key key, const u32 place) { return u64(key) << 32 | place; };
    for (u64 row = blockIdx.x; row < x.outer * x.inner; row += gridDim.x) {
        const u64 begin = first_of(x, row);
        // The bits of the last wanted point from bit `shift` up, the number of points with these bits that are wanted, and the number
        // of points up to it.
        u64 prefix = 0;
        u32 shift = BITS, wanted = u32(x.count), candidates = 0;
        do {
            const u32 above = shift;
            shift = shift > DIGIT ? shift - DIGIT : 0;
            count_digit<OF, THREADS>(x, block, begin, prefix, above, shift, BITS, point_of);
            find_digit<THREADS>(block, wanted);
            prefix = prefix << (above - shift) | block.digit;
            wanted -= block.below;
            candidates = u32(x.count) - wanted + block.same;
        } while (candidates > GATHERED && shift > 0);
        if (threadIdx.x == 0) {
            block.filled = 0;
        }
        __syncthreads();
        each_point<OF, THREADS>(x, begin, [&](const typename OF::key key, const u32 place) {
            const u64 point = point_of(key, place);
            if (point >> shift <= prefix) {
                gathered[atomicAdd(&block.filled, 1u)] = point;
            }
        });
        __syncthreads();
        sort_gathered<THREADS>(gathered, block.filled);
        const u64 to = row / x.inner * x.count * x.inner + row % x.inner;
        for (u64 at = threadIdx.x; at < x.count; at += THREADS) {
            const u64 place = gathered[at] & 0xffffffffull;
            ((typename OF::moved*)x.values)[to + at * x.inner] = ((const typename OF::moved*)x.source)[begin + place * x.inner];
            ((i64*)x.places)[to + at * x.inner] = i64(place);
        }
        __syncthreads();
    }
}

// Writes one point of each row: the one that has `count` − 1 points before it in a stable sort. With the second flag, it is the last
// NaN if there is one.
template <class OF, u32 THREADS> static __device__ __forceinline__ void select_one(const arguments& x) {
    typedef typename OF::key KEY;
    __shared__ select_block block;
    const auto point_of = [](const KEY key, const u32) { return key; };
    for (u64 row = blockIdx.x; row < x.outer * x.inner; row += gridDim.x) {
        const u64 begin = first_of(x, row);
        u32 wanted = u32(x.count);
        if (x.flags & 2) {
            bool has_nan = false;
            each_point<OF, THREADS>(x, begin, [&](const KEY key, const u32) { has_nan |= key == OF::mask; });
            if (__syncthreads_or(has_nan)) {
                wanted = u32(x.length);
            }
        }
        KEY prefix = 0;
        u32 shift = OF::width;
        do {
            const u32 above = shift;
            shift = shift > DIGIT ? shift - DIGIT : 0;
            count_digit<OF, THREADS>(x, block, begin, prefix, above, shift, OF::width, point_of);
            find_digit<THREADS>(block, wanted);
            prefix = KEY(prefix << (above - shift)) | block.digit;
            wanted -= block.below;
        } while (block.same > 1 && shift > 0);
        const bool is_only = block.same == 1;
        // Among equal points, the wanted one is found in the order of the row.
        u32 place = ~0u, before = 0;
        for (u64 tile = 0; tile < x.length; tile += THREADS) {
            const u64 at = tile + threadIdx.x;
            const bool is_equal = at < x.length && OF::at(x, begin + at * x.inner) >> shift == prefix;
            if (is_only) {
                place = is_equal ? u32(at) : place;
                continue;
            }
            u32 all;
            const u32 rank = before + sum_before<THREADS>(u32(is_equal), all, block.sums);
            if (is_equal && rank + 1 == wanted) {
                place = u32(at);
            }
            before += all;
            if (before >= wanted) {
                break;
            }
        }
        if (place != ~0u) {
            ((typename OF::moved*)x.values)[row] = ((const typename OF::moved*)x.source)[begin + u64(place) * x.inner];
            ((i64*)x.places)[row] = i64(place);
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) NAME(const __grid_constant__ arguments x) {
    CALL;
}
