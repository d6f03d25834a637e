// Householder reflectors and R.
#ifndef NAME
#include "../defaults.cuh"
#endif
#include "matrices.cuh"

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64 rows = x.rows, thread = threadIdx.x, columns = x.columns;
    for (u64 matrix = blockIdx.x; matrix < x.batch; matrix += gridDim.x) {
        const u64 least = rows < columns ? rows : columns;
        f64* a = static_cast<f64*>(x.first) + matrix * rows * columns;
        f64* factors = static_cast<f64*>(x.second) + matrix * least;
        for (u64 j = 0; j < least; ++j) {
            const f64 alpha = a[j * columns + j];
            f64 below = 0.0;
            for (u64 i = j + 1; i < rows; ++i) {
                below += a[i * columns + j] * a[i * columns + j];
            }
            const f64 length = sqrt(alpha * alpha + below);
            const f64 beta = alpha < 0.0 ? length : -length;
            const f64 factor = below == 0.0 ? 0.0 : (beta - alpha) / beta;
            __syncthreads();
            if (thread == 0) {
                factors[j] = factor;
            }
            if (below == 0.0) {
                continue;
            }
            for (u64 i = j + 1 + thread; i < rows; i += 256) {
                a[i * columns + j] /= alpha - beta;
            }
            if (thread == 0) {
                a[j * columns + j] = beta;
            }
            __syncthreads();
            for (u64 c = j + 1 + thread; c < columns; c += 256) {
                f64 sum = a[j * columns + c];
                for (u64 i = j + 1; i < rows; ++i) {
                    sum += a[i * columns + j] * a[i * columns + c];
                }
                sum *= factor;
                a[j * columns + c] -= sum;
                for (u64 i = j + 1; i < rows; ++i) {
                    a[i * columns + c] -= a[i * columns + j] * sum;
                }
            }
            __syncthreads();
        }
        __syncthreads();
    }
}
