// The positions of values in sorted rows. A value is placed after NaN, and NaN after every number, as in PyTorch.
#ifndef NAME
#include "defaults.cuh"
#endif

struct arguments {
    const Element* sorted;
    const Element* values;
    i64* places;
    u64 rows;
    u64 length;
    u64 count;
    u64 right;
    u64 dtype;
};

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    for (u64 at = u64(blockIdx.x) * 256 + threadIdx.x; at < x.rows * x.count; at += u64(gridDim.x) * 256) {
        const u64 begin = at / x.count * x.length;
        const Sum value = LOAD(x.values[at]);
        u64 low = 0, high = x.length;
        while (low < high) {
            const u64 probe = low + (high - low) / 2;
            const Sum point = LOAD(x.sorted[begin + probe]);
            if (x.right ? !(point > value) : !(point >= value)) {
                low = probe + 1;
            } else {
                high = probe;
            }
        }
        x.places[at] = i64(low);
    }
}
