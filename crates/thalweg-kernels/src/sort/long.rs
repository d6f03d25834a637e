//! [`LongStep`]: [`SelectOne`] for a few long rows, which many blocks read: for each digit one launch counts its values and one
//! finds that of the wanted point; then one launch counts the points of each part of a row that equal it, and one finds its place.

use std::sync::LazyLock;

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use super::one::{SelectOne, run_bits};
use super::select::Sizes;
use super::source::{elements_of, of_long_selection};
use super::{DTYPES, Sort, check};
use crate::arguments::{self, arguments};
use crate::native::{Accesses, Native, NativeKernel, Placed, Words, along_x, native};

/// One launch of a selection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LongStep {
    /// The selection; its rows have an inner extent of 1.
    pub select: SelectOne,
    /// The part of the selection that the launch does.
    pub work: LongWork,
}

/// The work of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LongWork {
    /// Counts the values of one digit.
    Count(u32),
    /// Finds one digit of the wanted point.
    Find(u32),
    /// Counts the points of each part that equal the wanted one.
    CountEqual,
    /// Finds the wanted one of the equal points, and writes it.
    Place,
}

/// The bits of a digit, and the number of its values with the counter of NaNs.
const DIGIT: u32 = 11;
const COUNTERS: u64 = (1 << DIGIT) + 1;

/// Threads of a block, and the most parts of a row.
const BLOCK: u64 = 512;

/// The number of parts of all rows together that keeps a large GPU busy.
const PARTS: u64 = 528;

/// The least number of points of a part.
const LEAST_PART: u64 = 1 << 14;

/// The names of the kernels without their dtype.
const FORMS: [&str; 4] = ["count_long", "find_long", "count_equal", "place_equal"];

/// A selection from a few long rows, by many blocks each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SelectLong(pub SelectOne);

/// Operands: the source; the selected values; their places in the source's row (int64); and [counters](SelectOne::counters).
impl Native<[DevicePointer; 4]> for SelectLong {
    fn scratch_bytes(&self) -> u64 {
        self.0.states() * 4
    }

    fn launches(
        self,
        [source, values, places, counters]: [DevicePointer; 4],
        states: DevicePointer,
    ) -> impl Iterator<Item = impl NativeKernel> {
        let digits = self.0.width().div_ceil(DIGIT);
        let by_digit = (0..digits).flat_map(|digit| [LongWork::Count(digit), LongWork::Find(digit)]);
        let works = by_digit.chain([LongWork::CountEqual, LongWork::Place]);
        let at = [source, values, places, counters, states];
        works.map(move |work| Placed { kernel: LongStep { select: self.0, work }, at })
    }
}

impl SelectOne {
    /// Returns the number of counters (32 bits, zeros before) of a selection from long rows.
    pub fn counters(&self) -> u64 {
        self.sort.rows() * COUNTERS
    }

    /// Returns the number of 4-byte words of the states and the counts of parts.
    fn states(&self) -> u64 {
        self.sort.rows() * (4 + self.parts())
    }

    /// Returns the number of bits of a key.
    fn width(&self) -> u32 {
        8 * self.sort.dtype.size_bytes() as u32
    }

    /// Returns the number of points of each part of a row except the last.
    fn part(&self) -> u64 {
        let parts = (PARTS / self.sort.rows().max(1)).clamp(1, BLOCK);
        self.sort.length.div_ceil(parts).max(LEAST_PART)
    }

    fn parts(&self) -> u64 {
        self.sort.length.div_ceil(self.part())
    }
}

impl LongStep {
    fn form(&self) -> usize {
        match self.work {
            LongWork::Count(_) => 0,
            LongWork::Find(_) => 1,
            LongWork::CountEqual => 2,
            LongWork::Place => 3,
        }
    }

    /// Returns the bit above the launch's digit, and its lowest bit.
    fn bits(&self) -> [u32; 2] {
        let digit = match self.work {
            LongWork::Count(digit) | LongWork::Find(digit) => digit,
            LongWork::CountEqual | LongWork::Place => 0,
        };
        let above = self.select.width().saturating_sub(digit * DIGIT);
        [above, above.saturating_sub(DIGIT)]
    }

    /// Returns the name of the entry point, always the same string, because kernels are found by it.
    fn name(&self) -> &'static str {
        static NAMES: LazyLock<[[String; FORMS.len()]; DTYPES.len()]> =
            LazyLock::new(|| DTYPES.map(|dtype| FORMS.map(|form| format!("select_{form}_{}", dtype.name()))));
        let dtype = DTYPES.into_iter().position(|dtype| dtype == self.select.sort.dtype);
        dtype.map_or("select_long", |dtype| &NAMES[dtype][self.form()])
    }

    fn print(&self) -> String {
        let call = format!("{}<{}>(x)", FORMS[self.form()], elements_of(self.select.sort.dtype));
        of_long_selection(self.name(), &call)
    }
}

/// Returns name and source of every kernel of this module.
pub(super) fn sources() -> impl Iterator<Item = (String, String)> {
    let of_dtype = |dtype: DType| {
        let sort = Sort { outer: 1, length: 1, inner: 1, descending: false, dtype };
        let select = SelectOne { sort, place: 0, takes_nan: false };
        let works = [LongWork::Count(0), LongWork::Find(0), LongWork::CountEqual, LongWork::Place];
        works.map(|work| {
            let step = LongStep { select, work };
            (step.name().to_owned(), step.print())
        })
    };
    DTYPES.into_iter().flat_map(of_dtype)
}

/// The words of a launch after its addresses, in the order of the CUDA code.
struct LongSizes {
    sizes: Sizes,
    above: u64,
    shift: u64,
    part: u64,
    parts: u64,
    work: u64,
}

arguments! { LongSizes { sizes, above, shift, part, parts, work } }

/// Operands: the source; the selected values; their places in the source's row (int64); the counters; and the states, with the counts
/// of parts.
type Operands = [DevicePointer; 5];

impl NativeKernel for Placed<LongStep, Operands> {
    native! { self: self.kernel.name(), self.kernel.print(), run_on_host }

    fn check(&self) -> Result<(), Fault> {
        let SelectOne { sort, place, .. } = self.kernel.select;
        check("select_long", sort.dtype)?;
        Fault::unless(place < sort.length && sort.length <= u64::from(u32::MAX) && sort.inner == 1, || {
            format!(
                "select_long takes a point of fewer than 2^32 neighbours, not point {place} of {}",
                sort.length
            )
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let select = &self.kernel.select;
        let parts = match self.kernel.work {
            LongWork::Count(_) | LongWork::CountEqual => select.parts(),
            LongWork::Find(_) | LongWork::Place => 1,
        };
        along_x(select.sort.rows() * parts, BLOCK)
    }

    fn words(&self) -> Words {
        let LongStep { select, .. } = self.kernel;
        let [source, values, places, counts, state] = self.at;
        let of_parts = state.offset(select.sort.rows() * 16);
        let [above, shift] = self.kernel.bits().map(u64::from);
        let (part, parts, work) = (select.part(), select.parts(), self.kernel.form() as u64);
        let sizes = LongSizes { sizes: select.words(), above, shift, part, parts, work };
        arguments::pack(&[source, values, places, state, counts, of_parts], &sizes)
    }

    fn accesses(&self) -> Accesses {
        let select = &self.kernel.select;
        let (rows, size) = (select.sort.rows(), select.sort.dtype.size_bytes() as u64);
        let [source, values, places, counts, state] = self.at;
        let mut list = Accesses::from_iter([
            Access::read_write(counts, select.counters() * 4),
            Access::read_write(state, select.states() * 4),
        ]);
        if !matches!(self.kernel.work, LongWork::Find(_)) {
            list.push(Access::read(source, select.sort.elements() * size));
        }
        if self.kernel.work == LongWork::Place {
            list.push(Access::write(values, rows * size));
            list.push(Access::write(places, rows * size_of::<i64>() as u64));
        }
        list
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (words, at, []): (LongSizes, [DevicePointer; 6], _) = arguments::unpack("select_long", launch)?;
    // The last launch computes everything itself.
    if FORMS[words.work as usize % FORMS.len()] != "place_equal" {
        return Ok(());
    }
    let at = [at[0], at[1], at[2]];
    match words.sizes.dtype.size_bytes() {
        2 => run_bits::<u16>(launch, &words.sizes, at),
        4 => run_bits::<u32>(launch, &words.sizes, at),
        _ => run_bits::<u64>(launch, &words.sizes, at),
    }
}
