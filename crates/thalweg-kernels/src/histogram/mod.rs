//! [`Histogram`]: how many elements are in each bin. An integer is the number of its bin; bins of floats have equal widths between
//! two bounds.
//!
//! Each thread adds equal elements in succession before it counts them. If the bins fit, a block counts in shared memory, where
//! each bin has several counters if there are few bins, and adds its counts to the result at the end. Otherwise threads count in
//! the result, and lanes of a warp with the same bin share an addition. So neither sorted nor equal elements make threads wait for
//! each other. Counts are integers: their order does not matter.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch, Touch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element};

use crate::arguments::{self, arguments};
use crate::dtypes::with_float;
use crate::native::{Accesses, NativeKernel, Placed, Words, along_x, native};
use crate::source::Source;

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Histogram {
    /// The number of elements, contiguous.
    pub elements: u64,
    /// The number of bins. An integer that is not below it, or negative, is not counted.
    pub bins: u64,
    /// The lower bound of the first bin and the upper bound of the last one, both included; not used for integers. A number
    /// outside of them is not counted.
    pub bounds: [f64; 2],
    /// The dtype of the elements: int32, int64, or a floating-point type. 16-bit floats are compared in f32.
    pub dtype: DType,
}

/// The dtypes for which there is a kernel.
const DTYPES: [DType; 6] = [DType::I32, DType::I64, DType::F32, DType::F64, DType::F16, DType::Bf16];

/// Threads of a block.
const BLOCK: u64 = 1024;

/// The bytes of shared memory of a block that every GPU has.
const SHARED_BYTES: u64 = 96 << 10;

/// The bytes of shared memory that leave room for two or more blocks on a multiprocessor.
const FEW_BYTES: u64 = 48 << 10;

/// The most counters of a bin: one for each lane of a warp.
const MOST_COPIES: u64 = 32;

/// The most blocks, which keep a large GPU busy.
const MOST_BLOCKS: u64 = 528;

/// The least number of elements of a block.
const FEWEST_ELEMENTS: u64 = 8192;

impl Histogram {
    /// Returns the number of counters of each bin in shared memory; 0 if the bins do not fit.
    fn copies(&self) -> u64 {
        let size = self.bins * size_of::<u32>() as u64;
        match size {
            0 => 0,
            size if size > SHARED_BYTES => 0,
            size => 1 << (FEW_BYTES / size).clamp(1, MOST_COPIES).ilog2(),
        }
    }

    fn form(&self) -> Form {
        let place = DTYPES.into_iter().position(|dtype| dtype == self.dtype).unwrap_or(0);
        if self.copies() > 0 { SHARED[place] } else { GLOBAL[place] }
    }
}

/// The name of an entry point, and the call that is its body.
type Form = (&'static str, &'static str);

/// The forms by [dtype](DTYPES).
const SHARED: [Form; 6] = [
    ("histogram_shared_int32", "shared_bins<i32>(x)"),
    ("histogram_shared_int64", "shared_bins<i64>(x)"),
    ("histogram_shared_float32", "shared_bins<f32>(x)"),
    ("histogram_shared_float64", "shared_bins<f64>(x)"),
    ("histogram_shared_float16", "shared_bins<f16>(x)"),
    ("histogram_shared_bfloat16", "shared_bins<bf16>(x)"),
];
const GLOBAL: [Form; 6] = [
    ("histogram_int32", "global_bins<i32>(x)"),
    ("histogram_int64", "global_bins<i64>(x)"),
    ("histogram_float32", "global_bins<f32>(x)"),
    ("histogram_float64", "global_bins<f64>(x)"),
    ("histogram_float16", "global_bins<f16>(x)"),
    ("histogram_bfloat16", "global_bins<bf16>(x)"),
];

fn print((name, call): Form) -> String {
    Source::new(name).define("CALL", call).print(include_str!("kernel.cu"))
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    SHARED.into_iter().chain(GLOBAL).map(|form| (form.0.to_owned(), print(form)))
}

/// The words of a launch after its addresses, in the order of the CUDA code.
struct Sizes {
    elements: u64,
    bins: u64,
    low: f64,
    high: f64,
    width: f64,
    dtype: DType,
    copies: u64,
}

arguments! { Sizes { elements, bins, low, high, width, dtype, copies } }

/// Operands: the elements, and the counts (int64), to which the launch adds.
impl NativeKernel for Placed<Histogram, [DevicePointer; 2]> {
    native! { self: self.kernel.form().0, print(self.kernel.form()), run_on_host }

    fn check(&self) -> Result<(), Fault> {
        Fault::unless(DTYPES.contains(&self.kernel.dtype), || {
            format!("histogram does not take {}", self.kernel.dtype)
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let Histogram { elements, bins, .. } = self.kernel;
        // A block adds each of its counts to the result, so it must have many more elements.
        let own = FEWEST_ELEMENTS.max(if self.kernel.copies() > 0 { 4 * bins } else { 0 });
        along_x(elements.div_ceil(own).min(MOST_BLOCKS), BLOCK).filter(|_| bins > 0)
    }

    fn shared_memory_bytes(&self) -> u32 {
        (self.kernel.bins * self.kernel.copies() * size_of::<u32>() as u64) as u32
    }

    fn words(&self) -> Words {
        let Histogram { elements, bins, bounds: [low, high], dtype } = self.kernel;
        let copies = self.kernel.copies();
        arguments::pack(&self.at, &Sizes { elements, bins, low, high, width: high - low, dtype, copies })
    }

    fn accesses(&self) -> Accesses {
        let Histogram { elements, bins, dtype, .. } = self.kernel;
        let [source, counts] = self.at;
        Accesses::from_iter([
            Access::read(source, elements * dtype.size_bytes() as u64),
            counts_of(bins, counts).touching(Touch::chosen(elements.min(bins) * 8)),
        ])
    }
}

/// Returns the access to all counts, of which a launch touches those of the bins that have elements.
fn counts_of(bins: u64, counts: DevicePointer) -> Access {
    Access::read_write(counts, bins * 8)
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (sizes, at, []): (Sizes, [DevicePointer; 2], _) = arguments::unpack("histogram", launch)?;
    let within = |bin: i64| u64::try_from(bin).ok().filter(|&bin| bin < sizes.bins);
    match sizes.dtype {
        DType::I64 => run_typed::<i64>(launch, &sizes, at, within),
        DType::I32 => run_typed::<i32>(launch, &sizes, at, |bin| within(bin.into())),
        dtype => with_float!("histogram", dtype, T => {
            run_typed::<T>(launch, &sizes, at, |value| bin_of(&sizes, T::DTYPE.compute(), value.to_f64()))
        }),
    }
}

/// Returns the bin of a number, computed in a dtype.
fn bin_of(sizes: &Sizes, compute: DType, value: f64) -> Option<u64> {
    let rounded = |number: f64| if compute == DType::F64 { number } else { f64::from(number as f32) };
    if !(value >= rounded(sizes.low) && value <= rounded(sizes.high)) {
        return None;
    }
    let offset = rounded(value - rounded(sizes.low));
    let place = rounded(rounded(offset * rounded(sizes.bins as f64)) / rounded(sizes.width));
    // A product that is infinite is above every place, and a quotient without a value is 0.
    let last = sizes.bins - 1;
    Some(if place.is_nan() || place < 0.0 {
        0
    } else if place >= rounded(last as f64) {
        last
    } else {
        place as u64
    })
}

fn run_typed<T: Element>(
    launch: &HostLaunch<'_>,
    sizes: &Sizes,
    [source, counts]: [DevicePointer; 2],
    bin_of: impl Fn(T) -> Option<u64>,
) -> Result<(), HostFault> {
    let source = launch.read::<T>(source, sizes.elements as usize)?;
    let access = counts_of(sizes.bins, counts);
    let counts = launch.write::<i64>(counts, sizes.bins as usize)?;
    source.iter().filter_map(|&value| bin_of(value)).for_each(|bin| counts[bin as usize] += 1);
    if launch.has_tickets() {
        let parts = source.iter().filter_map(|&value| bin_of(value)).map(|bin| (access.start + bin * 8, 8));
        launch.touched(&access, parts);
    }
    Ok(())
}
