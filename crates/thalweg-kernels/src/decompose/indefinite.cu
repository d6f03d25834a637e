// L D Lᵀ of a symmetric matrix: every thread chooses the pivot, and all threads share the elements that change.
#ifndef NAME
#include "../defaults.cuh"
#endif
#include "matrices.cuh"

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64 rows = x.rows, thread = threadIdx.x;
    for (u64 matrix = blockIdx.x; matrix < x.batch; matrix += gridDim.x) {
        f64* a = static_cast<f64*>(x.first) + matrix * rows * rows;
        i32* pivots = static_cast<i32*>(x.second) + matrix * rows;
        const f64 share = 0.640388203202208;
        i32 failed = 0;
        for (u64 k = 0; k < rows;) {
            const f64 size = fabs(a[k * rows + k]);
            f64 largest = 0.0;
            u64 place = k;
            for (u64 i = k + 1; i < rows; ++i) {
                if (fabs(a[i * rows + k]) > largest) {
                    largest = fabs(a[i * rows + k]);
                    place = i;
                }
            }
            u64 row = k, width = 1;
            if ((size == 0.0 && largest == 0.0) || size != size) {
                failed = failed == 0 ? i32(k) + 1 : failed;
                width = 0;
            } else if (!(size >= share * largest)) {
                f64 other = 0.0;
                for (u64 j = k; j < rows; ++j) {
                    const f64 element = fabs(j < place ? a[place * rows + j] : a[j * rows + place]);
                    other = j != place && element > other ? element : other;
                }
                if (!(size >= share * largest * (largest / other))) {
                    row = place;
                    width = fabs(a[place * rows + place]) >= share * other ? 1 : 2;
                }
            }
            __syncthreads();
            if (width == 0) {
                if (thread == 0) {
                    pivots[k] = i32(k) + 1;
                }
                ++k;
                continue;
            }
            const u64 last = k + width - 1;
            if (row != last) {
                for (u64 i = last + thread; i < rows; i += 256) {
                    if (i == row) {
                        continue;
                    }
                    f64* from = a + (i == last ? last * rows + last : i * rows + last);
                    f64* to = a + (i == last ? row * rows + row : i > row ? i * rows + row : row * rows + i);
                    const f64 moved = *from;
                    *from = *to;
                    *to = moved;
                }
                if (thread == 0 && width == 2) {
                    const f64 moved = a[last * rows + k];
                    a[last * rows + k] = a[row * rows + k];
                    a[row * rows + k] = moved;
                }
            }
            __syncthreads();
            const u64 next = k + width, rest = rows - next;
            const f64 off = a[last * rows + k];
            const f64 inverse = 1.0 / a[k * rows + k];
            const f64 first = a[last * rows + last] / off, second = a[k * rows + k] / off;
            const f64 scale = 1.0 / (first * second - 1.0) / off;
            for (u64 at = thread; at < rest * rest; at += 256) {
                const u64 i = next + at / rest, j = next + at % rest;
                if (j > i) {
                    continue;
                }
                if (width == 1) {
                    a[i * rows + j] -= a[i * rows + k] * inverse * a[j * rows + k];
                } else {
                    const f64 left = a[j * rows + k], right = a[j * rows + last];
                    const f64 of_first = scale * (first * left - right), of_last = scale * (second * right - left);
                    a[i * rows + j] -= a[i * rows + k] * of_first + a[i * rows + last] * of_last;
                }
            }
            __syncthreads();
            for (u64 i = next + thread; i < rows; i += 256) {
                if (width == 1) {
                    a[i * rows + k] *= inverse;
                } else {
                    const f64 left = a[i * rows + k], right = a[i * rows + last];
                    a[i * rows + k] = scale * (first * left - right);
                    a[i * rows + last] = scale * (second * right - left);
                }
            }
            if (thread == 0) {
                const i32 swapped = i32(row) + 1;
                pivots[k] = width == 1 ? swapped : -swapped;
                pivots[last] = width == 1 ? swapped : -swapped;
            }
            __syncthreads();
            k = next;
        }
        for (u64 at = thread; at < rows * rows; at += 256) {
            if (at % rows > at / rows) {
                a[at] = 0.0;
            }
        }
        if (thread == 0) {
            static_cast<i32*>(x.third)[matrix] = failed;
        }
        __syncthreads();
    }
}
