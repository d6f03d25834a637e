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

// The elements of a block of words of each of VECTOR neighbouring subsequences.
template <u32 VECTOR>
static __device__ __forceinline__ void runs(const arguments& x, const u64 seed, const u64 offset) {
    const u64 runs = x.threads / VECTOR;
    const u64 rounds = divide<u64>(x.elements - 1, x.threads * 4) + 1;
    for (u64 run = u64(blockIdx.x) * 256 + threadIdx.x; run < rounds * runs; run += u64(gridDim.x) * 256) {
        const u64 round = divide<u64>(run, runs);
        const u64 subsequence = (run - round * runs) * VECTOR;
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
            philox_words philox = {};
            philox.word(seed, subsequence + v, offset + round * 4);
            const u32 words[4] = {philox.c0, philox.c1, philox.c2, philox.c3};
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
                    values[r].element[v] = part(words[r], 1.0) < f32(x.first);
                }
            } else {
                const f32 probability = f32(x.first);
                #pragma unroll
                for (u32 r = 0; r < 4; ++r) {
                    const bool is_kept = part(words[r], 1.0) < probability;
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
}

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64 seed = u64(*x.seed), offset = u64(*x.offset);
    if (x.vector == 1) {
        runs<1>(x, seed, offset);
    } else {
        runs<WIDE>(x, seed, offset);
    }
}
