//! Eigenvalues and eigenvectors of complex matrices: host function and kernel of [`Method::General`](super::Method::General).
//!
//! Reflectors bring a matrix to Hessenberg form; QR steps with J. H. Wilkinson's shifts make it triangular; eigenvectors are
//! solutions with the triangle (G. H. Golub, *Matrix Computations*, chapter 7).

use thalweg_ir::{c128, quotient};

/// The number of steps after which the diagonal element is taken as the eigenvalue.
const STEPS: u32 = 300;

/// Returns the root whose real part is not negative.
fn root(z: c128) -> c128 {
    let length = z.norm_sqr().sqrt();
    let re = ((length + z.re.abs()) * 0.5).sqrt();
    if re == 0.0 {
        return c128 { re: 0.0, im: 0.0 };
    }
    let im = z.im.abs() * 0.5 / re;
    let [re, im] = if z.re >= 0.0 { [re, im] } else { [im, re] };
    c128 { re, im: if z.im < 0.0 { -im } else { im } }
}

/// Computes [`Method::General`](super::Method::General).
pub(super) fn general(a: &mut [c128], v: &mut [c128], values: &mut [c128], n: usize) {
    if n == 0 {
        return;
    }
    for (place, element) in v.iter_mut().enumerate() {
        *element = c128 { re: f64::from(u8::from(place / n == place % n)), im: 0.0 };
    }
    for k in 0..n.saturating_sub(2) {
        reflect(a, v, n, k);
    }
    let (mut last, mut steps) = (n - 1, 0);
    while last > 0 {
        let mut first = last;
        while first > 0 {
            let beside = a[(first - 1) * n + first - 1].l1_norm() + a[first * n + first].l1_norm();
            if a[first * n + first - 1].l1_norm() <= f64::EPSILON * beside {
                break;
            }
            first -= 1;
        }
        if first == last || steps == STEPS {
            (last, steps) = (last - 1, 0);
            continue;
        }
        steps += 1;
        let shift = shift(a, n, last, steps);
        step(a, v, n, [first, last], shift);
    }
    for k in 0..n {
        values[k] = a[k * n + k];
    }
    vectors(a, v, n);
}

/// Makes a column 0 below the subdiagonal element.
fn reflect(a: &mut [c128], v: &mut [c128], n: usize, k: usize) {
    let alpha = a[(k + 1) * n + k];
    let mut below = 0.0;
    for i in k + 2..n {
        below += a[i * n + k].norm_sqr();
    }
    if below == 0.0 {
        return;
    }
    let own = alpha.norm_sqr().sqrt();
    let length = (alpha.norm_sqr() + below).sqrt();
    let phase = if own > 0.0 { alpha.scale(1.0 / own) } else { c128 { re: 1.0, im: 0.0 } };
    let beta = phase.scale(-length);
    let scale = 1.0 / (length * (length + own));
    a[(k + 1) * n + k] = alpha - beta;
    for c in k + 1..n {
        let mut sum = c128 { re: 0.0, im: 0.0 };
        for i in k + 1..n {
            sum += a[i * n + k].conj() * a[i * n + c];
        }
        sum = sum.scale(scale);
        for i in k + 1..n {
            a[i * n + c] -= a[i * n + k] * sum;
        }
    }
    for r in 0..n {
        let (mut of_a, mut of_v) = (c128 { re: 0.0, im: 0.0 }, c128 { re: 0.0, im: 0.0 });
        for i in k + 1..n {
            of_a += a[r * n + i] * a[i * n + k];
            of_v += v[r * n + i] * a[i * n + k];
        }
        (of_a, of_v) = (of_a.scale(scale), of_v.scale(scale));
        for i in k + 1..n {
            let turned = a[i * n + k].conj();
            a[r * n + i] -= of_a * turned;
            v[r * n + i] -= of_v * turned;
        }
    }
    a[(k + 1) * n + k] = beta;
    for i in k + 2..n {
        a[i * n + k] = c128 { re: 0.0, im: 0.0 };
    }
}

/// Returns the eigenvalue of the last two rows that is nearer to the last element; occasionally another number, in case those
/// steps do not converge.
fn shift(a: &[c128], n: usize, last: usize, steps: u32) -> c128 {
    let end = a[last * n + last];
    let below = a[last * n + last - 1];
    if steps.is_multiple_of(10) {
        return c128 { re: end.re + below.l1_norm(), im: end.im };
    }
    let half = (a[(last - 1) * n + last - 1] - end).scale(0.5);
    let product = a[(last - 1) * n + last] * below;
    let root = root(half * half + product);
    let (sum, difference) = (half + root, half - root);
    let divisor = if sum.norm_sqr() >= difference.norm_sqr() { sum } else { difference };
    if divisor.re == 0.0 && divisor.im == 0.0 { end } else { end - quotient(product, divisor) }
}

/// Performs a QR step on the rows from the first to the last. The rotation from the right follows the next rotation from the
/// left.
fn step(a: &mut [c128], v: &mut [c128], n: usize, [first, last]: [usize; 2], shift: c128) {
    for k in first..=last {
        a[k * n + k] -= shift;
    }
    let mut former: Option<[c128; 2]> = None;
    for k in first..=last {
        let mut turn = None;
        if k < last {
            let (x, y) = (a[k * n + k], a[(k + 1) * n + k]);
            let length = (x.norm_sqr() + y.norm_sqr()).sqrt();
            let [cosine, sine] = match length > 0.0 {
                true => [x.scale(1.0 / length), y.scale(1.0 / length)],
                false => [c128 { re: 1.0, im: 0.0 }, c128 { re: 0.0, im: 0.0 }],
            };
            for c in k..n {
                let (upper, lower) = (a[k * n + c], a[(k + 1) * n + c]);
                a[k * n + c] = cosine.conj() * upper + sine.conj() * lower;
                a[(k + 1) * n + c] = cosine * lower - sine * upper;
            }
            turn = Some([cosine, sine]);
        }
        if let Some([cosine, sine]) = former {
            let turned = |row: &mut [c128]| {
                let (left, right) = (row[k - 1], row[k]);
                row[k - 1] = cosine * left + sine * right;
                row[k] = cosine.conj() * right - sine.conj() * left;
            };
            a.chunks_exact_mut(n).take(k + 1).for_each(turned);
            v.chunks_exact_mut(n).for_each(turned);
        }
        former = turn;
    }
    for k in first..=last {
        a[k * n + k] += shift;
    }
}

/// Computes eigenvectors from a triangle and the matrix that transformed it. The elements of a vector of the triangle are stored
/// in the row with the vector's number, below the diagonal.
fn vectors(a: &mut [c128], v: &mut [c128], n: usize) {
    let mut largest = 0.0;
    for i in 0..n {
        for j in i..n {
            largest = f64::max(largest, a[i * n + j].l1_norm());
        }
    }
    let least = f64::max(f64::EPSILON * largest, f64::MIN_POSITIVE);
    for k in 0..n {
        for i in (0..k).rev() {
            let mut sum = a[i * n + k];
            for j in i + 1..k {
                sum += a[i * n + j] * a[k * n + j];
            }
            let gap = a[k * n + k] - a[i * n + i];
            let gap = if gap.l1_norm() < least { c128 { re: least, im: 0.0 } } else { gap };
            a[k * n + i] = quotient(sum, gap);
        }
    }
    for row in v.chunks_exact_mut(n) {
        for k in (0..n).rev() {
            let mut sum = row[k];
            for i in 0..k {
                sum += row[i] * a[k * n + i];
            }
            row[k] = sum;
        }
    }
    for k in 0..n {
        let (mut sum, mut best) = (0.0, 0);
        for i in 0..n {
            sum += v[i * n + k].norm_sqr();
            if v[i * n + k].norm_sqr() > v[best * n + k].norm_sqr() {
                best = i;
            }
        }
        let own = v[best * n + k].norm_sqr().sqrt();
        if own == 0.0 {
            continue;
        }
        let factor = v[best * n + k].conj().scale(1.0 / (own * sum.sqrt()));
        for i in 0..n {
            v[i * n + k] *= factor;
        }
        v[best * n + k].im = 0.0;
    }
}

/// The functions of the kernel.
pub(super) const HELPERS: &str = "\
static __device__ __forceinline__ c128 NAME_conjugate(c128 z) {
    return {z.re, -z.im};
}

static __device__ __forceinline__ c128 NAME_times(c128 z, f64 factor) {
    return {z.re * factor, z.im * factor};
}

static __device__ __forceinline__ f64 NAME_square(c128 z) {
    return z.re * z.re + z.im * z.im;
}

static __device__ __forceinline__ f64 NAME_size(c128 z) {
    return fabs(z.re) + fabs(z.im);
}

static __device__ __forceinline__ c128 NAME_root(c128 z) {
    const f64 re = sqrt((sqrt(NAME_square(z)) + fabs(z.re)) * 0.5);
    if (re == 0.0) {
        return {0.0, 0.0};
    }
    const f64 im = fabs(z.im) * 0.5 / re;
    const f64 second = z.re >= 0.0 ? im : re;
    return {z.re >= 0.0 ? re : im, z.im < 0.0 ? -second : second};
}
";

/// The kernel of [`general`]: every thread follows the steps, and all threads share the rows and columns that a reflector or a
/// rotation changes.
pub(super) const BODY: &str = "\
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
                below += NAME_square(a[i * rows + k]);
            }
            if (below == 0.0) {
                continue;
            }
            const f64 own = sqrt(NAME_square(alpha)), length = sqrt(NAME_square(alpha) + below);
            const c128 phase = own > 0.0 ? NAME_times(alpha, 1.0 / own) : c128{1.0, 0.0};
            const c128 beta = -NAME_times(phase, length);
            const f64 scale = 1.0 / (length * (length + own));
            __syncthreads();
            if (thread == 0) {
                a[(k + 1) * rows + k] = alpha - beta;
            }
            __syncthreads();
            for (u64 c = k + 1 + thread; c < rows; c += 256) {
                c128 sum = {0.0, 0.0};
                for (u64 i = k + 1; i < rows; ++i) {
                    sum = sum + NAME_conjugate(a[i * rows + k]) * a[i * rows + c];
                }
                sum = NAME_times(sum, scale);
                for (u64 i = k + 1; i < rows; ++i) {
                    a[i * rows + c] = a[i * rows + c] - a[i * rows + k] * sum;
                }
            }
            __syncthreads();
            // A row reads the column of the reflector, and changes those behind it.
            for (u64 r = thread; r < rows; r += 256) {
                c128 of_a = {0.0, 0.0}, of_v = {0.0, 0.0};
                for (u64 i = k + 1; i < rows; ++i) {
                    of_a = of_a + a[r * rows + i] * a[i * rows + k];
                    of_v = of_v + v[r * rows + i] * a[i * rows + k];
                }
                of_a = NAME_times(of_a, scale);
                of_v = NAME_times(of_v, scale);
                for (u64 i = k + 1; i < rows; ++i) {
                    const c128 turned = NAME_conjugate(a[i * rows + k]);
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
                const f64 beside = NAME_size(a[(first - 1) * rows + first - 1]) + NAME_size(a[first * rows + first]);
                if (NAME_size(a[first * rows + first - 1]) <= 0x1p-52 * beside) {
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
            const c128 half = NAME_times(a[(last - 1) * rows + last - 1] - end, 0.5);
            const c128 product = a[(last - 1) * rows + last] * under;
            const c128 root = NAME_root(half * half + product);
            const c128 sum = half + root, difference = half - root;
            const c128 divisor = NAME_square(sum) >= NAME_square(difference) ? sum : difference;
            c128 shift = end;
            if (steps % 10 == 0) {
                shift.re += NAME_size(under);
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
                    const f64 length = sqrt(NAME_square(upper) + NAME_square(lower));
                    if (length > 0.0) {
                        cosine = NAME_times(upper, 1.0 / length);
                        sine = NAME_times(lower, 1.0 / length);
                    }
                    __syncthreads();
                    for (u64 c = k + thread; c < rows; c += 256) {
                        const c128 above = a[k * rows + c], below = a[(k + 1) * rows + c];
                        a[k * rows + c] = NAME_conjugate(cosine) * above + NAME_conjugate(sine) * below;
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
                        row[k] = NAME_conjugate(former_cosine) * right - NAME_conjugate(former_sine) * left;
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
                largest = fmax(largest, NAME_size(a[i * rows + j]));
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
                a[k * rows + i] = sum / (NAME_size(gap) < least ? c128{least, 0.0} : gap);
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
                sum += NAME_square(v[i * rows + k]);
                best = NAME_square(v[i * rows + k]) > NAME_square(v[best * rows + k]) ? i : best;
            }
            const f64 own = sqrt(NAME_square(v[best * rows + k]));
            if (own == 0.0) {
                continue;
            }
            const c128 factor = NAME_times(NAME_conjugate(v[best * rows + k]), 1.0 / (own * sqrt(sum)));
            for (u64 i = 0; i < rows; ++i) {
                v[i * rows + k] = v[i * rows + k] * factor;
            }
            v[best * rows + k].im = 0.0;
        }";
