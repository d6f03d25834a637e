//! [`ExtremumPlace`]: the place of the greatest or smallest element of each of a few long rows, such as the scores of a step of a decoder.
//!
//! The blocks of a cluster share a row, on GPUs that have clusters of blocks. An element and its place are encoded as one number
//! of 64 bits that has the order of the elements, with the first among equals the greatest; the greatest such number contains the
//! place.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch, LaunchMode};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element, bf16, f16};

use crate::arguments::{self, arguments};
use crate::native::{Accesses, NativeKernel, Placed, native};
use crate::source::Source;

/// The rows of a launch, without gaps. If a row has a NaN, its first NaN is its extremum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExtremumPlace {
    /// The number of rows.
    pub rows: u64,
    /// The elements of a row, at least one.
    pub length: u64,
    /// Whether to find the smallest element instead of the greatest.
    pub smallest: bool,
    /// The dtype of the elements: one of [`DTYPES`].
    pub dtype: DType,
}

arguments! { ExtremumPlace { rows, length, smallest, dtype } }

/// The dtypes for which there is a kernel.
pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// The most rows for which several blocks per row help; each row then has a cluster.
const MOST_ROWS: u64 = 32;
/// The fewest elements of a row for which several blocks share it.
const LEAST_LENGTH: u64 = 4096;
/// Blocks of a cluster.
const PARTS: u32 = 8;
/// Threads of a block.
const BLOCK: u32 = 512;

impl ExtremumPlace {
    /// Returns whether the kernel can and should be used: for few long rows of a supported dtype.
    #[must_use]
    pub fn fits(&self) -> bool {
        (1..=MOST_ROWS).contains(&self.rows)
            && (LEAST_LENGTH..1 << 32).contains(&self.length)
            && DTYPES.contains(&self.dtype)
    }

    fn run<T: Element>(&self, values: &[T], places: &mut [i64]) {
        for (row, place) in values.chunks(self.length as usize).zip(places) {
            let numbers = (0..).zip(row).map(|(at, value)| ranked(value.to_f64() as f32, at, self.smallest));
            *place = numbers.max().map_or(0, |best| i64::from(!(best as u32)));
        }
    }
}

/// Returns a number that is greater the nearer the value is to the extremum, and, among equal values, for the one whose place is
/// first. 0 is below all.
pub(crate) fn ranked(value: f32, place: u32, smallest: bool) -> u64 {
    let bits = (value + 0.0).to_bits();
    let rank = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    let rank = if smallest { !rank } else { rank };
    let rank = if value.is_nan() { u32::MAX } else { rank };
    u64::from(rank) << 32 | u64::from(!place)
}

fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "extremum_place_float16",
        DType::Bf16 => "extremum_place_bfloat16",
        _ => "extremum_place_float32",
    }
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    DTYPES.into_iter().map(|dtype| (name(dtype).to_owned(), print(dtype)))
}

fn print(dtype: DType) -> String {
    Source::new(name(dtype)).elements(dtype).print(include_str!("extremum_place.cu"))
}

/// Operands: the rows, and their places (int64).
impl NativeKernel for Placed<ExtremumPlace, [DevicePointer; 2]> {
    native! { self: name(self.kernel.dtype), print(self.kernel.dtype), run_on_host, words }

    fn check(&self) -> Result<(), Fault> {
        let ExtremumPlace { rows, length, dtype, .. } = self.kernel;
        Fault::unless(DTYPES.contains(&dtype) && (1..1 << 32).contains(&length) && rows < 1 << 16, || {
            format!(
                "places of extrema: it takes fewer than 2¹⁶ rows of 1 to 2³² - 1 elements of float32, float16 or bfloat16, not {rows} of \
                 {length} of {dtype}"
            )
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let rows = self.kernel.rows as u32;
        (rows > 0).then_some(LaunchShape { grid: [PARTS, rows, 1], block: [BLOCK, 1, 1] })
    }

    fn mode(&self) -> LaunchMode {
        LaunchMode::Programmatic
    }

    fn accesses(&self) -> Accesses {
        let ExtremumPlace { rows, length, dtype, .. } = self.kernel;
        let [values, places] = self.at;
        Accesses::from_iter([
            Access::read(values, rows * length * dtype.size_bytes() as u64),
            Access::write(places, rows * size_of::<i64>() as u64),
        ])
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (sizes, at, []): (ExtremumPlace, _, _) = arguments::unpack("places of extrema", launch)?;
    match sizes.dtype {
        DType::F32 => run_typed::<f32>(launch, &sizes, at),
        DType::F16 => run_typed::<f16>(launch, &sizes, at),
        DType::Bf16 => run_typed::<bf16>(launch, &sizes, at),
        other => Err(HostFault(format!("places of extrema: there is none of {other}"))),
    }
}

fn run_typed<T: Element>(
    launch: &HostLaunch<'_>,
    sizes: &ExtremumPlace,
    at: [DevicePointer; 2],
) -> Result<(), HostFault> {
    let [values, places] = at;
    let values = launch.read::<T>(values, (sizes.rows * sizes.length) as usize)?;
    sizes.run(values, launch.write::<i64>(places, sizes.rows as usize)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equals_and_of_nans_is_found() {
        let rows = [
            [1.0_f32, 3.0, -2.0, 3.0, -2.0],
            [1.0, f32::NAN, 9.0, f32::NAN, -9.0],
            [-0.0, 0.0, -0.0, 0.0, 0.0],
        ];
        let places = |smallest| {
            let sizes = ExtremumPlace { rows: 3, length: 5, smallest, dtype: DType::F32 };
            let mut places = [-1; 3];
            sizes.run(rows.as_flattened(), &mut places);
            places
        };
        assert_eq!(places(false), [1, 1, 0]);
        assert_eq!(places(true), [2, 1, 0]);
    }
}
