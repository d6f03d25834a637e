//! [`Attention`]: softmax(scale · q · kᵀ) · v without the matrix of scores in memory, and its gradient.
//!
//! The operands are (batch, heads, tokens, features) with any strides except that features are contiguous. Keys and values may
//! have fewer heads, each of which serves several consecutive heads of the queries. `lse` is the natural logarithm of the sum of
//! a row's exponentials, f32, contiguous (batch, heads, queries). The gradient needs nothing but `lse`, the operands and the
//! result, and with dropout the generator's state, from which it [draws the same numbers](Dropout) as the forward pass.
//!
//! # On a GPU
//! There are five kernels, one per [`Pass`]. Products use the tensor cores, with 16-bit floats and sums in f32; weights, and the
//! gradients of scores, are rounded to the operands' dtype before they are multiplied. An f32 is multiplied as the sum of two numbers of
//! TF32, which takes three products and keeps 21 binary digits of each factor. Each element of each result is summed by
//! one thread block in an order that follows from the sizes, so a call always returns the same bits. The gradient computes the
//! scores twice: once per block of keys (for the gradients of keys and values), and once per block of queries. Adding the
//! queries' gradient from all blocks of keys instead would save two of seven products, but its bits would depend on timing. The
//! gradient of a mask that repeats is summed where the scores are computed, a third time; nothing of the size of the scores is
//! stored.
//!
//! # On the host
//! All computations are in f32, rounded once at the end.

mod dropout;
mod host;
mod native;
mod source;

use thalweg_driver::Touch;
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use crate::operands::span;

pub use dropout::{Dropout, KeptAddresses, KeptWeights, WORDS};
pub use host::{Operands, Outputs, run_on_host};
use source::Unit;
pub(crate) use source::sources;

/// Returns the most features of a head: with 32-bit floats those for whose gradient each GPU of compute capability 8 has shared memory.
#[must_use]
pub const fn most_features(dtype: DType) -> u64 {
    if matches!(dtype, DType::F32) { 128 } else { 256 }
}

/// Returns the number of elements that one copy of 16 bytes transfers: features, bases and strides are multiples of it.
#[must_use]
pub const fn chunk(dtype: DType) -> u64 {
    16 / dtype.size_bytes() as u64
}

/// The [`chunk`] of the dtypes that a vendor's library takes, which all have 16 bits.
pub const CHUNK_OF_LIBRARY: u64 = chunk(DType::Bf16);

/// Rows of the [sums](PerOperand) of a head are padded to a multiple of this.
const PADDING: u64 = 128;

/// The number of blocks of the gradient of a mask for each multiprocessor: as many as its shared memory has room for.
const BLOCKS_OF_MASK: u64 = 4;

/// The most bytes of keys and values of all heads in flight together: about half of a large GPU's cache.
const CACHED_BYTES: u64 = 24 << 20;

/// One value per operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PerOperand<T> {
    /// Queries.
    pub q: T,
    /// Keys.
    pub k: T,
    /// Values.
    pub v: T,
    /// The result.
    pub o: T,
    /// The gradient of the result.
    pub grad_o: T,
    /// The gradient of the queries.
    pub grad_q: T,
    /// The gradient of the keys.
    pub grad_k: T,
    /// The gradient of the values.
    pub grad_v: T,
}

impl<T: Copy> PerOperand<T> {
    /// Returns the values in the order of the fields.
    pub fn list(&self) -> [T; 8] {
        [self.q, self.k, self.v, self.o, self.grad_o, self.grad_q, self.grad_k, self.grad_v]
    }

    /// Creates one from a list in the order of the fields.
    pub fn of([q, k, v, o, grad_o, grad_q, grad_k, grad_v]: [T; 8]) -> Self {
        Self { q, k, v, o, grad_o, grad_q, grad_k, grad_v }
    }
}

/// The strides of an operand, in elements; features are contiguous.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Strides {
    /// The distance from one batch to the next.
    pub batch: u64,
    /// The distance from one head to the next.
    pub head: u64,
    /// The distance from one token to the next.
    pub row: u64,
}

/// The strides of a mask: any number of elements, 0 where it repeats.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MaskStrides {
    /// The distance from one batch to the next.
    pub batch: u64,
    /// The distance from one head of the queries to the next.
    pub head: u64,
    /// The distance from one query to the next.
    pub query: u64,
    /// The distance from one key to the next.
    pub key: u64,
}

impl MaskStrides {
    /// Returns the strides in the order of the fields.
    fn list(self) -> [u64; 4] {
        [self.batch, self.head, self.query, self.key]
    }
}

/// A mask: the kind of its elements, and their layout.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Mask {
    /// The strides.
    pub strides: MaskStrides,
    /// Whether the elements are truth values of one byte, true where a query sees a key, and not numbers of the operands' dtype
    /// that are added to the scores.
    pub is_truth: bool,
}

impl Mask {
    /// Returns whether a vendor's library may read the mask at this address: it is of numbers, keys are contiguous, and all else is
    /// in multiples of 16 bytes.
    #[must_use]
    pub const fn is_of_library(&self, address: u64) -> bool {
        let MaskStrides { batch, head, query, key } = self.strides;
        let is_whole = batch.is_multiple_of(CHUNK_OF_LIBRARY)
            && head.is_multiple_of(CHUNK_OF_LIBRARY)
            && query.is_multiple_of(CHUNK_OF_LIBRARY);
        !self.is_truth && key == 1 && is_whole && address.is_multiple_of(16)
    }
}

/// The sizes of attention, and the layouts of its operands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Attention {
    /// The dtype of all operands: bf16, f16 or f32.
    pub dtype: DType,
    /// The number of batches.
    pub batch: u64,
    /// The number of heads of the queries.
    pub heads: u64,
    /// The number of heads of keys and values: a divisor of `heads`.
    pub kv_heads: u64,
    /// The number of queries of a head.
    pub queries: u64,
    /// The number of keys of a head.
    pub keys: u64,
    /// The number of features of a head: a multiple of [`chunk`], at most [`most_features`].
    pub features: u64,
    /// Whether query i sees only the keys up to the i-th.
    pub is_causal: bool,
    /// The bits of the scores' factor, an f32 above 0.
    pub scale_bits: u32,
    /// The strides of each operand.
    pub strides: PerOperand<Strides>,
    /// The mask, if there is one. A query whose keys all have −∞ or are not seen has zeros as result, and gradients of 0.
    pub mask: Option<Mask>,
    /// The strides of a part of the gradient of the mask, in its own pass: 0 where the mask repeats or has one element.
    pub grad_mask: MaskStrides,
    /// The number of parts into which the heads (of all batches) along which the mask repeats are divided. Each has its own sums, in
    /// f32, one part after another; the gradient is their sum.
    pub mask_parts: u64,
    /// The dropout of weights, if there is one.
    pub dropout: Option<Dropout>,
}

/// The kernels of attention.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pass {
    /// The result and `lse`, from q, k and v.
    Forward,
    /// The numbers per query that the gradient needs: lse in base 2, and the sum over result times gradient of the result.
    Sums,
    /// The gradients of keys and values, from q, k, v, the gradient of the result, and the sums.
    Keys,
    /// The gradient of the queries, from the same operands.
    Queries,
    /// The gradient of the mask, from the same operands.
    Mask,
}

impl Pass {
    /// Every pass.
    pub const ALL: [Self; 5] = [Self::Forward, Self::Sums, Self::Keys, Self::Queries, Self::Mask];
}

/// The tensor cores' instructions that a kernel uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TensorCores {
    /// Instructions of one warp: GPUs from compute capability 8.0 on.
    Warp,
    /// Instructions of four warps, which read shared memory themselves: compute capability 9.0 only.
    WarpGroup,
}

/// A pass of attention, as a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AttentionPass {
    /// The sizes and the layouts of the operands.
    pub attention: Attention,
    /// The part of the work that this kernel does.
    pub pass: Pass,
    /// The instructions for products.
    pub cores: TensorCores,
    /// The number of the device's multiprocessors. Where blocks take one piece of work after another, one block keeps each of
    /// them busy.
    pub processors: u32,
}

/// Passes of a gradient, after the one whose sums they read.
#[derive(Clone, Copy, Debug)]
pub struct GradientPasses<'p> {
    /// The first pass: [`Pass::Sums`].
    pub sums: AttentionPass,
    /// The others.
    pub passes: &'p [Pass],
}

/// Attention, or its complete gradient, as one command: a call of a vendor's library, which the simulator executes with the same
/// passes as a host function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LibraryAttention {
    /// The sizes and the layouts of the operands.
    pub attention: Attention,
    /// Whether the call computes the gradient of queries, keys and values.
    pub is_backward: bool,
    /// Whether a gradient must have the same bits each time.
    pub is_deterministic: bool,
}

/// The addresses at which the operands of a pass begin; those that the pass does not touch are 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Addresses {
    /// The operands.
    pub operands: PerOperand<u64>,
    /// The logarithms of the sums of exponentials.
    pub lse: u64,
    /// The address of [`Attention::sums`] elements of f32, which the gradient's passes pass on to each other.
    pub sums: u64,
    /// The mask.
    pub mask: u64,
    /// The parts of the gradient of the mask, in f32.
    pub grad_mask: u64,
    /// Seed and offset of the generator that dropout draws from, as two int64.
    pub state: u64,
}

/// The number of 8-byte words that [`AttentionPass::pack`] writes.
pub const ARGUMENT_WORDS: usize = 60;

impl Attention {
    /// Returns the factor of the scores.
    #[must_use]
    pub fn scale(&self) -> f32 {
        f32::from_bits(self.scale_bits)
    }

    /// Returns the number of elements of `lse`.
    #[must_use]
    pub fn lse(&self) -> u64 {
        self.batch * self.heads * self.queries
    }

    /// Returns the number of elements of f32 that the gradient's passes pass on to each other.
    #[must_use]
    pub fn sums(&self) -> u64 {
        2 * self.batch * self.heads * self.padded_queries()
    }

    pub(crate) fn padded_queries(&self) -> u64 {
        self.queries.next_multiple_of(PADDING)
    }

    /// Returns the numbers of heads and rows of each operand.
    fn extents(&self) -> PerOperand<[u64; 2]> {
        let (q, k) = ([self.heads, self.queries], [self.kv_heads, self.keys]);
        PerOperand::of([q, k, k, q, q, q, k, k])
    }

    /// Returns the number of elements that each operand spans, counted from its first.
    #[must_use]
    pub fn spans(&self) -> PerOperand<u64> {
        let (strides, extents) = (self.strides.list(), self.extents().list());
        PerOperand::of(std::array::from_fn(|at| {
            let (Strides { batch, head, row }, [heads, rows]) = (strides[at], extents[at]);
            match self.batch * heads * rows * self.features {
                0 => 0,
                _ => (self.batch - 1) * batch + (heads - 1) * head + (rows - 1) * row + self.features,
            }
        }))
    }

    /// Returns the bytes of its span that each operand touches.
    fn touches(&self) -> PerOperand<Touch> {
        let (strides, extents) = (self.strides.list(), self.extents().list());
        PerOperand::of(std::array::from_fn(|at| {
            let (Strides { batch, head, row }, [heads, rows]) = (strides[at], extents[at]);
            let dimensions = [(self.batch, batch), (heads, head), (rows, row), (self.features, 1)];
            Touch::of(dimensions.into_iter(), self.dtype.size_bytes() as u64)
        }))
    }

    /// Returns the number of elements that the mask spans, counted from its first, and the bytes of the span that it touches.
    fn mask_span(&self) -> (u64, Touch) {
        match self.mask {
            Some(mask) => self.span_of_scores(mask.strides, self.mask_bytes()),
            None => (0, Touch::default()),
        }
    }

    /// Returns the number of elements of a part of the gradient of the mask, whose strides leave no gaps.
    #[must_use]
    pub fn elements_of_mask_part(&self) -> u64 {
        self.span_of_scores(self.grad_mask, 1).0
    }

    /// Returns the size of an element of the mask.
    fn mask_bytes(&self) -> u64 {
        if self.mask.is_some_and(|mask| mask.is_truth) { 1 } else { self.dtype.size_bytes() as u64 }
    }

    /// Returns the number of elements that a tensor over the scores spans, and the bytes of the span that it touches.
    fn span_of_scores(&self, strides: MaskStrides, element: u64) -> (u64, Touch) {
        let (extents, strides) = ([self.batch, self.heads, self.queries, self.keys], strides.list());
        (span(extents, strides), Touch::of(extents.into_iter().zip(strides), element))
    }

    /// Checks that the kernels support the description.
    ///
    /// # Errors
    /// If dtype, features, keys, heads, scale or strides are not supported, or a head has 2³⁰ tokens.
    pub fn check(&self) -> Result<(), Fault> {
        let fault = |text: String| Err(Fault::new(format!("attention: {text}")));
        if !matches!(self.dtype, DType::Bf16 | DType::F16 | DType::F32) {
            return fault(format!("operands are bfloat16, float16 or float32, not {}", self.dtype));
        }
        let (most, chunk) = (most_features(self.dtype), chunk(self.dtype));
        if self.features == 0 || self.features > most || !self.features.is_multiple_of(chunk) {
            let features = self.features;
            return fault(format!("a head has a multiple of {chunk} up to {most} features, not {features}"));
        }
        if self.keys == 0 {
            return fault("there is no key".to_owned());
        }
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            let (heads, kv_heads) = (self.heads, self.kv_heads);
            return fault(format!("{kv_heads} heads of keys cannot be shared by {heads} heads of queries"));
        }
        if self.dropout.is_some_and(|dropout| dropout.kept >= 1 << 16) {
            return fault("dropout keeps fewer than all weights".to_owned());
        }
        if !(self.scale() > 0.0 && self.scale().is_finite()) {
            return fault(format!("the scale is above 0, not {}", self.scale()));
        }
        if self.batch * self.heads > 1 << 24 || self.queries.max(self.keys) > 1 << 30 {
            return fault("there are at most 2²⁴ heads, of 2³⁰ tokens each".to_owned());
        }
        let strides = self.strides.list();
        if strides
            .iter()
            .any(|one| ![one.batch, one.head, one.row].iter().all(|step| step.is_multiple_of(chunk)))
        {
            return fault(format!("strides are multiples of {chunk} elements"));
        }
        Ok(())
    }
}

impl AttentionPass {
    /// Returns the variant of the kernel.
    fn unit(&self) -> Unit {
        let Attention { dtype, features, mask, dropout, .. } = self.attention;
        Unit::of(self.pass, dtype, features, self.cores, [mask.is_some(), dropout.is_some()])
    }

    /// Returns the number of thread blocks per head, and the number of heads.
    fn blocks(&self) -> [u64; 2] {
        let Attention { batch, heads, kv_heads, queries, keys, .. } = self.attention;
        match self.pass {
            Pass::Keys => [keys.div_ceil(self.unit().rows()), batch * kv_heads],
            Pass::Mask => {
                let MaskStrides { batch: of_batch, head, query, key } = self.attention.grad_mask;
                let own = |step: u64, count: u64| if step == 0 { 1 } else { count };
                let tiles = own(query, queries.div_ceil(64)) * own(key, keys.div_ceil(self.unit().tile()));
                [tiles, own(of_batch, batch) * own(head, heads) * self.attention.mask_parts]
            }
            _ => [queries.div_ceil(self.unit().rows()), batch * heads],
        }
    }

    /// Returns the number of [parts](Attention::mask_parts) of the gradient of a mask that keep all multiprocessors busy.
    #[must_use]
    pub fn parts_of_mask(&self) -> u64 {
        let attention = Attention { mask_parts: 1, ..self.attention };
        let [tiles, heads] = Self { attention, pass: Pass::Mask, ..*self }.blocks();
        let repeated = attention.batch * attention.heads / heads.max(1);
        let wanted = u64::from(self.processors) * BLOCKS_OF_MASK;
        wanted.div_ceil((tiles * heads).max(1)).min(repeated).max(1)
    }

    /// Returns the number of heads in flight together: those whose operands stay in the cache.
    fn band(&self) -> u64 {
        let Attention { dtype, heads, kv_heads, queries, keys, features, is_causal, .. } = self.attention;
        let bytes = |rows: u64| (rows * features * 2 * dtype.size_bytes() as u64).max(1);
        let [_, all] = self.blocks();
        let shared = heads / kv_heads;
        let band = match self.pass {
            Pass::Keys => CACHED_BYTES / (bytes(queries) * shared),
            // Persistent blocks finish at the same time only if all of them get short work last.
            Pass::Forward if is_causal && self.unit().is_persistent() => all,
            _ => CACHED_BYTES / bytes(keys) * shared,
        };
        band.clamp(1, all.max(1))
    }

    /// Returns whether this kernel was faster than cuDNN's on an H200: the forward pass by groups of warps, with many tokens,
    /// and, of the masked calls, only those whose mask does not depend on the query (the records of 2026-11-26 and 2026-11-27).
    #[must_use]
    pub fn is_ahead_of_library(&self) -> bool {
        let Attention { features, queries, keys, is_causal, mask, .. } = self.attention;
        let tokens = match (features, is_causal, mask.map(|mask| mask.strides)) {
            (33..=64, false, None) => 2048,
            (33..=64, true, None) => 4096,
            (97..=128, true, None) => 16_384,
            (97..=128, false, Some(MaskStrides { query: 0, .. })) => 4096,
            _ => return false,
        };
        let [blocks, heads] = self.blocks();
        let is_measured = (self.pass, self.cores) == (Pass::Forward, TensorCores::WarpGroup);
        is_measured && queries.min(keys) >= tokens && blocks * heads >= u64::from(self.processors)
    }

    fn shape(&self) -> Option<LaunchShape> {
        let [blocks, heads] = match self.pass {
            Pass::Sums => [self.attention.sums() / 2 / source::SUMS_ROWS, 1],
            _ => self.blocks(),
        };
        let all = u32::try_from(blocks * heads).ok().filter(|&all| all > 0)?;
        let grid = if self.unit().is_persistent() { all.min(self.processors.max(1)) } else { all };
        Some(LaunchShape { grid: [grid, 1, 1], block: [self.unit().threads(), 1, 1] })
    }

    /// Returns the arguments of a launch as words: address and strides of each operand, in the order of [`PerOperand`]; the
    /// addresses of lse and sums; heads, queries' heads per head of keys, queries, keys, padded queries, blocks per head, heads
    /// of a band, heads of all batches; features, and flags for causal (bit 0), a mask (bit 1) of truth values (bit 2) and
    /// dropout (bit 3); scale in base 2, and scale; the numbers of dtype and pass; address and strides of the mask and of its
    /// gradient, elements of a part and number of parts of that; the address of the generator's state, how many of 2¹⁶ values keep a weight, and the factor of those weights.
    #[must_use]
    pub fn pack(&self, at: &Addresses) -> [u64; ARGUMENT_WORDS] {
        let Attention { batch, heads, kv_heads, queries, keys, features, is_causal, mask, .. } =
            self.attention;
        let (Mask { strides: added, is_truth }, dropout) = (mask.unwrap_or_default(), self.attention.dropout);
        let flags = [is_causal, mask.is_some(), is_truth, dropout.is_some()];
        let flags = flags.into_iter().zip(0..).map(|(is, bit)| u32::from(is) << bit).sum();
        let (kept, rescale) = dropout.map_or((0, 1.0), |dropout| (dropout.kept, dropout.rescale()));
        let of_mask = self.attention.grad_mask;
        let halves = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let scale = self.attention.scale();
        let mut words = [0; ARGUMENT_WORDS];
        let operands = at.operands.list().into_iter().zip(self.attention.strides.list());
        for (four, (address, strides)) in words.chunks_exact_mut(4).zip(operands) {
            four.copy_from_slice(&[address, strides.batch, strides.head, strides.row]);
        }
        let pass = Pass::ALL.iter().position(|&pass| pass == self.pass).expect("ALL lists every pass") as u64;
        words[32..].copy_from_slice(&[
            at.lse,
            at.sums,
            heads,
            heads / kv_heads.max(1),
            queries,
            keys,
            self.attention.padded_queries(),
            self.blocks()[0],
            self.band(),
            batch * heads,
            halves(features as u32, flags),
            halves((scale * std::f32::consts::LOG2_E).to_bits(), scale.to_bits()),
            crate::arguments::number_of(self.attention.dtype),
            pass,
            at.mask,
            added.batch,
            added.head,
            added.query,
            added.key,
            at.grad_mask,
            of_mask.batch,
            of_mask.head,
            of_mask.query,
            of_mask.key,
            self.attention.elements_of_mask_part(),
            self.attention.mask_parts,
            at.state,
            halves(kept, rescale.to_bits()),
        ]);
        words
    }

    /// Reads the words that [`AttentionPass::pack`] wrote. Returns `None` if the bytes do not have this layout.
    #[must_use]
    pub fn unpack(bytes: &[u8]) -> Option<(Self, Addresses)> {
        let words = crate::arguments::words::<ARGUMENT_WORDS>(bytes)?;
        let (operands, rest) = words.split_at(32);
        let (rest, of_scores) = rest.split_at(14);
        let (of_masks, drawn) = of_scores.split_at(12);
        let [lse, sums, heads, shared, queries, keys, _, _, _, all, features, scale, dtype, pass] =
            *rest.as_array()?;
        let strides = |of: &[u64]| {
            let [batch, head, query, key] = *of.as_array()?;
            Some(MaskStrides { batch, head, query, key })
        };
        let (flags, [state, kept]) = (features >> 32, *drawn.as_array()?);
        let (added, grad_mask) = (strides(&of_masks[1..5])?, strides(&of_masks[6..10])?);
        let of_operands = std::array::from_fn(|at| Strides {
            batch: operands[at * 4 + 1],
            head: operands[at * 4 + 2],
            row: operands[at * 4 + 3],
        });
        let attention = Attention {
            dtype: crate::arguments::dtype_of(dtype)?,
            batch: all.checked_div(heads)?,
            heads,
            kv_heads: heads.checked_div(shared)?,
            queries,
            keys,
            features: features & u64::from(u32::MAX),
            is_causal: flags & 1 != 0,
            scale_bits: (scale >> 32) as u32,
            strides: PerOperand::of(of_operands),
            mask: (flags & 2 != 0).then_some(Mask { strides: added, is_truth: flags & 4 != 0 }),
            grad_mask,
            mask_parts: of_masks[11],
            dropout: (flags & 8 != 0).then_some(Dropout { kept: kept as u32 }),
        };
        let pass = *Pass::ALL.get(usize::try_from(pass).ok()?)?;
        let operands = PerOperand::of(std::array::from_fn(|at| operands[at * 4]));
        // The host's result does not depend on how a GPU computes it.
        Some((
            Self { attention, pass, cores: TensorCores::Warp, processors: 0 },
            Addresses { operands, lse, sums, mask: of_masks[0], grad_mask: of_masks[5], state },
        ))
    }
}
