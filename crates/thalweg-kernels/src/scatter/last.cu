// For each row, the position (plus one) of the last index that names it.
#ifndef NAME
#include "../defaults.cuh"
#endif

struct arguments {
    const i64* index;
    u32* last;
    u64 count;
    u64 rows;
    u64 stride;
};

extern "C" __global__ void __launch_bounds__(1024) NAME(const __grid_constant__ arguments x) {
    const u32 count = u32(x.count), step = gridDim.x * 1024;
    for (u32 k = blockIdx.x * 1024 + threadIdx.x; k < count; k += step) {
        const i64 row = x.index[k * x.stride];
        if (u64(row) < x.rows) {
            atomicMax(&x.last[row], k + 1);
        }
    }
}
