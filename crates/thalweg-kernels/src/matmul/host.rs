//! The product on the host. Products of f32 are computed in panels of both factors, by several threads; those of f64, and those
//! whose left factor has few rows, in panels of the right factor alone.

mod few_rows;
mod rows;

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::{Matmul, Operand};
use crate::panels::{COLUMNS, ROWS, pack_column, pack_left, pack_term, product};
use crate::threads::{ranges, share, threads};
use thalweg_ir::host::{Fault, Slice, SliceMut, represents};
use thalweg_ir::{Element, with_dtype};

/// Computes a product and returns when it is done. Each operand starts at its first element and is at least as long as its
/// [span](Matmul::spans). Elements of D between its rows keep their values. On the same processor, the result is always the same.
///
/// # Errors
/// If the description is invalid ([`Matmul::check`]) or an operand has another dtype or is too short.
pub fn run(matmul: &Matmul, a: Slice<'_>, b: Slice<'_>, d: SliceMut<'_>) -> Result<(), Fault> {
    matmul.check()?;
    let given = [("A", a.dtype(), a.len()), ("B", b.dtype(), b.len()), ("D", d.dtype(), d.len())];
    for ((name, dtype, length), span) in given.into_iter().zip(matmul.spans()) {
        if !represents(dtype, matmul.dtype) {
            return Err(Fault::new(format!("matmul {matmul}: {name} is given as elements of {dtype}")));
        }
        if (length as u64) < span {
            return Err(Fault::new(format!(
                "matmul {matmul}: {name} takes {span} elements; given are {length}"
            )));
        }
    }
    match (a, b, d) {
        (Slice::F32(a), Slice::F32(b), SliceMut::F32(d)) => products_of_f32(matmul, a, b, d),
        (Slice::F64(a), Slice::F64(b), SliceMut::F64(d)) => {
            rows::products::<f64, { COLUMNS / 2 }>(matmul, a, b, d)
        }
        (Slice::F16(a), Slice::F16(b), SliceMut::F16(d)) => rounded_products::<f16>(matmul, a, b, d),
        (Slice::Bf16(a), Slice::Bf16(b), SliceMut::Bf16(d)) => rounded_products::<bf16>(matmul, a, b, d),
        (a, b, d) => with_dtype!(matmul.dtype,
            bool => unreachable!("{NO_PRODUCT}"),
            integer T => {
                let operands = a.elements().zip(b.elements()).zip(d.into_elements());
                let ((a, b), d) = operands.expect("operands were checked against the description");
                wrapping_products(matmul, (a, b, d), |sum: T, a, b| sum.wrapping_add(a.wrapping_mul(b)));
            },
            reduced T => unreachable!("{NO_PRODUCT}"),
            float T => unreachable!("{NO_PRODUCT}"),
        ),
    }
    Ok(())
}

const NO_PRODUCT: &str = "dtypes without a product were refused by the check";

/// Returns the range of elements of a batch item's matrix.
fn matrix(operand: &Operand, item: u64, (rows, columns): (u64, u64)) -> std::ops::Range<usize> {
    let first = item * operand.batch_stride;
    first as usize..(first + (rows - 1) * operand.leading_dimension + columns) as usize
}

/// Returns the stored rows of a matrix, without the elements between them.
fn stored_rows<'e, T>(
    elements: &'e [T],
    operand: &Operand,
    columns: u64,
) -> impl Iterator<Item = &'e [T]> + use<'e, T> {
    let columns = columns as usize;
    elements.chunks(step(operand, columns)).map(move |row| &row[..columns])
}

/// Returns the [`stored_rows`] of a matrix for writing.
fn stored_rows_mut<'e, T>(
    elements: &'e mut [T],
    operand: &Operand,
    columns: u64,
) -> impl Iterator<Item = &'e mut [T]> + use<'e, T> {
    let columns = columns as usize;
    elements.chunks_mut(step(operand, columns)).map(move |row| &mut row[..columns])
}

/// Returns the distance from one row to the next; the leading dimension of a single row may be shorter than the row.
fn step(operand: &Operand, columns: usize) -> usize {
    (operand.leading_dimension as usize).max(columns)
}

/// The most terms of a sum that are added before the result is updated: a panel of each factor fits the first-level cache.
const TERMS: usize = 384;

/// The most columns of the right factor that are packed at a time.
const WIDTH: usize = 4096;

/// The rows of the left factor that are packed at a time: they fit the second-level cache.
const HEIGHT: usize = 16 * ROWS;

/// The number of products of elements for which another thread pays.
const LEAST: usize = 1 << 18;

/// Computes the products of a batch of f32: in panels, if there are enough rows for them.
fn products_of_f32(matmul: &Matmul, a: &[f32], b: &[f32], d: &mut [f32]) {
    let [_, _, (rows, columns)] = matmul.stored();
    let Matmul { batch, m, n, k, d: target, .. } = *matmul;
    let span = rows.saturating_sub(1) * target.leading_dimension.max(columns) + columns;
    let is_apart = batch == 1 || target.batch_stride >= span;
    let has_panels = n >= COLUMNS as u64 / 2 && m >= 4 * ROWS as u64;
    if batch == 0 || !is_apart || k < 4 || !(has_panels || few_rows::fits(matmul)) {
        return rows::products::<f32, COLUMNS>(matmul, a, b, d);
    }
    let factors = |item: usize| factors(matmul, a, b, item as u64);
    let [m, n, k, batch] = [m, n, k, batch].map(|extent| extent as usize);
    let stride = if batch == 1 { d.len() } else { target.batch_stride as usize };
    // Many products, or small ones, are computed by one thread each; otherwise all threads compute one product after the other.
    let is_small = batch > 1 && (batch >= threads() || m * n * k < LEAST * 2 * threads());
    let parts = ranges(batch, if is_small { LEAST.div_ceil(m * n * k) } else { batch });
    let (mut rest, mut jobs) = (d, Vec::new());
    for items in parts {
        let count = if items.end == batch { rest.len() } else { items.len() * stride };
        let (part, later) = rest.split_at_mut(count);
        rest = later;
        let factors = &factors;
        jobs.push(move || {
            let mut right = Vec::new();
            for (item, d) in items.zip(part.chunks_mut(stride)) {
                let threads = if is_small { 1 } else { threads() };
                if has_panels {
                    product_of_f32(matmul, factors(item), d, &mut right, threads);
                } else {
                    few_rows::product(matmul, factors(item), d, threads);
                }
            }
        });
    }
    share(jobs);
}

/// Returns the factors of a batch item.
fn factors<'e, T>(matmul: &Matmul, a: &'e [T], b: &'e [T], item: u64) -> [Factor<'e, T>; 2] {
    let [a_shape, b_shape, _] = matmul.stored();
    [(a, matmul.a, a_shape), (b, matmul.b, b_shape)].map(|(elements, operand, shape)| Factor {
        elements: &elements[matrix(&operand, item, shape)],
        step: step(&operand, shape.1 as usize),
        transposed: operand.transposed,
    })
}

/// A stored matrix as a factor.
#[derive(Clone, Copy)]
struct Factor<'e, T = f32> {
    elements: &'e [T],
    /// The distance from one stored row to the next.
    step: usize,
    transposed: bool,
}

impl Factor<'_> {
    /// Writes rows of the left factor, for some terms, into panels.
    fn pack_left(&self, panels: &mut Vec<[f32; ROWS]>, rows: Range<usize>, terms: &Range<usize>) {
        let Self { elements, step, transposed } = *self;
        if !rows.len().is_multiple_of(ROWS) || terms.is_empty() {
            let place = |row: usize, term: usize| match transposed {
                true => (terms.start + term) * step + rows.start + row,
                false => (rows.start + row) * step + terms.start + term,
            };
            return pack_left(panels, rows.len(), terms.len(), |row, term| elements[place(row, term)]);
        }
        panels.clear();
        for row in rows.step_by(ROWS) {
            if transposed {
                let columns = elements[terms.start * step + row..].chunks(step).take(terms.len());
                panels.extend(
                    columns.map(|column| <[f32; ROWS]>::try_from(&column[..ROWS]).expect("a panel's rows")),
                );
            } else {
                let rows: [&[f32]; ROWS] =
                    std::array::from_fn(|at| &elements[(row + at) * step..][terms.clone()]);
                panels.extend((0..terms.len()).map(|term| rows.map(|row| row[term])));
            }
        }
    }

    /// Writes columns of the right factor, for some terms, into panels.
    fn pack_right(&self, panels: &mut [[f32; COLUMNS]], columns: Range<usize>, terms: &Range<usize>) {
        let Self { elements, step, transposed } = *self;
        let count = terms.len();
        if transposed {
            for (column, at) in columns.enumerate() {
                let terms = &elements[at * step..][terms.clone()];
                pack_column(&mut panels[column / COLUMNS * count..][..count], column, terms);
            }
            return;
        }
        for (term, at) in terms.clone().enumerate() {
            pack_term(panels, count, term, &elements[at * step..][columns.clone()]);
        }
    }
}

/// Computes one product with `threads` threads and scratch memory for the right factor's panels.
fn product_of_f32(
    matmul: &Matmul,
    [left, right]: [Factor<'_>; 2],
    d: &mut [f32],
    panels: &mut Vec<[f32; COLUMNS]>,
    threads: usize,
) {
    let [m, n, k] = [matmul.m, matmul.n, matmul.k].map(|extent| extent as usize);
    let threads = threads.min((m * n * k / LEAST).max(1));
    let lead = step(&matmul.d, n);
    for (columns, terms) in
        tiles(n, WIDTH).flat_map(|columns| tiles(k, TERMS).map(move |terms| (columns.clone(), terms)))
    {
        let (count, groups) = (terms.len(), columns.len().div_ceil(COLUMNS));
        panels.clear();
        panels.resize(groups * count, [0.0; COLUMNS]);
        let (mut rest, mut jobs) = (&mut panels[..], Vec::new());
        for part in (0..threads).map(|part| groups * part / threads..groups * (part + 1) / threads) {
            let (panels, later) = rest.split_at_mut(part.len() * count);
            rest = later;
            let own =
                columns.start + part.start * COLUMNS..(columns.start + part.end * COLUMNS).min(columns.end);
            let terms = &terms;
            jobs.push(move || right.pack_right(panels, own, terms));
        }
        share(jobs);
        let (mut rest, mut jobs) = (&mut d[..], Vec::new());
        for part in (0..threads).map(|part| {
            m.div_ceil(ROWS) * part / threads * ROWS..m.div_ceil(ROWS) * (part + 1) / threads * ROWS
        }) {
            let rows = part.start..part.end.min(m);
            let (d, later) = rest.split_at_mut(if rows.end == m { rest.len() } else { rows.len() * lead });
            rest = later;
            let (panels, columns, terms) = (&panels[..], columns.clone(), terms.clone());
            jobs.push(move || rows_of_product(matmul, left, panels, (rows, columns, terms), d));
        }
        share(jobs);
    }
}

/// Returns ranges of `most` numbers, and a last range of the rest.
fn tiles(count: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).step_by(most).map(move |first| first..(first + most).min(count))
}

/// Adds some terms of rows of a product to the result, whose first row is the first of these rows.
fn rows_of_product(
    matmul: &Matmul,
    left: Factor<'_>,
    right: &[[f32; COLUMNS]],
    (rows, columns, terms): (Range<usize>, Range<usize>, Range<usize>),
    d: &mut [f32],
) {
    let [alpha, beta] = [matmul.alpha, matmul.beta].map(|factor| factor.get() as f32);
    let (lead, count) = (step(&matmul.d, matmul.n as usize), terms.len());
    // The previous contents of the result are added only once.
    let (is_first, accumulates) = (terms.start == 0, matmul.accumulates());
    let mut panels = Vec::new();
    for part in tiles(rows.len(), HEIGHT) {
        left.pack_left(&mut panels, rows.start + part.start..rows.start + part.end, &terms);
        for (group, right) in right.chunks_exact(count).enumerate() {
            let first = columns.start + group * COLUMNS;
            let width = (columns.end - first).min(COLUMNS);
            for (panel, left) in panels.chunks_exact(count).enumerate() {
                let sums = product(left, right);
                let row = part.start + panel * ROWS;
                for (d, sums) in d[row * lead..].chunks_mut(lead).zip(&sums).take(part.end - row) {
                    let d = &mut d[first..first + width];
                    match (is_first, accumulates) {
                        (true, false) => d.iter_mut().zip(sums).for_each(|(d, sum)| *d = alpha * sum),
                        (true, true) => {
                            d.iter_mut().zip(sums).for_each(|(d, sum)| *d = alpha * sum + beta * *d)
                        }
                        (false, _) => d.iter_mut().zip(sums).for_each(|(d, sum)| *d += alpha * sum),
                    }
                }
            }
        }
    }
}

/// Computes the products of a batch of 16-bit floats in f32 from exact copies, rounded once.
fn rounded_products<H: Copy>(matmul: &Matmul, a: &[H], b: &[H], d: &mut [H])
where
    [H]: HalfFloatSliceExt,
{
    if matmul.m == 0 || matmul.n == 0 {
        return;
    }
    let [a_shape, b_shape, d_shape] = matmul.stored();
    let one = Matmul {
        batch: 1,
        a: Operand { leading_dimension: a_shape.1, ..matmul.a },
        b: Operand { leading_dimension: b_shape.1, ..matmul.b },
        d: Operand { leading_dimension: d_shape.1, ..matmul.d },
        ..*matmul
    };
    let buffer = |(rows, columns): (u64, u64)| vec![0.0f32; (rows * columns) as usize];
    let (mut wide_a, mut wide_b, mut wide_d) = (buffer(a_shape), buffer(b_shape), buffer(d_shape));
    for item in 0..matmul.batch {
        let d = &mut d[matrix(&matmul.d, item, d_shape)];
        if matmul.k != 0 {
            // A matrix that the whole batch shares is converted once.
            if item == 0 || matmul.a.batch_stride != 0 {
                extend(&a[matrix(&matmul.a, item, a_shape)], &matmul.a, a_shape.1, &mut wide_a);
            }
            if item == 0 || matmul.b.batch_stride != 0 {
                extend(&b[matrix(&matmul.b, item, b_shape)], &matmul.b, b_shape.1, &mut wide_b);
            }
        }
        if matmul.accumulates() {
            extend(d, &matmul.d, d_shape.1, &mut wide_d);
        }
        products_of_f32(&one, &wide_a, &wide_b, &mut wide_d);
        let rows = stored_rows_mut(d, &matmul.d, d_shape.1);
        for (row, wide) in rows.zip(wide_d.chunks(d_shape.1 as usize)) {
            row.convert_from_f32_slice(wide);
        }
    }
}

/// Converts a stored matrix of 16-bit floats to f32, without the elements between its rows.
fn extend<H>(elements: &[H], operand: &Operand, columns: u64, wide: &mut [f32])
where
    [H]: HalfFloatSliceExt,
{
    for (row, wide) in stored_rows(elements, operand, columns).zip(wide.chunks_mut(columns as usize)) {
        row.convert_to_f32_slice(wide);
    }
}

/// Computes the products of a batch of integers; `plus_product` returns a sum with a further product, which wraps around.
fn wrapping_products<T: Element + Default>(
    matmul: &Matmul,
    (a, b, d): (&[T], &[T], &mut [T]),
    plus_product: impl Fn(T, T, T) -> T,
) {
    let at = |operand: &Operand, row: u64, column: u64| {
        let (row, column) = if operand.transposed { (column, row) } else { (row, column) };
        (row * operand.leading_dimension + column) as usize
    };
    for item in 0..matmul.batch {
        let [a, b] = [(a, matmul.a), (b, matmul.b)]
            .map(|(elements, operand)| elements.get((item * operand.batch_stride) as usize..).unwrap_or(&[]));
        for row in 0..matmul.m {
            let start = (item * matmul.d.batch_stride + row * matmul.d.leading_dimension) as usize;
            let sums = &mut d[start..start + matmul.n as usize];
            if !matmul.accumulates() {
                sums.fill(T::default());
            }
            for term in 0..matmul.k {
                let factor = a[at(&matmul.a, row, term)];
                for (column, sum) in sums.iter_mut().enumerate() {
                    *sum = plus_product(*sum, factor, b[at(&matmul.b, term, column as u64)]);
                }
            }
        }
    }
}
