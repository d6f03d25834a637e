//! Bags of rows of a table, as in `embedding_bag`: [`Bags`] combines the rows of each bag, and [`BagProducts`] multiplies rows with the
//! gradients of their bags, which is the gradient of the rows' factors.
//!
//! A bag has the indices from its offset to the next one's; the first begins with the first index, the last ends with the last one.
//! The padding index does not count. An index out of range does not count either, and is reported, as is an offset after the last index,
//! or a first one that is not 0.
//!
//! # Order
//! A bag has a power of two of groups of threads, as many as its average length asks for. A group combines every so many rows, in
//! order, and then groups are combined in pairs. So a result does not depend on timing, and the host function has the same bits. A
//! bag is combined by one block: a bag with many more rows than the others takes longer than they do.

mod products;

use std::sync::LazyLock;

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element};

use crate::arguments::{self, arguments, choices};
use crate::dtypes::FLOATS;
use crate::native::{Accesses, NativeKernel, Placed, ReportIndex, Words, along_x, native};
use crate::scatter::{Term, VECTOR, Wide, typed, width_of};
use crate::source::Source;

pub use products::BagProducts;

/// The way in which the rows of a bag are combined.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BagMode {
    /// The sum of the rows, each times its factor if there are factors.
    Sum,
    /// The mean of the rows.
    Mean,
    /// The maxima of the rows; NaN counts as the greatest number, and among equal numbers the first one is taken.
    Max,
}

impl BagMode {
    /// Every mode, in the order of PyTorch's numbers.
    pub const ALL: [Self; 3] = [Self::Sum, Self::Mean, Self::Max];
}

choices! { BagMode: BagMode::ALL }

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bags {
    /// The number of indices.
    pub count: u64,
    /// The number of bags.
    pub bags: u64,
    /// Rows of the table.
    pub rows: u64,
    /// Elements of a row.
    pub features: u64,
    /// The way in which rows are combined.
    pub mode: BagMode,
    /// The index of rows that are ignored; −1 if there is none.
    pub padding: i64,
    /// The dtype of table, factors and result: a floating-point type. 16-bit floats are summed in f32 and rounded once.
    pub dtype: DType,
}

arguments! { Bags { count, bags, rows, features, mode, padding, dtype } }

/// Threads of a block.
const BLOCK: u64 = 256;

/// The number of rows that a thread loads at once.
const AT_ONCE: u64 = 4;

/// The operands of a launch: the table, the indices (i64), the offsets (i64), the factors or a null address, the result, the bag of
/// each index (i64), the number of rows that count in each bag (i64), and the index of each maximum (i64; −1 in a bag without rows)
/// or a null address. All are contiguous.
type Operands = [DevicePointer; 8];

impl Bags {
    /// Returns the elements that a thread handles, the threads of a group, and the groups of a bag.
    fn shape(&self, at: &Operands) -> [u64; 3] {
        let width = width_of(self.dtype, self.features, [0, self.features, 1], [at[0], at[4]]);
        let lanes = self.features.div_ceil(width).next_power_of_two().clamp(1, BLOCK);
        let rows_of_a_bag = self.count.checked_div(self.bags).unwrap_or(0);
        let groups = rows_of_a_bag.div_ceil(AT_ONCE).next_power_of_two().clamp(1, BLOCK / lanes);
        [width, lanes, groups]
    }

    fn form(&self, at: &Operands) -> &'static Form {
        static FORMS: LazyLock<Vec<Form>> = LazyLock::new(|| forms().collect());
        let (is_wide, is_max) = (self.shape(at)[0] > 1, self.mode == BagMode::Max);
        let found = FORMS
            .iter()
            .find(|form| form.dtype == self.dtype && form.is_wide == is_wide && form.is_max == is_max);
        found.unwrap_or(&FORMS[0])
    }
}

/// A variant of the kernel.
struct Form {
    dtype: DType,
    is_wide: bool,
    is_max: bool,
    name: String,
}

fn forms() -> impl Iterator<Item = Form> {
    FLOATS.into_iter().flat_map(|dtype| {
        [(false, false), (false, true), (true, false), (true, true)].map(|(is_wide, is_max)| {
            let (mode, wide) = (if is_max { "maxima" } else { "sums" }, if is_wide { "_wide" } else { "" });
            Form { dtype, is_wide, is_max, name: format!("bags_{mode}_{}{wide}", dtype.name()) }
        })
    })
}

impl Form {
    fn print(&self) -> String {
        let width = if self.is_wide { VECTOR / self.dtype.size_bytes() as u64 } else { 1 };
        let call = format_args!("bags<{}, {width}, {}>(x)", self.dtype.short_name(), self.is_max);
        Source::new(&self.name).define("CALL", call).print(include_str!("sums.cu"))
    }
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    forms().map(|form| (form.name.clone(), form.print())).chain(products::sources())
}

/// The words of a launch after its addresses, in the order of the CUDA code.
struct Described {
    kernel: Bags,
    lanes: u64,
    groups: u64,
}

arguments! { Described { kernel, lanes, groups } }

impl NativeKernel for Placed<Bags, Operands> {
    native! { self: &self.kernel.form(&self.at).name, self.kernel.form(&self.at).print(), reports run_on_host }

    fn check(&self) -> Result<(), Fault> {
        check("bags", self.kernel.dtype)
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let ([width, lanes, groups], kernel) = (self.kernel.shape(&self.at), &self.kernel);
        let tiles = kernel.features.div_ceil(width).div_ceil(lanes).max(1);
        let blocks = kernel.bags.div_ceil(BLOCK / (lanes * groups)).saturating_mul(tiles);
        along_x(blocks, BLOCK)
    }

    fn shared_memory_bytes(&self) -> u32 {
        let [width, _, groups] = self.kernel.shape(&self.at);
        let places = if self.kernel.mode == BagMode::Max { width } else { 1 };
        let sums = width * self.kernel.dtype.compute().size_bytes() as u64;
        let part = sums.next_multiple_of(8) + 8 * places + 8;
        if groups > 1 { (part * BLOCK) as u32 } else { 0 }
    }

    fn words(&self) -> Words {
        let [_, lanes, groups] = self.kernel.shape(&self.at);
        arguments::pack(&self.at, &Described { kernel: self.kernel, lanes, groups })
    }

    fn accesses(&self) -> Accesses {
        let Bags { count, bags, rows, features, dtype, .. } = self.kernel;
        let (element, index) = (dtype.size_bytes() as u64, size_of::<i64>() as u64);
        let [table, indices, offsets, factors, result, bags_of, sizes, maxima] = self.at;
        let unless_null = |at: DevicePointer, bytes: u64| if at.address() == 0 { 0 } else { bytes };
        Accesses::from_iter([
            Access::read(table, rows * features * element),
            Access::read(indices, count * index),
            Access::read(offsets, bags * index),
            Access::read(factors, unless_null(factors, count * element)),
            Access::write(result, bags * features * element),
            Access::write(bags_of, count * index),
            Access::write(sizes, bags * index),
            Access::write(maxima, unless_null(maxima, bags * features * index)),
        ])
    }
}

/// Checks that a dtype is a float that the kernels support.
fn check(kernel: &str, dtype: DType) -> Result<(), Fault> {
    Fault::unless(FLOATS.contains(&dtype), || format!("{kernel}: rows are floats, not {dtype}"))
}

fn run_on_host(launch: &HostLaunch<'_>, report: &ReportIndex) -> Result<(), HostFault> {
    let (described, at, [slot]): (Described, Operands, _) = arguments::unpack("bags", launch)?;
    let tell = |named: i64, extent: u64| report(slot, named, extent as i64);
    typed!(described.kernel.dtype, T => run_typed::<T>(launch, &described, at, tell))
}

/// The combination of some rows of a bag, one number per feature; for maxima, also the positions of the maxima among the indices.
struct Part<S> {
    sums: Vec<S>,
    places: Vec<Option<usize>>,
    count: u64,
}

/// Returns whether a number replaces another one as the maximum.
fn replaces(old: f64, old_place: Option<usize>, value: f64, place: Option<usize>) -> bool {
    let (Some(new), Some(old_place)) = (place, old_place) else { return place.is_some() };
    let is_equal = value == old || (value.is_nan() && old.is_nan());
    if is_equal { new < old_place } else { !old.is_nan() && (value.is_nan() || value > old) }
}

impl<S: Term> Part<S> {
    fn new(features: usize) -> Self {
        Self { sums: vec![S::from_f64(0.0); features], places: vec![None; features], count: 0 }
    }

    /// Adds or compares the numbers of a row or of another part.
    fn combine(&mut self, mode: BagMode, numbers: impl Iterator<Item = (S, Option<usize>)>, count: u64) {
        self.count += count;
        for ((sum, place), (value, its)) in self.sums.iter_mut().zip(&mut self.places).zip(numbers) {
            if mode != BagMode::Max {
                *sum = sum.combine(crate::scatter::Combine::Sum, value);
            } else if replaces(sum.to_f64(), *place, value.to_f64(), its) {
                (*sum, *place) = (value, its);
            }
        }
    }
}

fn run_typed<T: Wide>(
    launch: &HostLaunch<'_>,
    Described { kernel, groups, .. }: &Described,
    [table, indices, offsets, factors, result, bags_of, sizes, maxima]: Operands,
    tell: impl Fn(i64, u64),
) -> Result<(), HostFault> {
    let Bags { mode, padding, .. } = *kernel;
    let [count, bags, rows, features] =
        [kernel.count, kernel.bags, kernel.rows, kernel.features].map(|size| size as usize);
    let table = launch.read::<T>(table, rows * features)?;
    let indices = launch.read::<i64>(indices, count)?;
    let offsets = launch.read::<i64>(offsets, bags)?;
    let factors = if factors.address() == 0 { None } else { Some(launch.read::<T>(factors, count)?) };
    let result = launch.write::<T>(result, bags * features)?;
    let bags_of = launch.write::<i64>(bags_of, count)?;
    let sizes = launch.write::<i64>(sizes, bags)?;
    let maxima = if mode == BagMode::Max { launch.write::<i64>(maxima, bags * features)? } else { &mut [] };
    let limited = |offset: i64| usize::try_from(offset).unwrap_or(0).min(count);
    let multiply = |value: T::Sum, factor: T::Sum| value.combine(crate::scatter::Combine::Product, factor);
    let groups = *groups as usize;
    for bag in 0..bags {
        let last = if bag == 0 { 0 } else { kernel.count };
        if offsets[bag] < 0 || offsets[bag] as u64 > last {
            tell(offsets[bag], last + 1);
        }
        let begin = if bag == 0 { 0 } else { limited(offsets[bag]) };
        let end = if bag + 1 < bags { limited(offsets[bag + 1]) } else { count };
        let mut parts: Vec<Part<T::Sum>> = (0..groups).map(|_| Part::new(features)).collect();
        for place in begin..end {
            bags_of[place] = bag as i64;
            let Some(row) = usize::try_from(indices[place]).ok().filter(|&row| row < rows) else {
                tell(indices[place], kernel.rows);
                continue;
            };
            if indices[place] == padding {
                continue;
            }
            let factor = factors.map_or(T::Sum::from_f64(1.0), |factors| factors[place].widened());
            let of_row = table[row * features..][..features].iter().map(|value| match mode {
                BagMode::Max => (value.widened(), Some(place)),
                _ => (multiply(value.widened(), factor), None),
            });
            parts[(place - begin) % groups].combine(mode, of_row, 1);
        }
        while parts.len() > 1 {
            let others = parts.split_off(parts.len() / 2);
            for (part, other) in parts.iter_mut().zip(others) {
                part.combine(mode, other.sums.into_iter().zip(other.places), other.count);
            }
        }
        let part = &parts[0];
        sizes[bag] = part.count as i64;
        for feature in 0..features {
            let at = bag * features + feature;
            let sum = part.sums[feature];
            result[at] = match mode {
                BagMode::Mean => T::narrowed(mean(sum, part.count.max(1))),
                _ => T::narrowed(sum),
            };
            if mode == BagMode::Max {
                maxima[at] = part.places[feature].map_or(-1, |place| indices[place]);
            }
        }
    }
    Ok(())
}

/// Returns a sum divided by a count, in the precision of the sum.
fn mean<S: Element>(sum: S, count: u64) -> S {
    match S::DTYPE {
        DType::F64 => S::from_f64(sum.to_f64() / count as f64),
        _ => S::from_f64(f64::from(sum.to_f64() as f32 / count as f32)),
    }
}
