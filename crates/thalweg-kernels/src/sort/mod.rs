//! [`Sort`]: the stable order of points along a dimension, with NaN above every number as in PyTorch.
//!
//! Points are converted to unsigned integers of the same order (`Keys`), which are sorted by their digits of eight bits, the
//! lowest first (a radix sort). A row of up to [`SHORT`] points stays in the shared memory of one block; one of up to 32 is sorted
//! by a warp, whose lanes count the points that come before theirs. Longer rows are divided
//! into tiles, and each digit takes three launches: blocks count the digits of their tiles, the counts of each digit are summed
//! over the tiles, and blocks move their points to the resulting positions.

mod indices;
mod keys;
mod long;
mod one;
mod select;
mod source;

use std::marker::PhantomData;
use std::sync::LazyLock;

use bytemuck::Pod;
use thalweg_driver::{Access, AccessMode, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use crate::arguments::{self, Argument, arguments};
use crate::native::{Accesses, Native, NativeKernel, Placed, Words, along_x, native};

pub use indices::{IndexStep, SortIndices};
use keys::Keys;
pub use long::{LongStep, LongWork, SelectLong};
pub use one::SelectOne;
pub use select::{MOST, Select};

/// The dtypes for which there is a kernel.
const DTYPES: [DType; 6] = [DType::F32, DType::F64, DType::F16, DType::Bf16, DType::I64, DType::I32];

/// Checks that there is a kernel for a dtype.
fn check(kernel: &str, dtype: DType) -> Result<(), Fault> {
    Fault::unless(DTYPES.contains(&dtype), || format!("{kernel} does not take {dtype}"))
}

/// The sizes of a sort: elements are (outer, length, inner), without gaps. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sort {
    /// The number of rows before the dimension.
    pub outer: u64,
    /// The number of points of a row, fewer than 2³².
    pub length: u64,
    /// The number of adjacent rows, whose elements alternate in memory.
    pub inner: u64,
    /// Whether the greatest comes first. Equal points keep their order in both cases.
    pub descending: bool,
    /// The dtype of the points: a floating-point type, int32 or int64.
    pub dtype: DType,
}

/// The most points of a row that one block sorts.
pub const SHORT: u64 = 4096;

/// The most points of a row that one warp sorts.
const TINY: u64 = 32;

/// The possible numbers of points of each thread, for rows that one block sorts; the smallest sufficient one is used. It is 0 for
/// rows that a warp sorts.
const ITEMS: [u64; 4] = [0, 1, 4, 16];

/// Threads of a block.
const BLOCK: u32 = 256;

/// The number of values of a digit.
const DIGITS: u64 = 256;

/// The most tiles whose counts a warp adds; those of more tiles are added by a block.
const FEW_TILES: u64 = 128;

/// Returns the number of blocks that add the counts of each digit over the tiles of rows.
fn blocks_that_add(rows: u64, tiles: u64) -> u64 {
    let lines = rows * DIGITS;
    if tiles > FEW_TILES { lines } else { lines.div_ceil(u64::from(BLOCK) / 32) }
}

/// One launch of a sort.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Step {
    /// The sort.
    pub sort: Sort,
    /// The part of the sort that the launch does.
    pub work: Work,
}

/// The work of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Work {
    /// Sorts rows of up to [`SHORT`] points.
    Rows,
    /// Counts the values of one digit in every tile.
    Count(u32),
    /// Sums the counts of each digit over the tiles.
    Add,
    /// Moves points to the positions that follow from the counts of one digit.
    Place(u32),
}

impl Work {
    /// Returns how a launch uses the scratch memory, in which the first one finds nothing.
    fn scratch_mode(self) -> AccessMode {
        if self == Self::Count(0) { AccessMode::Write } else { AccessMode::ReadWrite }
    }
}

impl Sort {
    /// Returns the launches, in order.
    fn steps(self) -> impl Iterator<Item = Step> {
        let digits = if self.length <= SHORT { 0 } else { self.dtype.size_bytes() as u32 };
        works(digits).map(move |work| Step { sort: self, work })
    }

    fn rows(&self) -> u64 {
        self.outer * self.inner
    }

    fn elements(&self) -> u64 {
        self.rows() * self.length
    }

    /// Returns the position in memory of a row's first point, for rows of this length.
    fn first(&self, row: usize, length: u64) -> usize {
        let (length, inner) = (length as usize, self.inner as usize);
        row / inner * length * inner + row % inner
    }

    /// Returns the number of points of a tile.
    fn tile(&self) -> u64 {
        if self.dtype.size_bytes() == 8 { SHORT / 2 } else { SHORT }
    }

    /// Returns the number of tiles of a row.
    fn tiles(&self) -> u64 {
        self.length.div_ceil(self.tile())
    }

    /// Returns the number of words of each section of the scratch memory: keys and places twice, counts, and sums of counts.
    fn sections(&self) -> [u64; 6] {
        let keys = (self.elements() * self.dtype.size_bytes() as u64).div_ceil(8);
        let places = (self.elements() * 4).div_ceil(8);
        let sums = self.rows() * DIGITS / 2;
        [keys, keys, places, places, sums * self.tiles(), sums]
    }
}

impl Step {
    /// Returns the number of points of each thread.
    fn items(&self) -> u64 {
        match self.work {
            Work::Rows => {
                let enough = |&items: &u64| (items * u64::from(BLOCK)).max(TINY) >= self.sort.length;
                ITEMS.into_iter().find(enough).unwrap_or(ITEMS[3])
            }
            _ => self.sort.tile() / u64::from(BLOCK),
        }
    }

    /// Returns the name of the entry point, always the same string, because kernels are found by it.
    fn name(&self) -> &'static str {
        /// The names for rows by the items of a thread, for counting, and for placing.
        type Names = [[String; 6]; DTYPES.len()];
        static NAMES: LazyLock<Names> = LazyLock::new(|| {
            DTYPES.map(|dtype| {
                let forms = ["rows_tiny", "rows_1", "rows_4", "rows_16", "count", "place"];
                forms.map(|form| format!("sort_{form}_{}", dtype.name()))
            })
        });
        let form = match self.work {
            Work::Add => return "sort_add",
            Work::Rows => ITEMS.into_iter().position(|items| items == self.items()).unwrap_or(3),
            Work::Count(_) => 4,
            Work::Place(_) => 5,
        };
        let dtype = DTYPES.into_iter().position(|dtype| dtype == self.sort.dtype);
        dtype.map_or("sort", |dtype| &NAMES[dtype][form])
    }

    fn print(&self) -> String {
        source::of_digits(self.name(), &self.work.call(&source::elements_of(self.sort.dtype), self.items()))
    }
}

/// Returns the work of the launches of a sort by this many digits, in order; 0 if it is one of short rows.
fn works(digits: u32) -> impl Iterator<Item = Work> {
    let long = (0..digits).flat_map(|digit| [Work::Count(digit), Work::Add, Work::Place(digit)]);
    (digits == 0).then_some(Work::Rows).into_iter().chain(long)
}

impl Work {
    /// Returns the number of the digit.
    fn digit(self) -> u32 {
        match self {
            Self::Count(digit) | Self::Place(digit) => digit,
            Self::Rows | Self::Add => 0,
        }
    }

    /// Returns the call of a kernel's body, for elements of a type and this number of points per thread.
    fn call(self, elements: &str, items: u64) -> String {
        let function = match self {
            Self::Rows if items == 0 => return format!("sort_tiny_rows<{elements}>(x)"),
            Self::Rows => "sort_rows",
            Self::Count(_) => "count_digits",
            Self::Add => return "add_counts(x)".to_owned(),
            Self::Place(_) => "place_points",
        };
        format!("{function}<{elements}, {items}>(x)")
    }
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    let of_dtype = |dtype| {
        let sort = move |length| Sort { outer: 1, length, inner: 1, descending: false, dtype };
        let lengths = ITEMS.map(|items| (items * u64::from(BLOCK)).max(1)).into_iter().chain([SHORT + 1]);
        lengths.flat_map(move |length| sort(length).steps().take(3))
    };
    // The kernel that sums counts is the same for all dtypes.
    let mut steps: Vec<Step> = DTYPES.into_iter().flat_map(of_dtype).collect();
    steps.sort_by_key(Step::name);
    steps.dedup_by_key(|step| step.name());
    let steps = steps.into_iter().map(|step| (step.name().to_owned(), step.print()));
    steps.chain(select::sources()).chain(indices::sources()).chain(one::sources()).chain(long::sources())
}

/// The addresses of a launch's operands.
struct Operands {
    source: DevicePointer,
    values: DevicePointer,
    places: DevicePointer,
    /// The addresses at which keys are read and written; below, those of places.
    keys: [DevicePointer; 2],
    marks: [DevicePointer; 2],
    counts: DevicePointer,
    sums: DevicePointer,
}

arguments! { Operands { source, values, places, keys, marks, counts, sums } }

/// The words of a step after its addresses: its sort, the words that only a sort of indices uses, and its work.
impl Argument for Step {
    fn write(&self, words: &mut Words) {
        let Sort { outer, length, inner, descending, dtype } = self.sort;
        words.extend([outer, length, inner, u64::from(descending), 0, dtype.size_bytes() as u64]);
        words.push(self.work.digit().into());
        words.push(self.sort.tiles());
        dtype.write(words);
        self.work.write(words);
    }

    fn read(words: &mut std::slice::Iter<'_, u64>) -> Option<Self> {
        let [outer, length, inner] = Argument::read(words)?;
        let descending = Argument::read(words)?;
        let _: [u64; 4] = Argument::read(words)?;
        let sort = Sort { outer, length, inner, descending, dtype: Argument::read(words)? };
        Some(Self { sort, work: Argument::read(words)? })
    }
}

/// Written as the digit, and the number of the work.
impl Argument for Work {
    fn write(&self, words: &mut Words) {
        words.extend(match *self {
            Self::Rows => [0, 0],
            Self::Count(digit) => [digit.into(), 1],
            Self::Add => [0, 2],
            Self::Place(digit) => [digit.into(), 3],
        });
    }

    fn read(words: &mut std::slice::Iter<'_, u64>) -> Option<Self> {
        let digit = u32::try_from(*words.next()?).ok()?;
        Some(match words.next()? {
            0 => Self::Rows,
            1 => Self::Count(digit),
            2 => Self::Add,
            _ => Self::Place(digit),
        })
    }
}

impl Operands {
    /// Returns the operands of a launch, whose scratch memory has sections of these numbers of words.
    fn new(sections: [u64; 6], work: Work, [source, values, places, scratch]: [DevicePointer; 4]) -> Self {
        let mut next = scratch;
        let [first_keys, second_keys, first_marks, second_marks, counts, sums] = sections.map(|words| {
            let first = next;
            next = first.offset(words * 8);
            first
        });
        let mut keys = [second_keys, first_keys];
        let mut marks = [second_marks, first_marks];
        if work.digit() % 2 == 1 {
            keys.reverse();
            marks.reverse();
        }
        Self { source, values, places, keys, marks, counts, sums }
    }
}

impl Step {
    /// Returns whether the launch moves the points by their last digit, and so writes the results.
    fn is_last(&self) -> bool {
        self.work.digit() as usize + 1 == self.sort.dtype.size_bytes()
    }
}

/// Operands: the source; the sorted values; and their places in the source's row (int64).
impl Native<[DevicePointer; 3]> for Sort {
    fn scratch_bytes(&self) -> u64 {
        if self.length <= SHORT { 0 } else { self.sections().iter().sum::<u64>() * 8 }
    }

    fn launches(
        self,
        [source, values, places]: [DevicePointer; 3],
        scratch: DevicePointer,
    ) -> impl Iterator<Item = impl NativeKernel> {
        self.steps().map(move |kernel| Placed { kernel, at: [source, values, places, scratch] })
    }
}

/// Operands: those of the sort, and the scratch memory.
impl NativeKernel for Placed<Step, [DevicePointer; 4]> {
    native! { self: self.kernel.name(), self.kernel.print(), run_on_host }

    fn check(&self) -> Result<(), Fault> {
        check("sort", self.kernel.sort.dtype)?;
        match self.kernel.sort.length {
            length if length > u64::from(u32::MAX) => {
                Err(Fault::new(format!("sort takes rows of fewer than 2^32 points, not of {length}")))
            }
            _ => Ok(()),
        }
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let sort = &self.kernel.sort;
        let blocks = match self.kernel.work {
            Work::Rows if self.kernel.items() == 0 => sort.rows().div_ceil(u64::from(BLOCK) / TINY),
            Work::Rows => sort.rows(),
            Work::Count(_) | Work::Place(_) => sort.rows() * sort.tiles(),
            Work::Add => blocks_that_add(sort.rows(), sort.tiles()),
        };
        along_x(blocks, BLOCK).filter(|_| sort.elements() > 0)
    }

    fn words(&self) -> Words {
        let Step { sort, work } = self.kernel;
        arguments::pack(&Operands::new(sort.sections(), work, self.at), &self.kernel)
    }

    fn accesses(&self) -> Accesses {
        let Step { sort, work } = self.kernel;
        let [source, values, places, scratch] = self.at;
        let read = Access::read(source, sort.elements() * sort.dtype.size_bytes() as u64);
        let results = [
            Access::write(values, read.bytes),
            Access::write(places, sort.elements() * size_of::<i64>() as u64),
        ];
        let scratch = Access::new(scratch.address(), sort.scratch_bytes(), work.scratch_mode());
        match work {
            Work::Rows => [read].into_iter().chain(results).collect(),
            Work::Place(_) if self.kernel.is_last() => [read, scratch].into_iter().chain(results).collect(),
            Work::Add => [scratch].into_iter().collect(),
            Work::Count(digit) | Work::Place(digit) => {
                (digit == 0).then_some(read).into_iter().chain([scratch]).collect()
            }
        }
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (step, at, []): (Step, Operands, _) = arguments::unpack("sort", launch)?;
    match step.sort.dtype.size_bytes() {
        2 => Host::<u16>::new(launch, step, at).run(),
        4 => Host::<u32>::new(launch, step, at).run(),
        8 => Host::<u64>::new(launch, step, at).run(),
        _ => Err(HostFault(format!("sort: {} is not a dtype of it", step.sort.dtype))),
    }
}

/// Replaces each count of a line, which contains the counts of one digit in all tiles, by the sum of the preceding counts, and writes
/// the sum of the line.
fn add_counts(launch: &HostLaunch<'_>, at: &Operands, lines: usize, tiles: usize) -> Result<(), HostFault> {
    let counts = launch.write::<u32>(at.counts, lines * tiles)?;
    let sums = launch.write::<u32>(at.sums, lines)?;
    for (line, sum) in counts.chunks_mut(tiles).zip(sums) {
        *sum = 0;
        for count in line {
            *sum += std::mem::replace(count, *sum);
        }
    }
    Ok(())
}

/// A launch on the host, over the bits of elements.
struct Host<'h, T> {
    launch: &'h HostLaunch<'h>,
    step: Step,
    at: Operands,
    keys: Keys,
    bits: PhantomData<T>,
}

impl<'h, T: Pod + Into<u64> + TryFrom<u64>> Host<'h, T> {
    fn new(launch: &'h HostLaunch<'h>, step: Step, at: Operands) -> Self {
        let keys = Keys::new(step.sort.dtype, step.sort.descending);
        Self { launch, step, at, keys, bits: PhantomData }
    }

    fn run(&self) -> Result<(), HostFault> {
        match self.step.work {
            Work::Rows => self.rows(),
            Work::Count(digit) => self.count(digit),
            Work::Add => self.add(),
            Work::Place(digit) => self.place(digit),
        }
    }

    fn read<E: Pod>(&self, at: DevicePointer, count: u64) -> Result<&'h [E], HostFault> {
        self.launch.read(at, count as usize)
    }

    #[allow(clippy::mut_from_ref)] // the launch checks at run time that access is exclusive
    fn write<E: Pod>(&self, at: DevicePointer, count: u64) -> Result<&'h mut [E], HostFault> {
        self.launch.write(at, count as usize)
    }

    fn inner(&self) -> usize {
        self.step.sort.inner as usize
    }

    fn rows(&self) -> Result<(), HostFault> {
        let (step, Operands { source, values, places, .. }) = (&self.step, &self.at);
        let count = step.sort.elements();
        let source = self.read::<T>(*source, count)?;
        let (values, places) = (self.write::<T>(*values, count)?, self.write::<i64>(*places, count)?);
        let inner = self.inner();
        for row in 0..step.sort.rows() as usize {
            let first = self.step.sort.first(row, self.step.sort.length);
            let key = |at: usize| self.keys.of(source[first + at * inner].into());
            let mut order: Vec<(u64, usize)> =
                (0..step.sort.length as usize).map(|at| (key(at), at)).collect();
            // Keys with their places are all different, so equal keys stay in the order of the row.
            order.sort_unstable();
            for (to, (_, from)) in order.into_iter().enumerate() {
                values[first + to * inner] = source[first + from * inner];
                places[first + to * inner] = from as i64;
            }
        }
        Ok(())
    }

    /// Returns the keys of a row, and the places of their points, before the points are moved by a digit.
    fn row(&self, row: usize, digit: u32) -> Result<(Vec<u64>, Vec<u32>), HostFault> {
        let (step, Operands { source, keys, marks, .. }) = (&self.step, &self.at);
        let length = step.sort.length;
        if digit == 0 {
            let source = self.read::<T>(*source, step.sort.elements())?;
            let (first, inner) = (self.step.sort.first(row, self.step.sort.length), self.inner());
            let key = |at| self.keys.of(source[first + at as usize * inner].into());
            return Ok(((0..length).map(key).collect(), (0..length as u32).collect()));
        }
        let (size, skipped) = (size_of::<T>() as u64, row as u64 * length);
        let keys = self.read::<T>(keys[0].offset(skipped * size), length)?;
        let marks = self.read::<u32>(marks[0].offset(skipped * 4), length)?;
        Ok((keys.iter().map(|&key| key.into()).collect(), marks.to_vec()))
    }

    fn count(&self, digit: u32) -> Result<(), HostFault> {
        let (step, Operands { counts, .. }) = (&self.step, &self.at);
        let (rows, tiles, tile) = (step.sort.rows(), step.sort.tiles(), step.sort.tile());
        let counts = self.write::<u32>(*counts, rows * DIGITS * tiles)?;
        counts.fill(0);
        for row in 0..rows as usize {
            let (keys, _) = self.row(row, digit)?;
            for (number, keys) in keys.chunks(tile as usize).enumerate() {
                for key in keys {
                    let value = (key >> (8 * digit) & 0xff) as usize;
                    counts[(row * DIGITS as usize + value) * tiles as usize + number] += 1;
                }
            }
        }
        Ok(())
    }

    fn add(&self) -> Result<(), HostFault> {
        let sort = &self.step.sort;
        add_counts(self.launch, &self.at, (sort.rows() * DIGITS) as usize, sort.tiles() as usize)
    }

    fn place(&self, digit: u32) -> Result<(), HostFault> {
        let (step, Operands { source, values, places, keys, marks, sums, .. }) = (&self.step, &self.at);
        let (sort, size) = (&step.sort, size_of::<T>() as u64);
        let inner = self.inner();
        let sums = self.read::<u32>(*sums, sort.rows() * DIGITS)?;
        let mut results = match step.is_last() {
            false => None,
            true => Some((
                self.read::<T>(*source, sort.elements())?,
                self.write::<T>(*values, sort.elements())?,
                self.write::<i64>(*places, sort.elements())?,
            )),
        };
        for (row, sums) in sums.chunks(DIGITS as usize).enumerate() {
            let mut next: Vec<usize> = sums
                .iter()
                .scan(0, |before, &sum| {
                    *before += sum as usize;
                    Some(*before - sum as usize)
                })
                .collect();
            let (from, origin) = self.row(row, digit)?;
            let mut order = vec![0; from.len()];
            for (at, key) in from.iter().enumerate() {
                let next = &mut next[(key >> (8 * digit) & 0xff) as usize];
                order[*next] = at;
                *next += 1;
            }
            if let Some((source, values, places)) = &mut results {
                let first = self.step.sort.first(row, self.step.sort.length);
                for (to, at) in order.into_iter().enumerate() {
                    values[first + to * inner] = source[first + origin[at] as usize * inner];
                    places[first + to * inner] = origin[at].into();
                }
                continue;
            }
            let skipped = row as u64 * sort.length;
            let keys = self.write::<T>(keys[1].offset(skipped * size), sort.length)?;
            let marks = self.write::<u32>(marks[1].offset(skipped * 4), sort.length)?;
            for (to, at) in order.into_iter().enumerate() {
                keys[to] = T::try_from(from[at]).ok().expect("a key has the width of its element");
                marks[to] = origin[at];
            }
        }
        Ok(())
    }
}
