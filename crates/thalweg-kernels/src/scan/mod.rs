//! [`Scan`]: running sums, products, extrema and linear recurrences along a dimension. They are not loops over a body, because a
//! point needs those before it.
//!
//! Points are combined in this order: groups of eight neighbours sequentially; up to 32 groups by doubling distances (1, 2, 4,
//! …); if a row has several warps, their results in the same way; and each chunk starts from the result of the chunks before it.
//! Contiguous rows are read 16 bytes at a time by a warp, or by a block if there are few rows. Of rows that are adjacent in
//! memory, each lane walks one, so that complete lines of memory are read, and the warps divide its groups among themselves. A few
//! long rows are divided into parts: one launch combines the points of each part, and the next one scans each part, beginning with
//! the totals of the parts before it, which are combined 32 at a time. The host function combines in the same order, so sums have a GPU's bits; only logarithms and exponentials may differ in their last
//! place.

use std::cell::Cell;
use std::sync::Arc;

use thalweg_driver::{Access, DevicePointer, HostFault, HostKernel, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element};

use crate::arguments::{self, arguments, choices};
use crate::dtypes::{DTYPES, with_float};
use crate::native::{Accesses, Native, NativeKernel, Placed, Words, along_x};
use crate::source::Source;

/// The operation that combines a point with those before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScanOp {
    /// a + b; wraps for integers.
    Sum,
    /// a · b; wraps for integers.
    Product,
    /// ln (eᵃ + eᵇ). Floats only.
    LogSumExp,
    /// The greater number and its position: the last one among equal numbers, or among NaNs.
    Max,
    /// The smaller number and its position: the last one among equal numbers, or among NaNs.
    Min,
    /// y = b + a · the previous y, for two inputs: the offsets b, and the factors a. Floats only.
    Recurrence,
}

impl ScanOp {
    /// Every operation.
    pub const ALL: [Self; 6] =
        [Self::Sum, Self::Product, Self::LogSumExp, Self::Max, Self::Min, Self::Recurrence];

    fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Product => "product",
            Self::LogSumExp => "logsumexp",
            Self::Max => "max",
            Self::Min => "min",
            Self::Recurrence => "recurrence",
        }
    }

    /// Returns whether the second operand is places, which are written.
    fn has_places(self) -> bool {
        matches!(self, Self::Max | Self::Min)
    }

    /// Returns whether there is a kernel for a dtype: floats and int64.
    pub fn takes(self, dtype: DType) -> bool {
        dtype.is_floating_point()
            || (dtype == DType::I64 && !matches!(self, Self::LogSumExp | Self::Recurrence))
    }
}

/// The sizes of a launch: elements are (outer, length, inner), without gaps. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Scan {
    /// The way in which a point is combined with those before it.
    pub op: ScanOp,
    /// The number of rows before the dimension.
    pub outer: u64,
    /// The number of points of a row.
    pub length: u64,
    /// The number of adjacent rows, whose elements alternate in memory.
    pub inner: u64,
    /// Whether rows are scanned from their end.
    pub reversed: bool,
    /// The dtype of all operands except places: a floating-point type or int64. 16-bit floats are combined in f32, and each
    /// result is rounded.
    pub dtype: DType,
}

arguments! { Scan { outer, length, inner, reversed, dtype, op } }
choices! { ScanOp: ScanOp::ALL }

/// The work of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// Scans rows.
    Rows = 0,
    /// Combines the points of each part of the rows.
    Totals = 1,
    /// Scans parts of rows, of which the totals are known.
    Parts = 2,
}

/// One launch of a scan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ScanStep {
    /// The scan.
    pub scan: Scan,
    /// The work of the launch.
    pub phase: Phase,
}

/// The number of points that a thread combines sequentially.
const GROUP: u64 = 8;

/// The number of lanes of a warp.
const WARP: u64 = 32;

/// The number of warps of a block if each has its own row.
const WARPS_OF_ROWS: u64 = 8;

/// The least number of rows for which one warp per row keeps a large GPU busy.
const MANY_ROWS: u64 = 4096;

/// The number of rows below which a row takes as many warps as a block can have.
const FEW_ROWS: u64 = 512;

/// The number of parts of all rows together that keeps a large GPU busy.
const PARTS: u64 = 528;

/// The fewest chunks of a row for which a second launch pays.
const FEWEST_CHUNKS: u64 = 4;

/// The number of points of all rows together that keeps a large GPU busy with blocks of 32 warps.
const LARGE: u64 = 1 << 22;

/// The size of a part's total, at most, in bytes.
const TOTAL_BYTES: u64 = 16;

/// Returns the name of the entry point.
fn name(op: ScanOp, dtype: DType) -> String {
    format!("scan_{}_{}", op.name(), dtype.name())
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    ScanOp::ALL.into_iter().flat_map(|op| {
        DTYPES
            .into_iter()
            .filter(move |&dtype| op.takes(dtype))
            .map(move |dtype| (name(op, dtype), print(op, dtype)))
    })
}

fn print(op: ScanOp, dtype: DType) -> String {
    Source::new(&name(op, dtype)).elements(dtype).define("OP", op as u64).print(include_str!("kernel.cu"))
}

impl Scan {
    fn elements(&self) -> u64 {
        self.outer * self.length * self.inner
    }

    /// Returns the number of warps that scan a contiguous row, or that divide the groups of adjacent rows among themselves.
    fn warps(&self) -> u64 {
        let of_row = |points: u64| self.length.div_ceil(points).max(1).next_power_of_two().min(WARP);
        if self.inner > 1 {
            of_row(GROUP)
        } else if self.outer >= MANY_ROWS {
            1
        } else {
            // A row that is longer than a block reads at a time is divided among more blocks if these have fewer warps.
            let is_middling = self.length > GROUP * WARP * WARP && self.elements() < LARGE;
            let most = if self.outer < FEW_ROWS && !is_middling { WARP } else { WARPS_OF_ROWS };
            of_row(GROUP * WARP).min(most)
        }
    }

    /// Returns the number of points of each part of a row except the last: all of them, unless there are few long rows.
    fn part(&self) -> u64 {
        let chunk = GROUP * WARP * self.warps();
        let chunks = self.length.div_ceil(chunk);
        let parts = if self.inner == 1 && chunks >= FEWEST_CHUNKS {
            (PARTS / self.outer.max(1)).min(chunks)
        } else {
            1
        };
        if parts < 2 { self.length.max(1) } else { chunks.div_ceil(parts) * chunk }
    }

    /// Returns the number of parts of a row.
    fn parts(&self) -> u64 {
        self.length.div_ceil(self.part())
    }

    /// Returns the numbers of groups that are combined by doubling distances: within a warp, and among the warps' results.
    fn levels(&self) -> [usize; 2] {
        let warps = self.warps() as usize;
        if self.inner > 1 { [warps, 1] } else { [WARP as usize, warps] }
    }

    /// Returns the positions of a row's points, in the order in which they are combined.
    fn row(&self, row: u64) -> impl Iterator<Item = usize> + use<> {
        let Self { length, inner, reversed, .. } = *self;
        let first = row / inner * length * inner + row % inner;
        (0..length).map(move |at| {
            let at = if reversed { length - 1 - at } else { at };
            (first + at * inner) as usize
        })
    }

    /// Scans every row; `load` reads its points and `store` writes them.
    fn rows<P: Copy>(
        &self,
        load: impl Fn(usize, u64) -> P,
        combine: impl Fn(P, P) -> P,
        mut store: impl FnMut(usize, P),
    ) {
        let part = self.part() as usize;
        for row in 0..self.outer * self.inner {
            let places: Vec<usize> = self.row(row).collect();
            let mut totals: Vec<P> = Vec::new();
            for (number, places) in places.chunks(part).enumerate() {
                let before = totals.chunks(WARP as usize).map(|totals| {
                    let running = running(totals, &combine);
                    running[running.len() - 1]
                });
                let before = before.reduce(&combine);
                let first = number * part;
                if self.parts() > 1 {
                    totals.extend(self.walk(places, first, None, &load, &combine, |_, _| {}));
                }
                self.walk(places, first, before, &load, &combine, &mut store);
            }
        }
    }

    /// Scans points at these places, the first of which is at a position of its row, after a point. Returns the last result.
    fn walk<P: Copy>(
        &self,
        places: &[usize],
        first: usize,
        mut carried: Option<P>,
        load: impl Fn(usize, u64) -> P,
        combine: impl Fn(P, P) -> P,
        mut store: impl FnMut(usize, P),
    ) -> Option<P> {
        let [lanes, warps] = self.levels();
        let chunk = GROUP as usize * lanes * warps;
        for (number, places) in places.chunks(chunk).enumerate() {
            let at = |place: usize| {
                let at = (first + number * chunk + place) as u64;
                if self.reversed { self.length - 1 - at } else { at }
            };
            let mut points: Vec<P> =
                places.iter().enumerate().map(|(index, &place)| load(place, at(index))).collect();
            for group in points.chunks_mut(GROUP as usize) {
                (1..group.len()).for_each(|index| group[index] = combine(group[index - 1], group[index]));
            }
            let last = |group: &[P]| group[group.len() - 1];
            let totals: Vec<P> = points.chunks(GROUP as usize).map(last).collect();
            let of_lanes: Vec<Vec<P>> =
                totals.chunks(lanes).map(|totals| running(totals, &combine)).collect();
            let of_warps = running(&of_lanes.iter().map(|warp| last(warp)).collect::<Vec<P>>(), &combine);
            for (index, (&place, point)) in places.iter().zip(&mut points).enumerate() {
                let (warp, lane) = (index / GROUP as usize / lanes, index / GROUP as usize % lanes);
                let before = [
                    lane.checked_sub(1).map(|left| of_lanes[warp][left]),
                    warp.checked_sub(1).map(|left| of_warps[left]),
                    carried,
                ];
                let before = before.into_iter().flatten().reduce(|right, left| combine(left, right));
                *point = before.map_or(*point, |before| combine(before, *point));
                store(place, *point);
            }
            let total = of_warps[of_warps.len() - 1];
            carried = Some(carried.map_or(total, |carried| combine(carried, total)));
        }
        carried
    }
}

/// Combines each point with those before it, by doubling distances.
fn running<P: Copy>(points: &[P], combine: impl Fn(P, P) -> P) -> Vec<P> {
    let mut points = points.to_vec();
    let mut distance = 1;
    while distance < points.len() {
        for index in (distance..points.len()).rev() {
            points[index] = combine(points[index - distance], points[index]);
        }
        distance *= 2;
    }
    points
}

/// Operands: the source, the second input or the places (a null address if there is neither), and the result.
impl Native<[DevicePointer; 3]> for Scan {
    fn scratch_bytes(&self) -> u64 {
        if self.parts() > 1 { self.outer * self.parts() * TOTAL_BYTES } else { 0 }
    }

    fn launches(
        self,
        [source, other, result]: [DevicePointer; 3],
        scratch: DevicePointer,
    ) -> impl Iterator<Item = impl NativeKernel> {
        let phases: &[Phase] = if self.parts() > 1 { &[Phase::Totals, Phase::Parts] } else { &[Phase::Rows] };
        let at = [source, other, result, scratch];
        phases.iter().map(move |&phase| Placed { kernel: ScanStep { scan: self, phase }, at })
    }
}

/// Operands: those of the scan, and the scratch memory.
impl NativeKernel for Placed<ScanStep, [DevicePointer; 4]> {
    fn name(&self) -> &str {
        // Kernels are found by name, so a name must be the same string each time.
        NAMES.get_or_init(|| ScanOp::ALL.map(|op| DType::ALL.map(|dtype| name(op, dtype))))
            [self.kernel.scan.op as usize][self.kernel.scan.dtype as usize]
            .as_str()
    }

    fn source(&self) -> String {
        print(self.kernel.scan.op, self.kernel.scan.dtype)
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        Arc::new(run_on_host)
    }

    fn check(&self) -> Result<(), Fault> {
        let Scan { op, dtype, .. } = self.kernel.scan;
        Fault::unless(op.takes(dtype), || format!("a running {} does not take {dtype}", op.name()))
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let scan = &self.kernel.scan;
        let (rows, warps) = (scan.outer * scan.inner * self.parts(), scan.warps());
        let (blocks, warps) = match (scan.inner, warps) {
            (1, 1) => (rows.div_ceil(WARPS_OF_ROWS), WARPS_OF_ROWS),
            (1, warps) => (rows, warps),
            (_, warps) => (rows.div_ceil(WARP), warps),
        };
        along_x(blocks, warps * WARP).filter(|_| scan.elements() > 0)
    }

    fn words(&self) -> Words {
        let ScanStep { scan, phase } = self.kernel;
        let mut words = arguments::pack(&self.at, &scan);
        let operands = &self.at[..3];
        let is_aligned = operands.iter().all(|at| at.address().is_multiple_of(16));
        // A single row begins aligned, whatever its length; from its end it does not.
        let is_whole = scan.length.is_multiple_of(GROUP) || scan.outer == 1 && !scan.reversed;
        let is_wide = is_whole && is_aligned;
        words.extend([phase as u64, scan.part(), self.parts(), scan.warps(), u64::from(is_wide)]);
        words
    }

    fn accesses(&self) -> Accesses {
        let ScanStep { scan, phase } = self.kernel;
        let (elements, size) = (scan.elements(), scan.dtype.size_bytes() as u64);
        let [source, other, result, scratch] = self.at;
        let mut list = Accesses::from_iter([Access::read(source, elements * size)]);
        let scratch_bytes = scan.scratch_bytes();
        match phase {
            Phase::Rows => {}
            Phase::Totals => list.push(Access::write(scratch, scratch_bytes)),
            Phase::Parts => list.push(Access::read(scratch, scratch_bytes)),
        }
        if scan.op == ScanOp::Recurrence {
            list.push(Access::read(other, elements * size));
        }
        if phase != Phase::Totals {
            list.push(Access::write(result, elements * size));
            if scan.op.has_places() {
                list.push(Access::write(other, elements * size_of::<i64>() as u64));
            }
        }
        list
    }
}

impl Placed<ScanStep, [DevicePointer; 4]> {
    fn parts(&self) -> u64 {
        if self.kernel.phase == Phase::Rows { 1 } else { self.kernel.scan.parts() }
    }
}

static NAMES: std::sync::OnceLock<[[String; DType::ALL.len()]; ScanOp::ALL.len()]> =
    std::sync::OnceLock::new();

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (scan, [source, other, result, _], [phase, ..]): (Scan, [DevicePointer; 4], [u64; 5]) =
        arguments::unpack("scan", launch)?;
    // The next launch computes the totals itself.
    if phase == Phase::Totals as u64 {
        return Ok(());
    }
    let at = [source, other, result];
    if scan.dtype == DType::I64 {
        return run_integers(launch, &scan, at);
    }
    with_float!("scan", scan.dtype, T => run_floats::<T>(launch, &scan, at))
}

/// Returns whether the extremum of two points is the right one.
fn takes_right<T: PartialOrd>(left: T, right: T, is_max: bool) -> bool {
    let is_nan = |value: &T| value.partial_cmp(value).is_none();
    is_nan(&right) || (!is_nan(&left) && if is_max { right >= left } else { right <= left })
}

/// The points of a scan, which the results may overwrite.
enum Points<'a, T> {
    Apart(&'a [T]),
    Replaced(&'a [Cell<T>]),
}

impl<T: Copy> Points<'_, T> {
    fn at(&self, place: usize) -> T {
        match self {
            Self::Apart(points) => points[place],
            Self::Replaced(points) => points[place].get(),
        }
    }
}

/// Returns the points and the memory for results, which may be the same.
fn points<'a, T: Element>(
    launch: &'a HostLaunch<'_>,
    [source, result]: [DevicePointer; 2],
    count: usize,
) -> Result<(Points<'a, T>, &'a [Cell<T>]), HostFault> {
    let results = launch.cells::<T>(result, count)?;
    let source = match source == result {
        true => Points::Replaced(results),
        false => Points::Apart(launch.read::<T>(source, count)?),
    };
    Ok((source, results))
}

fn run_integers(launch: &HostLaunch<'_>, scan: &Scan, at: [DevicePointer; 3]) -> Result<(), HostFault> {
    let [source, other, result] = at;
    let count = scan.elements() as usize;
    let (source, result) = points::<i64>(launch, [source, result], count)?;
    match scan.op {
        ScanOp::Max | ScanOp::Min => {
            let is_max = scan.op == ScanOp::Max;
            let places = launch.write::<i64>(other, count)?;
            scan.rows(
                |place, at| (source.at(place), at as i64),
                |left, right| if takes_right(left.0, right.0, is_max) { right } else { left },
                |place, (value, at)| {
                    result[place].set(value);
                    places[place] = at;
                },
            );
        }
        op => scan.rows(
            |place, _| source.at(place),
            |left, right| match op {
                ScanOp::Sum => left.wrapping_add(right),
                _ => left.wrapping_mul(right),
            },
            |place, value| result[place].set(value),
        ),
    }
    Ok(())
}

fn run_floats<T: Element>(
    launch: &HostLaunch<'_>,
    scan: &Scan,
    at: [DevicePointer; 3],
) -> Result<(), HostFault> {
    let [source, other, result] = at;
    let count = scan.elements() as usize;
    let (source, result) = points::<T>(launch, [source, result], count)?;
    let is_double = T::DTYPE == DType::F64;
    let round = |value: f64| if is_double { value } else { f64::from(value as f32) };
    match scan.op {
        ScanOp::Max | ScanOp::Min => {
            let is_max = scan.op == ScanOp::Max;
            let places = launch.write::<i64>(other, count)?;
            scan.rows(
                |place, at| (source.at(place).to_f64(), at as i64),
                |left, right| if takes_right(left.0, right.0, is_max) { right } else { left },
                |place, (value, at)| {
                    result[place].set(T::from_f64(value));
                    places[place] = at;
                },
            );
        }
        ScanOp::Recurrence => {
            let factors = launch.read::<T>(other, count)?;
            scan.rows(
                |place, _| (source.at(place).to_f64(), factors[place].to_f64()),
                |left, right| (round(right.0 + round(right.1 * left.0)), round(right.1 * left.1)),
                |place, (value, _)| result[place].set(T::from_f64(value)),
            );
        }
        op => scan.rows(
            |place, _| source.at(place).to_f64(),
            |left, right| match op {
                ScanOp::Sum => round(left + right),
                ScanOp::Product => round(left * right),
                _ => round(log_add_exp(left, right)),
            },
            |place, value| result[place].set(T::from_f64(value)),
        ),
    }
    Ok(())
}

/// Returns ln (eᵃ + eᵇ), without overflow.
fn log_add_exp(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        return f64::NAN;
    }
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low != high || low.is_finite() { high + (low - high).exp().ln_1p() } else { a }
}
