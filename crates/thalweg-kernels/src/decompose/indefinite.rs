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

/// The kernel of [`factor`]: every thread chooses the pivot, and all threads share the elements that change.
pub(super) const FACTOR: &str = "\
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
        }";

/// The kernel of [`solve`]: one thread per right side.
pub(super) const SOLVE: &str = "\
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
        }";
