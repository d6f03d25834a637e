//! [`ScatterNarrow`]: narrow rows that are combined at one short list of indices, which all outer elements share.
//!
//! The result is (outer, extent, inner), contiguous, as is the target; the source is (outer, count, inner) with any strides, and its
//! (o, k, i) is combined with the target's (o, index of k, i). The list has been sorted ([`SortIndices`](crate::sort::SortIndices)), and a
//! block keeps it in shared memory. A thread combines the elements of an index in their order, and their sum with the target's element, so
//! that the result does not depend on timing; target and source are read once.

use std::cell::Cell;

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use super::combine::typed;
use super::{Combine, Term, Wide};
use crate::arguments::{self, arguments};
use crate::dtypes::{DTYPES, check};
use crate::native::{Accesses, NativeKernel, Placed, along_x, native};
use crate::operands::span;
use crate::source::Source;

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ScatterNarrow {
    /// The outer extent, the extent that is indexed, the number of indices, and the inner extent.
    pub sizes: [u64; 4],
    /// The strides of the source, in elements.
    pub source_strides: [u64; 3],
    /// The way in which elements are combined: not [`Combine::Replace`].
    pub combine: Combine,
    /// Whether the target is zeros, and is not read.
    pub from_zeros: bool,
    /// The dtype of source, target and result: a floating-point type, or int64. 16-bit floats are combined in f32 and rounded once.
    pub dtype: DType,
}

arguments! { ScatterNarrow { sizes, source_strides, combine, from_zeros, dtype } }

/// Threads of a block, and the elements of each.
const BLOCK: u64 = 256;
const OWN: u64 = 16;
/// The most blocks, each of which reads the list.
const MOST_BLOCKS: u64 = 1 << 11;
/// The greatest extent and number of indices, which are kept in shared memory.
const MOST: u64 = 4096;
/// The fewest outer elements for each of which the list is used again.
const FEWEST: u64 = 64;

/// The operands of a launch: the sorted indices (32 bits), the place of each (32 bits), the source, the target, and the result.
type Operands = [DevicePointer; 5];

/// The names of the entry points, by dtype.
const NAMES: [&str; DTYPES.len()] = [
    "scatter_narrow_float32",
    "scatter_narrow_float64",
    "scatter_narrow_float16",
    "scatter_narrow_bfloat16",
    "scatter_narrow_int64",
];

/// Returns the position of a dtype in [`DTYPES`].
fn number_of(dtype: DType) -> usize {
    DTYPES.into_iter().position(|other| other == dtype).unwrap_or(0)
}

fn print(dtype: DType) -> String {
    let call = format_args!("combine_narrow<{}>(x)", dtype.short_name());
    Source::new(NAMES[number_of(dtype)]).define("CALL", call).print(include_str!("narrow.cu"))
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    DTYPES.into_iter().map(|dtype| (NAMES[number_of(dtype)].to_owned(), print(dtype)))
}

impl ScatterNarrow {
    /// Returns whether the kernel takes a list of indices: it must be used often enough, and fit in shared memory. The arguments are
    /// the outer extent, the indexed extent, the number of indices, and the inner extent.
    pub fn takes([outer, extent, count, inner]: [u64; 4]) -> bool {
        outer >= FEWEST && extent.max(count) <= MOST && extent * inner < 1 << 31
    }

    fn elements(&self) -> u64 {
        let [outer, extent, _, inner] = self.sizes;
        outer * extent * inner
    }

    fn span(&self) -> u64 {
        let [outer, _, count, inner] = self.sizes;
        span([outer, count, inner], self.source_strides)
    }
}

impl NativeKernel for Placed<ScatterNarrow, Operands> {
    native! { self: NAMES[number_of(self.kernel.dtype)], print(self.kernel.dtype), run_on_host, words }

    fn check(&self) -> Result<(), Fault> {
        check("scatter_narrow", self.kernel.dtype)?;
        match self.kernel.combine != Combine::Replace && ScatterNarrow::takes(self.kernel.sizes) {
            true => Ok(()),
            false => Err(Fault::new(format!("there is no kernel for {:?}", self.kernel))),
        }
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        along_x(self.kernel.elements().div_ceil(BLOCK * OWN).min(MOST_BLOCKS), BLOCK)
    }

    fn accesses(&self) -> Accesses {
        let (kernel, size) = (&self.kernel, self.kernel.dtype.size_bytes() as u64);
        let [keys, order, source, target, result] = self.at;
        let former = if kernel.from_zeros { 0 } else { kernel.elements() * size };
        Accesses::from_iter([
            Access::read(keys, kernel.sizes[2] * 4),
            Access::read(order, kernel.sizes[2] * 4),
            Access::read(source, kernel.span() * size),
            Access::read(target, former),
            Access::write(result, kernel.elements() * size),
        ])
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (kernel, at, []): (ScatterNarrow, _, _) = arguments::unpack("scatter_narrow", launch)?;
    typed!(kernel.dtype, T => run_typed::<T>(launch, &kernel, at))
}

fn run_typed<T: Wide>(
    launch: &HostLaunch<'_>,
    kernel: &ScatterNarrow,
    [keys, order, source, target, result]: Operands,
) -> Result<(), HostFault> {
    let [_, extent, count, inner] = kernel.sizes.map(|size| size as usize);
    let (keys, order) = (launch.read::<u32>(keys, count)?, launch.read::<u32>(order, count)?);
    let source = launch.read::<T>(source, kernel.span() as usize)?;
    let elements = kernel.elements() as usize;
    let former: Vec<T> = match kernel.from_zeros {
        true => Vec::new(),
        // The result may be the target's memory.
        false if target == result => launch.cells::<T>(target, elements)?.iter().map(Cell::get).collect(),
        false => launch.read::<T>(target, elements)?.to_vec(),
    };
    let result = launch.cells::<T>(result, elements)?;
    let [by_outer, by_row, by_column] = kernel.source_strides.map(|stride| stride as usize);
    let places: Vec<_> = (0..extent as u32)
        .map(|row| keys.partition_point(|&key| key < row)..keys.partition_point(|&key| key <= row))
        .collect();
    for (at, to) in result.iter().enumerate() {
        let (o, row, column) = (at / inner / extent, at / inner % extent, at % inner);
        let values = order[places[row].clone()]
            .iter()
            .map(|&place| source[o * by_outer + place as usize * by_row + column * by_column].widened());
        let added = values.reduce(|sum, value| sum.combine(kernel.combine, value));
        to.set(match (former.get(at), added) {
            (None, None) => T::from_f64(0.0),
            (None, Some(added)) => T::narrowed(added),
            (Some(&former), None) => former,
            (Some(former), Some(added)) => T::narrowed(former.widened().combine(kernel.combine, added)),
        });
    }
    Ok(())
}
