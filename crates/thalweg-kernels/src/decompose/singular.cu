// Singular values and vectors, by rotations of columns.
#ifndef NAME
#include "../defaults.cuh"
#endif
#include "jacobi.cuh"
#include "matrices.cuh"

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64 rows = x.rows, thread = threadIdx.x, columns = x.columns;
    for (u64 matrix = blockIdx.x; matrix < x.batch; matrix += gridDim.x) {
        f64* a = static_cast<f64*>(x.first) + matrix * rows * columns;
        f64* v = static_cast<f64*>(x.second) + matrix * columns * columns;
        f64* values = static_cast<f64*>(x.third) + matrix * columns;
        identity(v, columns);
        __syncthreads();
        for (u32 sweep = 0; sweep < 64; ++sweep) {
            bool is_rotated = false;
            for (u64 p = 0; p < columns; ++p) {
                for (u64 q = p + 1; q < columns; ++q) {
                    f64 first = 0.0, last = 0.0, off = 0.0;
                    for (u64 i = 0; i < rows; ++i) {
                        const f64 left = a[i * columns + p], right = a[i * columns + q];
                        first += left * left;
                        last += right * right;
                        off += left * right;
                    }
                    if (!(fabs(off) > 4.0 * 0x1p-52 * sqrt(first * last))) {
                        continue;
                    }
                    is_rotated = true;
                    const turn turn = rotation((last - first) / (2.0 * off));
                    __syncthreads();
                    rotate(a, rows, columns, p, q, turn);
                    rotate(v, columns, columns, p, q, turn);
                    __syncthreads();
                }
            }
            if (!is_rotated) {
                break;
            }
        }
        for (u64 j = thread; j < columns; j += 256) {
            f64 sum = 0.0;
            for (u64 i = 0; i < rows; ++i) {
                sum += a[i * columns + j] * a[i * columns + j];
            }
            values[j] = sqrt(sum);
        }
        __syncthreads();
        for (u64 j = 0; j < columns; ++j) {
            u64 best = j;
            for (u64 i = j + 1; i < columns; ++i) {
                best = values[i] > values[best] ? i : best;
            }
            __syncthreads();
            if (best != j) {
                if (thread == 0) {
                    const f64 moved = values[j];
                    values[j] = values[best];
                    values[best] = moved;
                }
                swap(a, rows, columns, j, best);
                swap(v, columns, columns, j, best);
            }
            __syncthreads();
        }
        for (u64 j = 0; j < columns; ++j) {
            if (values[j] > 0.0) {
                for (u64 i = thread; i < rows; i += 256) {
                    a[i * columns + j] /= values[j];
                }
                __syncthreads();
                continue;
            }
            // The remainder of the first unit vector that is far from the span of the preceding columns.
            for (u64 unit = 0; unit < rows; ++unit) {
                for (u64 i = thread; i < rows; i += 256) {
                    a[i * columns + j] = i == unit ? 1.0 : 0.0;
                }
                __syncthreads();
                for (u32 pass = 0; pass < 2; ++pass) {
                    for (u64 p = 0; p < j; ++p) {
                        f64 product = 0.0;
                        for (u64 i = 0; i < rows; ++i) {
                            product += a[i * columns + p] * a[i * columns + j];
                        }
                        __syncthreads();
                        for (u64 i = thread; i < rows; i += 256) {
                            a[i * columns + j] -= product * a[i * columns + p];
                        }
                        __syncthreads();
                    }
                }
                f64 square = 0.0;
                for (u64 i = 0; i < rows; ++i) {
                    square += a[i * columns + j] * a[i * columns + j];
                }
                __syncthreads();
                if (square > 0.5 / f64(rows)) {
                    const f64 length = sqrt(square);
                    for (u64 i = thread; i < rows; i += 256) {
                        a[i * columns + j] /= length;
                    }
                    break;
                }
            }
            __syncthreads();
        }
        __syncthreads();
    }
}
