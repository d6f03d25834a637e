// Each warp of a block processes eight rows of the weights at a time, which are the right factor of tensor-core products; every row
// of the left factor is the normalized row. The next eight rows are loaded while these are multiplied.
#ifndef NAME
#define HALF
#include "defaults.cuh"
#define MOST_FEATURES 4096
#endif
#include "shared/multiply_eight.cuh"
#include "shared/over_block.cuh"

struct arguments {
    const Element *x, *weight, *norm_weight, *norm_bias;
    i64 *token, *position, *history;
    // The greatest score so far, and the number of blocks that are done.
    unsigned long long* best;
    u64 count, context, features, eps, dtype;
    // The address at which a position beyond the history is reported.
    i64* told;
};

// The number of partial sums of a sum over the block.
#define WARPS 8
// The number of 16-byte loads of a thread that are in progress.
#define DEPTH 8

#if __CUDA_ARCH__ >= 800
static __device__ __forceinline__ uint4 stream(const void* at) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(at));
    return x;
}

// A score, rounded as scores are, and its index as one number: greater for a greater score, then for an earlier index. NaN is the
// greatest.
static __device__ __forceinline__ unsigned long long both(const f32 sum, const u32 place) {
    // Zeros of both signs are equal.
    const f32 score = LOAD(STORE(sum)) + 0.0f;
    const u32 bits = __float_as_uint(score);
    const u32 order = score != score ? 0xffffffffu : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return (unsigned long long)order << 32 | u32(~place);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 3) NAME(const __grid_constant__ arguments x) {
    __shared__ __align__(16) Element row[MOST_FEATURES];
    __shared__ f32 parts[WARPS];
    __shared__ unsigned long long of_warps[WARPS];
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const u32 count = u32(x.count), features = u32(x.features), steps = features / 32;
    const u32 groups = (count + 7) / 8, apart = gridDim.x * WARPS;
    u32 group = blockIdx.x * WARPS + warp;
    // The lane's terms of its row among eight; after the last row, those of the last row.
    const auto terms_of = [&](const u32 group) {
        const u32 line = group * 8 + lane / 4;
        return x.weight + u64(line < count ? line : count - 1) * features + lane % 4 * 8;
    };
    launch_dependents();
    const Element* terms = terms_of(group);
    for (u32 step = 0; step < steps; step += 4) {
        prefetch(terms + step * 32);
    }
    wait_for_previous();
    uint4 weights[DEPTH];
    #pragma unroll
    for (u32 i = 0; i < DEPTH; ++i) {
        if (i < steps) {
            weights[i] = stream(terms + i * 32);
        }
    }
    // While the first weights are being loaded.
    f32 sum = 0.0f, square = 0.0f;
    const bool is_centred = x.norm_bias != nullptr;
    for (u32 at = thread; at < features; at += 32 * WARPS) {
        sum = sum + LOAD(x.x[at]);
    }
    const f32 mean = is_centred ? over_block(sum, parts) / f32(features) : 0.0f;
    for (u32 at = thread; at < features; at += 32 * WARPS) {
        const f32 off = LOAD(x.x[at]) - mean;
        square = fmaf(off, off, square);
    }
    const f32 factor = rsqrtf(over_block(square, parts) / f32(features) + __uint_as_float(u32(x.eps)));
    for (u32 at = thread; at < features; at += 32 * WARPS) {
        row[at] = STORE(fmaf((LOAD(x.x[at]) - mean) * factor, LOAD(x.norm_weight[at]), is_centred ? LOAD(x.norm_bias[at]) : 0.0f));
    }
    __syncthreads();
    unsigned long long best = 0;
    while (group < groups) {
        f32 sums[2][4] = {};
        const u32 next = group + apart;
        const Element* const next_terms = terms_of(next < groups ? next : group);
        for (u32 start = 0; start < steps; start += DEPTH) {
            const bool is_last = start + DEPTH >= steps;
            const Element* const from = is_last ? next_terms : terms + (start + DEPTH) * 32;
            const u32 left = is_last ? steps : steps - start - DEPTH;
            #pragma unroll
            for (u32 i = 0; i < DEPTH; ++i) {
                if (start + i < steps) {
                    const uint4 values = *(const uint4*)(row + (start + i) * 32 + lane % 4 * 8);
                    multiply(sums[i % 2], weights[i], values, values);
                }
                if (i < left) {
                    weights[i] = stream(from + i * 32);
                }
            }
        }
        if (lane < 4) {
            const u32 place = group * 8 + lane * 2;
            const unsigned long long a = place < count ? both(sums[0][0] + sums[1][0], place) : 0;
            const unsigned long long b = place + 1 < count ? both(sums[0][1] + sums[1][1], place + 1) : 0;
            best = a > best ? a : best;
            best = b > best ? b : best;
        }
        group = next;
        terms = next_terms;
    }
    #pragma unroll
    for (u32 other = 1; other < 4; other *= 2) {
        const unsigned long long found = __shfl_xor_sync(0xffffffffu, best, other);
        best = found > best ? found : best;
    }
    if (lane == 0) {
        of_warps[warp] = best;
    }
    __syncthreads();
    if (thread == 0) {
        #pragma unroll
        for (u32 other = 1; other < WARPS; ++other) {
            best = of_warps[other] > best ? of_warps[other] : best;
        }
        atomicMax(x.best, best);
        __threadfence();
        if (atomicAdd(x.best + 1, 1ull) == gridDim.x - 1) {
            // The last block: all greatest scores have arrived, and the memory is reset for the next launch.
            __threadfence();
            const i64 token = i64(u32(~atomicExch(x.best, 0ull))), place = *x.position + 1;
            x.best[1] = 0;
            *x.token = token;
            *x.position = place;
            if (place >= 0 && place < i64(x.context)) {
                x.history[place] = token;
            } else {
                x.told[0] = place;
                x.told[1] = i64(x.context) + 1;
            }
        }
    }
}
#else
// Nothing to launch when the host compiles this file.
extern "C" __global__ void NAME(const __grid_constant__ arguments x) {
    launch_dependents();
}
#endif
