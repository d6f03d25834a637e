// Solutions of triangular systems, one right side per thread.
#ifndef NAME
#include "../defaults.cuh"
#endif
#include "matrices.cuh"

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64 rows = x.rows, thread = threadIdx.x, columns = x.columns;
    for (u64 matrix = blockIdx.x; matrix < x.batch; matrix += gridDim.x) {
        const f64* a = static_cast<const f64*>(x.first) + matrix * rows * rows;
        f64* b = static_cast<f64*>(x.second) + matrix * rows * columns;
        const bool is_upper = x.flags & 1, is_transposed = x.flags & 2, is_unit = x.flags & 4;
        const bool is_backward = is_upper != is_transposed;
        const u64 down = is_transposed ? 1 : rows, across = is_transposed ? rows : 1;
        for (u64 column = thread; column < columns; column += 256) {
            for (u64 step = 0; step < rows; ++step) {
                const u64 i = is_backward ? rows - 1 - step : step;
                f64 sum = b[i * columns + column];
                const u64 end = is_backward ? rows : i;
                for (u64 k = is_backward ? i + 1 : 0; k < end; ++k) {
                    sum -= a[i * down + k * across] * b[k * columns + column];
                }
                b[i * columns + column] = is_unit ? sum : sum / a[i * down + i * across];
            }
        }
        __syncthreads();
    }
}
