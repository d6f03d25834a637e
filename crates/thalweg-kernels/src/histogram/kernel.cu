// Numbers of elements in bins.
#ifndef NAME
#include "../defaults.cuh"
#define CALL shared_bins<f32>(x)
#endif
#include "../shared/elements.cuh"

struct arguments {
    const void* source;
    u64* counts;
    u64 elements;
    u64 bins;
    f64 low;
    f64 high;
    f64 width;
    u64 dtype;
    u64 copies;
};

constexpr u32 THREADS = 1024;

// The value that means no bin.
constexpr u64 NONE = ~0ull;

// Returns the bin of an integer, or of a number among bins of equal width that include both bounds.
static __device__ __forceinline__ u64 bin_of(const arguments& x, const i64 value) {
    return u64(value) < x.bins ? u64(value) : NONE;
}

static __device__ __forceinline__ u64 bin_of(const arguments& x, const i32 value) {
    return bin_of(x, i64(value));
}

template <class SUM> static __device__ __forceinline__ u64 bin_of(const arguments& x, const SUM value) {
    if (!(value >= SUM(x.low) && value <= SUM(x.high))) {
        return NONE;
    }
    const SUM place = (value - SUM(x.low)) * SUM(x.bins) / SUM(x.width);
    // An infinite product is above every bin, and an undefined quotient is 0.
    const u64 last = x.bins - 1;
    return place != place || place < SUM(0) ? 0 : place >= SUM(last) ? last : u64(place);
}

// Calls a function for each run of equal bins among a thread's elements, with the bin and the length of the run.
template <class T, class F> static __device__ __forceinline__ void each_run(const arguments& x, F call) {
    constexpr u32 WIDTH = 16 / sizeof(T);
    const T* const source = (const T*)x.source;
    const bool is_aligned = u64(source) % 16 == 0;
    u64 bin = NONE;
    u32 length = 0;
    const u64 groups = (x.elements + WIDTH - 1) / WIDTH;
    for (u64 group = u64(blockIdx.x) * THREADS + threadIdx.x; group < groups; group += u64(gridDim.x) * THREADS) {
        const u64 first = group * WIDTH;
        pack<T, WIDTH> elements = {};
        const bool is_whole = first + WIDTH <= x.elements;
        if (is_whole && is_aligned) {
            elements = *(const pack<T, WIDTH>*)(source + first);
        } else {
            #pragma unroll
            for (u32 i = 0; i < WIDTH; ++i) {
                if (first + i < x.elements) {
                    elements.element[i] = source[first + i];
                }
            }
        }
        #pragma unroll
        for (u32 i = 0; i < WIDTH; ++i) {
            const u64 next = is_whole || first + i < x.elements ? bin_of(x, widened(elements.element[i])) : NONE;
            if (next == bin) {
                ++length;
                continue;
            }
            if (bin != NONE) {
                call(bin, length);
            }
            bin = next;
            length = 1;
        }
    }
    if (bin != NONE) {
        call(bin, length);
    }
}

// Counts in shared memory. Each bin has one counter per group of lanes, so that few lanes use a counter at the same time.
template <class T> static __device__ __forceinline__ void shared_bins(const arguments& x) {
    extern __shared__ u32 counters[];
    const u32 bins = u32(x.bins), copies = u32(x.copies);
    for (u32 i = threadIdx.x; i < bins * copies; i += THREADS) {
        counters[i] = 0;
    }
    __syncthreads();
    const u32 copy = threadIdx.x % copies;
    each_run<T>(x, [&](const u64 bin, const u32 length) { atomicAdd(&counters[u32(bin) * copies + copy], length); });
    __syncthreads();
    for (u32 bin = threadIdx.x; bin < bins; bin += THREADS) {
        u64 sum = 0;
        for (u32 i = 0; i < copies; ++i) {
            // Lanes begin at different copies, which are in different banks.
            sum += counters[bin * copies + (i + threadIdx.x) % copies];
        }
        if (sum > 0) {
            atomicAdd(&x.counts[bin], sum);
        }
    }
}

// Counts in the result itself. Lanes of a warp that have the same bin at the same time share one addition.
template <class T> static __device__ __forceinline__ void global_bins(const arguments& x) {
    each_run<T>(x, [&](const u64 bin, const u32 length) {
        // If a second lane has the first lane's bin, more lanes probably share a bin.
        const u32 lanes = __activemask();
        const u32 with_first = __ballot_sync(lanes, bin == __shfl_sync(lanes, bin, __ffs(i32(lanes)) - 1));
        if ((with_first & (with_first - 1)) == 0) {
            atomicAdd(&x.counts[bin], u64(length));
            return;
        }
        const u32 same = __match_any_sync(lanes, bin);
        const u32 leader = __ffs(i32(same)) - 1;
        const u32 sum = (same & (same - 1)) == 0 ? length : __reduce_add_sync(same, length);
        if (threadIdx.x % 32 == leader) {
            atomicAdd(&x.counts[bin], u64(sum));
        }
    });
}

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ arguments x) {
    CALL;
}
