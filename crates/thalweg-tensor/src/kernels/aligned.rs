//! Products of 16-bit floats whose stored rows are not multiples of 16 bytes: a vocabulary of 30,522 words, an odd number of classes.
//!
//! The fast kernels of the vendor's library load tiles with the tensor memory accelerator, which takes rows whose distance is a
//! multiple of 16 bytes. For other matrices the library has kernels that are about three times slower. A large product of such
//! matrices is computed in slabs of rows or of columns: a slab of each matrix in question is copied to rows that are aligned, or the
//! result is computed in such rows and copied from them. A slab is large enough to fill the GPU, and small enough to take little
//! memory.

use thalweg_ir::DType;
use thalweg_kernels::matmul::{Matmul, Operand};
use thalweg_ops::lower::LoopLaunch;
use thalweg_ops::structured;
use thalweg_runtime::{Label, MatmulEpilogue, Result, Stream};

use crate::loops::{LoopArguments, launch, operands};
use crate::tensor::Tensor;

/// The distance of rows in bytes that fast kernels take.
const ROW_BYTES: u64 = 16;

/// The rows and columns of a tile of a multiprocessor.
const TILE_ROWS: u64 = 128;
const TILE_COLUMNS: u64 = 256;

/// The number of times that a slab fills the multiprocessors.
const WAVES: u64 = 4;

/// The most memory of the copies of a slab, in bytes, as long as the slab has more than one tile of rows.
const MOST_BYTES: u64 = 256 << 20;

/// Work that costs as much as a copied byte, in floating-point operations of a fast kernel: both take 1 / (1.5 · 10¹²) s on an H200.
const FLOPS_OF_A_BYTE: u64 = 430;

/// Work that costs as much as a slab's launches do.
const FLOPS_OF_A_SLAB: u64 = 5_000_000_000;

/// The side of a product that is divided into slabs: the rows of A and D, or the columns of B and D.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Rows,
    Columns,
}

/// A product in slabs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Slabs {
    side: Side,
    /// The rows or columns of a slab: a multiple of [`TILE_ROWS`], except if there is one slab.
    extent: u64,
    /// Whether A, B and D are copied.
    copied: [bool; 3],
}

/// Returns the bytes of an element of D.
fn result_bytes(product: &Matmul, is_wide: bool) -> u64 {
    if is_wide { 4 } else { product.dtype.size_bytes() as u64 }
}

impl Slabs {
    /// Returns the slabs of a product on a GPU with this many multiprocessors, or `None` if it is to be computed at once.
    fn of(product: &Matmul, is_wide: bool, processors: u64) -> Option<Self> {
        let is_short = matches!(product.dtype, DType::F16 | DType::Bf16);
        if !is_short || product.batch != 1 || product.accumulates() {
            return None;
        }
        let &Matmul { m, n, k, .. } = product;
        let bytes = [2, 2, result_bytes(product, is_wide)];
        let distances = [product.a, product.b, product.d].map(|operand| operand.leading_dimension);
        let mut copied = [false; 3];
        for (number, is_copied) in copied.iter_mut().enumerate() {
            *is_copied = !(distances[number] * bytes[number]).is_multiple_of(ROW_BYTES);
        }
        let [of_a, of_b, of_d] = copied;
        let side = match (of_a, of_b) {
            (true, true) if n > m => Side::Columns,
            (false, true) => Side::Columns,
            (true, _) => Side::Rows,
            (false, false) if of_d => Side::Rows,
            (false, false) => return None,
        };
        let (whole, across, of_own, of_other) = match side {
            Side::Rows => (m, n, of_a, of_b),
            Side::Columns => (n, m, of_b, of_a),
        };
        // The bytes of a row or column of a slab.
        let width = if of_own { 2 * k } else { 0 } + if of_d { bytes[2] * across } else { 0 };
        let fills = (WAVES * processors * TILE_ROWS * TILE_COLUMNS).div_ceil(across.max(1));
        let fits = MOST_BYTES / width.max(1) / TILE_ROWS * TILE_ROWS;
        let extent = fills.next_multiple_of(TILE_ROWS).min(fits.max(TILE_ROWS)).min(whole);
        let slabs = Self { side, extent, copied };
        let other_bytes = if of_other { 2 * k * across } else { 0 };
        let is_worth_it = other_bytes <= MOST_BYTES
            && slabs.saved_flops(product, distances.map(|distance| distance * 2))
                > (width * whole + other_bytes) * FLOPS_OF_A_BYTE + whole.div_ceil(extent) * FLOPS_OF_A_SLAB;
        is_worth_it.then_some(slabs)
    }

    /// Returns the work of a fast kernel that takes as long as is saved, for matrices whose rows have these distances in bytes.
    fn saved_flops(&self, product: &Matmul, distances: [u64; 3]) -> u64 {
        let copied = distances.into_iter().zip(self.copied).filter(|(_, is_copied)| *is_copied);
        let alignment = copied.map(|(bytes, _)| bytes & bytes.wrapping_neg()).min().unwrap_or(ROW_BYTES);
        // Fast kernels are that many times faster, measured on an H200 with products of 10¹² operations.
        match alignment {
            0..=2 => product.flops() * 3,
            3..=4 => product.flops() * 17 / 10,
            _ => product.flops() / 2,
        }
    }
}

/// The factors and the result of a product, of rank 2.
#[derive(Clone, Copy)]
pub(super) struct Factors<'a> {
    pub a: &'a Tensor,
    pub b: &'a Tensor,
    pub d: &'a Tensor,
    /// A row of n contiguous elements that is added to each row of the result by the library.
    pub bias: Option<&'a Tensor>,
}

/// Queues a product of two matrices. The result is f32 if it [is not rounded](Stream::matmul_into_wide).
///
/// # Errors
/// Those of [`Stream::matmul`], [`Stream::matmul_with`] and [`Stream::matmul_into_wide`].
pub(super) fn multiply(product: &Matmul, factors: Factors<'_>, label: Label) -> Result<()> {
    let stream = factors.d.device().current_stream();
    let is_wide = factors.d.dtype() != product.dtype;
    let processors = u64::from(stream.device().properties().multi_processor_count);
    match Slabs::of(product, is_wide, processors) {
        Some(slabs) => slabs.multiply(product, factors, &stream, label),
        None => queue(product, factors, &stream, label),
    }
}

/// Queues a product as it is.
fn queue(product: &Matmul, factors: Factors<'_>, stream: &Stream, label: Label) -> Result<()> {
    let Factors { a, b, d, bias } = factors;
    let at = [a.pointer(), b.pointer(), d.pointer()];
    match bias {
        Some(bias) => {
            let epilogue = MatmulEpilogue { bias: Some(bias.pointer()), activation: None };
            stream.matmul_with(product, at, &epilogue, label)
        }
        None if d.dtype() != product.dtype => stream.matmul_into_wide(product, at, label),
        None => stream.matmul(product, at, label),
    }
}

impl Slabs {
    fn multiply(&self, product: &Matmul, factors: Factors<'_>, stream: &Stream, label: Label) -> Result<()> {
        let [of_a, of_b, of_d] = self.copied;
        let aligned = |tensor: &Tensor, is_copied: bool, of: Operand| -> Result<(Tensor, Operand)> {
            match is_copied {
                true => copied(tensor, of.transposed, stream, label),
                false => Ok((tensor.clone(), of)),
            }
        };
        // The factor that every slab reads.
        let (other, other_operand) = match self.side {
            Side::Rows => aligned(factors.b, of_b, product.b)?,
            Side::Columns => aligned(factors.a, of_a, product.a)?,
        };
        let dimension = if self.side == Side::Rows { 0 } else { 1 };
        let (whole, step) = (factors.d.shape()[dimension], self.extent as usize);
        for start in (0..whole).step_by(step) {
            let length = step.min(whole - start);
            let part = |tensor: &Tensor, dimension: usize| -> Result<Tensor> {
                Ok(tensor.with_layout(tensor.layout().narrow(dimension, start, length)?))
            };
            let result = part(factors.d, dimension)?;
            let (target, d) = match of_d {
                true => empty_rows(result.shape(), &result, stream, label)?,
                false => (result.clone(), product.d),
            };
            let bias = match (factors.bias, self.side) {
                (Some(bias), Side::Columns) => Some(part(bias, 0)?),
                (bias, _) => bias.cloned(),
            };
            let ((a, of_a), (b, of_b)) = match self.side {
                Side::Rows => {
                    (aligned(&part(factors.a, 0)?, of_a, product.a)?, (other.clone(), other_operand))
                }
                Side::Columns => {
                    ((other.clone(), other_operand), aligned(&part(factors.b, 1)?, of_b, product.b)?)
                }
            };
            let [m, n] = [result.shape()[0] as u64, result.shape()[1] as u64];
            let slab = Matmul { m, n, a: of_a, b: of_b, d, ..*product };
            let factors = Factors { a: &a, b: &b, d: &target, bias: bias.as_ref() };
            queue(&slab, factors, stream, label)?;
            if of_d {
                copy(&target, &result, label)?;
            }
        }
        Ok(())
    }
}

/// Returns a copy of a matrix whose rows, or columns if it is stored transposed, are aligned.
fn copied(matrix: &Tensor, is_transposed: bool, stream: &Stream, label: Label) -> Result<(Tensor, Operand)> {
    let turned = |tensor: &Tensor| -> Result<Tensor> {
        Ok(match is_transposed {
            true => tensor.with_layout(tensor.layout().transpose(0, 1)?),
            false => tensor.clone(),
        })
    };
    let stored = turned(matrix)?;
    let (rows, operand) = empty_rows(stored.shape(), matrix, stream, label)?;
    copy(&stored, &rows, label)?;
    Ok((turned(&rows)?, Operand { transposed: is_transposed, ..operand }))
}

/// Returns a matrix with aligned rows, of the dtype of another tensor.
fn empty_rows(shape: &[usize], like: &Tensor, stream: &Stream, label: Label) -> Result<(Tensor, Operand)> {
    let &[rows, columns] = shape else { unreachable!("a matrix has two dimensions") };
    let distance = columns.next_multiple_of(ROW_BYTES as usize / like.dtype().size_bytes());
    let padded = Tensor::empty_on(&[rows, distance], like.dtype(), stream, label)?;
    let layout = padded.layout().narrow(1, 0, columns)?;
    let operand = Operand { leading_dimension: distance as u64, batch_stride: 0, transposed: false };
    Ok((padded.with_layout(layout), operand))
}

/// Queues a copy between two matrices.
fn copy(source: &Tensor, target: &Tensor, label: Label) -> Result<()> {
    let (read, written) = (operands([source]), operands([target]));
    let arguments = LoopArguments { dtype: Some(target.dtype()), ..LoopArguments::default() };
    let into = LoopLaunch::into_outputs(&structured::COPY, &read, &written, &arguments)
        .map_err(thalweg_execute::to_runtime_error)?;
    launch(&into, &[source], std::slice::from_ref(target), label)
}

#[cfg(test)]
mod tests {
    use thalweg_runtime::Device;

    use super::*;

    #[test]
    fn large_products_with_odd_rows_are_divided_and_others_are_not() {
        let product = |m, n, k| Matmul::contiguous(m, n, k, 1, DType::Bf16);
        let of = |product: &Matmul| Slabs::of(product, false, 132);
        // The scores of a vocabulary, from weights that are stored by words.
        let mut scores = product(16384, 30522, 768);
        scores.b = Operand { leading_dimension: 768, batch_stride: 0, transposed: true };
        let slabs = of(&scores).unwrap();
        assert_eq!((slabs.side, slabs.copied), (Side::Rows, [false, false, true]));
        assert!(slabs.extent.is_multiple_of(TILE_ROWS) && slabs.extent * 30522 * 2 <= MOST_BYTES);
        // Their gradients.
        let by_words = product(16384, 768, 30522);
        assert_eq!(
            of(&by_words).map(|slabs| (slabs.side, slabs.copied)),
            Some((Side::Rows, [true, false, false]))
        );
        assert_eq!(of(&product(16384, 30528, 768)), None);
        assert_eq!(of(&product(64, 30522, 64)), None);
        assert_eq!(of(&product(16384, 30522, 8)), None, "copying costs more than the product");
        assert_eq!(of(&Matmul { dtype: DType::F32, ..scores }), None);
    }

    /// Returns integers from -2 to 2, whose products are exact.
    fn integers(seed: usize, shape: [usize; 2]) -> Vec<f32> {
        (0..shape[0] * shape[1]).map(|at| ((at * 7 + at / 5 + seed) % 5) as f32 - 2.0).collect()
    }

    fn stored(numbers: &[f32], [rows, columns]: [usize; 2], is_turned: bool, device: &Device) -> Tensor {
        let plain = Tensor::from_slice(numbers, &[rows, columns], device).unwrap();
        let plain = plain.to_dtype(DType::Bf16).unwrap();
        let turned = || plain.transpose(0, 1)?.contiguous()?.transpose(0, 1);
        if is_turned { turned().unwrap() } else { plain }
    }

    #[test]
    fn slabs_compute_what_the_product_is() {
        let device = Device::from_name("sim").unwrap();
        let stream = device.current_stream();
        let label = Label::here("test");
        let [m, k, n] = [37, 19, 23];
        let (a, b, bias) = (integers(1, [m, k]), integers(2, [k, n]), integers(3, [1, n]));
        let wanted = |row: usize, column: usize, biased: bool| -> f32 {
            let terms = (0..k).map(|term| a[row * k + term] * b[term * n + column]);
            terms.sum::<f32>() + if biased { bias[column] } else { 0.0 }
        };
        for choice in 0..128 {
            let bit = |place: u32| choice >> place & 1 == 1;
            let side = if bit(0) { Side::Rows } else { Side::Columns };
            let slabs = Slabs { side, extent: 8, copied: [bit(1), bit(2), bit(3)] };
            let left = stored(&a, [m, k], bit(4), &device);
            let right = stored(&b, [k, n], bit(5), &device);
            let (is_wide, biased) = (bit(6), !bit(6));
            let dtype = if is_wide { DType::F32 } else { DType::Bf16 };
            let result = Tensor::empty_on(&[m, n], dtype, &stream, label).unwrap();
            let (product, [left, right]) = crate::kernels::matmul::product(&left, &right).unwrap();
            let added = stored(&bias, [1, n], false, &device).reshape(&[n]).unwrap();
            let factors = Factors { a: &left, b: &right, d: &result, bias: biased.then_some(&added) };
            slabs.multiply(&product, factors, &stream, label).unwrap();
            let found: Vec<f32> = result.to_dtype(DType::F32).unwrap().to_vec().unwrap();
            for (at, found) in found.iter().enumerate() {
                assert_eq!(
                    *found,
                    wanted(at / n, at % n, biased),
                    "{slabs:?}, element {at}, choice {choice}"
                );
            }
        }
    }
}
