//! Products of f32 and f64 whose left factor is read row by row. The right factor is written into panels once, for all rows.
//!
//! An element is the sum of its terms in their order, however many rows and columns there are: a row has the same bits alone and in
//! a batch.

use super::{Factor, LEAST, factors, matrix, step, stored_rows_mut};
use crate::matmul::Matmul;
use crate::panels::{Number, ROWS, product_of_rows};
use crate::threads::{ranges, share};
use thalweg_ir::Element;

/// Computes the products of a batch in the elements' own type, with panels of `WIDTH` columns.
pub(super) fn products<T: Number + Element, const WIDTH: usize>(
    matmul: &Matmul,
    a: &[T],
    b: &[T],
    d: &mut [T],
) {
    if matmul.m == 0 || matmul.n == 0 {
        return;
    }
    let [_, _, shape] = matmul.stored();
    let [alpha, beta] = [matmul.alpha, matmul.beta].map(|factor| T::from_f64(factor.get()));
    for item in 0..matmul.batch {
        let d = &mut d[matrix(&matmul.d, item, shape)];
        if matmul.k == 0 {
            let added = |value: T| if matmul.accumulates() { value * beta } else { T::default() };
            stored_rows_mut(d, &matmul.d, matmul.n).flatten().for_each(|value| *value = added(*value));
            continue;
        }
        let write = |place: &mut T, sum: T| {
            *place = if matmul.accumulates() { alpha * sum + beta * *place } else { alpha * sum };
        };
        product::<T, WIDTH>(matmul, factors(matmul, a, b, item), d, write);
    }
}

/// Computes one product; `write` writes a sum into its place in the result.
fn product<T: Number, const WIDTH: usize>(
    matmul: &Matmul,
    [left, right]: [Factor<'_, T>; 2],
    d: &mut [T],
    write: impl Fn(&mut T, T),
) {
    let [m, n, k] = [matmul.m, matmul.n, matmul.k].map(|extent| extent as usize);
    let rows_of_left = left.transposed.then(|| left.transposed_elements(m, k));
    let left = match &rows_of_left {
        Some(elements) => Factor { elements, step: k, transposed: false },
        None => left,
    };
    let jobs = ranges(n.div_ceil(WIDTH), LEAST.div_ceil(m * k * WIDTH)).map(|panels| {
        move || {
            let mut panel = vec![[T::default(); WIDTH]; k];
            let sums = panels.clone().flat_map(|number| {
                right.read_panel(&mut panel, number * WIDTH..((number + 1) * WIDTH).min(n));
                (0..m)
                    .step_by(ROWS)
                    .map(|first| product_of_rows(left.lines(first, m, k), &panel))
                    .collect::<Vec<_>>()
            });
            sums.collect::<Vec<_>>()
        }
    });
    // The sums of all panels, one after the other: for each panel, those of groups of rows.
    let sums = share(jobs.collect()).into_iter().flatten();
    let groups = m.div_ceil(ROWS);
    for (number, sums) in sums.enumerate() {
        let (panel, group) = (number / groups, number % groups);
        let columns = panel * WIDTH..((panel + 1) * WIDTH).min(n);
        let rows = d.chunks_mut(step(&matmul.d, n)).skip(group * ROWS).take(m - group * ROWS);
        for (row, sums) in rows.zip(&sums) {
            row[columns.clone()].iter_mut().zip(sums).for_each(|(place, &sum)| write(place, sum));
        }
    }
}

impl<'e, T: Number> Factor<'e, T> {
    /// Returns the elements of a factor that is stored transposed, row by row.
    fn transposed_elements(&self, rows: usize, columns: usize) -> Vec<T> {
        let mut elements = vec![T::default(); rows * columns];
        for (column, stored) in self.elements.chunks(self.step).take(columns).enumerate() {
            let places = elements.iter_mut().skip(column).step_by(columns);
            places.zip(stored).for_each(|(place, &element)| *place = element);
        }
        elements
    }

    /// Writes columns into a panel, which has an array for each row.
    fn read_panel<const WIDTH: usize>(&self, panel: &mut [[T; WIDTH]], columns: std::ops::Range<usize>) {
        let Self { elements, step, transposed } = *self;
        for (at, column) in columns.clone().enumerate().filter(|_| transposed) {
            panel
                .iter_mut()
                .zip(&elements[column * step..])
                .for_each(|(terms, &element)| terms[at] = element);
        }
        for (term, places) in panel.iter_mut().enumerate().filter(|_| !transposed) {
            places[..columns.len()].copy_from_slice(&elements[term * step..][columns.clone()]);
        }
    }

    /// Returns [`ROWS`] rows of a factor with this many rows, beginning at `first`; rows beyond the end are replaced with the last.
    pub(super) fn lines(&self, first: usize, end: usize, terms: usize) -> [&'e [T]; ROWS] {
        std::array::from_fn(|at| &self.elements[(first + at).min(end - 1) * self.step..][..terms])
    }
}
