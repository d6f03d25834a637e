// The first elements of long rows in order.
#ifndef NAME
#include "../defaults.cuh"
#define CALL count_long<elements_of<u32, 0>>(x)
#endif
#include "../shared/over_threads.cuh"
#include "keys.cuh"

struct arguments {
    const void* source;
    void* values;
    void* places;
    u64* state;
    u32* counts;
    u32* counts_of_parts;
    u64 outer;
    u64 length;
    u64 inner;
    u64 flags;
    u64 count;
    u64 dtype;
    u64 above;
    u64 shift;
    u64 part;
    u64 parts;
    u64 work;
};

// The number of values of a digit; the counter after them is that of NaNs.
constexpr u32 VALUES = 2048, THREADS = 512;

// The state of a row: the known bits of the wanted point, and its position among the points that have these bits, counted from 1.
struct row_state {
    u64 prefix, wanted;
};

// Calls a function with each key of a part of a row; eight keys are read at once.
template <class OF, class F> static __device__ __forceinline__ void each_key(const arguments& x, const u64 row, const u64 part, F call) {
    const u64 begin = part * x.part, end = x.length - begin < x.part ? x.length : begin + x.part;
    for (u64 first = begin + threadIdx.x; first < end; first += THREADS * 8) {
        typename OF::key keys[8] = {};
        #pragma unroll
        for (u32 item = 0; item < 8; ++item) {
            const u64 at = first + item * THREADS;
            if (at < end) {
                keys[item] = OF::at(x, row * x.length + at);
            }
        }
        #pragma unroll
        for (u32 item = 0; item < 8; ++item) {
            if (first + item * THREADS < end) {
                call(keys[item]);
            }
        }
    }
}

// Counts the values of one digit among the points that have the known bits.
template <class OF> static __device__ __forceinline__ void count_long(const arguments& x) {
    __shared__ u32 counts[VALUES + 1];
    const bool is_first = x.above == OF::width;
    const u32 digits = (1u << (x.above - x.shift)) - 1u;
    for (u64 item = blockIdx.x; item < x.outer * x.parts; item += gridDim.x) {
        const u64 row = item / x.parts;
        for (u32 value = threadIdx.x; value <= VALUES; value += THREADS) {
            counts[value] = 0;
        }
        __syncthreads();
        const typename OF::key prefix = is_first ? 0 : typename OF::key(((const row_state*)x.state)[row].prefix);
        u32 nans = 0;
        each_key<OF>(x, row, item % x.parts, [&](const typename OF::key key) {
            if (is_first || key >> x.above == prefix) {
                atomicAdd(&counts[u32(key >> x.shift) & digits], 1u);
            }
            nans += key == OF::mask;
        });
        if (is_first && (x.flags & 2) != 0 && nans > 0) {
            atomicAdd(&counts[VALUES], nans);
        }
        __syncthreads();
        for (u32 value = threadIdx.x; value <= VALUES; value += THREADS) {
            if (counts[value] > 0) {
                atomicAdd(&x.counts[row * (VALUES + 1) + value], counts[value]);
            }
        }
        __syncthreads();
    }
}

// Finds the digit of the wanted point of each row, and clears the counts.
template <class OF> static __device__ __forceinline__ void find_long(const arguments& x) {
    __shared__ u32 sums[THREADS / 32];
    constexpr u32 OWN = VALUES / THREADS;
    const bool is_first = x.above == OF::width;
    for (u64 row = blockIdx.x; row < x.outer; row += gridDim.x) {
        u32* const counts = x.counts + row * (VALUES + 1);
        row_state state = is_first ? row_state{0, x.count} : ((const row_state*)x.state)[row];
        if (is_first && counts[VALUES] > 0) {
            state.wanted = x.length;
        }
        u32 own[OWN], sum = 0, all;
        #pragma unroll
        for (u32 i = 0; i < OWN; ++i) {
            own[i] = counts[threadIdx.x * OWN + i];
            sum += own[i];
        }
        // Every thread has read the state before one of them writes it.
        u32 before = sum_before<THREADS>(sum, all, sums);
        #pragma unroll
        for (u32 i = 0; i < OWN; ++i) {
            if (before < state.wanted && state.wanted <= before + own[i]) {
                const u64 digit = threadIdx.x * OWN + i;
                ((row_state*)x.state)[row] = {state.prefix << (x.above - x.shift) | digit, state.wanted - before};
            }
            before += own[i];
            counts[threadIdx.x * OWN + i] = 0;
        }
        if (threadIdx.x == 0) {
            counts[VALUES] = 0;
        }
        __syncthreads();
    }
}

// Counts the points of each part that equal the wanted one.
template <class OF> static __device__ __forceinline__ void count_equal(const arguments& x) {
    __shared__ u32 sums[THREADS / 32];
    for (u64 item = blockIdx.x; item < x.outer * x.parts; item += gridDim.x) {
        const u64 row = item / x.parts;
        const typename OF::key wanted = typename OF::key(((const row_state*)x.state)[row].prefix);
        u32 own = 0, all;
        each_key<OF>(x, row, item % x.parts, [&](const typename OF::key key) { own += key == wanted; });
        sum_before<THREADS>(own, all, sums);
        if (threadIdx.x == 0) {
            x.counts_of_parts[item] = all;
        }
    }
}

// Finds the wanted one among equal points, in the order of the row, and writes it.
template <class OF> static __device__ __forceinline__ void place_equal(const arguments& x) {
    __shared__ u32 sums[THREADS / 32];
    __shared__ u64 found[2];
    for (u64 row = blockIdx.x; row < x.outer; row += gridDim.x) {
        const row_state state = ((const row_state*)x.state)[row];
        const u32 own = threadIdx.x < x.parts ? x.counts_of_parts[row * x.parts + threadIdx.x] : 0;
        u32 all_parts;
        const u32 before_part = sum_before<THREADS>(own, all_parts, sums);
        if (before_part < state.wanted && state.wanted <= u64(before_part) + own) {
            found[0] = threadIdx.x;
            found[1] = state.wanted - before_part;
        }
        __syncthreads();
        const u64 begin = found[0] * x.part, end = x.length - begin < x.part ? x.length : begin + x.part;
        const u32 wanted = u32(found[1]);
        u32 before = 0;
        for (u64 tile = begin; tile < end && before < wanted; tile += THREADS) {
            const u64 at = tile + threadIdx.x, position = row * x.length + at;
            const bool is_equal = at < end && OF::at(x, position) == typename OF::key(state.prefix);
            u32 all;
            const u32 rank = before + sum_before<THREADS>(u32(is_equal), all, sums);
            if (is_equal && rank + 1 == wanted) {
                ((typename OF::moved*)x.values)[row] = ((const typename OF::moved*)x.source)[position];
                ((i64*)x.places)[row] = i64(at);
            }
            before += all;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ arguments x) {
    CALL;
}
