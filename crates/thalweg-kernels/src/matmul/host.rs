//! The product on the host, through `ndarray`'s safe views over the `matrixmultiply` library; batches of small ones in panels, by several threads.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, LinalgScalar, ShapeBuilder};

use super::{Matmul, Operand};
use crate::panels::{COLUMNS, ROWS, pack_column, pack_left, pack_term, product};
use crate::threads::{ranges, share};
use thalweg_ir::Element;
use thalweg_ir::host::{Fault, Slice, SliceMut, represents};

/// Carries out a product, and returns when it is done. Each operand starts at its first element and is at least its
/// [span](Matmul::spans) long. Elements of D between its rows stay as they are. The result is the same whenever it is
/// computed on the same processor.
///
/// # Errors
/// If the description cannot be carried out ([`Matmul::check`]) or an operand has another dtype or is too short.
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
    macro_rules! integers {
        ($a:ident, $b:ident, $d:ident; $($variant:ident)*) => {
            match ($a, $b, $d) {
                $((Slice::$variant(a), Slice::$variant(b), SliceMut::$variant(d)) => wrapping_products(matmul, a, b, d),)*
                _ => unreachable!("operands were checked against the description"),
            }
        };
    }
    match (a, b, d) {
        (Slice::F32(a), Slice::F32(b), SliceMut::F32(d)) if is_shared(matmul) => {
            shared_products(matmul, a, b, d)
        }
        (Slice::F32(a), Slice::F32(b), SliceMut::F32(d)) => products(matmul, a, b, d),
        (Slice::F64(a), Slice::F64(b), SliceMut::F64(d)) => products(matmul, a, b, d),
        (Slice::F16(a), Slice::F16(b), SliceMut::F16(d)) => rounded_products::<f16>(matmul, a, b, d),
        (Slice::Bf16(a), Slice::Bf16(b), SliceMut::Bf16(d)) => rounded_products::<bf16>(matmul, a, b, d),
        (a, b, d) => integers!(a, b, d; U8 I8 I16 U16 I32 I64),
    }
    Ok(())
}

/// Returns the element numbers of a batch item's matrix.
fn matrix(operand: &Operand, item: u64, (rows, columns): (u64, u64)) -> std::ops::Range<usize> {
    let first = item * operand.batch_stride;
    first as usize..(first + (rows - 1) * operand.leading_dimension + columns) as usize
}

/// Returns the stored rows of a matrix, without what lies between them.
fn stored_rows<'e, T>(
    elements: &'e [T],
    operand: &Operand,
    columns: u64,
) -> impl Iterator<Item = &'e [T]> + use<'e, T> {
    let columns = columns as usize;
    elements.chunks(step(operand, columns)).map(move |row| &row[..columns])
}

/// Returns what [`stored_rows`] does, to write.
fn stored_rows_mut<'e, T>(
    elements: &'e mut [T],
    operand: &Operand,
    columns: u64,
) -> impl Iterator<Item = &'e mut [T]> + use<'e, T> {
    let columns = columns as usize;
    elements.chunks_mut(step(operand, columns)).map(move |row| &mut row[..columns])
}

/// Returns the distance from one row to the next; a single row may have a leading dimension that is shorter than itself.
fn step(operand: &Operand, columns: usize) -> usize {
    (operand.leading_dimension as usize).max(columns)
}

/// Returns a stored matrix as the factor that it is in the product.
fn factor<'e, T>(elements: &'e [T], operand: &Operand, (rows, columns): (u64, u64)) -> ArrayView2<'e, T> {
    let (rows, columns) = (rows as usize, columns as usize);
    let shape = (rows, columns).strides((step(operand, columns), 1));
    let view = ArrayView2::from_shape(shape, elements).expect("operands are as long as their spans");
    if operand.transposed { view.reversed_axes() } else { view }
}

/// The most elements of a factor of a product that [`shared_products`] takes: it reads them from the second-level cache.
const SHARED: u64 = 1 << 16;

/// How many products of elements are worth a thread.
const LEAST: u64 = 1 << 18;

/// Returns whether a batch's products are so small that threads take some of them each.
fn is_shared(matmul: &Matmul) -> bool {
    let [_, _, (rows, columns)] = matmul.stored();
    let Matmul { batch, m, n, k, d, .. } = *matmul;
    batch > 1
        && [m, n, k].iter().all(|&extent| extent > 0)
        && m * k <= SHARED
        && k * n <= SHARED
        && d.batch_stride >= (rows - 1) * d.leading_dimension.max(columns) + columns
}

/// Computes the products of a batch of f32, some on each thread.
fn shared_products(matmul: &Matmul, a: &[f32], b: &[f32], d: &mut [f32]) {
    let Matmul { batch, m, n, k, .. } = *matmul;
    let least = LEAST.div_ceil(m * n * k);
    let stride = matmul.d.batch_stride as usize;
    let (mut rest, mut jobs) = (d, Vec::new());
    for items in ranges(batch as usize, least as usize) {
        let (part, later) =
            rest.split_at_mut(if items.end == batch as usize { rest.len() } else { items.len() * stride });
        rest = later;
        jobs.push(move || {
            let (mut left, mut right) = (Vec::new(), Vec::new());
            for (item, d) in items.zip(part.chunks_mut(stride)) {
                one_product(matmul, item as u64, [a, b], d, (&mut left, &mut right));
            }
        });
    }
    share(jobs);
}

/// Computes one product of a batch, with room for the factors' panels.
fn one_product(
    matmul: &Matmul,
    item: u64,
    [a, b]: [&[f32]; 2],
    d: &mut [f32],
    (left, right): (&mut Vec<[f32; ROWS]>, &mut Vec<[f32; COLUMNS]>),
) {
    let [a_shape, b_shape, _] = matmul.stored();
    let [m, n, k] = [matmul.m, matmul.n, matmul.k].map(|extent| extent as usize);
    let a = &a[matrix(&matmul.a, item, a_shape)];
    let lead = step(&matmul.a, a_shape.1 as usize);
    match matmul.a.transposed {
        true => pack_left(left, m, k, |row, term| a[term * lead + row]),
        false => pack_left(left, m, k, |row, term| a[row * lead + term]),
    }
    right.clear();
    right.resize(n.div_ceil(COLUMNS) * k, [0.0; COLUMNS]);
    let rows = stored_rows(&b[matrix(&matmul.b, item, b_shape)], &matmul.b, b_shape.1).enumerate();
    match matmul.b.transposed {
        true => rows
            .for_each(|(column, terms)| pack_column(&mut right[column / COLUMNS * k..][..k], column, terms)),
        false => rows.for_each(|(term, row)| pack_term(right, k, term, row)),
    }
    let [alpha, beta] = [matmul.alpha, matmul.beta].map(|factor| factor.get() as f32);
    let lead = step(&matmul.d, n);
    for (row, left) in left.chunks_exact(k).enumerate() {
        for (column, right) in right.chunks_exact(k).enumerate() {
            let (sums, column) = (product(left, right), column * COLUMNS);
            let count = (n - column).min(COLUMNS);
            for (d, sums) in d[row * ROWS * lead..].chunks_mut(lead).zip(sums).take(m - row * ROWS) {
                for (d, sum) in d[column..][..count].iter_mut().zip(sums) {
                    *d = if matmul.accumulates() { alpha * sum + beta * *d } else { alpha * sum };
                }
            }
        }
    }
}

/// Computes the products of a batch in the elements' own type.
fn products<T: LinalgScalar + Element>(matmul: &Matmul, a: &[T], b: &[T], d: &mut [T]) {
    if matmul.m == 0 || matmul.n == 0 {
        return;
    }
    let [a_shape, b_shape, d_shape] = matmul.stored();
    let [alpha, beta] = [matmul.alpha, matmul.beta].map(|factor| T::from_f64(factor.get()));
    for item in 0..matmul.batch {
        let d = &mut d[matrix(&matmul.d, item, d_shape)];
        if matmul.k == 0 {
            let added = |value: T| if matmul.accumulates() { value * beta } else { T::zero() };
            stored_rows_mut(d, &matmul.d, matmul.n).flatten().for_each(|value| *value = added(*value));
            continue;
        }
        let a = factor(&a[matrix(&matmul.a, item, a_shape)], &matmul.a, a_shape);
        let b = factor(&b[matrix(&matmul.b, item, b_shape)], &matmul.b, b_shape);
        let (m, n) = (matmul.m as usize, matmul.n as usize);
        let shape = (m, n).strides((step(&matmul.d, n), 1));
        let mut d = ArrayViewMut2::from_shape(shape, d).expect("operands are as long as their spans");
        general_mat_mul(alpha, &a, &b, beta, &mut d);
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
        products(&one, &wide_a, &wide_b, &mut wide_d);
        let rows = stored_rows_mut(d, &matmul.d, d_shape.1);
        for (row, wide) in rows.zip(wide_d.chunks(d_shape.1 as usize)) {
            row.convert_from_f32_slice(wide);
        }
    }
}

/// Returns a stored matrix of 16-bit floats as f32, without what lies between its rows.
fn extend<H>(elements: &[H], operand: &Operand, columns: u64, wide: &mut [f32])
where
    [H]: HalfFloatSliceExt,
{
    for (row, wide) in stored_rows(elements, operand, columns).zip(wide.chunks_mut(columns as usize)) {
        row.convert_to_f32_slice(wide);
    }
}

/// An integer whose arithmetic wraps around.
trait Wrapping: Copy + Default {
    /// Returns the sum with a product.
    fn plus_product(self, a: Self, b: Self) -> Self;
}

macro_rules! wrapping {
    ($($T:ty)*) => {$(
        impl Wrapping for $T {
            fn plus_product(self, a: Self, b: Self) -> Self {
                self.wrapping_add(a.wrapping_mul(b))
            }
        }
    )*};
}

wrapping! { u8 i8 i16 u16 i32 i64 }

/// Computes the products of a batch of integers.
fn wrapping_products<T: Wrapping>(matmul: &Matmul, a: &[T], b: &[T], d: &mut [T]) {
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
                    *sum = sum.plus_product(factor, b[at(&matmul.b, term, column as u64)]);
                }
            }
        }
    }
}
