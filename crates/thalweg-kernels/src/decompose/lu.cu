// P A = L U, with row exchanges if the flag is set.
#ifndef NAME
#include "../defaults.cuh"
#endif
#include "matrices.cuh"

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64 rows = x.rows, thread = threadIdx.x, columns = x.columns;
    for (u64 matrix = blockIdx.x; matrix < x.batch; matrix += gridDim.x) {
        const u64 least = rows < columns ? rows : columns;
        f64* a = static_cast<f64*>(x.first) + matrix * rows * columns;
        i32* pivots = static_cast<i32*>(x.second) + matrix * least;
        i32 failed = 0;
        for (u64 j = 0; j < least; ++j) {
            u64 best = j;
            for (u64 i = j + 1; i < rows; ++i) {
                if ((x.flags & 1) && fabs(a[i * columns + j]) > fabs(a[best * columns + j])) {
                    best = i;
                }
            }
            __syncthreads();
            if (thread == 0) {
                pivots[j] = i32(best) + 1;
            }
            for (u64 c = thread; best != j && c < columns; c += 256) {
                const f64 moved = a[j * columns + c];
                a[j * columns + c] = a[best * columns + c];
                a[best * columns + c] = moved;
            }
            __syncthreads();
            const f64 pivot = a[j * columns + j];
            if (pivot == 0.0) {
                failed = failed == 0 ? i32(j) + 1 : failed;
                continue;
            }
            for (u64 i = j + 1 + thread; i < rows; i += 256) {
                a[i * columns + j] /= pivot;
            }
            __syncthreads();
            const u64 right = columns - j - 1;
            for (u64 place = thread; place < (rows - j - 1) * right; place += 256) {
                const u64 i = j + 1 + place / right, c = j + 1 + place % right;
                a[i * columns + c] -= a[i * columns + j] * a[j * columns + c];
            }
            __syncthreads();
        }
        if (thread == 0) {
            static_cast<i32*>(x.third)[matrix] = failed;
        }
        __syncthreads();
    }
}
