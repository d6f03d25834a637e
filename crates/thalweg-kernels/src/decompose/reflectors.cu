// The first columns of the product of reflectors, one column per thread.
#ifndef NAME
#include "../defaults.cuh"
#endif
#include "matrices.cuh"

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64 rows = x.rows, thread = threadIdx.x, columns = x.columns;
    for (u64 matrix = blockIdx.x; matrix < x.batch; matrix += gridDim.x) {
        const u64 width = x.width;
        const f64* a = static_cast<const f64*>(x.first) + matrix * rows * columns;
        const f64* factors = static_cast<const f64*>(x.second) + matrix * columns;
        f64* q = static_cast<f64*>(x.third) + matrix * rows * width;
        for (u64 c = thread; c < width; c += 256) {
            for (u64 i = 0; i < rows; ++i) {
                q[i * width + c] = i == c ? 1.0 : 0.0;
            }
            for (u64 back = 0; back < columns; ++back) {
                const u64 j = columns - 1 - back;
                f64 sum = q[j * width + c];
                for (u64 i = j + 1; i < rows; ++i) {
                    sum += a[i * columns + j] * q[i * width + c];
                }
                sum *= factors[j];
                q[j * width + c] -= sum;
                for (u64 i = j + 1; i < rows; ++i) {
                    q[i * width + c] -= a[i * columns + j] * sum;
                }
            }
        }
        __syncthreads();
    }
}
