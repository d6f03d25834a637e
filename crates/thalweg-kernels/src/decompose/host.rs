//! The host functions of [`Decompose`](super::Decompose), matrix by matrix, which define each method.

/// Computes [`Method::Cholesky`](super::Method::Cholesky).
pub(super) fn cholesky(a: &mut [f64], n: usize) -> i32 {
    let mut failed = 0;
    for j in 0..n {
        let mut pivot = a[j * n + j];
        for k in 0..j {
            pivot -= a[j * n + k] * a[j * n + k];
        }
        // NaN is not positive.
        let is_positive = pivot > 0.0;
        if !is_positive {
            failed = j as i32 + 1;
            break;
        }
        let root = pivot.sqrt();
        a[j * n + j] = root;
        for i in j + 1..n {
            let mut sum = a[i * n + j];
            for k in 0..j {
                sum -= a[i * n + k] * a[j * n + k];
            }
            a[i * n + j] = sum / root;
        }
    }
    for i in 0..n {
        a[i * n + i + 1..(i + 1) * n].fill(0.0);
    }
    failed
}

/// Computes [`Method::Triangular`](super::Method::Triangular).
pub(super) fn triangular(a: &[f64], b: &mut [f64], [n, columns]: [usize; 2], flags: u64) {
    let [is_upper, is_transposed, is_unit] = [0, 1, 2].map(|bit| flags >> bit & 1 == 1);
    let at =
        |row: usize, column: usize| if is_transposed { a[column * n + row] } else { a[row * n + column] };
    let is_backward = is_upper != is_transposed;
    for column in 0..columns {
        for step in 0..n {
            let i = if is_backward { n - 1 - step } else { step };
            let mut sum = b[i * columns + column];
            let known = if is_backward { i + 1..n } else { 0..i };
            for k in known {
                sum -= at(i, k) * b[k * columns + column];
            }
            b[i * columns + column] = if is_unit { sum } else { sum / at(i, i) };
        }
    }
}

/// Computes [`Method::Lu`](super::Method::Lu).
pub(super) fn lu(a: &mut [f64], pivots: &mut [i32], [rows, columns]: [usize; 2], swaps: bool) -> i32 {
    let mut failed = 0;
    for j in 0..rows.min(columns) {
        let mut best = j;
        for i in j + 1..rows {
            if swaps && a[i * columns + j].abs() > a[best * columns + j].abs() {
                best = i;
            }
        }
        pivots[j] = best as i32 + 1;
        if best != j {
            for c in 0..columns {
                a.swap(j * columns + c, best * columns + c);
            }
        }
        let pivot = a[j * columns + j];
        if pivot == 0.0 {
            failed = if failed == 0 { j as i32 + 1 } else { failed };
            continue;
        }
        for i in j + 1..rows {
            let factor = a[i * columns + j] / pivot;
            a[i * columns + j] = factor;
            for c in j + 1..columns {
                a[i * columns + c] -= factor * a[j * columns + c];
            }
        }
    }
    failed
}

/// Computes [`Method::Permutation`](super::Method::Permutation). A row out of range is skipped.
pub(super) fn permutation(pivots: &[i32], order: &mut [i64]) {
    for (row, place) in order.iter_mut().enumerate() {
        *place = row as i64;
    }
    for (j, &pivot) in pivots.iter().enumerate() {
        if pivot >= 1 && (pivot as usize) <= order.len() && j < order.len() {
            order.swap(j, pivot as usize - 1);
        }
    }
}

/// Computes [`Method::Qr`](super::Method::Qr).
pub(super) fn qr(a: &mut [f64], factors: &mut [f64], [rows, columns]: [usize; 2]) {
    for j in 0..rows.min(columns) {
        let alpha = a[j * columns + j];
        let mut below = 0.0;
        for i in j + 1..rows {
            below += a[i * columns + j] * a[i * columns + j];
        }
        if below == 0.0 {
            factors[j] = 0.0;
            continue;
        }
        let length = (alpha * alpha + below).sqrt();
        let beta = if alpha < 0.0 { length } else { -length };
        let factor = (beta - alpha) / beta;
        factors[j] = factor;
        for i in j + 1..rows {
            a[i * columns + j] /= alpha - beta;
        }
        a[j * columns + j] = beta;
        for c in j + 1..columns {
            let mut sum = a[j * columns + c];
            for i in j + 1..rows {
                sum += a[i * columns + j] * a[i * columns + c];
            }
            sum *= factor;
            a[j * columns + c] -= sum;
            for i in j + 1..rows {
                a[i * columns + c] -= a[i * columns + j] * sum;
            }
        }
    }
}

/// Computes [`Method::Reflectors`](super::Method::Reflectors).
pub(super) fn reflectors(a: &[f64], factors: &[f64], q: &mut [f64], [rows, columns, width]: [usize; 3]) {
    for c in 0..width {
        for i in 0..rows {
            q[i * width + c] = f64::from(u8::from(i == c));
        }
        for j in (0..columns).rev() {
            let mut sum = q[j * width + c];
            for i in j + 1..rows {
                sum += a[i * columns + j] * q[i * width + c];
            }
            sum *= factors[j];
            q[j * width + c] -= sum;
            for i in j + 1..rows {
                q[i * width + c] -= a[i * columns + j] * sum;
            }
        }
    }
}

/// The number of sweeps of rotations after which the remaining elements are ignored.
const SWEEPS: usize = 64;

/// Returns cosine and sine of the rotation that makes an off-diagonal element 0, from the cotangent of twice its angle; and the
/// tangent.
fn rotation(cotangent: f64) -> [f64; 3] {
    let sign = if cotangent < 0.0 { -1.0 } else { 1.0 };
    let tangent = sign / (cotangent.abs() + (cotangent * cotangent + 1.0).sqrt());
    let cosine = 1.0 / (tangent * tangent + 1.0).sqrt();
    [cosine, tangent * cosine, tangent]
}

fn identity(v: &mut [f64], n: usize) {
    for (place, element) in v.iter_mut().enumerate() {
        *element = f64::from(u8::from(place / n == place % n));
    }
}

/// Rotates two columns of a matrix.
fn rotate(a: &mut [f64], columns: usize, [p, q]: [usize; 2], [cosine, sine, _]: [f64; 3]) {
    for row in a.chunks_exact_mut(columns) {
        let (left, right) = (row[p], row[q]);
        row[p] = cosine * left - sine * right;
        row[q] = sine * left + cosine * right;
    }
}

/// Sorts numbers by `before`, and the columns of matrices with them.
fn sort(numbers: &mut [f64], matrices: &mut [&mut [f64]], before: impl Fn(f64, f64) -> bool) {
    let n = numbers.len();
    for j in 0..n {
        let mut best = j;
        for i in j + 1..n {
            if before(numbers[i], numbers[best]) {
                best = i;
            }
        }
        if best != j {
            numbers.swap(j, best);
            for matrix in matrices.iter_mut() {
                for row in matrix.chunks_exact_mut(n) {
                    row.swap(j, best);
                }
            }
        }
    }
}

/// Computes [`Method::Eigen`](super::Method::Eigen).
pub(super) fn eigen(a: &mut [f64], v: &mut [f64], values: &mut [f64], n: usize) {
    identity(v, n);
    let mut square = 0.0;
    for &element in &*a {
        square += element * element;
    }
    let negligible = f64::EPSILON / 16.0 * square.sqrt();
    for _ in 0..SWEEPS {
        let mut is_rotated = false;
        for p in 0..n {
            for q in p + 1..n {
                let (off, first, last) = (a[p * n + q], a[p * n + p], a[q * n + q]);
                let counts = off.abs() > negligible;
                if !counts {
                    continue;
                }
                is_rotated = true;
                let turn = rotation((last - first) / (2.0 * off));
                let [cosine, sine, tangent] = turn;
                for k in (0..n).filter(|&k| k != p && k != q) {
                    let (left, right) = (a[k * n + p], a[k * n + q]);
                    let (new_left, new_right) = (cosine * left - sine * right, sine * left + cosine * right);
                    (a[k * n + p], a[p * n + k]) = (new_left, new_left);
                    (a[k * n + q], a[q * n + k]) = (new_right, new_right);
                }
                a[p * n + p] = first - tangent * off;
                a[q * n + q] = last + tangent * off;
                (a[p * n + q], a[q * n + p]) = (0.0, 0.0);
                rotate(v, n, [p, q], turn);
            }
        }
        if !is_rotated {
            break;
        }
    }
    for j in 0..n {
        values[j] = a[j * n + j];
    }
    sort(values, &mut [v], |a, b| a < b);
}

/// Computes [`Method::Singular`](super::Method::Singular).
pub(super) fn singular(a: &mut [f64], v: &mut [f64], values: &mut [f64], [rows, n]: [usize; 2]) {
    if n == 0 {
        return;
    }
    identity(v, n);
    for _ in 0..SWEEPS {
        let mut is_rotated = false;
        for p in 0..n {
            for q in p + 1..n {
                let (mut first, mut last, mut off) = (0.0, 0.0, 0.0);
                for row in a.chunks_exact(n) {
                    first += row[p] * row[p];
                    last += row[q] * row[q];
                    off += row[p] * row[q];
                }
                let counts = f64::abs(off) > 4.0 * f64::EPSILON * f64::sqrt(first * last);
                if !counts {
                    continue;
                }
                is_rotated = true;
                let turn = rotation((last - first) / (2.0 * off));
                rotate(a, n, [p, q], turn);
                rotate(v, n, [p, q], turn);
            }
        }
        if !is_rotated {
            break;
        }
    }
    for (j, value) in values.iter_mut().enumerate() {
        let mut sum = 0.0;
        for row in a.chunks_exact(n) {
            sum += row[j] * row[j];
        }
        *value = sum.sqrt();
    }
    sort(values, &mut [&mut *a, v], |a, b| a > b);
    for j in 0..n {
        if values[j] > 0.0 {
            for row in a.chunks_exact_mut(n) {
                row[j] /= values[j];
            }
        } else {
            complete(a, [rows, n], j);
        }
    }
}

/// Computes a column of length 1 that is orthogonal to those before it, from the first unit vector that is far from their span.
fn complete(u: &mut [f64], [rows, n]: [usize; 2], j: usize) {
    for unit in 0..rows {
        for i in 0..rows {
            u[i * n + j] = f64::from(u8::from(i == unit));
        }
        // Orthogonalising twice is enough.
        for _ in 0..2 {
            for p in 0..j {
                let mut product = 0.0;
                for i in 0..rows {
                    product += u[i * n + p] * u[i * n + j];
                }
                for i in 0..rows {
                    u[i * n + j] -= product * u[i * n + p];
                }
            }
        }
        let mut square = 0.0;
        for i in 0..rows {
            square += u[i * n + j] * u[i * n + j];
        }
        if square > 0.5 / rows as f64 {
            let length = square.sqrt();
            for i in 0..rows {
                u[i * n + j] /= length;
            }
            return;
        }
    }
}
