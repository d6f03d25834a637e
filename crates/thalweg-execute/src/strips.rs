//! Products of 16-bit floats with matrices whose rows are not multiples of 16 bytes: a vocabulary of 30,522 words, an odd number of
//! classes.
//!
//! The fast kernels of the vendor's library load tiles with the tensor memory accelerator, for which distances and lengths of rows are
//! multiples of 16 bytes. For other matrices the library has kernels that take three to six times as long. A large product of such
//! matrices is computed in strips of rows: what is not aligned is copied to rows that are, with zeros at their ends, and a result is
//! computed in such rows and copied from them. A strip is large enough to fill the GPU, and small enough to take little memory.

use thalweg_driver::{DevicePointer, Label};
use thalweg_ir::DType;
use thalweg_kernels::Placed;
use thalweg_kernels::matmul::{Matmul, Operand};
use thalweg_kernels::pad_rows::PadRows;

use thalweg_runtime::{Buffer, Result, Stream};

/// The length and the distance of rows that fast kernels take, in bytes.
const ROW_BYTES: u64 = 16;

/// The bytes of an element of a factor.
const ELEMENT: u64 = 2;

/// The rows and columns of a tile of a multiprocessor.
const TILE_ROWS: u64 = 128;
const TILE_COLUMNS: u64 = 256;

/// The number of times that a strip fills the multiprocessors.
const WAVES: u64 = 4;

/// The most memory of a strip's copies in bytes, as long as it has more than one tile of rows, and of the copy of B.
const MOST_BYTES: u64 = 256 << 20;

/// The operations of a fast kernel that take as long as the copy of a byte: 6.5 · 10¹⁴ and 1.5 · 10¹² per second on an H200.
const FLOPS_OF_A_BYTE: u64 = 430;

/// The operations of a fast kernel that take as long as the launches of a strip, 8 µs.
const FLOPS_OF_A_STRIP: u64 = 5_000_000_000;

/// A product in strips of rows of A and D.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Strips {
    /// The rows of a strip: a multiple of [`TILE_ROWS`], unless there is one strip.
    rows: u64,
    /// The columns of B, and the terms, of the products that are computed.
    n: u64,
    k: u64,
    /// Whether A and B are copied, and D is copied back.
    copied: [bool; 3],
}

/// Returns the bytes of an element of D.
fn result_bytes(is_wide: bool) -> u64 {
    if is_wide { 4 } else { ELEMENT }
}

/// Returns the least number of elements of a row that is aligned.
fn aligned(extent: u64) -> u64 {
    extent.next_multiple_of(ROW_BYTES / ELEMENT)
}

/// Returns the greatest power of two, up to 16, of which both the length and the distance of rows are multiples in bytes.
fn alignment(extent: u64, distance: u64, bytes: u64) -> u64 {
    let all = ((extent | distance) * bytes) | ROW_BYTES;
    all & all.wrapping_neg()
}

impl Strips {
    /// Returns the strips of a product on a GPU with this many multiprocessors; `None` if it is computed faster at once.
    pub(crate) fn of(product: &Matmul, is_wide: bool, processors: u64) -> Option<Self> {
        let is_short = matches!(product.dtype, DType::F16 | DType::Bf16);
        if !is_short || product.batch != 1 || product.accumulates() {
            return None;
        }
        let &Matmul { m, n, k, a, b, d, .. } = product;
        let row_of = |operand: &Operand, rows: u64, columns: u64| {
            let extent = if operand.transposed { rows } else { columns };
            alignment(extent, operand.leading_dimension, ELEMENT)
        };
        let bytes = result_bytes(is_wide);
        // Results are copied to rows without gaps.
        if d.leading_dimension != n {
            return None;
        }
        let [of_a, of_b] = [row_of(&a, m, k), row_of(&b, k, n)];
        let of_d = alignment(n, d.leading_dimension, bytes);
        let least = of_a.min(of_b).min(of_d);
        let is_off = |own: u64| own < ROW_BYTES;
        // A length that is not aligned is longer in both matrices that have it.
        let pads_k = k != aligned(k) && (!a.transposed && is_off(of_a) || b.transposed && is_off(of_b));
        let pads_n = n != aligned(n) && (is_off(of_d) || !b.transposed && is_off(of_b));
        let copied = [is_off(of_a) || pads_k, is_off(of_b) || pads_k || pads_n, is_off(of_d) || pads_n];
        // Fast kernels are that many times as fast, measured on an H200 with 10¹² operations and more.
        let saved_flops = match least {
            0..=2 => product.flops() * 5,
            4 => product.flops() * 19 / 10,
            8 => product.flops() / 2,
            _ => return None,
        };
        let (k, n) = (if pads_k { aligned(k) } else { k }, if pads_n { aligned(n) } else { n });
        let width = if copied[0] { ELEMENT * k } else { 0 } + if copied[2] { bytes * n } else { 0 };
        let fills = (WAVES * processors * TILE_ROWS * TILE_COLUMNS).div_ceil(n.max(1));
        let fits = MOST_BYTES / width.max(1) / TILE_ROWS * TILE_ROWS;
        let rows = match width {
            0 => m,
            _ => fills.next_multiple_of(TILE_ROWS).min(fits.max(TILE_ROWS)).min(m),
        };
        let of_b = if copied[1] { ELEMENT * k * n } else { 0 };
        let spent = (width * m + of_b) * FLOPS_OF_A_BYTE + m.div_ceil(rows.max(1)) * FLOPS_OF_A_STRIP;
        (of_b <= MOST_BYTES && saved_flops > spent).then_some(Self { rows, n, k, copied })
    }
}

/// The matrices of a product: rows and columns.
type Extents = [u64; 2];

/// Returns rows and columns of a matrix as it is stored.
fn stored(operand: &Operand, [rows, columns]: Extents) -> Extents {
    if operand.transposed { [columns, rows] } else { [rows, columns] }
}

/// Returns the operand that is stored without gaps.
fn without_gaps(operand: &Operand, extents: Extents) -> Operand {
    Operand { leading_dimension: stored(operand, extents)[1], ..*operand }
}

/// The addresses of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    /// Those of A, B and D.
    pub at: [DevicePointer; 3],
    /// That of a row of n elements that is added to each row of D.
    pub bias: Option<DevicePointer>,
    /// Whether D is f32.
    pub is_wide: bool,
}

/// A call of a product in strips. `multiply` queues the product of aligned matrices.
pub(crate) struct Call<'a, F> {
    pub stream: &'a Stream,
    pub strips: &'a Strips,
    pub product: &'a Matmul,
    pub operands: Operands,
    pub label: Label,
    pub multiply: F,
}

impl<F: Fn(&Matmul, Operands) -> Result<()>> Call<'_, F> {
    /// Queues the copies and the products of all strips.
    pub(crate) fn queue(&self) -> Result<()> {
        let Self { strips, product, operands, .. } = self;
        let [mut left, right, mut target] = operands.at;
        let of_b = self.whole_copy(right, &product.b, [product.k, product.n], [strips.k, strips.n])?;
        let b = of_b.as_ref().map_or((right, product.b), |(buffer, operand)| (buffer.pointer(), *operand));
        let bias = operands.bias.map(|bias| self.bias(bias)).transpose()?;
        // The copies of a strip take the memory of those of the strip before: the stream runs them in order.
        let height = self.height(strips.rows);
        let of_a = strips.copied[0].then(|| self.room(height * strips.k * ELEMENT)).transpose()?;
        let is_last_longer = self.height(product.m % strips.rows) != product.m % strips.rows;
        let bytes = result_bytes(operands.is_wide);
        let of_d = strips.copied[2] || is_last_longer;
        let of_d = of_d.then(|| self.room(height * strips.n * bytes)).transpose()?;
        for start in (0..product.m).step_by(strips.rows as usize) {
            let rows = strips.rows.min(product.m - start);
            let height = self.height(rows);
            let a = match &of_a {
                Some(room) => {
                    let (from, to) = ([rows, product.k], [height, strips.k]);
                    (room.pointer(), self.copy((left, &product.a), from, room.pointer(), to)?)
                }
                None => (left, product.a),
            };
            let room = of_d.as_ref().filter(|_| strips.copied[2] || height != rows);
            let d = match room {
                Some(room) => (room.pointer(), without_gaps(&product.d, [height, strips.n])),
                None => (target, product.d),
            };
            let bias = bias.as_ref().map(|(_, pointer)| *pointer);
            self.multiply([a, b, d], height, bias)?;
            if room.is_some() {
                self.copy_back(d, rows, target)?;
            }
            let distance = if product.a.transposed { 1 } else { product.a.leading_dimension };
            left = left.offset(rows * distance * ELEMENT);
            target = target.offset(rows * product.d.leading_dimension * bytes);
        }
        Ok(())
    }

    /// Returns the rows of a strip that are computed: more than wanted if they are the length of rows that are copied.
    fn height(&self, rows: u64) -> u64 {
        let are_lengths = self.strips.copied[0] && self.product.a.transposed;
        if are_lengths { aligned(rows) } else { rows }
    }

    fn room(&self, bytes: u64) -> Result<Buffer> {
        Buffer::labelled(self.stream, bytes, self.label)
    }

    /// Queues a copy of a factor to rows without gaps, with zeros where it is larger. Returns the copy as an operand.
    fn copy(
        &self,
        (from, operand): (DevicePointer, &Operand),
        extents: Extents,
        to: DevicePointer,
        larger: Extents,
    ) -> Result<Operand> {
        let ([rows, columns], [target_rows, target_columns]) =
            (stored(operand, extents), stored(operand, larger));
        let kernel = PadRows {
            rows,
            row_bytes: columns * ELEMENT,
            source_distance: operand.leading_dimension * ELEMENT,
            target_rows,
            target_row_bytes: target_columns * ELEMENT,
        };
        self.stream.launch_native(&Placed { kernel, at: [from, to] }, self.label)?;
        Ok(without_gaps(operand, larger))
    }

    /// Returns B with aligned rows, if it is copied.
    fn whole_copy(
        &self,
        from: DevicePointer,
        operand: &Operand,
        extents: Extents,
        larger: Extents,
    ) -> Result<Option<(Buffer, Operand)>> {
        if !self.strips.copied[1] {
            return Ok(None);
        }
        let room = self.room(larger[0] * larger[1] * ELEMENT)?;
        let copy = self.copy((from, operand), extents, room.pointer(), larger)?;
        Ok(Some((room, copy)))
    }

    /// Returns the bias of all columns that are computed.
    fn bias(&self, bias: DevicePointer) -> Result<(Option<Buffer>, DevicePointer)> {
        let (own, all) = (self.product.n, self.strips.n);
        if own == all {
            return Ok((None, bias));
        }
        let room = self.room(all * ELEMENT)?;
        let row = Operand { leading_dimension: own, batch_stride: 0, transposed: false };
        self.copy((bias, &row), [1, own], room.pointer(), [1, all])?;
        let pointer = room.pointer();
        Ok((Some(room), pointer))
    }

    /// Queues the product of a strip.
    fn multiply(
        &self,
        [a, b, d]: [(DevicePointer, Operand); 3],
        m: u64,
        bias: Option<DevicePointer>,
    ) -> Result<()> {
        let Strips { n, k, .. } = *self.strips;
        let strip = Matmul { m, n, k, a: a.1, b: b.1, d: d.1, ..*self.product };
        (self.multiply)(&strip, Operands { at: [a.0, b.0, d.0], bias, is_wide: self.operands.is_wide })
    }

    /// Queues the copy of a strip's rows to the result.
    fn copy_back(
        &self,
        (from, operand): (DevicePointer, Operand),
        rows: u64,
        target: DevicePointer,
    ) -> Result<()> {
        let bytes = result_bytes(self.operands.is_wide);
        let kernel = PadRows {
            rows,
            row_bytes: self.product.n * bytes,
            source_distance: operand.leading_dimension * bytes,
            target_rows: rows,
            target_row_bytes: self.product.n * bytes,
        };
        self.stream.launch_native(&Placed { kernel, at: [from, target] }, self.label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::precision_of;
    use crate::products::matmul_in_strips;
    use thalweg_runtime::Device;

    fn turned(operand: Operand, rows: u64) -> Operand {
        Operand { leading_dimension: rows, transposed: true, ..operand }
    }

    #[test]
    fn large_products_with_odd_rows_are_divided_and_others_are_not() {
        let product = |m, n, k| Matmul::contiguous(m, n, k, 1, DType::Bf16);
        let of = |product: &Matmul| Strips::of(product, false, 132);
        // The scores of a vocabulary, from weights that are stored by words.
        let mut scores = product(16384, 30522, 768);
        scores.b = turned(scores.b, 768);
        let strips = of(&scores).unwrap();
        assert_eq!((strips.copied, strips.n, strips.k), ([false, true, true], 30528, 768));
        assert!(strips.rows.is_multiple_of(TILE_ROWS) && strips.rows * 30528 * 2 <= MOST_BYTES);
        // Their gradients by the hidden states and by the weights.
        let strips = of(&product(16384, 768, 30522)).unwrap();
        assert_eq!((strips.copied, strips.n, strips.k), ([true, true, false], 768, 30528));
        let mut by_weights = product(30522, 768, 16384);
        by_weights.a = turned(by_weights.a, 30522);
        assert_eq!(of(&by_weights).unwrap().copied, [true, false, false]);
        assert_eq!(of(&product(16384, 30528, 768)), None);
        assert_eq!(of(&product(64, 30522, 64)), None);
        assert_eq!(of(&product(1 << 20, 30522, 8)), None, "copying costs more than the product");
        assert_eq!(of(&Matmul { dtype: DType::F32, ..scores }), None);
    }

    /// Returns a matrix of integers from -2 to 2 as bf16, stored with rows of this distance, and the integers.
    fn integers(seed: u64, extents: Extents, operand: &Operand) -> (Vec<u16>, impl Fn(u64, u64) -> i64) {
        let of = move |row: u64, column: u64| ((row * 7 + column * 3 + row * column + seed) % 5) as i64 - 2;
        let [rows, columns] = stored(operand, extents);
        let mut elements = vec![0x7fc0; (rows * operand.leading_dimension) as usize];
        for row in 0..rows {
            for column in 0..columns {
                let number = if operand.transposed { of(column, row) } else { of(row, column) };
                let at = (row * operand.leading_dimension + column) as usize;
                elements[at] = ((number as f32).to_bits() >> 16) as u16;
            }
        }
        (elements, of)
    }

    #[test]
    fn strips_compute_the_product() {
        let device = Device::from_name("sim").unwrap();
        let (stream, label) = (device.current_stream(), Label::here("test"));
        let place = |elements: &[u16]| {
            let bytes = bytemuck::cast_slice(elements);
            let buffer = Buffer::labelled(&stream, bytes.len() as u64, label).unwrap();
            stream.copy_from_host(buffer.pointer(), bytes, label).unwrap();
            buffer
        };
        for choice in 0..512 {
            let bit = |place: u32| choice >> place & 1 == 1;
            let [m, n, k] =
                [if bit(0) { 37 } else { 40 }, if bit(1) { 22 } else { 24 }, if bit(2) { 19 } else { 16 }];
            let operand = |rows: u64, columns: u64, transposed: bool, gap: u64| {
                let length = if transposed { rows } else { columns };
                Operand { leading_dimension: length + gap, batch_stride: 0, transposed }
            };
            let a = operand(m, k, bit(3), u64::from(bit(4)) * 3);
            let b = operand(k, n, bit(5), u64::from(bit(6)) * 5);
            let product = Matmul { a, b, ..Matmul::contiguous(m, n, k, 1, DType::Bf16) };
            let (is_wide, biased) = (bit(7), bit(8) && !bit(7));
            let pads_k = k != aligned(k);
            let (copied, n_of_strip) = ([true, true, n != aligned(n)], aligned(n));
            let strips = Strips { rows: 16, n: n_of_strip, k: if pads_k { aligned(k) } else { k }, copied };
            let ((left, of_left), (right, of_right)) = (integers(1, [m, k], &a), integers(2, [k, n], &b));
            let row = operand(1, n, false, 0);
            let (bias, of_bias) = integers(3, [1, n], &row);
            let [left, right, bias] = [place(&left), place(&right), place(&bias)];
            let bytes = m * n * result_bytes(is_wide);
            let result = Buffer::labelled(&stream, bytes, label).unwrap();
            let at = [left.pointer(), right.pointer(), result.pointer()];
            let operands = Operands { at, bias: biased.then_some(bias.pointer()), is_wide };
            let method = (precision_of(&product), None);
            matmul_in_strips(&stream, &strips, &product, operands, method, label).unwrap();
            let mut found = vec![0; bytes as usize];
            stream.copy_to_host(&mut found, result.pointer(), label).unwrap();
            let number = |at: usize| match is_wide {
                true => f32::from_le_bytes(found[4 * at..][..4].try_into().unwrap()),
                false => {
                    f32::from_bits(u32::from(u16::from_le_bytes([found[2 * at], found[2 * at + 1]])) << 16)
                }
            };
            for row in 0..m {
                for column in 0..n {
                    let terms: i64 = (0..k).map(|term| of_left(row, term) * of_right(term, column)).sum();
                    let wanted = terms + if biased { of_bias(0, column) } else { 0 };
                    let found = number((row * n + column) as usize);
                    assert_eq!(found, wanted as f32, "{strips:?} of {product}, row {row}, column {column}");
                }
            }
        }
    }
}
