// The order of rows that results from exchanges.
#ifndef NAME
#include "../defaults.cuh"
#endif
#include "matrices.cuh"

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64 rows = x.rows, thread = threadIdx.x, columns = x.columns;
    for (u64 matrix = blockIdx.x; matrix < x.batch; matrix += gridDim.x) {
        const i32* pivots = static_cast<const i32*>(x.first) + matrix * columns;
        i64* order = static_cast<i64*>(x.second) + matrix * rows;
        for (u64 row = thread; row < rows; row += 256) {
            order[row] = i64(row);
        }
        __syncthreads();
        for (u64 j = 0; thread == 0 && j < columns && j < rows; ++j) {
            const i32 pivot = pivots[j];
            if (pivot >= 1 && u64(pivot) <= rows) {
                const i64 moved = order[j];
                order[j] = order[pivot - 1];
                order[pivot - 1] = moved;
            }
        }
        __syncthreads();
    }
}
