//! [`WarpGroupMatmul`]: large products of 16-bit floats on the tensor cores of compute capability 9.0, whose groups of four warps
//! read their operands from shared memory, to which the copy engine brings them (CUDA's `wgmma` and `cp.async.bulk.tensor`).
//!
//! The kernel is a candidate of tuning in addition to the library's algorithms. It does not split k, so products with few
//! elements and many terms are left to the library.
//!
//! # Invariants
//! - Terms are summed in f32 in an order that depends only on k, so the same rows have the same bits in any batch, and in every
//!   run.
//! - Operands do not overlap D.

use std::sync::{Arc, OnceLock};

use thalweg_driver::{
    DevicePointer, HostFault, HostKernel, HostLaunch, MatmulEpilogue, TILE_ROW_BYTES, TensorMap, TensorTiles,
};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use super::native::{EPILOGUE_WORDS, library_accesses, library_words, run_words_on_host};
use super::{Factor, Matmul, Operand};
use crate::native::{Accesses, NativeKernel, Placed, Words};
use crate::shared::group_rows;
use crate::source::Source;

/// The number of threads of a block: one of them copies, two groups of 128 multiply.
const THREADS: u32 = 384;

/// The bytes through which the eight multiplying warps of a block pass rows to the copy engine: twice 16 rows of 128 bytes for
/// each.
const OUT_BYTES: u32 = 8 * 2 * 16 * 128;

/// The number of terms of a tile: a row of 128 bytes.
const TERMS: u64 = TILE_ROW_BYTES / 2;

/// The number of words that the host function reads: those of the library's call.
const HOST_WORDS: usize = 24;

/// The number of words of a launch: three maps, eight numbers, and the host function's.
const ARGUMENT_WORDS: usize = 3 * 16 + 8 + HOST_WORDS;

/// The shape of tiles of D, and the way in which blocks share them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Tiles {
    /// 128 × 256, computed by both groups of a block; two blocks share columns of B. Moves the fewest bytes per product.
    Wide,
    /// 128 × 128 for each group, in alternation; two blocks share columns of B.
    Pair,
    /// 128 × 128 for each group, in alternation.
    Single,
}

impl Tiles {
    /// Every shape.
    pub const ALL: [Self; 3] = [Self::Wide, Self::Pair, Self::Single];

    /// Returns the name, as in tuning's results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wide => "wide",
            Self::Pair => "pair",
            Self::Single => "single",
        }
    }

    /// Returns the number of rows of a tile.
    const fn rows(self) -> u32 {
        128
    }

    const fn columns(self) -> u32 {
        match self {
            Self::Wide => 256,
            Self::Pair | Self::Single => 128,
        }
    }

    /// Returns the number of blocks that share columns.
    const fn cluster(self) -> u32 {
        match self {
            Self::Wide | Self::Pair => 2,
            Self::Single => 1,
        }
    }

    /// Returns the number of tiles of terms in flight at a time.
    const fn stages(self) -> u32 {
        match self {
            Self::Wide => 4,
            Self::Pair | Self::Single => 6,
        }
    }

    const fn shared_memory_bytes(self) -> u32 {
        let stage = (self.rows() + self.columns()) * TILE_ROW_BYTES as u32;
        // Two barriers for each stage, and padding for alignment.
        self.stages() * (stage + 16) + OUT_BYTES + 1024
    }
}

/// A product by groups of warps. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WarpGroupMatmul {
    /// The product, of float16 or bfloat16, which replaces D's previous contents.
    pub product: Matmul,
    /// The shape of tiles.
    pub tiles: Tiles,
    /// The number of multiprocessors of the GPU.
    pub processors: u32,
}

/// The addresses of the operands of a [`WarpGroupMatmul`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedOperands {
    /// A, B and D.
    pub at: [DevicePointer; 3],
    /// The address of n elements that are added to each row before rounding.
    pub bias: Option<DevicePointer>,
    /// The driver's maps of [`WarpGroupMatmul::tensors`].
    pub maps: [TensorMap; 3],
}

/// Returns whether groups of warps can compute a product: by its dtype, and because copies of 16 bytes can read and write it.
#[must_use]
pub fn fits(product: &Matmul) -> bool {
    let Matmul { m, n, k, batch, .. } = *product;
    [m, n, k, batch].into_iter().all(|extent| extent > 0) && refusal(product).is_none()
}

/// Returns whether the copy engine can access operands at these addresses: at multiples of 16 bytes, and a bias at one of 4.
#[must_use]
pub fn is_aligned(at: [DevicePointer; 3], bias: Option<DevicePointer>) -> bool {
    at.into_iter().all(|at| at.address().is_multiple_of(16))
        && bias.is_none_or(|bias| bias.address().is_multiple_of(4))
}

/// Returns the reason why the kernel cannot compute a product, if there is one.
fn refusal(product: &Matmul) -> Option<&'static str> {
    let Matmul { m, n, k, batch, dtype, a, b, d, beta, .. } = *product;
    if !matches!(dtype, DType::F16 | DType::Bf16) {
        return Some("it takes float16 and bfloat16");
    }
    if beta != Factor::ZERO {
        return Some("it adds to nothing");
    }
    if [m, n, k, batch].into_iter().any(|extent| extent >= 1 << 30) {
        return Some("it takes fewer than 2³⁰ rows, columns, terms and products");
    }
    let is_whole = |operand: &Operand| {
        let strides = [operand.leading_dimension, operand.batch_stride];
        operand.leading_dimension > 0 && strides.into_iter().all(|stride| stride % 8 == 0 && stride < 1 << 38)
    };
    if !n.is_multiple_of(8) || ![a, b, d].iter().all(is_whole) {
        return Some("columns, rows and matrices are multiples of 16 bytes apart");
    }
    None
}

impl WarpGroupMatmul {
    /// Returns A, B and D at these addresses with the tiles in which they are copied, for a driver's
    /// [`tensor_map`](thalweg_driver::Driver::tensor_map).
    #[must_use]
    pub fn tensors(&self, at: [DevicePointer; 3]) -> [TensorTiles; 3] {
        let Matmul { m, n, k, a, b, d, .. } = self.product;
        let tiles = self.tiles;
        let [a_at, b_at, d_at] = at;
        // An operand that is not read along its terms is copied in panels of 64 columns.
        let panel = [TERMS as u32, 64];
        let a = match a.transposed {
            true => self.tensor(a_at, &a, [k, m], panel),
            false => self.tensor(a_at, &a, [m, k], [tiles.rows(), 64]),
        };
        let b = match b.transposed {
            true => self.tensor(b_at, &b, [n, k], [tiles.columns() / tiles.cluster(), 64]),
            false => self.tensor(b_at, &b, [k, n], panel),
        };
        [a, b, self.tensor(d_at, &d, [m, n], [16, 64])]
    }

    fn tensor(
        &self,
        address: DevicePointer,
        operand: &Operand,
        [rows, columns]: [u64; 2],
        tile: [u32; 2],
    ) -> TensorTiles {
        let row_bytes = operand.leading_dimension * 2;
        let matrices = if operand.batch_stride == 0 { 1 } else { self.product.batch };
        let matrix_bytes = if matrices == 1 { row_bytes } else { operand.batch_stride * 2 };
        TensorTiles { address, extents: [matrices, rows, columns], strides: [matrix_bytes, row_bytes], tile }
    }

    /// Returns the description and the addresses in the form of the library's call.
    fn placed(&self, at: &MappedOperands) -> (Placed<Matmul, [DevicePointer; 3]>, MatmulEpilogue) {
        let epilogue = MatmulEpilogue { bias: at.bias, ..MatmulEpilogue::default() };
        (Placed { kernel: self.product, at: at.at }, epilogue)
    }

    /// Returns the number of clusters of blocks for the tiles of D.
    fn clusters(&self) -> u64 {
        let Matmul { m, n, batch, .. } = self.product;
        let (rows, columns) = (self.tiles.rows() * self.tiles.cluster(), self.tiles.columns());
        m.div_ceil(u64::from(rows)) * n.div_ceil(u64::from(columns)) * batch
    }

    fn unit(&self) -> Unit {
        let Matmul { dtype, a, b, .. } = self.product;
        Unit { is_bf16: dtype == DType::Bf16, tiles: self.tiles, transposed: [a.transposed, b.transposed] }
    }
}

impl NativeKernel for Placed<WarpGroupMatmul, MappedOperands> {
    fn name(&self) -> &str {
        self.kernel.unit().name()
    }

    fn source(&self) -> String {
        self.kernel.unit().print()
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        static FUNCTION: OnceLock<Arc<dyn HostKernel>> = OnceLock::new();
        FUNCTION.get_or_init(|| Arc::new(run_on_host)).clone()
    }

    fn check(&self) -> Result<(), Fault> {
        let product = &self.kernel.product;
        product.check()?;
        let why = refusal(product).or_else(|| {
            let aligned = is_aligned(self.at.at, self.at.bias);
            (!aligned).then_some("operands begin at multiples of 16 bytes, and a bias at one of 4")
        });
        why.map_or(Ok(()), |why| Err(Fault::new(format!("matmul by groups of warps {product}: {why}"))))
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let cluster = self.kernel.tiles.cluster();
        // One block per multiprocessor, in complete clusters.
        let most = u64::from(self.kernel.processors / cluster).max(1);
        let clusters = self.kernel.clusters().min(most) as u32;
        (clusters > 0).then(|| LaunchShape { grid: [clusters * cluster, 1, 1], block: [THREADS, 1, 1] })
    }

    fn shared_memory_bytes(&self) -> u32 {
        self.kernel.tiles.shared_memory_bytes()
    }

    fn words(&self) -> Words {
        let Matmul { m, n, k, batch, a, b, alpha, .. } = self.kernel.product;
        let mut words: Words = self.at.maps.iter().flat_map(|map| map.0).collect();
        let steps = [a, b].map(|operand| u64::from(operand.batch_stride != 0));
        words.push(self.at.bias.map_or(0, DevicePointer::address));
        words.extend([m, n, k, batch, steps[0], steps[1], alpha.get().to_bits()]);
        let (placed, epilogue) = self.kernel.placed(&self.at);
        words.extend(library_words(&placed, &epilogue));
        words.resize(ARGUMENT_WORDS, 0);
        words
    }

    fn accesses(&self) -> Accesses {
        let (placed, epilogue) = self.kernel.placed(&self.at);
        library_accesses(&placed, &epilogue)
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let words = launch.arguments.chunks_exact(8).skip(ARGUMENT_WORDS - HOST_WORDS).flatten();
    let words: Vec<u8> = words.copied().collect();
    let used = (super::ARGUMENT_WORDS + EPILOGUE_WORDS) * 8;
    let words = words.get(..used).ok_or_else(|| HostFault("matmul: the arguments end early".to_owned()))?;
    run_words_on_host(launch, words)
}

/// One kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Unit {
    is_bf16: bool,
    tiles: Tiles,
    /// Whether A and B are stored transposed.
    transposed: [bool; 2],
}

impl Unit {
    fn all() -> impl Iterator<Item = Self> {
        let kinds = [true, false].into_iter().flat_map(|is_bf16| Tiles::ALL.map(|tiles| (is_bf16, tiles)));
        kinds.flat_map(|(is_bf16, tiles)| {
            [[false, false], [false, true], [true, false], [true, true]].map(|transposed| Self {
                is_bf16,
                tiles,
                transposed,
            })
        })
    }

    /// Returns the entry point's name.
    fn name(self) -> &'static str {
        static NAMES: OnceLock<Vec<(Unit, String)>> = OnceLock::new();
        let named = |unit: Self| {
            let dtype = if unit.is_bf16 { "bfloat16" } else { "float16" };
            let letters: String =
                unit.transposed.map(|transposed| if transposed { 't' } else { 'n' }).into_iter().collect();
            (unit, format!("matmul_groups_{}_{dtype}_{letters}", unit.tiles.name()))
        };
        let names = NAMES.get_or_init(|| Self::all().map(named).collect());
        names.iter().find(|(unit, _)| *unit == self).map_or("", |(_, name)| name)
    }

    /// Returns the translation unit, which is empty on GPUs other than those of compute capability 9.0.
    fn print(self) -> String {
        let Self { is_bf16, tiles, transposed: [a_transposed, b_transposed] } = self;
        let dtype = if is_bf16 { DType::Bf16 } else { DType::F16 };
        Source::new(self.name())
            .elements(dtype)
            .define("M_TILE", tiles.rows())
            .define("N_TILE", tiles.columns())
            .define("CLUSTER", tiles.cluster())
            .define("STAGES", tiles.stages())
            .flag("TOGETHER", tiles == Tiles::Wide)
            .flag("A_TURNED", a_transposed)
            .flag("B_TURNED", b_transposed)
            .flag("IS_BF16", is_bf16)
            .define("HOST_WORDS", HOST_WORDS)
            // The elements of B, if it is not transposed, are contiguous along n.
            .text(&group_rows(tiles.columns(), dtype, [a_transposed, !b_transposed]))
            .print(include_str!("warp_groups.cu"))
    }
}

/// Returns name and source of every unit.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    Unit::all().map(|unit| (unit.name().to_owned(), unit.print()))
}
