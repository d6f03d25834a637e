//! The kernels of [`Decompose`](super::Decompose): one block per matrix, whose threads share rows or columns.

use thalweg_ir::cuda::with_prelude;

use super::{Method, eigenvalues, indefinite};

/// Returns the translation unit of a method.
pub(super) fn print(method: Method) -> String {
    let body = match method {
        Method::Cholesky => CHOLESKY,
        Method::Triangular => TRIANGULAR,
        Method::Lu => LU,
        Method::Permutation => PERMUTATION,
        Method::Qr => QR,
        Method::Reflectors => REFLECTORS,
        Method::Eigen => EIGEN,
        Method::Singular => SINGULAR,
        Method::Indefinite => indefinite::FACTOR,
        Method::IndefiniteSolve => indefinite::SOLVE,
        Method::General => eigenvalues::BODY,
    };
    let helpers = match method {
        Method::Eigen | Method::Singular => JACOBI,
        Method::General => eigenvalues::HELPERS,
        _ => "",
    };
    let columns = if body.contains("columns") { "    const u64 columns = x.columns;" } else { "" };
    let code = TEMPLATE
        .replace("HELPERS", helpers)
        .replace("COLUMNS", columns)
        .replace("BODY", body)
        .replace("NAME", method.name());
    with_prelude(&code)
}

const TEMPLATE: &str = "\
struct NAME_arguments {
    void* first;
    void* second;
    void* third;
    u64 batch;
    u64 rows;
    u64 columns;
    u64 width;
    u64 flags;
    u64 method;
};

HELPERS
extern \"C\" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ NAME_arguments x) {
    const u64 rows = x.rows, thread = threadIdx.x;
COLUMNS
    for (u64 matrix = blockIdx.x; matrix < x.batch; matrix += gridDim.x) {
BODY
        __syncthreads();
    }
}
";

const CHOLESKY: &str = "\
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
        }";

const TRIANGULAR: &str = "\
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
        }";

const LU: &str = "\
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
        }";

const PERMUTATION: &str = "\
        const i32* pivots = static_cast<const i32*>(x.first) + matrix * columns;
        i64* order = static_cast<i64*>(x.second) + matrix * rows;
        for (u64 row = thread; row < rows; row += 256) {
            order[row] = i64(row);
        }
        __syncthreads();
        for (u64 j = 0; thread == 0 && j < columns && j < rows; ++j) {
            const i32 pivot = pivots[j];
            if (pivot >= 1 && u64(pivot) <= rows) {
                const i64 moved = order[j];
                order[j] = order[pivot - 1];
                order[pivot - 1] = moved;
            }
        }";

const QR: &str = "\
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
        }";

const REFLECTORS: &str = "\
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
        }";

/// The functions of both methods that use rotations. Every thread of the block calls them with the same arguments.
const JACOBI: &str = "\
struct NAME_turn {
    f64 cosine;
    f64 sine;
    f64 tangent;
};

// The rotation that makes an element off the diagonal 0, from the cotangent of twice its angle.
static __device__ __forceinline__ NAME_turn NAME_rotation(f64 cotangent) {
    const f64 sign = cotangent < 0.0 ? -1.0 : 1.0;
    const f64 tangent = sign / (fabs(cotangent) + sqrt(cotangent * cotangent + 1.0));
    const f64 cosine = 1.0 / sqrt(tangent * tangent + 1.0);
    return NAME_turn{cosine, tangent * cosine, tangent};
}

// Rotates two columns of a matrix.
static __device__ __forceinline__ void NAME_rotate(
    f64* a, u64 rows, u64 columns, u64 p, u64 q, NAME_turn turn
) {
    for (u64 i = threadIdx.x; i < rows; i += 256) {
        const f64 left = a[i * columns + p], right = a[i * columns + q];
        a[i * columns + p] = turn.cosine * left - turn.sine * right;
        a[i * columns + q] = turn.sine * left + turn.cosine * right;
    }
}

static __device__ __forceinline__ void NAME_identity(f64* v, u64 n) {
    for (u64 place = threadIdx.x; place < n * n; place += 256) {
        v[place] = place / n == place % n ? 1.0 : 0.0;
    }
}

static __device__ __forceinline__ void NAME_swap(f64* a, u64 rows, u64 columns, u64 p, u64 q) {
    for (u64 i = threadIdx.x; i < rows; i += 256) {
        const f64 moved = a[i * columns + p];
        a[i * columns + p] = a[i * columns + q];
        a[i * columns + q] = moved;
    }
}
";

const EIGEN: &str = "\
        f64* a = static_cast<f64*>(x.first) + matrix * rows * rows;
        f64* v = static_cast<f64*>(x.second) + matrix * rows * rows;
        f64* values = static_cast<f64*>(x.third) + matrix * rows;
        NAME_identity(v, rows);
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
                    const NAME_turn turn = NAME_rotation((last - first) / (2.0 * off));
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
                    NAME_rotate(v, rows, rows, p, q, turn);
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
                NAME_swap(v, rows, rows, j, best);
            }
            __syncthreads();
        }";

const SINGULAR: &str = "\
        f64* a = static_cast<f64*>(x.first) + matrix * rows * columns;
        f64* v = static_cast<f64*>(x.second) + matrix * columns * columns;
        f64* values = static_cast<f64*>(x.third) + matrix * columns;
        NAME_identity(v, columns);
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
                    const NAME_turn turn = NAME_rotation((last - first) / (2.0 * off));
                    __syncthreads();
                    NAME_rotate(a, rows, columns, p, q, turn);
                    NAME_rotate(v, columns, columns, p, q, turn);
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
                NAME_swap(a, rows, columns, j, best);
                NAME_swap(v, columns, columns, j, best);
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
            // What is left of the first unit vector that is far from the columns before it.
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
        }";
