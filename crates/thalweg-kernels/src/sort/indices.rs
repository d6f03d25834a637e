//! [`SortIndices`]: the stable order of indices below a limit, by only as many digits as the limit has. Rows that are combined by
//! index become neighbours in this order.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use super::source::of_digits;
use super::{BLOCK, DIGITS, Operands, SHORT, Work, add_counts, blocks_that_add, works};
use crate::arguments::{self, Argument};
use crate::native::{Accesses, Native, NativeKernel, Placed, Words, along_x, native};
use crate::operands::span;

/// The sizes of a sort of indices.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SortIndices {
    /// The number of indices, up to [`MOST`](Self::MOST).
    pub count: u64,
    /// The stride of the indices, in elements.
    pub stride: u64,
    /// The least number that is not an index, up to [`MOST`](Self::MOST): all numbers that are not below it, or negative, are
    /// replaced by it, and come last.
    pub limit: u64,
}

/// One launch of a sort of indices.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IndexStep {
    /// The sort.
    pub sort: SortIndices,
    /// The part of the sort that the launch does.
    pub work: Work,
}

/// The number of points of each thread, and of a tile.
const ITEMS: u64 = 16;

impl SortIndices {
    /// The most indices, and the greatest limit: both are numbered in 31 bits.
    pub const MOST: u64 = (1 << 31) - 1;

    /// Returns the number of digits of the limit.
    fn digits(&self) -> u64 {
        u64::from(64 - self.limit.leading_zeros()).div_ceil(8).max(1)
    }

    fn tiles(&self) -> u64 {
        self.count.div_ceil(SHORT)
    }

    /// Returns the number of words of each section of the scratch memory: keys and places twice, counts, and sums of counts.
    fn sections(&self) -> [u64; 6] {
        let words = self.count.div_ceil(2);
        [words, words, words, words, DIGITS / 2 * self.tiles(), DIGITS / 2]
    }

    /// Returns the number of elements that the indices span in memory.
    fn span(&self) -> u64 {
        span([self.count], [self.stride])
    }
}

impl IndexStep {
    fn is_last(&self) -> bool {
        u64::from(self.work.digit()) + 1 == self.sort.digits()
    }

    fn name(&self) -> &'static str {
        match self.work {
            Work::Rows => "sort_indices_rows",
            Work::Count(_) => "sort_indices_count",
            Work::Add => "sort_indices_add",
            Work::Place(_) => "sort_indices_place",
        }
    }

    fn print(&self) -> String {
        of_digits(self.name(), &self.work.call("indices_of", ITEMS))
    }
}

/// Returns name and source of every kernel of this module.
pub(super) fn sources() -> impl Iterator<Item = (String, String)> {
    let sort = SortIndices { count: 1, stride: 1, limit: 1 };
    let works = [Work::Rows, Work::Count(0), Work::Add, Work::Place(0)];
    works.into_iter().map(move |work| {
        let step = IndexStep { sort, work };
        (step.name().to_owned(), step.print())
    })
}

/// The words of a step after its addresses, in the order of the CUDA code.
impl Argument for IndexStep {
    fn write(&self, words: &mut Words) {
        let SortIndices { count, stride, limit } = self.sort;
        words.extend([1, count, stride, 0, limit, self.sort.digits(), self.work.digit().into()]);
        words.extend([self.sort.tiles(), 0]);
        self.work.write(words);
    }

    fn read(words: &mut std::slice::Iter<'_, u64>) -> Option<Self> {
        let [_, count, stride, _, limit, _, _, _, _]: [u64; 9] = Argument::read(words)?;
        Some(Self { sort: SortIndices { count, stride, limit }, work: Argument::read(words)? })
    }
}

/// Operands: the indices (int64); the sorted indices, and the places that they had (both 32 bits).
impl Native<[DevicePointer; 3]> for SortIndices {
    fn scratch_bytes(&self) -> u64 {
        if self.count <= SHORT { 0 } else { self.sections().iter().sum::<u64>() * 8 }
    }

    fn launches(
        self,
        [source, values, places]: [DevicePointer; 3],
        scratch: DevicePointer,
    ) -> impl Iterator<Item = impl NativeKernel> {
        let digits = if self.count <= SHORT { 0 } else { self.digits() as u32 };
        let at = [source, values, places, scratch];
        works(digits).map(move |work| Placed { kernel: IndexStep { sort: self, work }, at })
    }
}

/// Operands: those of the sort, and the scratch memory.
impl NativeKernel for Placed<IndexStep, [DevicePointer; 4]> {
    native! { self: self.kernel.name(), self.kernel.print(), run_on_host }

    fn check(&self) -> Result<(), Fault> {
        let SortIndices { count, limit, .. } = self.kernel.sort;
        Fault::unless(count.max(limit) <= SortIndices::MOST, || {
            format!("sort_indices: {count} indices below {limit} are too many")
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let blocks = match self.kernel.work {
            Work::Rows => 1,
            Work::Count(_) | Work::Place(_) => self.kernel.sort.tiles(),
            Work::Add => blocks_that_add(1, self.kernel.sort.tiles()),
        };
        along_x(blocks, BLOCK).filter(|_| self.kernel.sort.count > 0)
    }

    fn words(&self) -> Words {
        let IndexStep { sort, work } = self.kernel;
        arguments::pack(&Operands::new(sort.sections(), work, self.at), &self.kernel)
    }

    fn accesses(&self) -> Accesses {
        let IndexStep { sort, work } = self.kernel;
        let [source, values, places, scratch] = self.at;
        let read = Access::read(source, sort.span() * size_of::<i64>() as u64);
        let results = [values, places].map(|result| Access::write(result, sort.count * 4));
        let scratch = Access::new(scratch.address(), sort.scratch_bytes(), work.scratch_mode());
        let reads = (work.digit() == 0 && work != Work::Add).then_some(read);
        let writes = match work {
            Work::Rows => true,
            Work::Place(_) => self.kernel.is_last(),
            Work::Count(_) | Work::Add => false,
        };
        reads.into_iter().chain([scratch]).chain(results.into_iter().filter(|_| writes)).collect()
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (step, at, []): (IndexStep, Operands, _) = arguments::unpack("sort_indices", launch)?;
    let SortIndices { count, stride, limit } = step.sort;
    let (count, tiles, shift) = (count as usize, step.sort.tiles() as usize, 8 * step.work.digit());
    let digit_of = |key: u32| (key >> shift & 0xff) as usize;
    // The keys and the places before the launch's digit.
    let points = || -> Result<Vec<(u32, u32)>, HostFault> {
        if step.work.digit() == 0 {
            let source = launch.read::<i64>(at.source, step.sort.span() as usize)?;
            let key =
                |k: usize| u64::try_from(source[k * stride as usize]).unwrap_or(limit).min(limit) as u32;
            return Ok((0..count).map(|k| (key(k), k as u32)).collect());
        }
        let (keys, marks) = (launch.read::<u32>(at.keys[0], count)?, launch.read::<u32>(at.marks[0], count)?);
        Ok(keys.iter().copied().zip(marks.iter().copied()).collect())
    };
    let write = |to: [DevicePointer; 2], points: &[(u32, u32)]| -> Result<(), HostFault> {
        let (keys, marks) = (launch.write::<u32>(to[0], count)?, launch.write::<u32>(to[1], count)?);
        for (at, &(key, mark)) in points.iter().enumerate() {
            (keys[at], marks[at]) = (key, mark);
        }
        Ok(())
    };
    match step.work {
        Work::Rows => {
            let mut points = points()?;
            points.sort_by_key(|&(key, _)| key);
            write([at.values, at.places], &points)
        }
        Work::Count(_) => {
            let counts = launch.write::<u32>(at.counts, DIGITS as usize * tiles)?;
            counts.fill(0);
            for (tile, points) in points()?.chunks(SHORT as usize).enumerate() {
                points.iter().for_each(|&(key, _)| counts[digit_of(key) * tiles + tile] += 1);
            }
            Ok(())
        }
        Work::Add => add_counts(launch, &at, DIGITS as usize, tiles),
        Work::Place(_) => {
            let mut points = points()?;
            points.sort_by_key(|&(key, _)| digit_of(key));
            let to = if step.is_last() { [at.values, at.places] } else { [at.keys[1], at.marks[1]] };
            write(to, &points)
        }
    }
}
