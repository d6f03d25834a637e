//! [`ExtremumColumns`]: the places of the greatest or smallest elements of columns that are adjacent in memory, such as those of
//! a matrix, in one pass over the elements.
//!
//! The elements are (outer, length, inner), without gaps; a column is the second dimension. Each column is split into *parts*, so
//! that the work fills a GPU. The first launch writes one number per part of each column. The number is greater the nearer the
//! element is to the extremum, and, among equal elements, for the first. The second launch finds the greatest of a column's
//! numbers. The result does not depend on how columns are split.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch, LaunchMode};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element, bf16, f16};

use crate::arguments::{self, arguments, choices};
use crate::extremum_place::{DTYPES, ranked};
use crate::native::{Accesses, Native, NativeKernel, Placed, Words, native};
use crate::source::Source;

/// One of the two phases of the work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// From elements to a number for each part of each column.
    Parts,
    /// From those numbers to places.
    Places,
}

/// The columns of a search. If a column has a NaN, its first NaN is its extremum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExtremumColumns {
    /// The number of matrices, of the elements of a column, and of the columns of a matrix.
    pub sizes: [u64; 3],
    /// Whether to find the smallest element instead of the greatest.
    pub smallest: bool,
    /// The dtype of the elements: one of [`DTYPES`].
    pub dtype: DType,
}

/// One launch of a search.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ColumnsStep {
    /// The columns.
    pub columns: ExtremumColumns,
    /// The phase of the work.
    pub phase: Phase,
}

arguments! { ExtremumColumns { sizes, smallest, dtype } }
arguments! { ColumnsStep { columns, phase } }
choices! { Phase: [Phase::Parts, Phase::Places] }

/// The fewest elements for which two launches pay.
const LEAST_ELEMENTS: u64 = 1 << 18;
/// The fewest elements of a part.
const LEAST_LENGTH: u64 = 64;
/// A number of blocks that fills a GPU several times.
const BLOCKS: u64 = 1024;
/// The number of vectors of columns that a block handles side by side.
const ABREAST: u64 = 32;
/// Threads of a block.
const BLOCK: u32 = 256;
/// Bytes that a thread loads at a time.
const VECTOR: u64 = 16;

impl ExtremumColumns {
    /// Returns whether the kernel can and should be used: for columns of a supported dtype, of a sufficient number and length,
    /// that can be read by vectors at this address.
    #[must_use]
    pub fn fits(&self, values: DevicePointer) -> bool {
        let [outer, length, inner] = self.sizes;
        self.check().is_ok()
            && outer * length * inner >= LEAST_ELEMENTS
            && length >= LEAST_LENGTH
            && inner >= ABREAST * self.width()
            && values.address().is_multiple_of(VECTOR)
    }

    fn check(&self) -> Result<(), Fault> {
        let [outer, length, inner] = self.sizes;
        if !DTYPES.contains(&self.dtype) {
            return Err(Fault::new(format!(
                "places of extrema in columns: it takes float32, float16 and bfloat16, not {}",
                self.dtype
            )));
        }
        let is_whole = inner.is_multiple_of(self.width());
        Fault::unless(
            is_whole && inner < 1 << 31 && (1..1 << 32).contains(&length) && outer < 1 << 16,
            || {
                format!(
                    "places of extrema in columns: it takes fewer than 2¹⁶ matrices of columns of 1 to 2³² - 1 elements, which lie side by side \
                 in multiples of {}, not {outer} × {length} × {inner}",
                    self.width()
                )
            },
        )
    }

    /// Returns the number of columns of a thread.
    fn width(&self) -> u64 {
        VECTOR / self.dtype.size_bytes() as u64
    }

    /// Returns the number of blocks side by side over the columns of a matrix.
    fn blocks_abreast(&self) -> u64 {
        self.sizes[2].div_ceil(ABREAST * self.width())
    }

    /// Returns the number of parts of a column.
    fn parts(&self) -> u64 {
        let [outer, length, _] = self.sizes;
        let wanted = BLOCKS.div_ceil((outer * self.blocks_abreast()).max(1));
        wanted.clamp(1, (length / LEAST_LENGTH).clamp(1, (1 << 16) - 1))
    }

    /// Returns the number of 8-byte numbers that the first launch writes for the second.
    fn numbers(&self) -> u64 {
        self.sizes[0] * self.parts() * self.sizes[2]
    }

    fn run_parts<T: Element>(&self, values: &[T], numbers: &mut [u64]) {
        let ([_, length, inner], parts) = (self.sizes.map(|size| size as usize), self.parts() as usize);
        let part = length.div_ceil(parts);
        numbers.fill(0);
        for (matrix, of_matrix) in values.chunks(length * inner).zip(numbers.chunks_mut(parts * inner)) {
            for (place, row) in matrix.chunks(inner).enumerate() {
                let best = &mut of_matrix[place / part * inner..][..inner];
                for (best, value) in best.iter_mut().zip(row) {
                    *best = (*best).max(ranked(value.to_f64() as f32, place as u32, self.smallest));
                }
            }
        }
    }

    fn run_places(&self, numbers: &[u64], places: &mut [i64]) {
        let (inner, parts) = (self.sizes[2] as usize, self.parts() as usize);
        for (of_matrix, places) in numbers.chunks(parts * inner).zip(places.chunks_mut(inner)) {
            for (column, place) in places.iter_mut().enumerate() {
                let best = (0..parts).map(|part| of_matrix[part * inner + column]).max().unwrap_or(0);
                *place = i64::from(!(best as u32));
            }
        }
    }
}

impl ColumnsStep {
    fn name(&self) -> &'static str {
        match (self.phase, self.columns.dtype) {
            (Phase::Places, _) => "extremum_columns_places",
            (Phase::Parts, DType::F16) => "extremum_columns_float16",
            (Phase::Parts, DType::Bf16) => "extremum_columns_bfloat16",
            (Phase::Parts, _) => "extremum_columns_float32",
        }
    }

    fn print(&self) -> String {
        let source = Source::new(self.name()).elements(self.columns.dtype);
        source.flag("IS_PARTS", self.phase == Phase::Parts).print(include_str!("extremum_columns.cu"))
    }
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    let all = DTYPES.into_iter().map(|dtype| (dtype, Phase::Parts)).chain([(DType::F32, Phase::Places)]);
    all.map(|(dtype, phase)| {
        let columns = ExtremumColumns { sizes: [1; 3], smallest: false, dtype };
        let step = ColumnsStep { columns, phase };
        (step.name().to_owned(), step.print())
    })
}

/// Operands: the elements, and the places (int64).
impl Native<[DevicePointer; 2]> for ExtremumColumns {
    fn scratch_bytes(&self) -> u64 {
        self.numbers() * size_of::<u64>() as u64
    }

    fn launches(
        self,
        [elements, places]: [DevicePointer; 2],
        numbers: DevicePointer,
    ) -> impl Iterator<Item = impl NativeKernel> {
        let phases = [(Phase::Parts, [elements, numbers]), (Phase::Places, [numbers, places])];
        phases.into_iter().map(move |(phase, at)| Placed { kernel: ColumnsStep { columns: self, phase }, at })
    }
}

/// Operands: the elements and the numbers of their parts, or the numbers and the places (int64).
impl NativeKernel for Placed<ColumnsStep, [DevicePointer; 2]> {
    native! { self: self.kernel.name(), self.kernel.print(), run_on_host }

    fn check(&self) -> Result<(), Fault> {
        self.kernel.columns.check()
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let ColumnsStep { columns, phase } = &self.kernel;
        let [outer, _, inner] = columns.sizes;
        let grid = match phase {
            Phase::Parts => [columns.blocks_abreast(), columns.parts(), outer],
            Phase::Places => [inner.div_ceil(u64::from(BLOCK)), 1, outer],
        };
        (outer > 0 && inner > 0)
            .then(|| LaunchShape { grid: grid.map(|blocks| blocks as u32), block: [BLOCK, 1, 1] })
    }

    fn mode(&self) -> LaunchMode {
        LaunchMode::Programmatic
    }

    fn words(&self) -> Words {
        let mut words = arguments::pack(&self.at, &self.kernel);
        words.push(self.kernel.columns.parts());
        words
    }

    fn accesses(&self) -> Accesses {
        let ColumnsStep { columns, phase } = self.kernel;
        let [outer, length, inner] = columns.sizes;
        let ([from, to], numbers) = (self.at, columns.scratch_bytes());
        let elements = outer * length * inner * columns.dtype.size_bytes() as u64;
        let [read, written] = match phase {
            Phase::Parts => [elements, numbers],
            Phase::Places => [numbers, outer * inner * size_of::<i64>() as u64],
        };
        Accesses::from_iter([Access::read(from, read), Access::write(to, written)])
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (step, at, [_]): (ColumnsStep, [DevicePointer; 2], _) =
        arguments::unpack("places of extrema in columns", launch)?;
    let kernel = step.columns;
    if step.phase == Phase::Places {
        let numbers = launch.read::<i64>(at[0], kernel.numbers() as usize)?;
        let numbers: Vec<u64> = numbers.iter().map(|&number| number as u64).collect();
        let places = launch.write::<i64>(at[1], (kernel.sizes[0] * kernel.sizes[2]) as usize)?;
        kernel.run_places(&numbers, places);
        return Ok(());
    }
    match kernel.dtype {
        DType::F32 => run_typed::<f32>(launch, &kernel, at),
        DType::F16 => run_typed::<f16>(launch, &kernel, at),
        DType::Bf16 => run_typed::<bf16>(launch, &kernel, at),
        other => Err(HostFault(format!("places of extrema in columns: there is none of {other}"))),
    }
}

fn run_typed<T: Element>(
    launch: &HostLaunch<'_>,
    kernel: &ExtremumColumns,
    [values, numbers]: [DevicePointer; 2],
) -> Result<(), HostFault> {
    let values = launch.read::<T>(values, kernel.sizes.iter().product::<u64>() as usize)?;
    let stored = launch.write::<i64>(numbers, kernel.numbers() as usize)?;
    let mut numbers = vec![0; stored.len()];
    kernel.run_parts(values, &mut numbers);
    stored.iter_mut().zip(numbers).for_each(|(stored, number)| *stored = number as i64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the places with both launches.
    fn places(sizes: [u64; 3], smallest: bool, values: &[f32]) -> Vec<i64> {
        let kernel = ExtremumColumns { sizes, smallest, dtype: DType::F32 };
        let mut numbers = vec![9; kernel.numbers() as usize];
        kernel.run_parts(values, &mut numbers);
        let mut places = vec![-1; (sizes[0] * sizes[2]) as usize];
        kernel.run_places(&numbers, &mut places);
        places
    }

    #[test]
    fn the_first_of_equals_and_of_nans_is_found_in_any_part() {
        let sizes = [2, 700, 8];
        assert!(ExtremumColumns { sizes, smallest: false, dtype: DType::F32 }.parts() > 4);
        // Few different values, so that equal elements occur in several parts.
        let mut values: Vec<f32> = (0..2 * 700 * 8u64).map(|at| (at * 7919 % 23) as f32 - 11.0).collect();
        values[(650 * 8) + 3] = f32::NAN;
        values[(699 * 8) + 3] = f32::NAN;
        for place in 0..700 {
            values[(place * 8) + 4] = if place % 2 == 0 { -0.0 } else { 0.0 };
            values[(place * 8) + 5] = f32::NEG_INFINITY;
        }
        for smallest in [false, true] {
            let found = places(sizes, smallest, &values);
            for (number, place) in found.into_iter().enumerate() {
                let (matrix, column) = (number / 8, number % 8);
                let column: Vec<f32> =
                    (0..700).map(|row| values[(matrix * 700 + row) * 8 + column]).collect();
                let extremum = column.iter().copied().reduce(if smallest { f32::min } else { f32::max });
                let nan = column.iter().position(|value| value.is_nan());
                let first = column.iter().position(|&value| Some(value) == extremum);
                assert_eq!(Some(place as usize), nan.or(first), "{number} {smallest}");
            }
        }
    }
}
