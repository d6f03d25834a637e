//! [`FewRows`]: up to sixteen rows times the transpose of a weight, fused with the operations around the product in a network: a
//! step of a decoder, whose time is that of reading its weights.
//!
//! D = act(norm(A) · Wᵀ + bias) + addend, where W has a row of k elements for each column of D, the bias has an element per
//! column, act is the identity or GELU by its tanh approximation, and norm is the identity or a layer norm of A's rows, rounded
//! to A's dtype. Sums are in f32, as is everything up to the single rounding when D is stored.
//!
//! # Invariants
//! - Terms are summed in an order that depends only on n and k, so the same row of A has the same bits in any batch.
//! - The addend may be D itself; other operands do not overlap D.

pub mod cuda;

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch, LaunchMode};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element, bf16, f16};

use super::fused::PerOperand;
use super::{Factor, Matmul, Operand};
use crate::arguments;
use crate::native::{Accesses, NativeKernel, Placed, Words, native};

/// The most rows of A.
pub const MOST_ROWS: u64 = 16;

/// The fewest elements of a weight for which a separate kernel pays.
const LEAST_ELEMENTS: u64 = 1 << 16;

/// The bytes that a thread loads at once.
const LOAD_BYTES: u64 = 16;

/// The dtypes for which there is a kernel.
pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// A product of few rows with fused operations. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FewRows {
    /// The product: A not transposed, W as the transpose of B, without factors and without a batch.
    pub product: Matmul,
    /// Whether a bias of n elements is added to each row.
    pub bias: bool,
    /// Whether GELU, by its tanh approximation, is applied after the bias.
    pub gelu: bool,
    /// The layout of a matrix that is added to the result; not transposed.
    pub addend: Option<Operand>,
    /// The bits of the number that is added to the variance, in f32, if rows of A are normalized, with a weight and a bias of k
    /// elements.
    pub norm_eps_bits: Option<u32>,
}

/// The number of 8-byte words that [`FewRows::pack`] writes.
pub const ARGUMENT_WORDS: usize = 16;

const BIAS: u64 = 16;
const ADDEND: u64 = 32;
const GELU: u64 = 64;
const NORM: u64 = 128;

/// Returns whether a product has few rows that the kernel supports: by its sizes and its dtype, and because loads of 16 bytes can
/// read it.
#[must_use]
pub fn fits(product: &Matmul) -> bool {
    let (m, n, k) = (product.m, product.n, product.k);
    (1..=MOST_ROWS).contains(&m) && n.saturating_mul(k) >= LEAST_ELEMENTS && refusal(product).is_none()
}

/// Returns whether a product supports a layer norm of A's rows before it: they must be few enough for a block's memory.
#[must_use]
pub fn takes_norm(product: &Matmul) -> bool {
    let bytes = product.m.saturating_mul(product.k).saturating_mul(product.dtype.size_bytes() as u64);
    (1..=cuda::MOST_NORM_ROWS).contains(&product.m) && bytes <= cuda::NORM_BYTES
}

/// Returns whether the kernel can read operands at these addresses: A and W at multiples of 16 bytes.
#[must_use]
pub fn is_aligned(a: u64, b: u64) -> bool {
    a.is_multiple_of(LOAD_BYTES) && b.is_multiple_of(LOAD_BYTES)
}

/// Returns the reason why the kernel cannot compute a product, if there is one.
fn refusal(product: &Matmul) -> Option<&'static str> {
    let Matmul { m, n, k, batch, dtype, a, b, d, alpha, beta } = *product;
    if !DTYPES.contains(&dtype) {
        return Some("it takes float32, float16 and bfloat16");
    }
    let width = LOAD_BYTES / dtype.size_bytes() as u64;
    let is_whole = |number: u64| number.is_multiple_of(width);
    if batch != 1 || m > MOST_ROWS || k >= 1 << 31 || n >= 1 << 31 {
        return Some("it takes one product of up to 16 rows, and fewer than 2³¹ columns and terms");
    }
    if a.transposed || !b.transposed || d.transposed {
        return Some("it takes the transpose of a weight, and nothing else transposed");
    }
    if !(is_whole(k) && is_whole(a.leading_dimension) && is_whole(b.leading_dimension)) {
        return Some("rows are multiples of 16 bytes");
    }
    (alpha != Factor::ONE || beta != Factor::ZERO).then_some("it takes no factors")
}

impl FewRows {
    /// Creates a product without fused operations.
    #[must_use]
    pub const fn unfused(product: Matmul) -> Self {
        Self { product, bias: false, gelu: false, addend: None, norm_eps_bits: None }
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
            row_sums: 0,
            norm: [if self.norm_eps_bits.is_some() { self.product.k } else { 0 }; 2],
        }
    }

    /// Checks that the kernel supports the description.
    ///
    /// # Errors
    /// Those of [`Matmul::check`]; and a sentence that names the unsupported part.
    pub fn check(&self) -> Result<(), Fault> {
        self.product.check()?;
        let fault = |why: &str| Err(Fault::new(format!("matmul of few rows {}: {why}", self.product)));
        if let Some(why) = refusal(&self.product) {
            return fault(why);
        }
        if self.norm_eps_bits.is_some() && !takes_norm(&self.product) {
            return fault("rows that are normalized are 1 to 4, of up to 32 KiB together");
        }
        match &self.addend {
            Some(addend)
                if addend.transposed || !super::addressable(addend, self.product.m, self.product.n, 1) =>
            {
                fault("the addend is transposed, or larger than can be addressed")
            }
            _ => Ok(()),
        }
    }

    /// Returns the kernel for this product.
    ///
    /// # Panics
    /// If there is no such kernel, which [`check`](Self::check) reports.
    fn variant(&self) -> cuda::Variant {
        let Matmul { dtype, m, .. } = self.product;
        let (lines, norm) = (self.lines(), self.norm_eps_bits.is_some());
        let takes = |variant: &cuda::Variant| {
            (variant.dtype, variant.lines, variant.norm) == (dtype, lines, norm) && variant.rows >= m
        };
        cuda::VARIANTS.into_iter().find(takes).expect("a product that was checked has a kernel")
    }

    /// Returns the number of rows of W that a warp handles at a time.
    fn lines(&self) -> u64 {
        let Matmul { dtype, n, .. } = self.product;
        match cuda::needs_tensor_cores(dtype) {
            true => 8,
            // Few rows of W are spread over more warps, so that they are all read at once.
            false if n < 1 << 14 => 1,
            false => 4,
        }
    }

    /// Returns the number of warps that share the terms of a row of W.
    fn split(&self) -> u64 {
        let Matmul { n, k, dtype, .. } = self.product;
        if cuda::needs_tensor_cores(dtype) {
            return shared_by(n, k * dtype.size_bytes() as u64);
        }
        let warps = n.div_ceil(self.lines()).max(1);
        // 16 warps on each of 132 multiprocessors saturate the memory.
        let wanted = (132 * 16_u64).div_ceil(warps);
        let chunks = k.div_ceil(32 * self.width());
        wanted.min(chunks.div_ceil(2)).max(1).next_power_of_two().min(8)
    }

    /// Returns the number of elements that a thread loads at once.
    fn width(&self) -> u64 {
        LOAD_BYTES / self.product.dtype.size_bytes() as u64
    }

    /// Returns the arguments of a launch as words: the addresses of A, W, D, bias and addend; m, n, k; the leading dimensions of A,
    /// W, D and the addend; a word of flags; the addresses of the norm's weight and bias; and the bits of the number that is added
    /// to the variance.
    #[must_use]
    pub fn pack(&self, at: &PerOperand) -> [u64; ARGUMENT_WORDS] {
        let Matmul { m, n, k, a, b, d, dtype, .. } = self.product;
        let set = |bit: u64, is: bool| if is { bit } else { 0 };
        let flags = u64::from(self.split().trailing_zeros())
            | set(BIAS, self.bias)
            | set(ADDEND, self.addend.is_some())
            | set(GELU, self.gelu)
            | set(NORM, self.norm_eps_bits.is_some())
            | arguments::number_of(dtype) << 8;
        let addend = self.addend.map_or(0, |addend| addend.leading_dimension);
        let (lda, ldb, ldd) = (a.leading_dimension, b.leading_dimension, d.leading_dimension);
        let ([norm_weight, norm_bias], eps) = (at.norm, u64::from(self.norm_eps_bits.unwrap_or(0)));
        [
            at.a,
            at.b,
            at.d,
            at.bias,
            at.addend,
            m,
            n,
            k,
            lda,
            ldb,
            ldd,
            addend,
            flags,
            norm_weight,
            norm_bias,
            eps,
        ]
    }

    /// Reads the words that [`FewRows::pack`] wrote. Returns `None` if the bytes do not have this layout.
    #[must_use]
    pub fn unpack(bytes: &[u8]) -> Option<(Self, PerOperand)> {
        let words: [u64; ARGUMENT_WORDS] = arguments::words(bytes)?;
        let [a, b, d, bias, addend, m, n, k, lda, ldb, ldd, lda_addend, flags, norm_weight, norm_bias, eps] =
            words;
        let operand =
            |leading_dimension, transposed| Operand { leading_dimension, batch_stride: 0, transposed };
        let product = Matmul {
            a: operand(lda, false),
            b: operand(ldb, true),
            d: operand(ldd, false),
            ..Matmul::contiguous(m, n, k, 1, arguments::dtype_of(flags >> 8)?)
        };
        let few = Self {
            product,
            bias: flags & BIAS != 0,
            gelu: flags & GELU != 0,
            addend: (flags & ADDEND != 0).then(|| operand(lda_addend, false)),
            norm_eps_bits: (flags & NORM != 0).then_some(eps as u32),
        };
        let norm = [norm_weight, norm_bias];
        Some((few, PerOperand { a, b, d, bias, addend, row_sums: 0, norm }))
    }

    /// Computes a row of A after the layer norm, or, if the bias is empty, after the root-mean-square norm, by the formula in f64.
    pub(crate) fn normalized<X: Element, T: Element>(
        row: &[X],
        [weight, bias]: [&[T]; 2],
        eps: f32,
    ) -> Vec<T> {
        let count = row.len() as f64;
        let is_centred = !bias.is_empty();
        let mean = if is_centred { row.iter().map(|x| x.to_f64()).sum::<f64>() / count } else { 0.0 };
        let variance = row.iter().map(|x| (x.to_f64() - mean).powi(2)).sum::<f64>() / count;
        let factor = 1.0 / (variance + f64::from(eps)).sqrt();
        let biases = bias.iter().map(|b| b.to_f64()).chain(std::iter::repeat(0.0));
        let each = row.iter().zip(weight.iter().zip(biases));
        each.map(|(x, (w, b))| T::from_f64((x.to_f64() - mean) * factor * w.to_f64() + b)).collect()
    }

    /// Returns an element of D before it is rounded, in float32, with the GPU's bits if there is no GELU and no norm. Each lane
    /// of the warps that share a row sums its terms, the lanes of a warp are added as a tree, and then the warps in order.
    fn element<T: Element>(&self, a: &[T], weight: &[T], bias: f32) -> f32 {
        let (width, split) = (self.width() as usize, self.split() as usize);
        let mut lanes = vec![[0.0_f32; 32]; split];
        let chunks = a.chunks(32 * width).zip(weight.chunks(32 * width));
        for (chunk, (a, weight)) in chunks.enumerate() {
            let sums = &mut lanes[chunk % split];
            for (sum, (a, weight)) in sums.iter_mut().zip(a.chunks(width).zip(weight.chunks(width))) {
                for (a, weight) in a.iter().zip(weight) {
                    *sum = (weight.to_f64() as f32).mul_add(a.to_f64() as f32, *sum);
                }
            }
        }
        let mut parts = lanes.iter().map(|lanes| {
            let mut lanes = *lanes;
            for step in [1, 2, 4, 8, 16] {
                (0..32).step_by(2 * step).for_each(|lane| lanes[lane] += lanes[lane + step]);
            }
            lanes[0]
        });
        let first = parts.next().unwrap_or(0.0);
        let sum = parts.fold(first, |sum, part| sum + part);
        let sum = if self.bias { sum + bias } else { sum };
        if self.gelu { gelu(sum) } else { sum }
    }
}

/// Returns the number of warps that share the terms of eight rows of weights of `row_bytes` bytes, if a warp reads 64 bytes of
/// each per step.
pub(super) fn shared_by(rows: u64, row_bytes: u64) -> u64 {
    let wanted = (132 * 16_u64).div_ceil(rows.div_ceil(8).max(1));
    // Small shares balance the multiprocessors. A share is as small as the data that a warp has in flight, or as two steps if
    // there are few.
    let steps = row_bytes.div_ceil(64);
    let deep = 1 << (steps / 8).max(1).ilog2();
    wanted.min(steps / 2).max(1).next_power_of_two().max(deep).min(8)
}

/// Returns GELU by its tanh approximation: 0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³))).
pub(crate) fn gelu(x: f32) -> f32 {
    let inner =
        std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2 * (x + 0.044_715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

/// The most blocks of a launch, as many as an H100 runs at a time. A block with more rows of W loads the next ones while it
/// computes, and normalizes A once.
pub(super) const MOST_BLOCKS: u64 = 132 * cuda::BLOCKS;

/// Operands: the addresses of a [`PerOperand`], without sums of rows.
impl NativeKernel for Placed<FewRows, PerOperand> {
    native! { self: self.kernel.variant().name, self.kernel.variant().print(), run_on_host }

    fn check(&self) -> Result<(), Fault> {
        self.kernel.check()?;
        Fault::unless(
            is_aligned(self.at.a, self.at.b) && is_aligned(self.at.norm[0], self.at.norm[1]),
            || {
                "matmul of few rows: A, W and the norm's weight and bias lie on multiples of 16 bytes"
                    .to_owned()
            },
        )
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let Matmul { m, n, .. } = self.kernel.product;
        let lines = self.kernel.lines() * (8 / self.kernel.split());
        let blocks = n.div_ceil(lines).min(MOST_BLOCKS);
        (m > 0 && n > 0).then_some(LaunchShape { grid: [blocks as u32, 1, 1], block: [256, 1, 1] })
    }

    fn mode(&self) -> LaunchMode {
        LaunchMode::Programmatic
    }

    fn shared_memory_bytes(&self) -> u32 {
        let Matmul { m, k, dtype, .. } = self.kernel.product;
        match self.kernel.norm_eps_bits {
            _ if cuda::needs_tensor_cores(dtype) => cuda::SHARED_BYTES as u32,
            Some(_) => (m * (k * dtype.size_bytes() as u64 + cuda::GAP_BYTES)) as u32,
            None => 0,
        }
    }

    fn words(&self) -> Words {
        self.kernel.pack(&self.at).into_iter().collect()
    }

    fn accesses(&self) -> Accesses {
        let Self { kernel, at } = self;
        let (product, spans) = (&kernel.product, kernel.spans());
        let size = product.dtype.size_bytes() as u64;
        let read = |address: u64, span: u64| Access::read(DevicePointer::new(address), span * size);
        let touch = |operand: &Operand, rows, columns| {
            super::native::touch_of_matrix(product, operand, rows, columns)
        };
        let (m, n, k) = (product.m, product.n, product.k);
        let mut accesses = Accesses::from_iter([
            read(at.a, spans.a).touching(touch(&product.a, m, k)),
            read(at.b, spans.b).touching(touch(&product.b, k, n)),
            read(at.bias, spans.bias),
            read(at.norm[0], spans.norm[0]),
            read(at.norm[1], spans.norm[1]),
            Access::write(DevicePointer::new(at.d), spans.d * size).touching(touch(&product.d, m, n)),
        ]);
        if let Some(addend) = &kernel.addend {
            accesses.push(read(at.addend, spans.addend).touching(touch(addend, m, n)));
        }
        accesses
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (few, at) = FewRows::unpack(launch.arguments)
        .ok_or_else(|| HostFault("matmul of few rows: the arguments are not in its layout".to_owned()))?;
    match few.product.dtype {
        DType::F32 => run_typed::<f32>(launch, &few, &at),
        DType::F16 => run_typed::<f16>(launch, &few, &at),
        DType::Bf16 => run_typed::<bf16>(launch, &few, &at),
        other => Err(HostFault(format!("matmul of few rows: there is none of {other}"))),
    }
}

fn run_typed<T: Element>(launch: &HostLaunch<'_>, few: &FewRows, at: &PerOperand) -> Result<(), HostFault> {
    let spans = few.spans();
    let read = |address: u64, span: u64| -> Result<&[T], HostFault> {
        if span == 0 { Ok(&[]) } else { launch.read(DevicePointer::new(address), span as usize) }
    };
    let Matmul { m, n, k, a: left, b: right, d: result, .. } = few.product;
    let (a, b, bias) = (read(at.a, spans.a)?, read(at.b, spans.b)?, read(at.bias, spans.bias)?);
    let addend = read(at.addend, spans.addend)?;
    let d = launch.write::<T>(DevicePointer::new(at.d), spans.d as usize)?;
    let norm = [read(at.norm[0], spans.norm[0])?, read(at.norm[1], spans.norm[1])?];
    let rows: Vec<Vec<T>> = (0..m as usize)
        .map(|row| {
            let row = &a[row * left.leading_dimension as usize..][..k as usize];
            match few.norm_eps_bits {
                Some(eps) => FewRows::normalized(row, norm, f32::from_bits(eps)),
                None => row.to_vec(),
            }
        })
        .collect();
    for (row, column) in (0..m as usize).flat_map(|row| (0..n as usize).map(move |column| (row, column))) {
        let bias = bias.get(column).map_or(0.0, |bias| bias.to_f64() as f32);
        let mut value =
            few.element(&rows[row], &b[column * right.leading_dimension as usize..][..k as usize], bias);
        if let Some(operand) = &few.addend {
            value += addend[row * operand.leading_dimension as usize + column].to_f64() as f32;
        }
        d[row * result.leading_dimension as usize + column] = T::from_f64(f64::from(value));
    }
    Ok(())
}
