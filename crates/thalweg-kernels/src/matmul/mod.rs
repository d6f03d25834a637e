//! [`Matmul`]: a batched matrix product as a value. It is not a loop over a body, so that each side can use its best
//! implementation: the vendor's library on a GPU, a well-maintained CPU library on the host ([`host`]).
//!
//! D = α · op(A) · op(B) + β · D for each matrix of a batch. Matrices are row-major; op transposes if the operand requires it.
//! Products of 16-bit floats are summed in f32, and rounded once, on storing. Those of integers wrap around.
//!
//! # Limits
//! A description chooses no algorithm: the code that runs it does. Operations around a small product in a network can be fused in
//! a [`fused`] product.
//!
//! This module is a hub: [`cuda`], [`fused`] and [`host`], with its products of few rows, use the description that is defined
//! here, and `native` makes kernels of them.

pub mod cuda;
pub mod few_rows;
pub mod fused;
pub mod host;
mod native;
pub mod quantized;
pub mod warp_groups;

use crate::arguments;
use thalweg_ir::host::Fault;
use thalweg_ir::{Category, DType};

pub use native::{host_function, library_accesses, library_words, wide_accesses, wide_host_function};

/// The layout of one operand, in elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Operand {
    /// The distance from one stored row to the next; at least the length of a stored row.
    pub leading_dimension: u64,
    /// The distance from one matrix of the batch to the next; 0 reads the same matrix for all of them.
    pub batch_stride: u64,
    /// Whether the stored matrix is the transpose of the one in the product. Never set for D.
    pub transposed: bool,
}

/// A factor of a product, stored as bits, so that descriptions can be compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Factor(u64);

impl Factor {
    /// The factor 0.
    pub const ZERO: Self = Self::new(0.0);
    /// The factor 1.
    pub const ONE: Self = Self::new(1.0);

    /// Returns a number as a factor; −0 is 0.
    #[must_use]
    pub const fn new(number: f64) -> Self {
        if number == 0.0 { Self(0) } else { Self(number.to_bits()) }
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// A batched product D = α · op(A) · op(B) + β · D. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Matmul {
    /// The rows of op(A) and of D.
    pub m: u64,
    /// The columns of op(B) and of D.
    pub n: u64,
    /// The columns of op(A) and rows of op(B).
    pub k: u64,
    /// The number of products.
    pub batch: u64,
    /// The dtype of all three operands.
    pub dtype: DType,
    /// The left operand: op(A) is m × k.
    pub a: Operand,
    /// The right operand: op(B) is k × n.
    pub b: Operand,
    /// The result: m × n.
    pub d: Operand,
    /// The factor of the product; 1 for integers.
    pub alpha: Factor,
    /// The factor of D's previous contents: if it is 0, D is not read. 0 or 1 for integers.
    pub beta: Factor,
}

/// Returns whether there is a product of a dtype: of integers, and of floats with more than 8 bits.
#[must_use]
pub const fn takes(dtype: DType) -> bool {
    match dtype.category() {
        Category::Integer => true,
        Category::FloatingPoint => !dtype.is_float8(),
        Category::Bool | Category::Complex => false,
    }
}

/// The number of 8-byte words that [`Matmul::pack`] writes.
pub const ARGUMENT_WORDS: usize = 16;

impl Matmul {
    /// Describes one product of contiguous row-major matrices, none transposed.
    #[must_use]
    pub fn contiguous(m: u64, n: u64, k: u64, batch: u64, dtype: DType) -> Self {
        let operand = |rows: u64, columns: u64| Operand {
            leading_dimension: columns,
            batch_stride: rows * columns,
            transposed: false,
        };
        Self {
            m,
            n,
            k,
            batch,
            dtype,
            a: operand(m, k),
            b: operand(k, n),
            d: operand(m, n),
            alpha: Factor::ONE,
            beta: Factor::ZERO,
        }
    }

    /// Returns whether the product is added to D's previous contents rather than replacing them.
    #[must_use]
    pub fn accumulates(&self) -> bool {
        self.beta != Factor::ZERO
    }

    /// Returns the floating-point operations: a multiplication and an addition for each of m · n · k terms.
    #[must_use]
    pub fn flops(&self) -> u64 {
        2 * self.m * self.n * self.k * self.batch
    }

    /// Returns the fewest bytes that must move: each distinct element of A and B is read once, each of D is written once and, if
    /// the product is added, read once.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let distinct =
            |operand: &Operand| if operand.batch_stride == 0 { self.batch.min(1) } else { self.batch };
        let passes = if self.accumulates() { 2 } else { 1 };
        let elements = self.m * self.k * distinct(&self.a)
            + self.k * self.n * distinct(&self.b)
            + passes * self.m * self.n * self.batch;
        elements * self.dtype.size_bytes() as u64
    }

    /// Returns the number of elements that A, B and D span, counted from their first; 0 if nothing is touched.
    #[must_use]
    pub fn spans(&self) -> [u64; 3] {
        let [a, b, d] = self.stored();
        [self.span(&self.a, a), self.span(&self.b, b), self.span(&self.d, d)]
    }

    /// Returns the rows and columns of A, B and D as they are stored.
    fn stored(&self) -> [(u64, u64); 3] {
        let stored = |operand: &Operand, rows, columns| {
            if operand.transposed { (columns, rows) } else { (rows, columns) }
        };
        [stored(&self.a, self.m, self.k), stored(&self.b, self.k, self.n), stored(&self.d, self.m, self.n)]
    }

    fn span(&self, operand: &Operand, (rows, columns): (u64, u64)) -> u64 {
        if rows == 0 || columns == 0 || self.batch == 0 {
            return 0;
        }
        (self.batch - 1) * operand.batch_stride + (rows - 1) * operand.leading_dimension + columns
    }

    /// Checks that the description is valid.
    ///
    /// # Errors
    /// If a leading dimension is shorter than a stored row, matrices of D overlap, D is transposed, the dtype is bool or float8,
    /// integers have a different factor than 1 (or a beta of 0), or sizes are beyond the address space.
    pub fn check(&self) -> Result<(), Fault> {
        let fault = |text: String| Err(Fault::new(format!("matmul {self}: {text}")));
        if !takes(self.dtype) {
            return fault(format!("{} is not supported; cast to another dtype", self.dtype));
        }
        let is_plain = self.alpha == Factor::ONE && [Factor::ZERO, Factor::ONE].contains(&self.beta);
        if self.dtype.is_integer() && !is_plain {
            return fault("a product of integers has a factor of 1, and is added or not".into());
        }
        if self.d.transposed {
            return fault("D cannot be transposed; swap and transpose A and B instead".into());
        }
        for (name, operand, (rows, columns)) in [("A", &self.a), ("B", &self.b), ("D", &self.d)]
            .into_iter()
            .zip(self.stored())
            .map(|((n, o), s)| (n, o, s))
        {
            if rows > 1 && operand.leading_dimension < columns {
                return fault(format!(
                    "the leading dimension of {name} is {}, less than its stored row of {columns} elements",
                    operand.leading_dimension
                ));
            }
            if !addressable(operand, rows, columns, self.batch) {
                return fault(format!("{name} is larger than can be addressed"));
            }
        }
        let d_matrix = if self.m == 0 { 0 } else { (self.m - 1) * self.d.leading_dimension + self.n };
        // Matrices may also be adjacent columns of one larger matrix, like the heads of attention.
        let beside = || {
            let columns = (self.batch - 1).saturating_mul(self.d.batch_stride).saturating_add(self.n);
            self.n <= self.d.batch_stride && columns <= self.d.leading_dimension
        };
        if self.batch > 1 && self.d.batch_stride < d_matrix && !beside() {
            return fault(format!(
                "matrices of D overlap: the batch stride is {}, a matrix takes {d_matrix} elements",
                self.d.batch_stride
            ));
        }
        Ok(())
    }

    /// Returns the arguments of a launch as words: the addresses of A, B and D; m, n, k, batch; the leading dimension and the
    /// batch stride of A, of B and of D; a word of flags (bit 0: A transposed, bit 1: B transposed, from bit 8 on: the dtype's
    /// index in [`DType::ALL`]); and the factors' bits.
    #[must_use]
    pub fn pack(&self, a: u64, b: u64, d: u64) -> [u64; ARGUMENT_WORDS] {
        let dtype = arguments::number_of(self.dtype);
        let flags = u64::from(self.a.transposed) | u64::from(self.b.transposed) << 1 | dtype << 8;
        [
            a,
            b,
            d,
            self.m,
            self.n,
            self.k,
            self.batch,
            self.a.leading_dimension,
            self.a.batch_stride,
            self.b.leading_dimension,
            self.b.batch_stride,
            self.d.leading_dimension,
            self.d.batch_stride,
            flags,
            self.alpha.0,
            self.beta.0,
        ]
    }

    /// Reads the words that [`Matmul::pack`] wrote: the product and the addresses of A, B and D. Returns `None` if the bytes do
    /// not have this layout.
    #[must_use]
    pub fn unpack(bytes: &[u8]) -> Option<(Self, [u64; 3])> {
        let [a, b, d, m, n, k, batch, lda, sa, ldb, sb, ldd, sd, flags, alpha, beta] =
            arguments::words(bytes)?;
        let dtype = arguments::dtype_of(flags >> 8)?;
        if flags & 0xfc != 0 {
            return None;
        }
        let operand = |leading_dimension, batch_stride, transposed| Operand {
            leading_dimension,
            batch_stride,
            transposed,
        };
        let matmul = Self {
            m,
            n,
            k,
            batch,
            dtype,
            a: operand(lda, sa, flags & 1 != 0),
            b: operand(ldb, sb, flags & 2 != 0),
            d: operand(ldd, sd, false),
            alpha: Factor(alpha),
            beta: Factor(beta),
        };
        Some((matmul, [a, b, d]))
    }
}

/// Returns whether the index of an operand's last element fits the address space.
fn addressable(operand: &Operand, rows: u64, columns: u64, batch: u64) -> bool {
    let last = |count: u64, stride: u64| count.saturating_sub(1).checked_mul(stride);
    let span = || {
        last(batch, operand.batch_stride)?
            .checked_add(last(rows, operand.leading_dimension)?)?
            .checked_add(columns)
    };
    span().is_some_and(|span| span <= isize::MAX as u64)
}

impl std::fmt::Display for Matmul {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mark = |operand: &Operand| if operand.transposed { "ᵀ" } else { "" };
        write!(
            f,
            "[{batch} × {m} × {n}] {sign} A{a} · B{b} over {k} ({dtype})",
            batch = self.batch,
            m = self.m,
            n = self.n,
            sign = if self.accumulates() { "+=" } else { "=" },
            a = mark(&self.a),
            b = mark(&self.b),
            k = self.k,
            dtype = self.dtype,
        )
    }
}
