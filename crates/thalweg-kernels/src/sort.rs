//! [`Sort`]: the order of points along a dimension, stable, with NaN above every number as PyTorch has it.
//!
//! A block sorts a row by merging runs of doubling length: each point finds its place in the merged run by a binary search in the
//! other one. The runs are places in two buffers, so the points themselves stay where they are until the end.

use std::cmp::Ordering;
use std::sync::Arc;

use thalweg_driver::{Access, DevicePointer, HostFault, HostKernel, HostLaunch};
use thalweg_ir::cuda::{LaunchShape, with_prelude};
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element, with_dtype};

use crate::arguments;
use crate::dtypes::{check, entry_points, names};
use crate::{Accesses, NativeKernel, Placed, Words};

/// The sizes of a launch: elements lie as (outer, length, inner), without gaps. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sort {
    /// Rows before the dimension.
    pub outer: u64,
    /// The points of a row.
    pub length: u64,
    /// Rows side by side.
    pub inner: u64,
    /// Whether the greatest comes first. Equals keep their order either way.
    pub descending: bool,
    /// Of the points: a floating-point type or int64.
    pub dtype: DType,
}

/// Threads of a block.
const BLOCK: u32 = 256;

/// How many 8-byte words a launch takes.
const ARGUMENT_WORDS: usize = 9;

entry_points! { "sort" }

fn print(dtype: DType) -> String {
    let [element, sum, load, _] = names(dtype);
    let code = TEMPLATE
        .replace("NAME", name(dtype))
        .replace("ELEMENT", &element)
        .replace("KEY", &sum)
        .replace("LOAD", &load);
    with_prelude(&code)
}

impl Sort {
    fn elements(&self) -> u64 {
        self.outer * self.length * self.inner
    }

    fn pack(&self, at: [u64; 4]) -> [u64; ARGUMENT_WORDS] {
        let dtype = arguments::number_of(self.dtype);
        let descending = u64::from(self.descending);
        [at[0], at[1], at[2], at[3], self.outer, self.length, self.inner, descending, dtype]
    }

    fn unpack(bytes: &[u8]) -> Option<(Self, [u64; 4])> {
        let [source, values, places, scratch, outer, length, inner, descending, dtype] =
            arguments::words(bytes)?;
        let dtype = arguments::dtype_of(dtype)?;
        let sort = Self { outer, length, inner, descending: descending != 0, dtype };
        Some((sort, [source, values, places, scratch]))
    }
}

/// The source; the sorted values; their places in the source's row, of int64; and as many int64 for the kernel's own use.
impl NativeKernel for Placed<Sort, [DevicePointer; 4]> {
    fn name(&self) -> &str {
        name(self.kernel.dtype)
    }

    fn source(&self) -> String {
        print(self.kernel.dtype)
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        Arc::new(run_on_host)
    }

    fn check(&self) -> Result<(), Fault> {
        check("sort", self.kernel.dtype)
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let rows = self.kernel.outer * self.kernel.inner;
        (self.kernel.elements() > 0)
            .then(|| LaunchShape { grid: [rows.min((1 << 31) - 1) as u32, 1, 1], block: [BLOCK, 1, 1] })
    }

    fn words(&self) -> Words {
        self.kernel.pack(self.at.map(DevicePointer::address)).into_iter().collect()
    }

    fn accesses(&self) -> Accesses {
        let (elements, size) = (self.kernel.elements(), self.kernel.dtype.size_bytes() as u64);
        let [source, values, places, scratch] = self.at;
        let index = elements * size_of::<i64>() as u64;
        Accesses::from_iter([
            Access::read(source, elements * size),
            Access::write(values, elements * size),
            Access::write(places, index),
            Access::write(scratch, index),
        ])
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (sort, at) = Sort::unpack(launch.arguments)
        .ok_or_else(|| HostFault("sort: the arguments are not in its layout".to_owned()))?;
    if sort.dtype == DType::I64 {
        return run_typed::<i64>(launch, &sort, at, i64::cmp);
    }
    let refuse = || Err(HostFault(format!("sort: {} is no dtype of it", sort.dtype)));
    with_dtype!(sort.dtype,
        bool => refuse(),
        integer T => refuse(),
        reduced T => run_typed::<T>(launch, &sort, at, compare_floats),
        float T => run_typed::<T>(launch, &sort, at, compare_floats),
    )
}

/// Compares floats: NaN is above every number, and equal to itself.
fn compare_floats<T: Element>(a: &T, b: &T) -> Ordering {
    let (a, b) = (a.to_f64(), b.to_f64());
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

fn run_typed<T: Element>(
    launch: &HostLaunch<'_>,
    sort: &Sort,
    at: [u64; 4],
    compare: impl Fn(&T, &T) -> Ordering,
) -> Result<(), HostFault> {
    let [source, values, places, _] = at.map(DevicePointer::new);
    let count = sort.elements() as usize;
    let source = launch.read::<T>(source, count)?;
    let (values, places) = (launch.write::<T>(values, count)?, launch.write::<i64>(places, count)?);
    let (length, inner) = (sort.length as usize, sort.inner as usize);
    for row in 0..(sort.outer * sort.inner) as usize {
        let first = row / inner * length * inner + row % inner;
        let mut order: Vec<usize> = (0..length).collect();
        order.sort_by(|&a, &b| {
            let order = compare(&source[first + a * inner], &source[first + b * inner]);
            if sort.descending { order.reverse() } else { order }
        });
        for (to, from) in order.into_iter().enumerate() {
            values[first + to * inner] = source[first + from * inner];
            places[first + to * inner] = from as i64;
        }
    }
    Ok(())
}

const TEMPLATE: &str = "\
struct NAME_arguments {
    const ELEMENT* source;
    ELEMENT* values;
    i64* places;
    i64* scratch;
    u64 outer;
    u64 length;
    u64 inner;
    u64 descending;
    u64 dtype;
};

static __device__ __forceinline__ bool NAME_before(KEY a, KEY b, u64 descending) {
    return descending ? b < a || (a != a && b == b) : a < b || (b != b && a == a);
}

extern \"C\" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ NAME_arguments x) {
    for (u64 row = blockIdx.x; row < x.outer * x.inner; row += gridDim.x) {
        const u64 begin = row / x.inner * x.length * x.inner + row % x.inner;
        u32 passes = 0;
        for (u64 width = 1; width < x.length; width *= 2) {
            ++passes;
        }
        // The last pass writes the places.
        i64* from = passes % 2 == 0 ? x.places : x.scratch;
        i64* to = passes % 2 == 0 ? x.scratch : x.places;
        for (u64 at = threadIdx.x; at < x.length; at += 256) {
            from[begin + at * x.inner] = i64(at);
        }
        __syncthreads();
        for (u64 width = 1; width < x.length; width *= 2) {
            for (u64 at = threadIdx.x; at < x.length; at += 256) {
                const u64 run = at / (2 * width) * (2 * width);
                const u64 middle = run + width < x.length ? run + width : x.length;
                const u64 end = middle + width < x.length ? middle + width : x.length;
                const bool is_left = at < middle;
                const i64 index = from[begin + at * x.inner];
                const KEY key = LOAD(x.source[begin + u64(index) * x.inner]);
                u64 low = is_left ? middle : run, high = is_left ? end : middle;
                const u64 other = low;
                while (low < high) {
                    const u64 probe = low + (high - low) / 2;
                    const KEY found = LOAD(x.source[begin + u64(from[begin + probe * x.inner]) * x.inner]);
                    // Of equals the left run's come first.
                    const bool precedes =
                        is_left ? NAME_before(found, key, x.descending) : !NAME_before(key, found, x.descending);
                    if (precedes) {
                        low = probe + 1;
                    } else {
                        high = probe;
                    }
                }
                const u64 rank = at - (is_left ? run : middle) + (low - other);
                to[begin + (run + rank) * x.inner] = index;
            }
            __syncthreads();
            i64* former = from;
            from = to;
            to = former;
        }
        for (u64 at = threadIdx.x; at < x.length; at += 256) {
            x.values[begin + at * x.inner] = x.source[begin + u64(x.places[begin + at * x.inner]) * x.inner];
        }
    }
}
";
