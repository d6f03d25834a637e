// Sums or extremes of elements at indices, an index for each element.
#ifndef NAME
#include "../defaults.cuh"
#define WAY 1
#define CALL scatter_atomically<f32, u32, f32>(x)
#endif
#include "../shared/elements.cuh"
#include "combinations.cuh"

struct arguments {
    const i64* index;
    const void* source;
    void* result;
    u64 outer;
    u64 extent;
    u64 count;
    u64 inner;
    u64 index_strides[3];
    u64 source_strides[3];
    u64 dtype;
    u64 keeps_dtype;
    u64 combine;
};

// The numbers of `Combine`.
enum : u32 { SUM = 1, MAX = 3, MIN = 4 };

constexpr u32 THREADS = 256, OWN = 4;

// The value that means no element.
constexpr u64 NONE = ~0ull;

static __device__ __forceinline__ void add_to(f32* const to, const f32 value) { atomicAdd(to, value); }
static __device__ __forceinline__ void add_to(f64* const to, const f64 value) { atomicAdd(to, value); }
static __device__ __forceinline__ void add_to(i64* const to, const i64 value) { atomicAdd((u64*)to, u64(value)); }

// An addition to 16 bits, which are rounded.
static __device__ __forceinline__ void add_to(f16* const to, const f32 value) {
    asm volatile("red.relaxed.gpu.global.add.noftz.f16 [%0], %1;" :: "l"(__cvta_generic_to_global(to)), "h"(f16_from_f32(value).bits) : "memory");
}

static __device__ __forceinline__ void add_to(bf16* const to, const f32 value) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.noftz.bf16 [%0], %1;" :: "l"(__cvta_generic_to_global(to)), "h"(bf16_from_f32(value).bits) : "memory");
#else
    u32* const word = (u32*)(u64(to) & ~3ull);
    const u32 shift = u32(u64(to) & 2) * 8;
    u32 before = *word, expected;
    do {
        expected = before;
        const f32 sum = f32_from_bf16(bf16{u16(expected >> shift)}) + f32_from_bf16(bf16_from_f32(value));
        before = atomicCAS(word, expected, (expected & ~(0xffffu << shift)) | u32(bf16_from_f32(sum).bits) << shift);
    } while (before != expected);
#endif
}

static __device__ __forceinline__ void raise(i64* const to, const i64 value) { atomicMax(to, value); }
static __device__ __forceinline__ void lower(i64* const to, const i64 value) { atomicMin(to, value); }

// Floats of one sign are ordered like their bits: as signed integers if the sign bit is 0, and in reverse, as unsigned integers, if
// it is 1. NaN is the greatest of these numbers if the maximum is kept, and the smallest if the minimum is kept.
template <class FLOAT, class SIGNED, class UNSIGNED> static __device__ __forceinline__ void raise_bits(FLOAT* const to, const FLOAT value, const SIGNED bits, const SIGNED nan) {
    if (value != value) {
        atomicMax((SIGNED*)to, nan);
    } else if (bits >= 0) {
        atomicMax((SIGNED*)to, bits);
    } else {
        atomicMin((UNSIGNED*)to, UNSIGNED(bits));
    }
}
template <class FLOAT, class SIGNED, class UNSIGNED> static __device__ __forceinline__ void lower_bits(FLOAT* const to, const FLOAT value, const SIGNED bits) {
    if (value != value) {
        atomicMax((UNSIGNED*)to, ~UNSIGNED(0));
    } else if (bits >= 0) {
        atomicMin((SIGNED*)to, bits);
    } else {
        atomicMax((UNSIGNED*)to, UNSIGNED(bits));
    }
}
static __device__ __forceinline__ void raise(f32* const to, const f32 value) { raise_bits<f32, i32, u32>(to, value, __float_as_int(value), 0x7fffffff); }
static __device__ __forceinline__ void lower(f32* const to, const f32 value) { lower_bits<f32, i32, u32>(to, value, __float_as_int(value)); }
static __device__ __forceinline__ void raise(f64* const to, const f64 value) { raise_bits<f64, i64, u64>(to, value, __double_as_longlong(value), 0x7fffffffffffffffll); }
static __device__ __forceinline__ void lower(f64* const to, const f64 value) { lower_bits<f64, i64, u64>(to, value, __double_as_longlong(value)); }

// Combines two values.
template <class T> static __device__ __forceinline__ T joined(const T a, const T b) { return combine(u64(WAY), a, b); }

// Combines a value with an element.
template <class RESULT, class T> static __device__ __forceinline__ void join(RESULT* const to, const T value) {
#if WAY == 1
    add_to(to, value);
#else
    // Keeps NaN, and a number that is already beyond the value.
    const T now = *(volatile T*)to;
    if (now != now || (WAY == MAX ? now >= value : now <= value)) {
        return;
    }
    if (WAY == MAX) {
        raise(to, value);
    } else {
        lower(to, value);
    }
#endif
}

// Combines a value with an element. Lanes of a warp that access the same element at the same time share one operation.
template <class RESULT, class SUM> static __device__ __forceinline__ void join_together(RESULT* const result, const u64 element, const SUM value) {
    // If a second lane has the first lane's element, more lanes probably share an element.
    const u32 lanes = __activemask();
    const u32 with_first = __ballot_sync(lanes, element == __shfl_sync(lanes, element, __ffs(i32(lanes)) - 1));
    if ((with_first & (with_first - 1)) == 0) {
        join(result + element, value);
        return;
    }
    const u32 same = __match_any_sync(lanes, element);
    SUM sum = value;
    if ((same & (same - 1)) != 0) {
        sum = __shfl_sync(same, value, __ffs(i32(same)) - 1);
        for (u32 rest = same & (same - 1); rest != 0; rest &= rest - 1) {
            sum = joined(sum, __shfl_sync(same, value, __ffs(i32(rest)) - 1));
        }
    }
    if (threadIdx.x % 32 == __ffs(i32(same)) - 1) {
        join(result + element, sum);
    }
}

// Combines elements at indices. A thread first combines successive elements that have the same index.
template <class T, class NUMBER, class RESULT> static __device__ __forceinline__ void scatter_atomically(const arguments& x) {
    typedef typename combined<T>::type SUM;
    const T* const source = (const T*)x.source;
    RESULT* const result = (RESULT*)x.result;
    const NUMBER elements = NUMBER(x.outer * x.count * x.inner), inner = NUMBER(x.inner), count = NUMBER(x.count);
    u64 element = NONE;
    SUM sum = SUM(0);
    for (u64 group = u64(blockIdx.x) * THREADS + threadIdx.x; group * OWN < elements; group += u64(gridDim.x) * THREADS) {
        u64 to[OWN];
        SUM values[OWN];
        #pragma unroll
        for (u32 i = 0; i < OWN; ++i) {
            const NUMBER at = NUMBER(group * OWN) + i;
            to[i] = NONE;
            if (at < elements) {
                const NUMBER row = inner == 1 ? at : at / inner, column = at - row * inner;
                const NUMBER o = row / count, k = row - o * count;
                const u64 place = u64(x.index[o * x.index_strides[0] + k * x.index_strides[1] + column * x.index_strides[2]]);
                if (place < x.extent) {
                    to[i] = (o * x.extent + place) * x.inner + column;
                    values[i] = widened(source[o * x.source_strides[0] + k * x.source_strides[1] + column * x.source_strides[2]]);
                }
            }
        }
        #pragma unroll
        for (u32 i = 0; i < OWN; ++i) {
            if (to[i] == NONE) {
                continue;
            }
            if (to[i] == element) {
                sum = joined(sum, values[i]);
                continue;
            }
            if (element != NONE) {
                join_together(result, element, sum);
            }
            element = to[i];
            sum = values[i];
        }
    }
    if (element != NONE) {
        join_together(result, element, sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ arguments x) {
    CALL;
}
