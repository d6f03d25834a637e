//! [`FusedMatmul`]: a product of f32 matrices fused with the operations around it in a network, in one kernel.
//!
//! D = op(A) · op(B) + bias + addend, where the bias has an element per column and is repeated over the rows, and the addend has
//! D's shape: a linear layer, and the residual connection after it. The kernel can also compute the sums of op(A)'s rows: if D is
//! the gradient of a layer's weight, they are the gradient of its bias.
//!
//! The kernel is for products that are too small to fill a GPU ([`fits`]). For these, a launch costs as much as the work, so it
//! is best to have few kernels, each with as many threads as it can use: the kernel ([`cuda`]) divides the terms of even a single
//! tile of D among the warps of a block. Larger products are left to the vendor's library.
//!
//! # Invariants
//! - Terms are summed in an order that depends only on k, so a product has the same bits at any place of any grid.
//! - The addend and D do not overlap.

pub mod cuda;

use super::{Factor, Matmul, Operand, host as product_on_host};
use crate::arguments;
use thalweg_ir::DType;
use thalweg_ir::host::{Fault, Slice, SliceMut};

/// Rows of D that a block of threads computes.
pub const TILE_ROWS: u64 = 16;

/// Columns of D that a block of threads computes.
pub const TILE_COLUMNS: u64 = 32;

/// The number of multiprocessors that a GPU is assumed to have. It is a constant, so that a product is computed the same way on
/// every GPU.
const MULTI_PROCESSORS: u64 = 128;

/// The most terms of an element of D that a multiprocessor may sum, one tile after another, for a product to count as small.
const MOST_TERMS: u64 = 2048;

/// Returns whether a product is small enough for the fused kernel: of f32, with at most a few tiles per multiprocessor.
#[must_use]
pub fn fits(product: &Matmul) -> bool {
    terms(product).is_some_and(|terms| terms <= MOST_TERMS)
}

/// Returns whether a product is so small that the fused kernel is worth trying, even if the product does not [fit](fits).
#[must_use]
pub fn could_fit(product: &Matmul) -> bool {
    terms(product).is_some_and(|terms| terms <= 16 * MOST_TERMS)
}

/// Returns the number of terms of an element of D that a multiprocessor would sum, one tile after another; `None` for a product
/// that the fused kernel does not support.
fn terms(product: &Matmul) -> Option<u64> {
    let tiles = product
        .m
        .div_ceil(TILE_ROWS)
        .saturating_mul(product.n.div_ceil(TILE_COLUMNS))
        .saturating_mul(product.batch)
        .div_ceil(MULTI_PROCESSORS);
    is_plain(product).then(|| tiles.saturating_mul(product.k))
}

/// Returns whether a product is of f32 and without factors.
fn is_plain(product: &Matmul) -> bool {
    product.dtype == DType::F32 && product.alpha == Factor::ONE && product.beta == Factor::ZERO
}

/// A product with fused operations. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FusedMatmul {
    /// The product, of f32 and without factors.
    pub product: Matmul,
    /// Whether a bias of n elements is added to each row of D.
    pub bias: bool,
    /// The layout of a matrix that is added to D; not transposed.
    pub addend: Option<Operand>,
    /// Whether the sums of op(A)'s rows, m elements, are computed as well; the batch must then be a single product.
    pub row_sums: bool,
}

/// For each operand its address or its span in elements; 0 if it is absent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PerOperand {
    /// The value for the left factor.
    pub a: u64,
    /// The value for the right factor.
    pub b: u64,
    /// The value for the result.
    pub d: u64,
    /// The value for the bias.
    pub bias: u64,
    /// The value for the addend.
    pub addend: u64,
    /// The value for the sums of op(A)'s rows.
    pub row_sums: u64,
    /// The values for the weight and the bias of a layer norm of A's rows.
    pub norm: [u64; 2],
}

/// The number of 8-byte words that [`FusedMatmul::pack`] writes.
pub const ARGUMENT_WORDS: usize = 19;

/// Bits of the last word: the transposed operands, the optional operands, and the operands whose quads of elements are aligned to
/// 16 bytes.
const TRANSPOSED: [u64; 2] = [1, 2];
const BIAS: u64 = 4;
const ADDEND: u64 = 8;
const ROW_SUMS: u64 = 16;
const QUADS: [u64; 3] = [32, 64, 128];

impl FusedMatmul {
    /// Creates a product without fused operations.
    #[must_use]
    pub const fn unfused(product: Matmul) -> Self {
        Self { product, bias: false, addend: None, row_sums: false }
    }

    /// Returns the number of elements that each operand spans, counted from its first.
    #[must_use]
    pub fn spans(&self) -> PerOperand {
        let [a, b, d] = self.product.spans();
        let (m, n) = (self.product.m, self.product.n);
        PerOperand {
            a,
            b,
            d,
            bias: if self.bias { n } else { 0 },
            addend: self.addend.map_or(0, |addend| self.product.span(&addend, (m, n))),
            row_sums: if self.row_sums { m } else { 0 },
            norm: [0; 2],
        }
    }

    /// Checks that the kernel supports the description.
    ///
    /// # Errors
    /// Those of [`Matmul::check`]; and if the product is not of f32, has factors or has 2³¹ terms, if the addend is transposed or
    /// too large, or if sums of rows are requested for a batch.
    pub fn check(&self) -> Result<(), Fault> {
        let fault = |text: &str| Err(Fault::new(format!("fused matmul {}: {text}", self.product)));
        self.product.check()?;
        if self.product.k > u64::from(u32::MAX) / 2 {
            return fault("it sums fewer than 2³¹ terms");
        }
        if !is_plain(&self.product) {
            return fault("it takes products of float32 without factors");
        }
        if let Some(addend) = &self.addend
            && (addend.transposed
                || !super::addressable(addend, self.product.m, self.product.n, self.product.batch))
        {
            return fault("the addend is transposed, or larger than can be addressed");
        }
        if self.row_sums && self.product.batch != 1 {
            return fault("sums of rows are given of one product, not of a batch");
        }
        Ok(())
    }

    /// Returns the arguments of a launch as words: addresses in the order of [`PerOperand`]; m, n, k, batch; leading dimension
    /// and batch stride of A, B, D and the addend; and a word of flags.
    #[must_use]
    pub fn pack(&self, at: &PerOperand) -> [u64; ARGUMENT_WORDS] {
        let Matmul { m, n, k, batch, a, b, d, .. } = self.product;
        let addend =
            self.addend.unwrap_or(Operand { leading_dimension: 0, batch_stride: 0, transposed: false });
        let quads = |operand: &Operand, address: u64| {
            address.is_multiple_of(16)
                && operand.leading_dimension.is_multiple_of(4)
                && operand.batch_stride.is_multiple_of(4)
        };
        let results = quads(&d, at.d) && quads(&addend, at.addend) && at.bias.is_multiple_of(16);
        let set = |bit: u64, is: bool| if is { bit } else { 0 };
        let flags = set(TRANSPOSED[0], a.transposed)
            | set(TRANSPOSED[1], b.transposed)
            | set(BIAS, self.bias)
            | set(ADDEND, self.addend.is_some())
            | set(ROW_SUMS, self.row_sums)
            | set(QUADS[0], quads(&a, at.a))
            | set(QUADS[1], quads(&b, at.b))
            | set(QUADS[2], results);
        [
            at.a,
            at.b,
            at.d,
            at.bias,
            at.addend,
            at.row_sums,
            m,
            n,
            k,
            batch,
            a.leading_dimension,
            a.batch_stride,
            b.leading_dimension,
            b.batch_stride,
            d.leading_dimension,
            d.batch_stride,
            addend.leading_dimension,
            addend.batch_stride,
            flags,
        ]
    }

    /// Reads the words that [`FusedMatmul::pack`] wrote. Returns `None` if the bytes do not have this layout.
    #[must_use]
    pub fn unpack(bytes: &[u8]) -> Option<(Self, PerOperand)> {
        let [
            a,
            b,
            d,
            bias,
            addend,
            row_sums,
            m,
            n,
            k,
            batch,
            lda,
            sa,
            ldb,
            sb,
            ldd,
            sd,
            addend_leading,
            addend_stride,
            flags,
        ] = arguments::words(bytes)?;
        let has = |bit: u64| flags & bit != 0;
        let operand = |leading_dimension, batch_stride, transposed| Operand {
            leading_dimension,
            batch_stride,
            transposed,
        };
        let product = Matmul {
            a: operand(lda, sa, has(TRANSPOSED[0])),
            b: operand(ldb, sb, has(TRANSPOSED[1])),
            d: operand(ldd, sd, false),
            ..Matmul::contiguous(m, n, k, batch, DType::F32)
        };
        let fused = Self {
            product,
            bias: has(BIAS),
            addend: has(ADDEND).then(|| operand(addend_leading, addend_stride, false)),
            row_sums: has(ROW_SUMS),
        };
        (flags < 256).then_some((fused, PerOperand { a, b, d, bias, addend, row_sums, norm: [0; 2] }))
    }
}

/// The operands of a [`FusedMatmul`] on the host; absent ones are empty.
#[derive(Debug)]
pub struct HostOperands<'e> {
    /// The left factor.
    pub a: &'e [f32],
    /// The right factor.
    pub b: &'e [f32],
    /// The bias.
    pub bias: &'e [f32],
    /// The addend.
    pub addend: &'e [f32],
    /// The result.
    pub d: &'e mut [f32],
    /// The sums of op(A)'s rows.
    pub row_sums: &'e mut [f32],
}

/// Runs the product on the host. Sums of rows have the GPU's bits; products are [`host`](super::host)'s.
///
/// # Errors
/// If the description is not supported ([`FusedMatmul::check`]) or an operand is too short.
pub fn run_on_host(fused: &FusedMatmul, operands: HostOperands<'_>) -> Result<(), Fault> {
    fused.check()?;
    let spans = fused.spans();
    let HostOperands { a, b, bias, addend, d, row_sums } = operands;
    let given = [
        ("the bias", bias.len(), spans.bias),
        ("the addend", addend.len(), spans.addend),
        ("the sums of rows", row_sums.len(), spans.row_sums),
    ];
    for (name, length, span) in given {
        if (length as u64) < span {
            return Err(Fault::new(format!("fused matmul: {name} take {span} elements; given are {length}")));
        }
    }
    let product = &fused.product;
    product_on_host::run(product, Slice::F32(a), Slice::F32(b), SliceMut::F32(&mut *d))?;
    let start = |operand: &Operand, item: u64, row: u64| {
        (item * operand.batch_stride + row * operand.leading_dimension) as usize
    };
    let columns = product.n as usize;
    let rows = if columns == 0 { 0 } else { product.m };
    for (item, row) in (0..product.batch).flat_map(|item| (0..rows).map(move |row| (item, row))) {
        let result = &mut d[start(&product.d, item, row)..][..columns];
        if fused.bias {
            result.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
        if let Some(operand) = &fused.addend {
            let addend = &addend[start(operand, item, row)..];
            result.iter_mut().zip(addend).for_each(|(value, addend)| *value += addend);
        }
    }
    if fused.row_sums {
        let [row_stride, step] = match product.a {
            Operand { leading_dimension, transposed: true, .. } => [1, leading_dimension],
            Operand { leading_dimension, .. } => [leading_dimension, 1],
        };
        let sums = row_sums[..product.m as usize].chunks_mut(ABREAST);
        for (sums, first) in sums.zip((0..product.m).step_by(ABREAST)) {
            let count = sums.len();
            let found = sums_of_rows(product.k, |term, values| {
                for (value, row) in values[..count].iter_mut().zip(first..) {
                    *value = a[(row * row_stride + term * step) as usize];
                }
            });
            sums.copy_from_slice(&found[..count]);
        }
    }
    Ok(())
}

/// The number of rows that are summed at a time.
const ABREAST: usize = 16;

/// Returns the sums of rows in the order of the kernel: every 64th term, then four of those sums, then a tree over the resulting
/// sixteen. `read` writes the rows' values at a term.
fn sums_of_rows(terms: u64, read: impl Fn(u64, &mut [f32; ABREAST])) -> [f32; ABREAST] {
    let add = |to: &mut [f32; ABREAST], values: [f32; ABREAST]| {
        to.iter_mut().zip(values).for_each(|(to, value)| *to += value);
    };
    let mut parts = [[0.0f32; ABREAST]; 64];
    for term in 0..terms {
        let mut values = [0.0; ABREAST];
        read(term, &mut values);
        add(&mut parts[(term % 64) as usize], values);
    }
    let mut lanes = [[0.0f32; ABREAST]; 16];
    for (lane, [first, rest @ ..]) in lanes.iter_mut().zip(parts.as_chunks::<4>().0) {
        *lane = *first;
        rest.iter().for_each(|&part| add(lane, part));
    }
    for step in [1, 2, 4, 8] {
        for lane in (0..16).step_by(2 * step) {
            let other = lanes[lane + step];
            add(&mut lanes[lane], other);
        }
    }
    lanes[0]
}
