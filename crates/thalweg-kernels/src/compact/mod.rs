//! [`Compact`]: the elements whose flags are set, in order (stream compaction). A result's size depends on the flags.
//!
//! Flags are divided into up to [`MOST_PARTS`] equal parts, one per block. The first launch counts the flags of each part. The host
//! reads the counts, if it has to know the size of a result; the next launch needs no other preparation, because each block adds
//! the counts of the parts before its own. A flag is a byte, which is set if it is not 0. Every order is that of memory, so a
//! result does not depend on timing.

use bytemuck::Pod;
use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use crate::arguments::{self, arguments, choices};
use crate::native::{Accesses, NativeKernel, Placed, Words, along_x, native};
use crate::source::Source;

/// The work of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u64)]
pub enum Work {
    /// Counts the flags of each part.
    Count,
    /// Writes the coordinates of the set flags (int64), and rows of a number after them.
    Coordinates,
    /// Writes the elements whose flags are set.
    Values,
    /// Writes all elements; those with set flags are replaced by the elements of another operand, in order.
    Replaced,
    /// Writes the rank of each element: the number of set flags up to and including its own, minus 1 (int64). If there is an order,
    /// it contains the position at which each rank is written.
    Ranks,
}

/// The work that a launch may do.
const WORKS: [Work; 5] = [Work::Count, Work::Coordinates, Work::Values, Work::Replaced, Work::Ranks];

/// The most dimensions of coordinates.
pub const MOST_DIMENSIONS: usize = 16;

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Compact {
    /// The number of flags.
    pub elements: u64,
    /// The work.
    pub work: Work,
    /// The number of rows of coordinates, or the number of elements that are written, or that replace others.
    pub limit: u64,
    /// The number in rows of coordinates after those of the last set flag.
    pub fill: i64,
    /// The size of an element: 1, 2, 4, 8 or 16 bytes.
    pub element_bytes: u64,
    /// The strides of a row and of a column of coordinates, in elements.
    pub strides: [u64; 2],
    /// The number of dimensions of coordinates.
    pub rank: u64,
    /// The extents of these dimensions; 1 after the last.
    pub extents: [u64; MOST_DIMENSIONS],
}

/// The flags that a block handles at a time.
const TILE: u64 = 4096;

/// Threads of a block.
const BLOCK: u32 = 256;

/// The most parts of the flags: enough blocks to keep a large GPU busy, and few enough counts for one block to add.
pub const MOST_PARTS: u64 = 1024;

impl Compact {
    /// Returns a launch that counts flags.
    pub fn count(elements: u64) -> Self {
        Self {
            elements,
            work: Work::Count,
            limit: 0,
            fill: 0,
            element_bytes: 1,
            strides: [0; 2],
            rank: 0,
            extents: [1; MOST_DIMENSIONS],
        }
    }

    /// Returns the number of flags of each part except the last.
    fn part(&self) -> u64 {
        self.elements.div_ceil(TILE).div_ceil(MOST_PARTS).max(1) * TILE
    }

    /// Returns the number of parts, each of which has a count of 8 bytes.
    pub fn parts(&self) -> u64 {
        self.elements.div_ceil(self.part())
    }

    fn form(&self) -> Form {
        let sized = |forms: [Form; 5]| forms[self.element_bytes.clamp(1, 16).ilog2() as usize];
        match self.work {
            Work::Count => ("compact_count", "count(x)"),
            Work::Coordinates => ("compact_coordinates", "coordinates(x)"),
            Work::Ranks => ("compact_ranks", "ranks(x)"),
            Work::Values => sized(VALUES),
            Work::Replaced => sized(REPLACED),
        }
    }
}

/// The name of an entry point, and the call that is its body.
type Form = (&'static str, &'static str);

/// The forms by the logarithm of an element's bytes.
const VALUES: [Form; 5] = [
    ("compact_values_1", "values<u8>(x)"),
    ("compact_values_2", "values<u16>(x)"),
    ("compact_values_4", "values<u32>(x)"),
    ("compact_values_8", "values<u64>(x)"),
    ("compact_values_16", "values<two_words>(x)"),
];
const REPLACED: [Form; 5] = [
    ("compact_replaced_1", "replaced<u8>(x)"),
    ("compact_replaced_2", "replaced<u16>(x)"),
    ("compact_replaced_4", "replaced<u32>(x)"),
    ("compact_replaced_8", "replaced<u64>(x)"),
    ("compact_replaced_16", "replaced<two_words>(x)"),
];

fn print((name, call): Form) -> String {
    Source::new(name).define("CALL", call).print(include_str!("kernel.cu"))
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    let of_work = |work: Work| {
        let sizes = if matches!(work, Work::Values | Work::Replaced) { 5 } else { 1 };
        (0..sizes).map(move |log| Compact { work, element_bytes: 1 << log, ..Compact::count(1) }.form())
    };
    WORKS.into_iter().flat_map(of_work).map(|form| (form.0.to_owned(), print(form)))
}

/// The words of a launch after its addresses, in the order of the CUDA code.
struct Sizes {
    elements: u64,
    part: u64,
    parts: u64,
    limit: u64,
    fill: i64,
    element_bytes: u64,
    work: Work,
    strides: [u64; 2],
    rank: u64,
    extents: [u64; MOST_DIMENSIONS],
}

arguments! { Sizes { elements, part, parts, limit, fill, element_bytes, work, strides, rank, extents } }
choices! { Work: WORKS }

/// Operands: the flags; the counts of the parts (int64); the source of elements; the order, or the elements that replace others;
/// and the result. The last three are null addresses where the work has no such operand.
impl NativeKernel for Placed<Compact, [DevicePointer; 5]> {
    native! { self: self.kernel.form().0, print(self.kernel.form()), run_on_host }

    fn check(&self) -> Result<(), Fault> {
        let Compact { element_bytes, rank, .. } = self.kernel;
        Fault::unless([1, 2, 4, 8, 16].contains(&element_bytes) && rank <= MOST_DIMENSIONS as u64, || {
            format!(
                "compact takes elements of 1, 2, 4, 8 or 16 bytes and up to {MOST_DIMENSIONS} dimensions, not {element_bytes} bytes and \
                 {rank} dimensions"
            )
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        along_x(self.kernel.parts(), BLOCK)
    }

    fn words(&self) -> Words {
        let Compact { elements, work, limit, fill, element_bytes, strides, rank, extents } = self.kernel;
        let (part, parts) = (self.kernel.part(), self.kernel.parts());
        let sizes = Sizes { elements, part, parts, limit, fill, element_bytes, work, strides, rank, extents };
        arguments::pack(&self.at, &sizes)
    }

    fn accesses(&self) -> Accesses {
        let Compact { elements, work, limit, element_bytes, rank, .. } = self.kernel;
        let [flags, counts, source, other, result] = self.at;
        let flags = Access::read(flags, elements);
        let counts = |access: fn(DevicePointer, u64) -> Access| access(counts, self.kernel.parts() * 8);
        let (all, some) = (elements * element_bytes, limit * element_bytes);
        match work {
            Work::Count => Accesses::from_iter([flags, counts(Access::write)]),
            Work::Coordinates => Accesses::from_iter([
                flags,
                counts(Access::read),
                Access::write(result, limit * rank * size_of::<i64>() as u64),
            ]),
            Work::Values => Accesses::from_iter([
                flags,
                counts(Access::read),
                Access::read(source, all),
                Access::write(result, some),
            ]),
            Work::Replaced => Accesses::from_iter([
                flags,
                counts(Access::read),
                Access::read(source, all),
                Access::read(other, some),
                Access::write(result, all),
            ]),
            Work::Ranks => {
                let mut list = Accesses::from_iter([
                    flags,
                    counts(Access::read),
                    Access::write(result, elements * size_of::<i64>() as u64),
                ]);
                if other.address() != 0 {
                    list.push(Access::read(other, elements * size_of::<i64>() as u64));
                }
                list
            }
        }
    }
}

/// An element of 16 bytes.
type TwoWords = [u64; 2];

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (sizes, at, []): (Sizes, [DevicePointer; 5], _) = arguments::unpack("compact", launch)?;
    let flags = launch.read::<u8>(at[0], sizes.elements as usize)?;
    match sizes.work {
        Work::Count => {
            let counts = launch.write::<i64>(at[1], sizes.parts as usize)?;
            for (count, flags) in counts.iter_mut().zip(flags.chunks(sizes.part as usize)) {
                *count = flags.iter().filter(|&&flag| flag != 0).count() as i64;
            }
            Ok(())
        }
        Work::Coordinates => coordinates(&sizes, flags, launch, at[4]),
        Work::Ranks => ranks(flags, launch, [at[3], at[4]]),
        Work::Values | Work::Replaced => {
            let run = match sizes.element_bytes {
                1 => elements::<u8>,
                2 => elements::<u16>,
                4 => elements::<u32>,
                8 => elements::<u64>,
                _ => elements::<TwoWords>,
            };
            run(&sizes, flags, launch, [at[2], at[3], at[4]])
        }
    }
}

/// Returns the numbers of the set flags.
fn set(flags: &[u8]) -> impl Iterator<Item = usize> {
    flags.iter().enumerate().filter(|&(_, &flag)| flag != 0).map(|(at, _)| at)
}

fn coordinates(
    sizes: &Sizes,
    flags: &[u8],
    launch: &HostLaunch<'_>,
    result: DevicePointer,
) -> Result<(), HostFault> {
    let (limit, rank) = (sizes.limit as usize, sizes.rank as usize);
    let result = launch.write::<i64>(result, limit * rank)?;
    let [row_stride, column_stride] = sizes.strides.map(|stride| stride as usize);
    let mut rows = 0;
    for (row, mut element) in set(flags).take(limit).enumerate() {
        for dimension in (0..rank).rev() {
            let extent = sizes.extents[dimension] as usize;
            result[row * row_stride + dimension * column_stride] = (element % extent) as i64;
            element /= extent;
        }
        rows = row + 1;
    }
    for row in rows..limit {
        (0..rank).for_each(|column| result[row * row_stride + column * column_stride] = sizes.fill);
    }
    Ok(())
}

fn ranks(
    flags: &[u8],
    launch: &HostLaunch<'_>,
    [order, result]: [DevicePointer; 2],
) -> Result<(), HostFault> {
    let result = launch.write::<i64>(result, flags.len())?;
    let order = match order.address() {
        0 => None,
        _ => Some(launch.read::<i64>(order, flags.len())?),
    };
    let mut rank = -1;
    for (element, &flag) in flags.iter().enumerate() {
        rank += i64::from(flag != 0);
        result[order.map_or(element, |order| order[element] as usize)] = rank;
    }
    Ok(())
}

fn elements<T: Pod>(
    sizes: &Sizes,
    flags: &[u8],
    launch: &HostLaunch<'_>,
    [source, other, result]: [DevicePointer; 3],
) -> Result<(), HostFault> {
    let limit = sizes.limit as usize;
    let source = launch.read::<T>(source, flags.len())?;
    let places = set(flags).take(limit).enumerate();
    if sizes.work == Work::Values {
        let result = launch.write::<T>(result, limit)?;
        places.for_each(|(to, from)| result[to] = source[from]);
        return Ok(());
    }
    let other = launch.read::<T>(other, limit)?;
    let result = launch.write::<T>(result, flags.len())?;
    result.copy_from_slice(source);
    places.for_each(|(from, to)| result[to] = other[from]);
    Ok(())
}
