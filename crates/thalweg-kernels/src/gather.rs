//! [`GatherRows`]: the rows of a tensor that a list of indices selects, copied 16 bytes at a time.
//!
//! The source is (outer, extent, inner), the result (outer, count, inner), both contiguous. A row's index is read by each thread
//! that has a part of the row; all of them read it from the cache. An index out of range results in a row of NaN, or of 0 for
//! integers, and the kernel reports it.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch, Touch};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use crate::arguments::{self, arguments};
use crate::native::{Accesses, NativeKernel, Placed, ReportIndex, native};
use crate::operands::span;
use crate::source::Source;
use crate::threads::{ranges, share};

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GatherRows {
    /// The outer extent, the extent that is indexed, the number of indices, and the bytes of a row.
    pub sizes: [u64; 4],
    /// The stride of the indices, in elements.
    pub index_stride: u64,
    /// The content of a row at an index out of range, as 8 bytes that are repeated.
    pub fill: u64,
    /// The number of vectors that a thread copies: see [`GatherRows::vectors_of`].
    pub vectors: u64,
}

arguments! { GatherRows { sizes, index_stride, fill, vectors } }

/// Threads of a block.
const BLOCK: u64 = 256;
/// Bytes that are copied at once.
const VECTOR: u64 = 16;
/// The most vectors of a thread.
const VECTORS: u64 = 4;
/// The number of vectors from which a thread copies the most vectors, because there are enough threads even so.
const MANY: u64 = 1 << 19;

/// The operands of a launch: source, indices (i64), and the result.
type Operands = [DevicePointer; 3];

impl GatherRows {
    /// Returns 8 bytes of the elements that an index out of range results in; `None` for dtypes that the kernel does not support.
    pub fn fill_of(dtype: DType) -> Option<u64> {
        match dtype {
            DType::F16 => Some(0x7e00_7e00_7e00_7e00),
            DType::Bf16 => Some(0x7fc0_7fc0_7fc0_7fc0),
            DType::F32 => Some(0x7fc0_0000_7fc0_0000),
            DType::F64 => Some(0x7ff8_0000_0000_0000),
            dtype if dtype.is_floating_point() || dtype.is_complex() => None,
            _ => Some(0),
        }
    }

    /// Returns the number of vectors that a thread copies of all that a result of these bytes has: one if there are few.
    #[must_use]
    pub const fn vectors_of(bytes: u64) -> u64 {
        if bytes / VECTOR < MANY { 1 } else { VECTORS }
    }

    /// Returns whether the kernel supports rows of `row_bytes` bytes at these addresses of source and result.
    pub fn takes(row_bytes: u64, at: [DevicePointer; 2]) -> bool {
        row_bytes.is_multiple_of(VECTOR) && at.iter().all(|at| at.address().is_multiple_of(VECTOR))
    }

    /// Returns the number of elements that the indices span in memory.
    fn indices(&self) -> u64 {
        span([self.sizes[2]], [self.index_stride])
    }

    fn source_of(&self, source: DevicePointer) -> Access {
        let [outer, extent, count, row] = self.sizes;
        Access::read(source, outer * extent * row).touching(Touch::chosen(outer * count * row))
    }
}

/// The name of the entry point.
const NAME: &str = "gather_rows";

/// Returns name and source of the kernel.
pub(crate) fn sources() -> [(String, String); 1] {
    [(NAME.to_owned(), print())]
}

fn print() -> String {
    Source::new(NAME).print(include_str!("gather.cu"))
}

impl NativeKernel for Placed<GatherRows, Operands> {
    native! { self: NAME, print(), reports run_on_host, words }

    fn check(&self) -> Result<(), Fault> {
        let [source, _, result] = self.at;
        Fault::unless(GatherRows::takes(self.kernel.sizes[3], [source, result]), || {
            format!("gather_rows: rows of {} bytes are not whole", self.kernel.sizes[3])
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let [outer, extent, count, row] = self.kernel.sizes;
        let vectors = outer * count * (row / VECTOR);
        let blocks =
            vectors.div_ceil(BLOCK * self.kernel.vectors.clamp(1, VECTORS)).min((1 << 31) - 1) as u32;
        (vectors > 0 && extent > 0)
            .then_some(LaunchShape { grid: [blocks, 1, 1], block: [BLOCK as u32, 1, 1] })
    }

    fn accesses(&self) -> Accesses {
        let ([outer, _, count, row], [source, index, result]) = (self.kernel.sizes, self.at);
        Accesses::from_iter([
            self.kernel.source_of(source),
            Access::read(index, self.kernel.indices() * size_of::<i64>() as u64),
            Access::write(result, outer * count * row),
        ])
    }
}

/// The bytes per thread from which another thread saves time.
const LEAST_BYTES: usize = 1 << 18;

fn run_on_host(launch: &HostLaunch<'_>, report: &ReportIndex) -> Result<(), HostFault> {
    let (sizes, addresses, [slot]): (GatherRows, _, _) = arguments::unpack("gather_rows", launch)?;
    let [source, index, result]: [DevicePointer; 3] = addresses;
    let [outer, extent, count, row_bytes] = sizes.sizes;
    let index = launch.read::<i64>(index, sizes.indices() as usize)?;
    let row = (row_bytes / VECTOR * 2) as usize;
    let from = launch.read::<u64>(source, (outer * extent) as usize * row)?;
    let to = launch.write::<u64>(result, (outer * count) as usize * row)?;
    let named_of = |number: usize| index[(number as u64 % count * sizes.index_stride) as usize];
    let place = |number: usize| {
        let named = u64::try_from(named_of(number)).ok().filter(|&named| named < extent)?;
        Some((number as u64 / count * extent + named) as usize)
    };
    let rows = to.len().checked_div(row).unwrap_or(0);
    let copy = |first: usize, to: &mut [u64]| {
        let mut outside = None;
        for (number, to) in (first..).zip(to.chunks_exact_mut(row)) {
            match place(number) {
                Some(at) => to.copy_from_slice(&from[at * row..][..row]),
                None => {
                    to.fill(sizes.fill);
                    outside = Some(named_of(number));
                }
            }
        }
        outside
    };
    let (mut rest, mut jobs) = (to, Vec::new());
    for range in ranges(rows, LEAST_BYTES.div_ceil(row.max(1) * size_of::<u64>())) {
        let (part, later) = rest.split_at_mut(range.len() * row);
        rest = later;
        let copy = &copy;
        jobs.push(move || if part.is_empty() { None } else { copy(range.start, part) });
    }
    // In the order of a single thread: the last report counts.
    share(jobs).into_iter().flatten().for_each(|named| report(slot, named, extent as i64));
    if launch.has_tickets() {
        let read = (0..rows).filter_map(place);
        launch.touched(
            &sizes.source_of(source),
            read.map(|at| (source.address() + at as u64 * row_bytes, row_bytes)),
        );
    }
    Ok(())
}
