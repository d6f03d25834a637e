// Eigenvalues and eigenvectors of a complex matrix: every thread follows the steps, and all threads share the rows and columns that a
// reflector or a rotation changes.
#ifndef NAME
#include "../defaults.cuh"
#endif
#include "matrices.cuh"

static __device__ __forceinline__ c128 conjugate(c128 z) {
    return {z.re, -z.im};
}

static __device__ __forceinline__ c128 times(c128 z, f64 factor) {
    return {z.re * factor, z.im * factor};
}

static __device__ __forceinline__ f64 square(c128 z) {
    return z.re * z.re + z.im * z.im;
}

static __device__ __forceinline__ f64 size(c128 z) {
    return fabs(z.re) + fabs(z.im);
}

static __device__ __forceinline__ c128 root_of(c128 z) {
    const f64 re = sqrt((sqrt(square(z)) + fabs(z.re)) * 0.5);
    if (re == 0.0) {
        return {0.0, 0.0};
    }
    const f64 im = fabs(z.im) * 0.5 / re;
    const f64 second = z.re >= 0.0 ? im : re;
    return {z.re >= 0.0 ? re : im, z.im < 0.0 ? -second : second};
}

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64 rows = x.rows, thread = threadIdx.x;
    for (u64 matrix = blockIdx.x; matrix < x.batch; matrix += gridDim.x) {
        c128* a = static_cast<c128*>(x.first) + matrix * rows * rows;
        c128* v = static_cast<c128*>(x.second) + matrix * rows * rows;
        c128* values = static_cast<c128*>(x.third) + matrix * rows;
        for (u64 place = thread; place < rows * rows; place += 256) {
            v[place] = c128{place / rows == place % rows ? 1.0 : 0.0, 0.0};
        }
        __syncthreads();
        for (u64 k = 0; k + 2 < rows; ++k) {
            const c128 alpha = a[(k + 1) * rows + k];
            f64 below = 0.0;
            for (u64 i = k + 2; i < rows; ++i) {
                below += square(a[i * rows + k]);
            }
            if (below == 0.0) {
                continue;
            }
            const f64 own = sqrt(square(alpha)), length = sqrt(square(alpha) + below);
            const c128 phase = own > 0.0 ? times(alpha, 1.0 / own) : c128{1.0, 0.0};
            const c128 beta = -times(phase, length);
            const f64 scale = 1.0 / (length * (length + own));
            __syncthreads();
            if (thread == 0) {
                a[(k + 1) * rows + k] = alpha - beta;
            }
            __syncthreads();
            for (u64 c = k + 1 + thread; c < rows; c += 256) {
                c128 sum = {0.0, 0.0};
                for (u64 i = k + 1; i < rows; ++i) {
                    sum = sum + conjugate(a[i * rows + k]) * a[i * rows + c];
                }
                sum = times(sum, scale);
                for (u64 i = k + 1; i < rows; ++i) {
                    a[i * rows + c] = a[i * rows + c] - a[i * rows + k] * sum;
                }
            }
            __syncthreads();
            // A row reads the column of the reflector, and changes the columns after it.
            for (u64 r = thread; r < rows; r += 256) {
                c128 of_a = {0.0, 0.0}, of_v = {0.0, 0.0};
                for (u64 i = k + 1; i < rows; ++i) {
                    of_a = of_a + a[r * rows + i] * a[i * rows + k];
                    of_v = of_v + v[r * rows + i] * a[i * rows + k];
                }
                of_a = times(of_a, scale);
                of_v = times(of_v, scale);
                for (u64 i = k + 1; i < rows; ++i) {
                    const c128 turned = conjugate(a[i * rows + k]);
                    a[r * rows + i] = a[r * rows + i] - of_a * turned;
                    v[r * rows + i] = v[r * rows + i] - of_v * turned;
                }
            }
            __syncthreads();
            for (u64 i = k + 1 + thread; i < rows; i += 256) {
                a[i * rows + k] = i == k + 1 ? beta : c128{0.0, 0.0};
            }
            __syncthreads();
        }
        u64 last = rows > 0 ? rows - 1 : 0;
        u32 steps = 0;
        while (last > 0) {
            u64 first = last;
            while (first > 0) {
                const f64 beside = size(a[(first - 1) * rows + first - 1]) + size(a[first * rows + first]);
                if (size(a[first * rows + first - 1]) <= 0x1p-52 * beside) {
                    break;
                }
                --first;
            }
            if (first == last || steps == 300) {
                --last;
                steps = 0;
                continue;
            }
            ++steps;
            const c128 end = a[last * rows + last], under = a[last * rows + last - 1];
            const c128 half = times(a[(last - 1) * rows + last - 1] - end, 0.5);
            const c128 product = a[(last - 1) * rows + last] * under;
            const c128 root = root_of(half * half + product);
            const c128 sum = half + root, difference = half - root;
            const c128 divisor = square(sum) >= square(difference) ? sum : difference;
            c128 shift = end;
            if (steps % 10 == 0) {
                shift.re += size(under);
            } else if (!(divisor == c128{0.0, 0.0})) {
                shift = end - product / divisor;
            }
            __syncthreads();
            for (u64 k = first + thread; k <= last; k += 256) {
                a[k * rows + k] = a[k * rows + k] - shift;
            }
            __syncthreads();
            c128 former_cosine = {1.0, 0.0}, former_sine = {0.0, 0.0};
            for (u64 k = first; k <= last; ++k) {
                c128 cosine = {1.0, 0.0}, sine = {0.0, 0.0};
                if (k < last) {
                    const c128 upper = a[k * rows + k], lower = a[(k + 1) * rows + k];
                    const f64 length = sqrt(square(upper) + square(lower));
                    if (length > 0.0) {
                        cosine = times(upper, 1.0 / length);
                        sine = times(lower, 1.0 / length);
                    }
                    __syncthreads();
                    for (u64 c = k + thread; c < rows; c += 256) {
                        const c128 above = a[k * rows + c], below = a[(k + 1) * rows + c];
                        a[k * rows + c] = conjugate(cosine) * above + conjugate(sine) * below;
                        a[(k + 1) * rows + c] = cosine * below - sine * above;
                    }
                }
                __syncthreads();
                for (u64 r = thread; k > first && r < rows; r += 256) {
                    for (u32 both = 0; both < 2; ++both) {
                        if (both == 0 && r > k) {
                            continue;
                        }
                        c128* row = (both == 0 ? a : v) + r * rows;
                        const c128 left = row[k - 1], right = row[k];
                        row[k - 1] = former_cosine * left + former_sine * right;
                        row[k] = conjugate(former_cosine) * right - conjugate(former_sine) * left;
                    }
                }
                former_cosine = cosine;
                former_sine = sine;
            }
            __syncthreads();
            for (u64 k = first + thread; k <= last; k += 256) {
                a[k * rows + k] = a[k * rows + k] + shift;
            }
            __syncthreads();
        }
        f64 largest = 0.0;
        for (u64 i = 0; i < rows; ++i) {
            for (u64 j = i; j < rows; ++j) {
                largest = fmax(largest, size(a[i * rows + j]));
            }
        }
        const f64 least = fmax(0x1p-52 * largest, 0x1p-1022);
        __syncthreads();
        for (u64 k = thread; k < rows; k += 256) {
            values[k] = a[k * rows + k];
            for (u64 back = 0; back < k; ++back) {
                const u64 i = k - 1 - back;
                c128 sum = a[i * rows + k];
                for (u64 j = i + 1; j < k; ++j) {
                    sum = sum + a[i * rows + j] * a[k * rows + j];
                }
                const c128 gap = a[k * rows + k] - a[i * rows + i];
                a[k * rows + i] = sum / (size(gap) < least ? c128{least, 0.0} : gap);
            }
        }
        __syncthreads();
        for (u64 r = thread; r < rows; r += 256) {
            for (u64 back = 0; back < rows; ++back) {
                const u64 k = rows - 1 - back;
                c128 sum = v[r * rows + k];
                for (u64 i = 0; i < k; ++i) {
                    sum = sum + v[r * rows + i] * a[k * rows + i];
                }
                v[r * rows + k] = sum;
            }
        }
        __syncthreads();
        for (u64 k = thread; k < rows; k += 256) {
            f64 sum = 0.0;
            u64 best = 0;
            for (u64 i = 0; i < rows; ++i) {
                sum += square(v[i * rows + k]);
                best = square(v[i * rows + k]) > square(v[best * rows + k]) ? i : best;
            }
            const f64 own = sqrt(square(v[best * rows + k]));
            if (own == 0.0) {
                continue;
            }
            const c128 factor = times(conjugate(v[best * rows + k]), 1.0 / (own * sqrt(sum)));
            for (u64 i = 0; i < rows; ++i) {
                v[i * rows + k] = v[i * rows + k] * factor;
            }
            v[best * rows + k].im = 0.0;
        }
        __syncthreads();
    }
}
