//! [`ScatterTile`]: elements that are combined, in shared memory, into the places that one index per element names.
//!
//! The result is (outer, extent, inner), contiguous, and starts from a target of its shape, or from zeros; indices and source are
//! (outer, count, inner) with any strides. The source's (o, k, i) is combined with (o, index, i), beginning at k = 0.
//!
//! A block keeps a *tile*: some adjacent columns, of one o, and as many places of the extent as fit. It goes through the source
//! in the order of k, 512 elements at a time, and skips those whose index is in another tile. Of the elements for one place,
//! those of a warp are combined by one of its lanes, in order, and the warps take turns: the first that has not had its turn
//! claims the place. The cost is that of the elements, times the number of tiles of a column. To replace elements, the last one
//! claims the place, and there are no turns.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use super::combine::typed;
use super::{Combine, Term, Wide};
use crate::arguments::{self, arguments};
use crate::dtypes::{check, entry_points};
use crate::native::{Accesses, NativeKernel, Placed, Words, along_x, native};
use crate::operands::span;
use crate::source::Source;

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ScatterTile {
    /// The outer extent, the extent that is indexed, the number of elements per column of the source, and the inner extent.
    pub sizes: [u64; 4],
    /// The strides of the indices, in elements.
    pub index_strides: [u64; 3],
    /// The strides of the source, in elements.
    pub source_strides: [u64; 3],
    /// The dtype of source, target and result: a floating-point type, or int64. 16-bit floats are combined in f32 and rounded
    /// once.
    pub dtype: DType,
    /// The way in which elements are combined.
    pub combine: Combine,
    /// Whether the target is zeros, and is not read.
    pub from_zeros: bool,
}

arguments! { ScatterTile { sizes, index_strides, source_strides, combine, from_zeros, dtype } }

/// Threads of a block.
const BLOCK: u64 = 512;
/// The most columns of a tile, whose elements are adjacent in memory.
const COLUMNS: u64 = 32;
/// The number of columns below which a tile's memory accesses waste most of the bytes that they fetch.
const FEWEST_COLUMNS: u64 = 8;
/// The shared memory of a tile, in bytes. If a tile takes half of it, a multiprocessor runs two blocks.
const TILE_BYTES: u64 = 192 << 10;
/// The most tiles of a column: each reads all indices again.
const MOST_TILES: u64 = 32;

entry_points! { "scatter_tile" }

/// The columns and places of a tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Tile {
    columns: u64,
    places: u64,
}

impl ScatterTile {
    /// Returns whether the kernel supports these sizes: a column has few tiles, and its elements are numbered in 32 bits.
    pub fn takes(sizes: [u64; 4], dtype: DType) -> bool {
        let [_, extent, count, inner] = sizes;
        let tile = Self::tile_of(sizes, dtype);
        extent.div_ceil(tile.places) <= MOST_TILES
            && count.max(extent).saturating_mul(inner.min(COLUMNS)) < 1 << 30
    }

    fn tile_of([_, extent, _, inner]: [u64; 4], dtype: DType) -> Tile {
        // The combined value, and the thread that claims it.
        let cells = TILE_BYTES / (dtype.compute().size_bytes() as u64 + size_of::<u32>() as u64);
        let mut columns = inner.clamp(1, COLUMNS);
        while extent * columns > cells / 2 && columns / 2 >= FEWEST_COLUMNS {
            columns /= 2;
        }
        Tile { columns, places: (cells / columns).min(extent).max(1) }
    }

    fn tile(&self) -> Tile {
        Self::tile_of(self.sizes, self.dtype)
    }

    /// Returns the numbers of elements that indices, source and result span in memory.
    fn spans(&self) -> [u64; 3] {
        let [outer, extent, count, inner] = self.sizes;
        let walked = [outer, count, inner];
        [span(walked, self.index_strides), span(walked, self.source_strides), outer * extent * inner]
    }

    fn run<T: Wide>(&self, index: &[i64], source: &[T], mut sums: Vec<T::Sum>) -> Vec<T::Sum> {
        let [outer, extent, count, inner] = self.sizes;
        let element = |[o, k, i]: [u64; 3], strides: [u64; 3]| {
            (o * strides[0] + k * strides[1] + i * strides[2]) as usize
        };
        let walked =
            (0..outer).flat_map(|o| (0..count).flat_map(move |k| (0..inner).map(move |i| [o, k, i])));
        for at @ [o, _, i] in walked {
            let place = u64::try_from(index[element(at, self.index_strides)]).ok();
            let Some(place) = place.filter(|&place| place < extent) else { continue };
            let sum = &mut sums[((o * extent + place) * inner + i) as usize];
            *sum = sum.combine(self.combine, source[element(at, self.source_strides)].widened());
        }
        sums
    }
}

fn print(dtype: DType) -> String {
    Source::new(name(dtype)).elements(dtype).print(include_str!("tile.cu"))
}

/// Operands: the indices (i64), the source, the target (ignored if it is zeros), and the result. Each has its own memory, except
/// that the result may overwrite the target.
impl NativeKernel for Placed<ScatterTile, [DevicePointer; 4]> {
    native! { self: name(self.kernel.dtype), print(self.kernel.dtype), run_on_host }

    fn check(&self) -> Result<(), Fault> {
        check("scatter_tile", self.kernel.dtype)?;
        Fault::unless(ScatterTile::takes(self.kernel.sizes, self.kernel.dtype), || {
            format!("scatter_tile: {:?} has too many elements", self.kernel.sizes)
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let [outer, extent, _, inner] = self.kernel.sizes;
        let Tile { columns, places } = self.kernel.tile();
        let blocks = outer * inner.div_ceil(columns) * extent.div_ceil(places);
        along_x(blocks, BLOCK)
    }

    fn shared_memory_bytes(&self) -> u32 {
        let (Tile { columns, places }, sum) =
            (self.kernel.tile(), self.kernel.dtype.compute().size_bytes() as u64);
        // The elements of each thread of a window, and the tile.
        (BLOCK * sum + columns * places * (sum + size_of::<u32>() as u64)) as u32
    }

    fn words(&self) -> Words {
        let mut words = arguments::pack(&self.at, &self.kernel);
        let Tile { columns, places } = self.kernel.tile();
        words.extend([columns, places]);
        words
    }

    fn accesses(&self) -> Accesses {
        let ([indices, sources, results], element) =
            (self.kernel.spans(), self.kernel.dtype.size_bytes() as u64);
        let [index, source, target, result] = self.at;
        Accesses::from_iter([
            Access::read(index, indices * size_of::<i64>() as u64),
            Access::read(source, sources * element),
            Access::read(target, if self.kernel.from_zeros { 0 } else { results * element }),
            Access::write(result, results * element),
        ])
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (sizes, addresses, [_, _]): (ScatterTile, _, _) = arguments::unpack("scatter_tile", launch)?;
    typed!(sizes.dtype, T => run_typed::<T>(launch, &sizes, addresses))
}

fn run_typed<T: Wide>(
    launch: &HostLaunch<'_>,
    sizes: &ScatterTile,
    addresses: [DevicePointer; 4],
) -> Result<(), HostFault> {
    let [index, source, target, result] = addresses;
    let [indices, sources, results] = sizes.spans().map(|span| span as usize);
    let sums = match sizes.from_zeros {
        true => vec![T::from_f64(0.0).widened(); results],
        // The result may be the target's memory.
        false if target == result => {
            launch.cells::<T>(target, results)?.iter().map(|value| value.get().widened()).collect()
        }
        false => launch.read::<T>(target, results)?.iter().map(|&value| value.widened()).collect(),
    };
    let (index, source) = (launch.read::<i64>(index, indices)?, launch.read::<T>(source, sources)?);
    let sums = sizes.run(index, source, sums);
    let result = launch.cells::<T>(result, results)?;
    result.iter().zip(sums).for_each(|(to, sum)| to.set(T::narrowed(sum)));
    Ok(())
}
