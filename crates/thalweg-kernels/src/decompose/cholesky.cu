// L of A = L Lᵀ.
#ifndef NAME
#include "../defaults.cuh"
#endif
#include "matrices.cuh"

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64 rows = x.rows, thread = threadIdx.x;
    for (u64 matrix = blockIdx.x; matrix < x.batch; matrix += gridDim.x) {
        f64* a = static_cast<f64*>(x.first) + matrix * rows * rows;
        i32 failed = 0;
        for (u64 j = 0; j < rows; ++j) {
            f64 pivot = a[j * rows + j];
            for (u64 k = 0; k < j; ++k) {
                pivot -= a[j * rows + k] * a[j * rows + k];
            }
            if (!(pivot > 0.0)) {
                failed = i32(j) + 1;
                break;
            }
            const f64 root = sqrt(pivot);
            __syncthreads();
            if (thread == 0) {
                a[j * rows + j] = root;
            }
            for (u64 i = j + 1 + thread; i < rows; i += 256) {
                f64 sum = a[i * rows + j];
                for (u64 k = 0; k < j; ++k) {
                    sum -= a[i * rows + k] * a[j * rows + k];
                }
                a[i * rows + j] = sum / root;
            }
            __syncthreads();
        }
        for (u64 place = thread; place < rows * rows; place += 256) {
            if (place % rows > place / rows) {
                a[place] = 0.0;
            }
        }
        if (thread == 0) {
            static_cast<i32*>(x.second)[matrix] = failed;
        }
        __syncthreads();
    }
}
