//! The kernels of attention as CUDA C: a unit is one pass for one dtype, one number of features and one kind of tensor cores.
//!
//! This module and its parent use each other: the description of a pass selects which of these units it runs.

use thalweg_ir::DType;

use super::dropout;
use super::{Pass, TensorCores, most_features};
use crate::shared::{group_registers, group_rows};
use crate::source::Source;

/// Rows of queries that a block of [`Pass::Sums`] handles.
pub(super) const SUMS_ROWS: u64 = 16;

/// One kernel: its names and sizes. The sizes were chosen by measurements on an H100; see `docs/record`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unit {
    pass: Pass,
    dtype: DType,
    /// The tensor cores of the GPU; [`Unit::instructions`] are those that are used.
    cores: TensorCores,
    /// Whether a mask is added to the scores.
    is_masked: bool,
    /// Whether weights are dropped.
    is_dropped: bool,
    /// The number of features for which a tile has room: 32 (of f32 only), 64, 128 or 256.
    head: u32,
    /// The number of groups that share the features of the same rows.
    split: u32,
    /// The number of groups of four warps, each with 64 rows of its own.
    groups: u32,
    /// The number of rows of a tile of the other operands, which a block goes through.
    tile: u32,
    /// The number of tiles in flight at a time.
    stages: u32,
    /// The number of blocks of queries that shared memory holds: with two, the next one is copied while one is computed.
    query_buffers: u32,
    /// The number of registers of a thread that copies, and of one that computes.
    registers: [u32; 2],
    /// The number of blocks for which a multiprocessor has registers.
    resident: u32,
}

impl Unit {
    pub(super) fn of(
        pass: Pass,
        dtype: DType,
        features: u64,
        cores: TensorCores,
        [is_masked, is_dropped]: [bool; 2],
    ) -> Self {
        // The pass of sums reads no scores.
        let [is_masked, is_dropped] = [is_masked, is_dropped].map(|is| is && pass != Pass::Sums);
        let is_wide = dtype == DType::F32;
        let head = match features {
            _ if pass == Pass::Sums => 64,
            ..=32 if is_wide => 32,
            ..=64 => 64,
            65..=128 => 128,
            _ => 256,
        };
        let is_of_warps = matches!((pass, head), (Pass::Sums | Pass::Mask, _) | (Pass::Forward, 256));
        let cores = if is_of_warps || is_wide { TensorCores::Warp } else { cores };
        let takes_registers = is_masked || is_dropped;
        let (groups, tile, stages) = match (cores, pass, head) {
            (_, Pass::Mask, _) | (_, _, 128) if is_wide => (1, 32, 1),
            _ if is_wide => (1, 64, 1),
            (_, Pass::Mask, 256) => (1, 32, 1),
            (_, Pass::Mask, _) => (1, 64, 1),
            (_, Pass::Forward, 256) => (1, 32, 2),
            // Some GPUs of compute capability 8 have 99 KiB of shared memory.
            (TensorCores::Warp, _, 256) => (2, 32, 1),
            (_, _, 256) => (2, 32, 2),
            (TensorCores::Warp, ..) => (2, 64, 2),
            (_, Pass::Forward, _) if is_masked && is_dropped => (2, 64, 3),
            (_, Pass::Forward, 64) if takes_registers => (2, 128, 3),
            (_, Pass::Queries, 64 | 128) if takes_registers => (2, 64, 3),
            (_, Pass::Keys, 64) if takes_registers => (2, 64, 3),
            (_, Pass::Forward, 64) => (3, 128, 3),
            (_, Pass::Forward, _) => (2, 128, 3),
            (_, Pass::Queries, 64) => (3, 64, 4),
            (_, Pass::Queries, _) => (3, 64, 3),
            (_, _, 64) => (2, 128, 3),
            _ => (2, 64, 3),
        };
        // The registers of a multiprocessor, divided among the threads: one group of four warps copies.
        let registers = if groups == 3 { [32, 160] } else { [40, 232] };
        let query_buffers =
            if (pass, cores, head) == (Pass::Forward, TensorCores::WarpGroup, 64) { 2 } else { 1 };
        let split = if head == 256 && matches!(pass, Pass::Keys | Pass::Queries) { 2 } else { 1 };
        Self {
            pass,
            dtype,
            cores,
            is_masked,
            is_dropped,
            head,
            split,
            groups,
            tile,
            stages,
            query_buffers,
            registers,
            resident: match (is_wide, pass, head) {
                (false, ..) | (_, Pass::Mask, _) => 1,
                (true, _, 32) => 3,
                (true, ..) => 2,
            },
        }
    }

    /// Returns the instructions that the kernel uses. With 256 features, groups of warps would hold more sums than registers.
    pub(super) fn instructions(&self) -> TensorCores {
        if self.head == 256 { TensorCores::Warp } else { self.cores }
    }

    /// Returns whether blocks take one piece of work after another, so that there is one for each multiprocessor.
    pub(super) fn is_persistent(&self) -> bool {
        (self.pass, self.instructions()) == (Pass::Forward, TensorCores::WarpGroup)
    }

    /// Returns the number of rows of a tile of the other operands.
    pub(super) fn tile(&self) -> u64 {
        u64::from(self.tile)
    }

    /// Returns the number of rows that a block of threads owns.
    pub(super) fn rows(&self) -> u64 {
        u64::from(self.groups / self.split) * 64
    }

    pub(super) fn threads(&self) -> u32 {
        match (self.pass, self.instructions()) {
            (Pass::Sums, _) => 256,
            (_, TensorCores::Warp) => self.groups * 128,
            (_, TensorCores::WarpGroup) => (self.groups + 1) * 128,
        }
    }

    pub(super) fn shared_memory_bytes(&self) -> u32 {
        let row = self.head * self.dtype.size_bytes() as u32;
        let (own, tile) = (self.rows() as u32 * row, self.tile * row);
        // Barriers, and padding for alignment.
        let rest = 256 + 1024;
        match self.pass {
            Pass::Sums => 0,
            Pass::Forward => self.query_buffers * own + self.stages * 2 * tile + rest,
            // Each query has two more numbers.
            Pass::Keys => 2 * own + self.stages * (2 * tile + 1024) + rest,
            Pass::Queries | Pass::Mask => 2 * own + self.stages * 2 * tile + rest,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        macro_rules! kinds {
            ($($part:literal)*) => {
                match (self.is_masked, self.is_dropped) {
                    (false, false) => concat!("attention_", $($part),*),
                    (true, false) => concat!("attention_", $($part,)* "_masked"),
                    (false, true) => concat!("attention_", $($part,)* "_dropped"),
                    (true, true) => concat!("attention_", $($part,)* "_masked_dropped"),
                }
            };
        }
        macro_rules! passes {
            ($head:literal $dtype:literal) => {
                match (self.pass, self.cores) {
                    (Pass::Sums, _) => kinds!("sums_" $dtype),
                    (Pass::Forward, TensorCores::Warp) => kinds!("forward_" $head "_" $dtype),
                    (Pass::Forward, TensorCores::WarpGroup) => kinds!("forward_" $head "_" $dtype "_group"),
                    (Pass::Keys, TensorCores::Warp) => kinds!("keys_" $head "_" $dtype),
                    (Pass::Keys, TensorCores::WarpGroup) => kinds!("keys_" $head "_" $dtype "_group"),
                    (Pass::Queries, TensorCores::Warp) => kinds!("queries_" $head "_" $dtype),
                    (Pass::Queries, TensorCores::WarpGroup) => kinds!("queries_" $head "_" $dtype "_group"),
                    (Pass::Mask, _) => kinds!("mask_" $head "_" $dtype),
                }
            };
        }
        match (self.head, self.dtype) {
            (64, DType::Bf16) => passes!(64 "bfloat16"),
            (128, DType::Bf16) => passes!(128 "bfloat16"),
            (_, DType::Bf16) => passes!(256 "bfloat16"),
            (64, DType::F16) => passes!(64 "float16"),
            (128, DType::F16) => passes!(128 "float16"),
            (_, DType::F16) => passes!(256 "float16"),
            (32, DType::F32) => passes!(32 "float32"),
            (64, DType::F32) => passes!(64 "float32"),
            (_, DType::F32) => passes!(128 "float32"),
            _ => "attention_of_no_dtype",
        }
    }

    /// Returns the translation unit. A unit for groups of warps is empty on GPUs other than those of compute capability 9.0.
    pub(super) fn print(&self) -> String {
        let is_group = self.instructions() == TensorCores::WarpGroup;
        let [copier, summer] = self.registers;
        let source = Source::new(self.name())
            .elements(self.dtype)
            .define("HEAD", self.head)
            .define("GROUPS", self.groups)
            .define("TILE", self.tile)
            .define("STAGES", self.stages)
            .define("QUERY_BUFFERS", self.query_buffers)
            .define("THREADS", self.threads())
            .flag("OWNS_KEYS", self.pass == Pass::Keys)
            .flag("WARP_GROUPS", is_group)
            .flag("IS_BF16", self.dtype == DType::Bf16)
            .flag("WIDE", self.dtype == DType::F32)
            .define("RESIDENT", self.resident)
            .flag("MASKED", self.is_masked)
            .flag("DROPPED", self.is_dropped)
            .define("SPLIT", self.split)
            // Taking turns pays if exponentials take as long as products.
            .flag("TURNS", self.head == 64)
            .define("COPIER_REGISTERS", format_args!("\"{copier}\""))
            .define("SUMMER_REGISTERS", format_args!("\"{summer}\""));
        let source = match is_group {
            true => source
                .text(&group_rows(self.tile, self.dtype, [false, false]))
                .text(&group_registers(self.head, self.dtype)),
            false => source,
        };
        source.print(match (self.pass, is_group) {
            (Pass::Forward, false) => include_str!("forward_warps.cu"),
            (Pass::Forward, true) => include_str!("forward_groups.cu"),
            (Pass::Sums, _) => include_str!("sums.cu"),
            (Pass::Keys | Pass::Queries, _) => include_str!("backward.cu"),
            (Pass::Mask, _) => include_str!("mask.cu"),
        })
    }
}

/// Returns name and source of every unit.
pub(crate) fn sources() -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = vec![dropout::source()];
    let both = [false, true];
    let kinds = both.into_iter().flat_map(|is_masked| both.map(|is_dropped| [is_masked, is_dropped]));
    let passes = Pass::ALL.into_iter().flat_map(|pass| [32, 64, 128, 256].map(|features| (pass, features)));
    for (dtype, cores) in [DType::Bf16, DType::F16, DType::F32]
        .into_iter()
        .flat_map(|dtype| [TensorCores::Warp, TensorCores::WarpGroup].map(|cores| (dtype, cores)))
    {
        for (pass, features) in passes.clone().filter(|&(_, features)| features <= most_features(dtype)) {
            for kind in kinds.clone() {
                let unit = Unit::of(pass, dtype, features, cores, kind);
                let is_new = !all.iter().any(|(name, _)| name == unit.name());
                // There is no gradient of a mask without one.
                if is_new && (pass != Pass::Mask || unit.is_masked) {
                    all.push((unit.name().to_owned(), unit.print()));
                }
            }
        }
    }
    all
}
