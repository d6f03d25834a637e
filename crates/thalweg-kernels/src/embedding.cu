// The gradient of an embedding: the rows of each index are added in their order.
#ifndef NAME
#include "defaults.cuh"
#endif

struct arguments {
    const Element* gradient;
    const i64* indices;
    Element* result;
    u64 count;
    u64 embeddings;
    u64 features;
    i64 padding;
    u64 dtype;
};

extern "C" __global__ void __launch_bounds__(256, 4) NAME(const __grid_constant__ arguments x) {
    __shared__ i64 tile[2048];
    const u32 thread = threadIdx.x, lane = thread % 32;
    const u64 parts = (x.features + 255) / 256, items = (x.count + 7) / 8 * parts;
    for (u64 item = blockIdx.x; item < items; item += gridDim.x) {
        // A warp has a place, its lanes the features from one on, each 32nd.
        const u64 place = item / parts * 8 + thread / 32, feature = item % parts * 256 + lane;
        const i64 index = place < x.count ? x.indices[place] : -1;
        bool sums = index >= 0 && u64(index) < x.embeddings && index != x.padding;
        Sum sum[8] = {};
        for (u64 first = 0; first < x.count && __syncthreads_or(sums); first += 2048) {
            const u32 size = x.count - first < 2048 ? u32(x.count - first) : 2048;
            for (u32 i = thread; i < size; i += 256) {
                tile[i] = x.indices[first + i];
            }
            __syncthreads();
            for (u32 start = 0; sums && start < size; start += 32) {
                if (start % 256 == 0) {
                    // Eight windows of 32 indices at once: most have none that is equal.
                    bool is_any = false;
                    #pragma unroll
                    for (u32 i = 0; i < 8; ++i) {
                        is_any |= tile[start + 32 * i + lane] == index;
                    }
                    if (!__any_sync(0xffffffffu, is_any)) {
                        start += 224;
                        continue;
                    }
                }
                u32 rest = __ballot_sync(0xffffffffu, start + lane < size && tile[start + lane] == index);
                // An earlier place has this index: the sum is its warp's.
                sums = rest == 0 || first + start + __ffs(i32(rest)) - 1 >= place;
                while (sums && rest != 0) {
                    // Two rows at once, added in order.
                    Sum values[2][8];
                    u32 taken = 0;
                    #pragma unroll
                    for (u32 i = 0; i < 2; ++i) {
                        if (rest != 0) {
                            const Element* const row = x.gradient + (first + start + __ffs(i32(rest)) - 1) * x.features;
                            rest &= rest - 1;
                            taken = i + 1;
                            #pragma unroll
                            for (u32 j = 0; j < 8; ++j) {
                                values[i][j] = feature + 32 * j < x.features ? LOAD(row[feature + 32 * j]) : Sum(0);
                            }
                        }
                    }
                    #pragma unroll
                    for (u32 i = 0; i < 2; ++i) {
                        if (i < taken) {
                            #pragma unroll
                            for (u32 j = 0; j < 8; ++j) {
                                sum[j] = sum[j] + values[i][j];
                            }
                        }
                    }
                }
            }
        }
        #pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            if (sums && feature + 32 * j < x.features) {
                x.result[u64(index) * x.features + feature + 32 * j] = STORE(sum[j]);
            }
        }
    }
}
