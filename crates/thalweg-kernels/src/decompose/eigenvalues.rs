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
