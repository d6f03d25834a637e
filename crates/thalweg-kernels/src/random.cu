// Random numbers of Philox's words, as elements of a tensor.
#ifndef NAME
#include "defaults.cuh"
#define DISTRIBUTION 2
#define WIDE 4
#endif

// The numbers of `Distribution`.
enum : u32 { UNIFORM, NORMAL, DROPOUT, KEPT };

struct arguments {
    const i64* seed;
    const i64* offset;
    const Element* source;
    Element* result;
    u8* mask;
    u64 elements;
    u64 threads;
    f64 first;
    f64 second;
    u64 dtype;
    u64 distribution;
    u64 vector;
    // Words below this one keep an element.
    u64 bound;
};

// Returns `whole` · (word + ½) / 2³², rounded once.
static __device__ __forceinline__ f32 part(const u32 word, const f64 whole) {
    return fmaf(f32(word), f32(whole * 0x1p-32), f32(whole * 0x1p-33));
}

// Stores neighbouring elements beginning at a position, up to the end.
template <class T, u32 VECTOR>
static __device__ __forceinline__ void store(const u64 elements, const u64 place, T* const to, const pack<T, VECTOR>& values) {
    if (place + VECTOR <= elements) {
        *(pack<T, VECTOR>*)(to + place) = values;
    } else {
        #pragma unroll
        for (u32 v = 0; v < VECTOR; ++v) {
            if (place + v < elements) {
                to[place + v] = values.element[v];
            }
        }
    }
}

// The elements of a block of words of each of VECTOR neighbouring subsequences. A row of the grid draws the same block of all.
template <u32 VECTOR>
static __device__ __forceinline__ void run(const arguments& x, const u64 seed, const u64 offset, const u64 round, const u64 subsequence) {
    const u64 first = round * 4 * x.threads + subsequence;
    pack<Element, VECTOR> values[4];
    pack<u8, VECTOR> kept[4];
    if constexpr (DISTRIBUTION == DROPOUT) {
        #pragma unroll
        for (u32 r = 0; r < 4; ++r) {
            const u64 place = first + r * x.threads;
            if (place + VECTOR <= x.elements) {
                values[r] = *(const pack<Element, VECTOR>*)(x.source + place);
            } else {
                #pragma unroll
                for (u32 v = 0; v < VECTOR; ++v) {
                    if (place + v < x.elements) {
                        values[r].element[v] = x.source[place + v];
                    }
                }
            }
        }
    }
    #pragma unroll
    for (u32 v = 0; v < VECTOR; ++v) {
        u32 words[4];
        philox_block<10>(words, seed, subsequence + v, offset / 4 + round);
        if constexpr (DISTRIBUTION == UNIFORM) {
            const f32 low = f32(x.first), high = f32(x.second);
            const Element bound = STORE(high);
            #pragma unroll
            for (u32 r = 0; r < 4; ++r) {
                // Draws from (low, high]; the upper bound, also one that results from rounding, becomes the lower.
                const Element value = STORE(fmaf(part(words[r], 1.0), high - low, low));
                values[r].element[v] = LOAD(value) == LOAD(bound) ? STORE(low) : value;
            }
        } else if constexpr (DISTRIBUTION == NORMAL) {
            const f32 mean = f32(x.first), deviation = f32(x.second);
            #pragma unroll
            for (u32 r = 0; r < 4; r += 2) {
                const f32 radius = sqrtf(-2.0f * logf(part(words[r], 1.0)));
                f32 sine, cosine;
                sincosf(part(words[r + 1], 6.283185307179586), &sine, &cosine);
                values[r].element[v] = STORE(fmaf(radius * sine, deviation, mean));
                values[r + 1].element[v] = STORE(fmaf(radius * cosine, deviation, mean));
            }
        } else if constexpr (DISTRIBUTION == KEPT) {
            #pragma unroll
            for (u32 r = 0; r < 4; ++r) {
                values[r].element[v] = words[r] < u32(x.bound);
            }
        } else {
            #pragma unroll
            for (u32 r = 0; r < 4; ++r) {
                const bool is_kept = words[r] < u32(x.bound);
                // In this order and as a product, so that the gradient has the same bits as this operation on the gradient.
                values[r].element[v] = STORE(LOAD(values[r].element[v]) * Sum(is_kept) * Sum(x.second));
                kept[r].element[v] = is_kept;
            }
        }
    }
    #pragma unroll
    for (u32 r = 0; r < 4; ++r) {
        const u64 place = first + r * x.threads;
        if constexpr (DISTRIBUTION == DROPOUT) {
            store(x.elements, place, x.mask, kept[r]);
        }
        store(x.elements, place, x.result, values[r]);
    }
}

template <u32 VECTOR> static __device__ __forceinline__ void runs(const arguments& x, const u64 seed, const u64 offset) {
    const u64 subsequence = (u64(blockIdx.x) * 256 + threadIdx.x) * VECTOR;
    if (subsequence < x.threads) {
        for (u64 round = blockIdx.y; round * 4 * x.threads < x.elements; round += gridDim.y) {
            run<VECTOR>(x, seed, offset, round, subsequence);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64 seed = u64(*x.seed), offset = u64(*x.offset);
    if (x.vector == 1) {
        runs<1>(x, seed, offset);
    } else {
        runs<WIDE>(x, seed, offset);
    }
}
