//! The kernels of a [`FewRows`](super::FewRows). Some apply a layer norm to A's rows first: each block computes it itself, into
//! shared memory, while its first weights are being loaded.
//!
//! Kernels for float16 and bfloat16 use the tensor cores, and need compute capability 8.0: a warp handles eight rows of W, and up
//! to sixteen rows of A cost little more than one. Kernels for float32 multiply lane by lane. Rows of A are read from the cache.
//!
//! A kernel begins before the preceding kernel is complete: it brings its weights into the L2, and then waits.

use thalweg_ir::DType;

use crate::source::Source;

/// A variant for which there is a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variant {
    /// The dtype of all operands.
    pub dtype: DType,
    /// The most rows of A.
    pub rows: u64,
    /// The number of rows of W that a warp handles at a time.
    pub lines: u64,
    /// Whether rows of A are normalized first.
    pub norm: bool,
    /// The entry point's name.
    pub name: &'static str,
}

/// Lists variants by dtype, rows of A, rows of W at a time, and whether there is a norm.
macro_rules! variants {
    ($($dtype:ident $rows:literal $lines:literal $norm:literal $name:literal,)*) => {
        [$(Variant { dtype: DType::$dtype, rows: $rows, lines: $lines, norm: $norm, name: $name }),*]
    };
}

/// Every variant for which there is a kernel; those with fewer rows come first.
pub const VARIANTS: [Variant; 16] = variants![
    F32 1 1 false "few_rows_float32_1_1",
    F32 1 4 false "few_rows_float32_1_4",
    F32 4 1 false "few_rows_float32_4_1",
    F32 4 4 false "few_rows_float32_4_4",
    F32 16 1 false "few_rows_float32_16_1",
    F32 16 4 false "few_rows_float32_16_4",
    F32 1 1 true "few_rows_float32_1_1_norm",
    F32 1 4 true "few_rows_float32_1_4_norm",
    F32 4 1 true "few_rows_float32_4_1_norm",
    F32 4 4 true "few_rows_float32_4_4_norm",
    F16 8 8 false "few_rows_float16_8",
    F16 16 8 false "few_rows_float16_16",
    F16 8 8 true "few_rows_float16_8_norm",
    Bf16 8 8 false "few_rows_bfloat16_8",
    Bf16 16 8 false "few_rows_bfloat16_16",
    Bf16 8 8 true "few_rows_bfloat16_8_norm",
];

/// The most rows of A that are normalized.
pub const MOST_NORM_ROWS: u64 = 4;

/// The most bytes of the rows of A that are normalized.
pub const NORM_BYTES: u64 = 32 << 10;

/// The bytes between two such rows in shared memory, so that lanes that read several rows at once use different banks.
pub(super) const GAP_BYTES: u64 = 16;

/// The dynamic shared memory of a block that uses tensor cores, in bytes: the slots of its weights, rows of A that are
/// normalized, and enough padding that a multiprocessor of 228 KiB has two blocks but not three. A third block, of the next
/// kernel, which begins early, would take part of the memory's bandwidth, and leave other multiprocessors with one block.
pub(crate) const SHARED_BYTES: u64 = 72 << 10;
const SLOT_BYTES: u64 = 32 << 10;
const _: () = assert!(SLOT_BYTES + NORM_BYTES + MOST_NORM_ROWS * GAP_BYTES <= SHARED_BYTES);

/// The number of blocks that a multiprocessor runs at a time.
pub(super) const BLOCKS: u64 = 2;

/// Returns whether the kernels of a dtype use the tensor cores.
#[must_use]
pub fn needs_tensor_cores(dtype: DType) -> bool {
    dtype != DType::F32
}

impl Variant {
    /// Returns the translation unit, to be compiled with [`OPTIONS`](thalweg_ir::cuda::OPTIONS). Its entry point takes the words of
    /// [`FewRows::pack`](super::FewRows::pack) as one structure by value.
    #[must_use]
    pub fn print(&self) -> String {
        let &Self { dtype, rows, lines, norm, name } = self;
        let source = Source::new(name).elements(dtype).define("ROWS", rows).flag("HAS_NORM", norm);
        match needs_tensor_cores(dtype) {
            true => source.print(include_str!("tensor_cores.cu")),
            false => source.define("LINES", lines).print(include_str!("lanes.cu")),
        }
    }
}
