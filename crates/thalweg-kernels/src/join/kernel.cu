// Rows of several tensors, placed side by side in the rows of one. VECTOR is the type that is copied at once; sizes are in vectors.
#ifndef NAME
#include "../defaults.cuh"
#define VECTOR uint4
#define PARTS 32
#define VECTORS 4
#endif

typedef VECTOR Vector;

struct Part {
    const Vector* source;
    u64 width;
    u64 offset;
    // The number of the first block of the part, and of the first of the next one.
    u64 first;
};

struct arguments {
    Vector* result;
    u64 rows;
    u64 pitch;
    u64 count;
    Part parts[PARTS];
    // The bytes of a vector, which the host reads.
    u64 vector;
};

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    // The last part whose first block is not after this block.
    u32 low = 0, high = u32(x.count);
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (x.parts[middle].first <= blockIdx.x) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const Vector* source = x.parts[low].source;
    const u64 width = x.parts[low].width, all = x.rows * width;
    Vector* result = x.result + x.parts[low].offset;
    const u64 block = (blockIdx.x - x.parts[low].first) * (256 * VECTORS) + threadIdx.x;
    Vector values[VECTORS];
    #pragma unroll
    for (u32 i = 0; i < VECTORS; ++i) {
        const u64 at = block + i * 256;
        if (at < all) {
            values[i] = source[at];
        }
    }
    #pragma unroll
    for (u32 i = 0; i < VECTORS; ++i) {
        const u64 at = block + i * 256;
        if (at < all) {
            const u64 row = all <= 0xffffffffu ? u64(u32(at) / u32(width)) : at / width;
            result[row * x.pitch + (at - row * width)] = values[i];
        }
    }
}
