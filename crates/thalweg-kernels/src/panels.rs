//! Small products of f32 in the widest vectors that the processor has, for host functions that write their factors in the order
//! in which the product reads them. Computing the elements of a factor then needs no separate pass.
//!
//! The left factor is divided into panels of [`ROWS`] rows, the right one into panels of [`COLUMNS`] columns; a panel has a small
//! array for each term of the sums. The product of both sizes fits the registers of a processor with AVX2.
//!
//! # Invariants
//! - A sum's terms are added in order, so that results do not depend on which thread computes which panels.

use std::ops::{Add, Mul};

use thalweg_ir::host::processor::{Loop, has_fma, widest_vectors};

/// The number of rows of a panel of the left factor.
pub(crate) const ROWS: usize = 6;
/// The number of columns of a panel of the right factor.
pub(crate) const COLUMNS: usize = 16;

/// A row of sums for each row of a panel.
pub(crate) type Sums = [[f32; COLUMNS]; ROWS];

/// sums = left · right.
struct Product<'p, const FUSED: bool> {
    left: &'p [[f32; ROWS]],
    right: &'p [[f32; COLUMNS]],
    sums: &'p mut Sums,
}

impl<const FUSED: bool> Loop for Product<'_, FUSED> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let mut sums = [[0.0f32; COLUMNS]; ROWS];
        for (left, right) in self.left.iter().zip(self.right) {
            for (sums, &a) in sums.iter_mut().zip(left) {
                for (sum, &b) in sums.iter_mut().zip(right) {
                    *sum = if FUSED { a.mul_add(b, *sum) } else { *sum + a * b };
                }
            }
        }
        *self.sums = sums;
    }
}

/// Returns the product of a panel of the left factor with one of the right.
#[inline]
pub(crate) fn product(left: &[[f32; ROWS]], right: &[[f32; COLUMNS]]) -> Sums {
    let mut sums = [[0.0; COLUMNS]; ROWS];
    if has_fma() {
        widest_vectors(Product::<true> { left, right, sums: &mut sums });
    } else {
        widest_vectors(Product::<false> { left, right, sums: &mut sums });
    }
    sums
}

/// A number of which products are computed.
pub(crate) trait Number:
    Copy + Default + Send + Sync + Add<Output = Self> + Mul<Output = Self>
{
    /// Returns self · factor + sum, rounded once.
    fn fused(self, factor: Self, sum: Self) -> Self;
}

impl Number for f32 {
    #[inline(always)]
    fn fused(self, factor: Self, sum: Self) -> Self {
        self.mul_add(factor, sum)
    }
}

impl Number for f64 {
    #[inline(always)]
    fn fused(self, factor: Self, sum: Self) -> Self {
        self.mul_add(factor, sum)
    }
}

/// sums = left · right, for rows that are read in place. This loop is separate because an LSTM step takes 2.7 times as long with
/// an iterator that both loops share.
struct ProductOfRows<'p, T, const WIDTH: usize, const FUSED: bool> {
    left: [&'p [T]; ROWS],
    right: &'p [[T; WIDTH]],
    sums: &'p mut [[T; WIDTH]; ROWS],
}

impl<T: Number, const WIDTH: usize, const FUSED: bool> Loop for ProductOfRows<'_, T, WIDTH, FUSED> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let terms = self.right.len();
        let left = self.left.map(|row| &row[..terms]);
        let mut sums = [[T::default(); WIDTH]; ROWS];
        for (term, right) in self.right.iter().enumerate() {
            for (sums, row) in sums.iter_mut().zip(left) {
                let a = row[term];
                for (sum, &b) in sums.iter_mut().zip(right) {
                    *sum = if FUSED { a.fused(b, *sum) } else { *sum + a * b };
                }
            }
        }
        *self.sums = sums;
    }
}

/// Returns the [`product`] for rows of the left factor that are read in place, with as many terms of each as the panel of the
/// right factor has, which may have a different width than [`COLUMNS`].
#[inline]
pub(crate) fn product_of_rows<T: Number, const WIDTH: usize>(
    left: [&[T]; ROWS],
    right: &[[T; WIDTH]],
) -> [[T; WIDTH]; ROWS] {
    let mut sums = [[T::default(); WIDTH]; ROWS];
    if has_fma() {
        widest_vectors(ProductOfRows::<T, WIDTH, true> { left, right, sums: &mut sums });
    } else {
        widest_vectors(ProductOfRows::<T, WIDTH, false> { left, right, sums: &mut sums });
    }
    sums
}

/// Writes rows into panels of the left factor, `terms` arrays each; `value` returns the element of a row and a term.
pub(crate) fn pack_left(
    panels: &mut Vec<[f32; ROWS]>,
    rows: usize,
    terms: usize,
    mut value: impl FnMut(usize, usize) -> f32,
) {
    panels.clear();
    panels.resize(rows.div_ceil(ROWS) * terms, [0.0; ROWS]);
    for row in 0..rows {
        let panel = &mut panels[row / ROWS * terms..][..terms];
        for (term, place) in panel.iter_mut().enumerate() {
            place[row % ROWS] = value(row, term);
        }
    }
}

/// Writes a row of the right factor, that of term `term`, into panels with `terms` arrays each.
pub(crate) fn pack_term(panels: &mut [[f32; COLUMNS]], terms: usize, term: usize, row: &[f32]) {
    for (panel, columns) in row.chunks(COLUMNS).enumerate() {
        panels[panel * terms + term][..columns.len()].copy_from_slice(columns);
    }
}

/// Writes a column of the right factor into its panel, whose arrays are its terms.
pub(crate) fn pack_column(panel: &mut [[f32; COLUMNS]], column: usize, terms: &[f32]) {
    for (place, &term) in panel.iter_mut().zip(terms) {
        place[column % COLUMNS] = term;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_the_sum_over_terms() {
        for terms in [0, 1, 2, 63, 200] {
            let value = |row: usize, term: usize| ((row * 31 + term * 17) % 29) as f32 - 14.0;
            let (rows, columns) = (8_usize, 21_usize);
            let mut left = Vec::new();
            pack_left(&mut left, rows, terms, value);
            let mut right = vec![[0.0; COLUMNS]; columns.div_ceil(COLUMNS) * terms];
            let mut other = right.clone();
            for term in 0..terms {
                let row: Vec<f32> = (0..columns).map(|column| value(term, column)).collect();
                pack_term(&mut right, terms, term, &row);
            }
            for column in 0..columns {
                let all: Vec<f32> = (0..terms).map(|term| value(term, column)).collect();
                pack_column(&mut other[column / COLUMNS * terms..][..terms], column, &all);
            }
            assert_eq!(right, other);
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                let panel = |number: usize| number * terms..(number + 1) * terms;
                let right = &right[panel(column / COLUMNS)];
                let sums = product(&left[panel(row / ROWS)], right);
                let first = row / ROWS * ROWS;
                let lines: [Vec<f32>; ROWS] = std::array::from_fn(|at| {
                    (0..terms)
                        .map(|term| if first + at < rows { value(first + at, term) } else { 0.0 })
                        .collect()
                });
                assert_eq!(product_of_rows(lines.each_ref().map(Vec::as_slice), right), sums);
                let wanted: f32 = (0..terms).map(|term| value(row, term) * value(term, column)).sum();
                assert_eq!(sums[row % ROWS][column % COLUMNS], wanted);
            }
        }
    }
}
