// The sum of powers of magnitudes, or the greatest magnitude, of each chunk of several tensors.
#ifndef NAME
#include "defaults.cuh"
#define CAPACITY 64
#define CHUNK 4096
#endif

struct arguments {
    Sum* numbers;
    u64 tensors;
    f64 power;
    u64 kind;
    u64 dtype;
    const Element* at[CAPACITY];
    u64 elements[CAPACITY];
    u64 first_block[CAPACITY];
};

#define WIDTH u32(16 / sizeof(Element))
typedef pack<Element, WIDTH> several;

static __device__ __forceinline__ Sum of_element(const Sum x, const u64 kind, const Sum power) {
    return kind == 0 ? x * x : kind == 2 ? pow(fabs(x), power) : fabs(x);
}

static __device__ __forceinline__ Sum combined(const Sum a, const Sum b, const u64 kind) {
    return kind != 3 ? a + b : b > a || b != b ? b : a;
}

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments a) {
    __shared__ Sum warps[8];
    // The last tensor that begins at or before this block.
    u32 tensor = 0;
    for (u32 end = u32(a.tensors); end - tensor > 1;) {
        const u32 middle = (tensor + end) / 2;
        if (a.first_block[middle] <= blockIdx.x) tensor = middle; else end = middle;
    }
    const u64 start = (blockIdx.x - a.first_block[tensor]) * CHUNK;
    const u64 left = a.elements[tensor] - start;
    const u32 count = left < CHUNK ? u32(left) : CHUNK;
    const Element* const values = a.at[tensor] + start;
    const u64 kind = a.kind;
    const Sum power = Sum(a.power);
    const bool is_aligned = u64(values) % 16 == 0;
    Sum sum = 0;
    #pragma unroll 4
    for (u32 first = threadIdx.x * WIDTH; first < count; first += 256 * WIDTH) {
        several loaded;
        if (is_aligned && first + WIDTH <= count) {
            loaded = *(const several*)(values + first);
        } else {
            #pragma unroll
            for (u32 i = 0; i < WIDTH; ++i) {
                if (first + i < count) {
                    loaded.element[i] = values[first + i];
                }
            }
        }
        #pragma unroll
        for (u32 i = 0; i < WIDTH; ++i) {
            if (first + i < count) {
                sum = combined(sum, of_element(LOAD(loaded.element[i]), kind, power), kind);
            }
        }
    }
    #pragma unroll
    for (u32 step = 16; step > 0; step /= 2) {
        sum = combined(sum, __shfl_xor_sync(0xffffffffu, sum, step), kind);
    }
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < 8 ? warps[threadIdx.x] : Sum(0);
        #pragma unroll
        for (u32 step = 16; step > 0; step /= 2) {
            sum = combined(sum, __shfl_xor_sync(0xffffffffu, sum, step), kind);
        }
        if (threadIdx.x == 0) {
            a.numbers[blockIdx.x] = sum;
        }
    }
}
