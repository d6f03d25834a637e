//! Products of f32 whose left factor has few rows, such as in a step of a recurrent network. Writing the right factor into panels
//! would take as long as the product itself.
//!
//! A right factor that is stored transposed is read in place, as the left factor of the transposed product, whose right factor is
//! small. Otherwise the rows of the left factor are read in place, and the right factor is written one panel after the other.

use std::ops::Range;

use super::{Factor, step};
use crate::matmul::Matmul;
use crate::panels::{COLUMNS, ROWS, product_of_rows};
use crate::threads::{ranges, share};

/// The fewest rows. With up to four, as in a decoder, a row must have the same bits alone and in a batch, so all of those use the
/// same kind of product.
const FEWEST: u64 = 5;

/// The number of products of elements for which another thread pays. A step of a recurrent network waits for the one before it,
/// and waking a thread costs as much as a few microseconds of work.
const LEAST: usize = 4 * super::LEAST;

/// Returns whether this module computes a product. A left factor that is stored transposed has no rows that could be read in
/// place.
pub(super) fn fits(matmul: &Matmul) -> bool {
    !matmul.a.transposed && (FEWEST..4 * ROWS as u64).contains(&matmul.m) && matmul.n >= COLUMNS as u64
}

/// Computes one product with at most `threads` threads.
pub(super) fn product(matmul: &Matmul, [left, right]: [Factor<'_>; 2], d: &mut [f32], threads: usize) {
    let [m, n, k] = [matmul.m, matmul.n, matmul.k].map(|extent| extent as usize);
    let groups = n.div_ceil(COLUMNS);
    let least = if threads > 1 { LEAST.div_ceil(m * k * COLUMNS) } else { groups };
    let parts: Vec<Range<usize>> =
        ranges(groups, least).map(|groups| groups.start * COLUMNS..(groups.end * COLUMNS).min(n)).collect();
    // The columns of each part, row by row.
    let mut columns: Vec<Vec<&mut [f32]>> = parts.iter().map(|_| Vec::with_capacity(m)).collect();
    for row in d.chunks_mut(step(&matmul.d, n)).take(m) {
        let mut rest = &mut row[..n];
        for (own, part) in columns.iter_mut().zip(&parts) {
            let (now, later) = rest.split_at_mut(part.len());
            own.push(now);
            rest = later;
        }
    }
    let mut of_left = Vec::new();
    if right.transposed {
        // The left factor's rows are the columns of the transposed product.
        of_left.resize(m.div_ceil(COLUMNS) * k, [0.0; COLUMNS]);
        Factor { transposed: true, ..left }.pack_right(&mut of_left, 0..m, &(0..k));
    }
    let write = Write {
        alpha: matmul.alpha.get() as f32,
        beta: matmul.accumulates().then_some(matmul.beta.get() as f32),
    };
    let jobs = parts.into_iter().zip(columns).map(|(part, d)| {
        let of_left = &of_left[..];
        move || {
            if right.transposed {
                transposed(write, of_left, right, part, k, d);
            } else {
                by_columns(write, left, right, part, k, d);
            }
        }
    });
    share(jobs.collect());
}

/// The factors with which a sum is written into the result.
#[derive(Clone, Copy)]
struct Write {
    alpha: f32,
    /// The factor of the previous contents, if these are added.
    beta: Option<f32>,
}

impl Write {
    #[inline]
    fn write(self, place: &mut f32, sum: f32) {
        *place = match self.beta {
            None => self.alpha * sum,
            Some(beta) => self.alpha * sum + beta * *place,
        };
    }
}

/// Computes a part of the columns as rows of the transposed product.
fn transposed(
    write: Write,
    left: &[[f32; COLUMNS]],
    right: Factor<'_>,
    part: Range<usize>,
    terms: usize,
    mut d: Vec<&mut [f32]>,
) {
    for first in part.clone().step_by(ROWS) {
        let lines = right.lines(first, part.end, terms);
        let places = first - part.start..(first + ROWS).min(part.end) - part.start;
        for (rows, panel) in d.chunks_mut(COLUMNS).zip(left.chunks_exact(terms)) {
            let sums = product_of_rows(lines, panel);
            for (row, d) in rows.iter_mut().enumerate() {
                d[places.clone()]
                    .iter_mut()
                    .zip(&sums)
                    .for_each(|(place, sums)| write.write(place, sums[row]));
            }
        }
    }
}

/// Computes a part of the columns, one panel after the other.
fn by_columns(
    write: Write,
    left: Factor<'_>,
    right: Factor<'_>,
    part: Range<usize>,
    terms: usize,
    mut d: Vec<&mut [f32]>,
) {
    let count = d.len();
    let mut panel = vec![[0.0; COLUMNS]; terms];
    for first in part.clone().step_by(COLUMNS) {
        let columns = first..(first + COLUMNS).min(part.end);
        right.pack_right(&mut panel, columns.clone(), &(0..terms));
        let places = first - part.start..columns.end - part.start;
        for (group, rows) in d.chunks_mut(ROWS).enumerate() {
            let sums = product_of_rows(left.lines(group * ROWS, count, terms), &panel);
            for (d, sums) in rows.iter_mut().zip(&sums) {
                d[places.clone()].iter_mut().zip(sums).for_each(|(place, &sum)| write.write(place, sum));
            }
        }
    }
}
