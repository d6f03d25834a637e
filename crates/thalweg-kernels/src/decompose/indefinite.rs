//! L D Lᵀ of symmetric matrices, and solutions by it: host functions and kernels of
//! [`Method::Indefinite`](super::Method::Indefinite) and [`Method::IndefiniteSolve`](super::Method::IndefiniteSolve).
//!
//! Pivots are chosen as by J. R. Bunch and L. Kaufman, *Some stable methods for calculating inertia and solving symmetric linear
//! systems*, Mathematics of Computation 31 (1977); the layout of the factors is LAPACK's.

/// The least size of a pivot relative to the element that it is compared with: (1 + √17) / 8.
const SHARE: f64 = 0.640_388_203_202_208;

/// The pivot of a step.
struct Pivot {
    /// The row that is swapped to the end of the block.
    row: usize,
    /// The number of rows of the block.
    width: usize,
}

/// Chooses the pivot of row `k`; `None` if the column is 0.
fn pivot(a: &[f64], n: usize, k: usize) -> Option<Pivot> {
    let size = a[k * n + k].abs();
    let (mut largest, mut place) = (0.0, k);
    for i in k + 1..n {
        if a[i * n + k].abs() > largest {
            (largest, place) = (a[i * n + k].abs(), i);
        }
    }
    if size == 0.0 && largest == 0.0 || size.is_nan() {
        return None;
    }
    if size >= SHARE * largest {
        return Some(Pivot { row: k, width: 1 });
    }
    let mut other = 0.0;
    for j in k..n {
        let element = if j < place { a[place * n + j] } else { a[j * n + place] };
        if j != place && element.abs() > other {
            other = element.abs();
        }
    }
    if size >= SHARE * largest * (largest / other) {
        return Some(Pivot { row: k, width: 1 });
    }
    let is_alone = a[place * n + place].abs() >= SHARE * other;
    Some(Pivot { row: place, width: if is_alone { 1 } else { 2 } })
}

/// Computes [`Method::Indefinite`](super::Method::Indefinite).
pub(super) fn factor(a: &mut [f64], pivots: &mut [i32], n: usize) -> i32 {
    let mut failed = 0;
    let mut k = 0;
    while k < n {
        let Some(Pivot { row, width }) = pivot(a, n, k) else {
            failed = if failed == 0 { k as i32 + 1 } else { failed };
            pivots[k] = k as i32 + 1;
            k += 1;
            continue;
        };
        let last = k + width - 1;
        if row != last {
            for i in row + 1..n {
                a.swap(i * n + last, i * n + row);
            }
            for j in last + 1..row {
                a.swap(j * n + last, row * n + j);
            }
            a.swap(last * n + last, row * n + row);
            if width == 2 {
                a.swap(last * n + k, row * n + k);
            }
        }
        if width == 1 {
            let inverse = 1.0 / a[k * n + k];
            for i in k + 1..n {
                for j in k + 1..=i {
                    a[i * n + j] -= a[i * n + k] * inverse * a[j * n + k];
                }
            }
            for i in k + 1..n {
                a[i * n + k] *= inverse;
            }
            pivots[k] = row as i32 + 1;
        } else {
            let off = a[last * n + k];
            let (first, second) = (a[last * n + last] / off, a[k * n + k] / off);
            let scale = 1.0 / (first * second - 1.0) / off;
            let weights = |a: &[f64], j: usize| {
                let (left, right) = (a[j * n + k], a[j * n + last]);
                [scale * (first * left - right), scale * (second * right - left)]
            };
            for i in k + 2..n {
                for j in k + 2..=i {
                    let [left, right] = weights(a, j);
                    a[i * n + j] -= a[i * n + k] * left + a[i * n + last] * right;
                }
            }
            for i in k + 2..n {
                [a[i * n + k], a[i * n + last]] = weights(a, i);
            }
            (pivots[k], pivots[last]) = (-(row as i32) - 1, -(row as i32) - 1);
        }
        k += width;
    }
    for i in 0..n {
        a[i * n + i + 1..(i + 1) * n].fill(0.0);
    }
    failed
}

/// Computes [`Method::IndefiniteSolve`](super::Method::IndefiniteSolve). A row out of range is not swapped.
pub(super) fn solve(a: &[f64], pivots: &[i32], b: &mut [f64], [n, columns]: [usize; 2]) {
    let other = |k: usize| (pivots[k].unsigned_abs() as usize).wrapping_sub(1);
    for c in 0..columns {
        let at = |row: usize| row * columns + c;
        let swap = |b: &mut [f64], k: usize, row: usize| {
            if row < n {
                b.swap(at(k), at(row));
            }
        };
        let mut k = 0;
        while k < n {
            if pivots[k] >= 0 || k + 1 == n {
                swap(b, k, other(k));
                for i in k + 1..n {
                    b[at(i)] -= a[i * n + k] * b[at(k)];
                }
                b[at(k)] /= a[k * n + k];
                k += 1;
                continue;
            }
            swap(b, k + 1, other(k));
            for i in k + 2..n {
                b[at(i)] -= a[i * n + k] * b[at(k)] + a[i * n + k + 1] * b[at(k + 1)];
            }
            let off = a[(k + 1) * n + k];
            let (first, second) = (a[k * n + k] / off, a[(k + 1) * n + k + 1] / off);
            let (above, below) = (b[at(k)] / off, b[at(k + 1)] / off);
            let determinant = first * second - 1.0;
            b[at(k)] = (second * above - below) / determinant;
            b[at(k + 1)] = (first * below - above) / determinant;
            k += 2;
        }
        let mut left = n;
        while left > 0 {
            let k = left - 1;
            let width = if pivots[k] >= 0 || k == 0 { 1 } else { 2 };
            for row in [k, k + 1 - width] {
                let mut sum = b[at(row)];
                for i in k + 1..n {
                    sum -= a[i * n + row] * b[at(i)];
                }
                b[at(row)] = sum;
                if width == 1 {
                    break;
                }
            }
            swap(b, k, other(k));
            left -= width;
        }
    }
}
