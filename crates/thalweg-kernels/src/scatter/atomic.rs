//! [`ScatterAtomic`]: elements that are added at indices by atomic additions.
//!
//! The result is (outer, extent, inner), contiguous; indices and source are (outer, count, inner) with any strides. A thread first
//! sums the elements in succession that have the same index, and lanes of a warp with the same index share an addition. So sorted
//! or equal indices do not make threads wait for each other. **The order of additions depends on timing**: sums of integers do
//! not depend on it, those of floats differ in their last places from one run to the next. The host function adds in order.
//!
//! An index out of range adds nothing.

use std::sync::Arc;

use thalweg_driver::{Access, DevicePointer, HostFault, HostKernel, HostLaunch, Touch};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use super::combine::typed;
use super::{Combine, ScatterReduce, Term, Wide};
use crate::arguments::{self, arguments};
use crate::dtypes::{DTYPES, check};
use crate::native::{Accesses, NativeKernel, Placed, Words, along_x};
use crate::source::Source;

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ScatterAtomic {
    /// The outer extent, the extent that is indexed, the number of elements per column of the source, and the inner extent.
    pub sizes: [u64; 4],
    /// The strides of the indices, in elements.
    pub index_strides: [u64; 3],
    /// The strides of the source, in elements.
    pub source_strides: [u64; 3],
    /// The dtype of the source: a floating-point type, or int64. The result has the dtype in which its elements are combined.
    pub dtype: DType,
}

arguments! { ScatterAtomic { sizes, index_strides, source_strides, dtype } }

/// Threads of a block, and the elements of each at a time.
const BLOCK: u64 = 256;
const OWN: u64 = 4;

/// The most blocks, which keep a large GPU busy.
const MOST_BLOCKS: u64 = 1 << 12;

/// The names of the entry points by dtype, for few elements and for those that are numbered in 64 bits.
const NAMES: [[&str; 2]; DTYPES.len()] = [
    ["scatter_atomic_float32", "scatter_atomic_float32_many"],
    ["scatter_atomic_float64", "scatter_atomic_float64_many"],
    ["scatter_atomic_float16", "scatter_atomic_float16_many"],
    ["scatter_atomic_bfloat16", "scatter_atomic_bfloat16_many"],
    ["scatter_atomic_int64", "scatter_atomic_int64_many"],
];

fn print(dtype: usize, is_many: bool) -> String {
    let number = if is_many { "u64" } else { "u32" };
    let call = format_args!("scatter_atomically<{}, {number}>(x)", DTYPES[dtype].short_name());
    Source::new(NAMES[dtype][usize::from(is_many)]).define("CALL", call).print(include_str!("atomic.cu"))
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    (0..DTYPES.len()).flat_map(|dtype| {
        [false, true].map(|is_many| (NAMES[dtype][usize::from(is_many)].to_owned(), print(dtype, is_many)))
    })
}

impl ScatterAtomic {
    fn elements(&self) -> u64 {
        let [outer, _, count, inner] = self.sizes;
        outer * count * inner
    }

    /// Returns the position of the kernel's dtype, and whether its elements are numbered in 64 bits.
    fn form(&self) -> (usize, bool) {
        let dtype = DTYPES.into_iter().position(|dtype| dtype == self.dtype).unwrap_or(0);
        (dtype, self.elements() >= 1 << 31)
    }

    /// Returns the same sizes as those of a scatter in order.
    fn in_order(&self) -> ScatterReduce {
        let Self { sizes, index_strides, source_strides, dtype } = *self;
        ScatterReduce { sizes, index_strides, source_strides, dtype: dtype.compute(), combine: Combine::Sum }
    }
}

/// Operands: the indices (i64), the source, and the result, which is read and written.
impl NativeKernel for Placed<ScatterAtomic, [DevicePointer; 3]> {
    fn name(&self) -> &str {
        let (dtype, is_many) = self.kernel.form();
        NAMES[dtype][usize::from(is_many)]
    }

    fn source(&self) -> String {
        let (dtype, is_many) = self.kernel.form();
        print(dtype, is_many)
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        Arc::new(run_on_host)
    }

    fn check(&self) -> Result<(), Fault> {
        check("scatter_atomic", self.kernel.dtype)
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let blocks = self.kernel.elements().div_ceil(BLOCK * OWN).min(MOST_BLOCKS);
        along_x(blocks, BLOCK).filter(|_| !self.kernel.in_order().spans().contains(&0))
    }

    fn words(&self) -> Words {
        arguments::pack(&self.at, &self.kernel)
    }

    fn accesses(&self) -> Accesses {
        let [indices, sources, _] = self.kernel.in_order().spans();
        let [index, source, result] = self.at;
        let sum = self.kernel.dtype.compute().size_bytes() as u64;
        Accesses::from_iter([
            Access::read(index, indices * size_of::<i64>() as u64),
            Access::read(source, sources * self.kernel.dtype.size_bytes() as u64),
            // The other elements keep their values.
            result_of(&self.kernel, result).touching(Touch::chosen(self.kernel.elements() * sum)),
        ])
    }
}

/// Returns the access to the entire result, of which a launch touches the elements that the indices name.
fn result_of(kernel: &ScatterAtomic, result: DevicePointer) -> Access {
    let [_, _, results] = kernel.in_order().spans();
    Access::read_write(result, results * kernel.dtype.compute().size_bytes() as u64)
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (kernel, addresses, []): (ScatterAtomic, _, _) = arguments::unpack("scatter_atomic", launch)?;
    typed!(kernel.dtype, T => run_typed::<T>(launch, &kernel, addresses))
}

fn run_typed<T: Wide>(
    launch: &HostLaunch<'_>,
    kernel: &ScatterAtomic,
    [index, source, result]: [DevicePointer; 3],
) -> Result<(), HostFault> {
    let sizes = kernel.in_order();
    let [indices, sources, results] = sizes.spans().map(|span| span as usize);
    let (index, source) = (launch.read::<i64>(index, indices)?, launch.read::<T>(source, sources)?);
    let access = result_of(kernel, result);
    let result = launch.write::<T::Sum>(result, results)?;
    for (place, at) in sizes.places(index) {
        let value = source[super::element(at, kernel.source_strides)].widened();
        result[place as usize] = result[place as usize].combine(Combine::Sum, value);
    }
    if launch.has_tickets() {
        let size = size_of::<T::Sum>() as u64;
        launch.touched(&access, sizes.places(index).map(|(place, _)| (access.start + place * size, size)));
    }
    Ok(())
}
