// Eigenvalues and eigenvectors of a symmetric matrix, by rotations.
#ifndef NAME
#include "../defaults.cuh"
#endif
#include "jacobi.cuh"
#include "matrices.cuh"

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64 rows = x.rows, thread = threadIdx.x;
    for (u64 matrix = blockIdx.x; matrix < x.batch; matrix += gridDim.x) {
        f64* a = static_cast<f64*>(x.first) + matrix * rows * rows;
        f64* v = static_cast<f64*>(x.second) + matrix * rows * rows;
        f64* values = static_cast<f64*>(x.third) + matrix * rows;
        identity(v, rows);
        f64 square = 0.0;
        for (u64 place = 0; place < rows * rows; ++place) {
            square += a[place] * a[place];
        }
        const f64 negligible = 0x1p-52 / 16.0 * sqrt(square);
        __syncthreads();
        for (u32 sweep = 0; sweep < 64; ++sweep) {
            bool is_rotated = false;
            for (u64 p = 0; p < rows; ++p) {
                for (u64 q = p + 1; q < rows; ++q) {
                    const f64 off = a[p * rows + q], first = a[p * rows + p], last = a[q * rows + q];
                    if (!(fabs(off) > negligible)) {
                        continue;
                    }
                    is_rotated = true;
                    const turn turn = rotation((last - first) / (2.0 * off));
                    __syncthreads();
                    for (u64 k = thread; k < rows; k += 256) {
                        if (k == p || k == q) {
                            continue;
                        }
                        const f64 left = a[k * rows + p], right = a[k * rows + q];
                        const f64 new_left = turn.cosine * left - turn.sine * right;
                        const f64 new_right = turn.sine * left + turn.cosine * right;
                        a[k * rows + p] = new_left;
                        a[p * rows + k] = new_left;
                        a[k * rows + q] = new_right;
                        a[q * rows + k] = new_right;
                    }
                    if (thread == 0) {
                        a[p * rows + p] = first - turn.tangent * off;
                        a[q * rows + q] = last + turn.tangent * off;
                        a[p * rows + q] = 0.0;
                        a[q * rows + p] = 0.0;
                    }
                    rotate(v, rows, rows, p, q, turn);
                    __syncthreads();
                }
            }
            if (!is_rotated) {
                break;
            }
        }
        for (u64 j = thread; j < rows; j += 256) {
            values[j] = a[j * rows + j];
        }
        __syncthreads();
        for (u64 j = 0; j < rows; ++j) {
            u64 best = j;
            for (u64 i = j + 1; i < rows; ++i) {
                best = values[i] < values[best] ? i : best;
            }
            __syncthreads();
            if (best != j) {
                if (thread == 0) {
                    const f64 moved = values[j];
                    values[j] = values[best];
                    values[best] = moved;
                }
                swap(v, rows, rows, j, best);
            }
            __syncthreads();
        }
        __syncthreads();
    }
}
