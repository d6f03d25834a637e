//! [`ScatterAtomic`]: elements that are added at indices by atomic additions, or of which the greatest or smallest ones remain.
//!
//! The result is (outer, extent, inner), contiguous; indices and source are (outer, count, inner) with any strides. A thread first
//! sums the elements in succession that have the same index, and lanes of a warp with the same index share an addition. So sorted
//! or equal indices do not make threads wait for each other. **The order of additions depends on timing**: sums of integers do
//! not depend on it, those of floats differ in their last places from one run to the next. The host function adds in order. A
//! result of 16 bits is rounded at every addition, of what a warp has summed in f32.
//!
//! Extremes are those of whole numbers: floats of one sign are ordered like their bits. They do not depend on the order, and NaN remains.
//! An element that would change nothing is found by a load.
//!
//! An index out of range does nothing.

use std::sync::{Arc, LazyLock};

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
    /// The dtype of the source: a floating-point type, or int64.
    pub dtype: DType,
    /// Whether the result has the source's dtype instead of the dtype in which elements are combined. This matters only for 16-bit
    /// dtypes; extremes always have the source's dtype.
    pub keeps_dtype: bool,
    /// The combination: a sum or an extreme.
    pub combine: Combine,
}

arguments! { ScatterAtomic { sizes, index_strides, source_strides, dtype, keeps_dtype, combine } }

/// Threads of a block, and the elements of each at a time.
const BLOCK: u64 = 256;
const OWN: u64 = 4;

/// The most blocks, which keep a large GPU busy.
const MOST_BLOCKS: u64 = 1 << 12;

/// The ways to combine.
const WAYS: [Combine; 3] = [Combine::Sum, Combine::Max, Combine::Min];

/// A variant of the kernel: the operation, the dtype by its position in [`DTYPES`], whether elements are indexed with 64 bits, and
/// whether it combines in 16 bits.
type Form = (Combine, usize, bool, bool);

fn forms() -> impl Iterator<Item = Form> {
    let of_way = |combine: Combine| {
        let narrow = move |dtype: usize| combine == Combine::Sum && DTYPES[dtype].size_bytes() == 2;
        (0..DTYPES.len()).flat_map(move |dtype| {
            [false, true]
                .into_iter()
                .filter(move |into| !into || narrow(dtype))
                .flat_map(move |into| [false, true].map(|many| (combine, dtype, many, into)))
        })
    };
    WAYS.into_iter().flat_map(of_way)
}

/// The names of the entry points, by operation, dtype, whether they combine in 16 bits, and whether they index with 64 bits. Kernels
/// are found by name, so it is the same string each time.
static NAMES: LazyLock<[[[[String; 2]; 2]; DTYPES.len()]; WAYS.len()]> = LazyLock::new(|| {
    let name = |combine: Combine, dtype: DType, into: bool, many: bool| {
        let way = if combine == Combine::Sum { String::new() } else { format!("{}_", combine.name()) };
        let (into, many) = (if into { "into_" } else { "" }, if many { "_many" } else { "" });
        format!("scatter_atomic_{way}{into}{}{many}", dtype.name())
    };
    WAYS.map(|way| {
        DTYPES.map(|dtype| [false, true].map(|into| [false, true].map(|many| name(way, dtype, into, many))))
    })
});

fn name_of((combine, dtype, many, into): Form) -> &'static str {
    let way = WAYS.iter().position(|way| *way == combine).unwrap_or(0);
    &NAMES[way][dtype][usize::from(into)][usize::from(many)]
}

fn print(form @ (combine, dtype, many, into): Form) -> String {
    let number = if many { "u64" } else { "u32" };
    let name = DTYPES[dtype].short_name();
    let result = if into { name.to_owned() } else { format!("combined<{name}>::type") };
    let call = format_args!("scatter_atomically<{name}, {number}, {result}>(x)");
    Source::new(name_of(form))
        .define("CALL", call)
        .define("WAY", combine as u8)
        .print(include_str!("atomic.cu"))
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    forms().map(|form| (name_of(form).to_owned(), print(form)))
}

impl ScatterAtomic {
    fn elements(&self) -> u64 {
        let [outer, _, count, inner] = self.sizes;
        outer * count * inner
    }

    fn form(&self) -> Form {
        let dtype = DTYPES.into_iter().position(|dtype| dtype == self.dtype).unwrap_or(0);
        let is_narrow = self.result_dtype() != self.dtype.compute();
        (self.combine, dtype, self.elements() >= 1 << 31, is_narrow)
    }

    /// Returns the dtype of the result.
    fn result_dtype(&self) -> DType {
        if self.keeps_dtype { self.dtype } else { self.dtype.compute() }
    }

    /// Returns the sizes of the equivalent scatter in order.
    fn in_order(&self) -> ScatterReduce {
        let Self { sizes, index_strides, source_strides, dtype, combine, .. } = *self;
        ScatterReduce { sizes, index_strides, source_strides, dtype: dtype.compute(), combine }
    }
}

/// Operands: the indices (i64), the source, and the result, which is read and written.
impl NativeKernel for Placed<ScatterAtomic, [DevicePointer; 3]> {
    fn name(&self) -> &str {
        name_of(self.kernel.form())
    }

    fn source(&self) -> String {
        print(self.kernel.form())
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        Arc::new(run_on_host)
    }

    fn check(&self) -> Result<(), Fault> {
        let ScatterAtomic { combine, keeps_dtype, dtype, .. } = self.kernel;
        let is_known =
            WAYS.contains(&combine) && (combine == Combine::Sum || !keeps_dtype || dtype == dtype.compute());
        Fault::unless(is_known, || {
            format!("scatter_atomic: it does not combine by {} in {dtype}", combine.name())
        })?;
        check("scatter_atomic", dtype)
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
        let sum = self.kernel.result_dtype().size_bytes() as u64;
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
    Access::read_write(result, results * kernel.result_dtype().size_bytes() as u64)
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
    let size = kernel.result_dtype().size_bytes() as u64;
    let places =
        || sizes.places(index).map(|(place, at)| (place, source[super::element(at, kernel.source_strides)]));
    if kernel.keeps_dtype {
        let result = launch.write::<T>(result, results)?;
        for (place, value) in places() {
            let sum = result[place as usize].widened().combine(kernel.combine, value.widened());
            result[place as usize] = T::narrowed(sum);
        }
    } else {
        let result = launch.write::<T::Sum>(result, results)?;
        for (place, value) in places() {
            result[place as usize] = result[place as usize].combine(kernel.combine, value.widened());
        }
    }
    if launch.has_tickets() {
        launch.touched(&access, sizes.places(index).map(|(place, _)| (access.start + place * size, size)));
    }
    Ok(())
}
