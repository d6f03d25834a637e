//! [`Search`]: the positions at which values would be inserted into sorted rows, by one binary search per value.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element};

use crate::arguments::{self, arguments};
use crate::dtypes::{check, entry_points, with_float};
use crate::native::{Accesses, NativeKernel, Placed, along_x, native};
use crate::source::Source;

/// The sizes of a launch: sorted rows (rows, length) and values (rows, count), without gaps; or one row for all values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Search {
    /// The number of sorted rows.
    pub rows: u64,
    /// The number of elements of a sorted row.
    pub length: u64,
    /// The number of values that are searched for in each row.
    pub count: u64,
    /// Whether a value is placed after elements that are equal to it, rather than before them.
    pub right: bool,
    /// The dtype of rows and values: a floating-point type or int64.
    pub dtype: DType,
}

arguments! { Search { rows, length, count, right, dtype } }

/// Threads of a block.
const BLOCK: u64 = 256;

entry_points! { "search" }

fn print(dtype: DType) -> String {
    Source::new(name(dtype)).elements(dtype).print(include_str!("search.cu"))
}

/// Operands: the sorted rows, the values, and their places (int64).
impl NativeKernel for Placed<Search, [DevicePointer; 3]> {
    native! { self: name(self.kernel.dtype), print(self.kernel.dtype), run_on_host, words }

    fn check(&self) -> Result<(), Fault> {
        check("search", self.kernel.dtype)
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let values = self.kernel.rows * self.kernel.count;
        along_x(values.div_ceil(BLOCK), BLOCK)
    }

    fn accesses(&self) -> Accesses {
        let Search { rows, length, count, dtype, .. } = self.kernel;
        let size = dtype.size_bytes() as u64;
        let [sorted, values, places] = self.at;
        Accesses::from_iter([
            Access::read(sorted, rows * length * size),
            Access::read(values, rows * count * size),
            Access::write(places, rows * count * size_of::<i64>() as u64),
        ])
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (search, at, []): (Search, _, _) = arguments::unpack("search", launch)?;
    if search.dtype == DType::I64 {
        return run_typed::<i64, i64>(launch, &search, at, |x| x);
    }
    with_float!("search", search.dtype, T => run_typed::<T, f64>(launch, &search, at, T::to_f64))
}

fn run_typed<T: Element, K: PartialOrd>(
    launch: &HostLaunch<'_>,
    search: &Search,
    at: [DevicePointer; 3],
    key: impl Fn(T) -> K,
) -> Result<(), HostFault> {
    let [sorted, values, places] = at;
    let (length, count) = (search.length as usize, search.count as usize);
    let rows = search.rows as usize;
    let sorted = launch.read::<T>(sorted, rows * length)?;
    let values = launch.read::<T>(values, rows * count)?;
    let places = launch.write::<i64>(places, rows * count)?;
    for (at, (place, value)) in places.iter_mut().zip(values).enumerate() {
        let (row, value) = (&sorted[at / count * length..][..length], key(*value));
        let (mut low, mut high) = (0, length);
        // The probes are those of the kernel, which matters to rows that are not sorted.
        while low < high {
            let probe = low + (high - low) / 2;
            let point = key(row[probe]);
            let is_at_least = point > value || !search.right && point == value;
            if is_at_least { high = probe } else { low = probe + 1 }
        }
        *place = low as i64;
    }
    Ok(())
}
