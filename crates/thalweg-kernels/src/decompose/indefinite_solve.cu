// Solutions by L D Lᵀ, one right side per thread.
#ifndef NAME
#include "../defaults.cuh"
#endif
#include "matrices.cuh"

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64 rows = x.rows, thread = threadIdx.x, columns = x.columns;
    for (u64 matrix = blockIdx.x; matrix < x.batch; matrix += gridDim.x) {
        const f64* a = static_cast<const f64*>(x.first) + matrix * rows * rows;
        const i32* pivots = static_cast<const i32*>(x.second) + matrix * rows;
        for (u64 c = thread; c < columns; c += 256) {
            f64* b = static_cast<f64*>(x.third) + matrix * rows * columns + c;
            for (u64 k = 0; k < rows;) {
                const bool is_pair = pivots[k] < 0 && k + 1 < rows;
                const i64 swapped = i64(pivots[k]) < 0 ? -i64(pivots[k]) : i64(pivots[k]);
                if (swapped >= 1 && u64(swapped) <= rows) {
                    f64* from = b + (is_pair ? k + 1 : k) * columns;
                    f64* to = b + u64(swapped - 1) * columns;
                    const f64 moved = *from;
                    *from = *to;
                    *to = moved;
                }
                if (!is_pair) {
                    for (u64 i = k + 1; i < rows; ++i) {
                        b[i * columns] -= a[i * rows + k] * b[k * columns];
                    }
                    b[k * columns] /= a[k * rows + k];
                    ++k;
                    continue;
                }
                for (u64 i = k + 2; i < rows; ++i) {
                    b[i * columns] -= a[i * rows + k] * b[k * columns] + a[i * rows + k + 1] * b[(k + 1) * columns];
                }
                const f64 off = a[(k + 1) * rows + k];
                const f64 first = a[k * rows + k] / off, second = a[(k + 1) * rows + k + 1] / off;
                const f64 above = b[k * columns] / off, below = b[(k + 1) * columns] / off;
                const f64 determinant = first * second - 1.0;
                b[k * columns] = (second * above - below) / determinant;
                b[(k + 1) * columns] = (first * below - above) / determinant;
                k += 2;
            }
            for (u64 left = rows; left > 0;) {
                const u64 k = left - 1, width = pivots[k] >= 0 || k == 0 ? 1 : 2;
                for (u64 step = 0; step < width; ++step) {
                    const u64 row = k - step;
                    f64 sum = b[row * columns];
                    for (u64 i = k + 1; i < rows; ++i) {
                        sum -= a[i * rows + row] * b[i * columns];
                    }
                    b[row * columns] = sum;
                }
                const i64 swapped = i64(pivots[k]) < 0 ? -i64(pivots[k]) : i64(pivots[k]);
                if (swapped >= 1 && u64(swapped) <= rows) {
                    const f64 moved = b[k * columns];
                    b[k * columns] = b[u64(swapped - 1) * columns];
                    b[u64(swapped - 1) * columns] = moved;
                }
                left -= width;
            }
        }
        __syncthreads();
    }
}
