//! Elements that are combined at the positions given by indices. This is not a loop over a body, because the data determine which
//! elements are combined at one position. **They are combined in the order of the source**, so that a result does not depend on
//! timing.
//!
//! - [`few`]: complete rows at one short list of indices, which are compared with each other: one launch.
//! - [`segments`]: complete rows at one list of indices, which have been sorted. Equal numbers of rows are combined first.
//! - [`narrow`]: narrow rows at one short list of indices, which many outer elements share.
//! - [`rows`]: complete rows that replace those at one list of indices.
//! - [`atomic`]: sums, for an index per element. This is the exception: sums of floats depend on timing.
//! - [`tile`]: an index for each element. A block keeps columns of the result in shared memory, and goes through the source.
//! - [`ScatterReduce`], for columns with more elements than fit shared memory: a thread goes through a column.
//!
//! # ScatterReduce
//!
//! The result is (outer, extent, inner), contiguous; indices and source are (outer, count, inner) with any strides. The element
//! at (o, k, i) is combined with that at (o, index, i), beginning at k = 0, **in the order of k**, so that the result does not
//! depend on timing. On a GPU each column (o, i) has one thread, which goes through its `count` elements. The cost is that of the
//! elements, but few columns do not fill a GPU: a single column is handled by one thread, at some hundred nanoseconds per
//! element.
//!
//! An index out of range writes nothing.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch, Touch};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use crate::arguments::{self, arguments};
use crate::native::{Accesses, NativeKernel, Placed, native};
use crate::operands::span;
use crate::source::Source;

pub mod atomic;
mod combine;
pub mod few;
pub mod last;
pub mod narrow;
pub mod rows;
pub mod segments;
pub mod tile;

pub(crate) use combine::typed;
pub use combine::{Combine, Term, Wide};

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ScatterReduce {
    /// The outer extent, the extent that is indexed, the number of elements per column of the source, and the inner extent.
    pub sizes: [u64; 4],
    /// The strides of the indices, in elements.
    pub index_strides: [u64; 3],
    /// The strides of the source, in elements.
    pub source_strides: [u64; 3],
    /// The dtype of source and result: int64, float32 or float64.
    pub dtype: DType,
    /// The way in which elements are combined.
    pub combine: Combine,
}

arguments! { ScatterReduce { sizes, index_strides, source_strides, dtype, combine } }

/// The dtypes for which there is a kernel.
pub const DTYPES: [DType; 3] = [DType::I64, DType::F32, DType::F64];

/// Threads of a block.
const BLOCK: u64 = 128;

impl ScatterReduce {
    /// Returns the numbers of elements that indices, source and result span in memory.
    #[must_use]
    pub fn spans(&self) -> [u64; 3] {
        let [outer, extent, count, inner] = self.sizes;
        let walked = [outer, count, inner];
        [span(walked, self.index_strides), span(walked, self.source_strides), outer * extent * inner]
    }

    /// Runs the kernel on the host, with the same bits as on a GPU.
    ///
    /// # Panics
    /// If an operand is shorter than its span.
    pub fn run<T: Term>(&self, index: &[i64], source: &[T], result: &mut [T]) {
        for (place, at) in self.places(index) {
            let source = source[element(at, self.source_strides)];
            result[place as usize] = result[place as usize].combine(self.combine, source);
        }
    }

    /// Returns pairs of elements to combine, in order: the element of the result, and (o, k, i) of the source.
    fn places<'a>(&'a self, index: &'a [i64]) -> impl Iterator<Item = (u64, [u64; 3])> + 'a {
        let [outer, extent, count, inner] = self.sizes;
        let walked =
            (0..outer).flat_map(move |o| (0..count).flat_map(move |k| (0..inner).map(move |i| [o, k, i])));
        walked.filter_map(move |at @ [o, _, i]| {
            let place = u64::try_from(index[element(at, self.index_strides)]).ok();
            Some(((o * extent + place.filter(|&place| place < extent)?) * inner + i, at))
        })
    }

    /// Returns the number of elements of the source.
    fn walked(&self) -> u64 {
        let [outer, _, count, inner] = self.sizes;
        outer * count * inner
    }

    /// Returns the launch. The grid is never empty: the caller must skip empty sizes.
    pub fn launch_shape(&self) -> LaunchShape {
        let blocks = self.sizes[0].saturating_mul(self.sizes[3]).div_ceil(BLOCK);
        LaunchShape { grid: [blocks.clamp(1, (1 << 31) - 1) as u32, 1, 1], block: [BLOCK as u32, 1, 1] }
    }
}

/// The bytes of a row that a thread handles if they are contiguous and aligned to this number.
pub(crate) const VECTOR: u64 = 16;

/// Returns the number of elements that a thread handles of rows of this many, for the strides of the source, and the addresses of
/// source and result.
pub(crate) fn width_of(dtype: DType, inner: u64, source_strides: [u64; 3], at: [DevicePointer; 2]) -> u64 {
    let width = VECTOR / dtype.size_bytes() as u64;
    let is_whole = |elements: u64| elements.is_multiple_of(width);
    let [strides @ .., by_inner] = source_strides;
    let fits = by_inner == 1
        && is_whole(inner)
        && strides.into_iter().all(is_whole)
        && at.iter().all(|operand| operand.address().is_multiple_of(VECTOR));
    if fits { width } else { 1 }
}

/// Returns the offset of the element at (o, k, i).
fn element([o, k, i]: [u64; 3], strides: [u64; 3]) -> usize {
    (o * strides[0] + k * strides[1] + i * strides[2]) as usize
}

/// Returns the name of the entry point for a dtype.
///
/// # Panics
/// If there is no kernel for the dtype.
pub fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::I64 => "scatter_reduce_int64",
        DType::F32 => "scatter_reduce_float32",
        DType::F64 => "scatter_reduce_float64",
        other => panic!("scatter_reduce on {other}: it is for int64, float32 and float64"),
    }
}

/// Returns the translation unit for a dtype, to be compiled with [`OPTIONS`](thalweg_ir::cuda::OPTIONS). Its entry point, [`name`],
/// takes the [words](NativeKernel::words) of a launch as one structure by value.
///
/// # Panics
/// If there is no kernel for the dtype.
pub fn print(dtype: DType) -> String {
    Source::new(name(dtype)).elements(dtype).print(include_str!("columns.cu"))
}

/// Operands: the indices (i64), the source, and the result, which is read and written.
impl NativeKernel for Placed<ScatterReduce, [DevicePointer; 3]> {
    native! { self: name(self.kernel.dtype), print(self.kernel.dtype), run_on_host, words }

    fn check(&self) -> Result<(), Fault> {
        Fault::unless(DTYPES.contains(&self.kernel.dtype), || {
            format!("scatter_reduce: it is for int64, float32 and float64, not {}", self.kernel.dtype)
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        (!self.kernel.spans().contains(&0)).then(|| self.kernel.launch_shape())
    }

    fn accesses(&self) -> Accesses {
        let ([indices, sources, _], element) = (self.kernel.spans(), self.kernel.dtype.size_bytes() as u64);
        let [index, source, result] = self.at;
        Accesses::from_iter([
            Access::read(index, indices * size_of::<i64>() as u64),
            Access::read(source, sources * element),
            // The other elements keep their values.
            result_of(&self.kernel, result).touching(Touch::chosen(self.kernel.walked() * element)),
        ])
    }
}

/// Returns the access to the entire result, of which a launch touches the elements that the indices name.
fn result_of(sizes: &ScatterReduce, result: DevicePointer) -> Access {
    Access::read_write(result, sizes.spans()[2] * sizes.dtype.size_bytes() as u64)
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (sizes, addresses, []): (ScatterReduce, _, _) = arguments::unpack("scatter_reduce", launch)?;
    match sizes.dtype {
        DType::I64 => run_typed::<i64>(launch, &sizes, addresses),
        DType::F32 => run_typed::<f32>(launch, &sizes, addresses),
        _ => run_typed::<f64>(launch, &sizes, addresses),
    }
}

fn run_typed<T: Term>(
    launch: &HostLaunch<'_>,
    sizes: &ScatterReduce,
    addresses: [DevicePointer; 3],
) -> Result<(), HostFault> {
    let [index, source, result] = addresses;
    let [indices, sources, results] = sizes.spans().map(|span| span as usize);
    let (index, source) = (launch.read::<i64>(index, indices)?, launch.read::<T>(source, sources)?);
    sizes.run(index, source, launch.write::<T>(result, results)?);
    if launch.has_tickets() {
        let size = size_of::<T>() as u64;
        let parts = sizes.places(index).map(|(place, _)| (result.address() + place * size, size));
        launch.touched(&result_of(sizes, result), parts);
    }
    Ok(())
}
