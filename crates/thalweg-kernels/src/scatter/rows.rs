//! [`ScatterRows`]: rows that are combined into the rows that one list of indices names.
//!
//! The result is (outer, extent, inner), contiguous; the source is (outer, count, inner) with any strides, and its (o, k, i) is
//! combined with the result's (o, index of k, i). The list must be [grouped](super::group): the threads of the first index of a
//! row combine all that name it, in their order. A thread handles up to 16 bytes of a row. To replace elements only the last
//! index of each row matters, which [`Phase::Last`](super::group::Phase) has stored.

use std::sync::Arc;

use thalweg_driver::{Access, DevicePointer, HostFault, HostKernel, HostLaunch, Touch};
use thalweg_ir::DType;
use thalweg_ir::cuda::{LaunchShape, with_prelude};
use thalweg_ir::host::Fault;

use super::combine::{c_of, typed};
use super::group::GroupIndices;
use super::{Combine, Term, Wide};
use crate::arguments::{self, arguments};
use crate::dtypes::{DTYPES, check, names};
use crate::native::{Accesses, NativeKernel, Placed, Words};

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ScatterRows {
    /// The outer extent, the extent that is indexed, the number of indices, and the inner extent.
    pub sizes: [u64; 4],
    /// The stride of the indices, in elements.
    pub index_stride: u64,
    /// The strides of the source, in elements.
    pub source_strides: [u64; 3],
    /// The dtype of source and result: a floating-point type, or int64. 16-bit floats are combined in f32 and rounded once.
    pub dtype: DType,
    /// The way in which elements are combined.
    pub combine: Combine,
}

arguments! { ScatterRows { sizes, index_stride, source_strides, combine, dtype } }

/// Threads of a block.
const BLOCK: u64 = 256;
/// The bytes of a row that a thread handles if they are contiguous and aligned to this number.
const VECTOR: u64 = 16;

/// The operands of a launch: indices (i64), counters and groups of [`GroupIndices`], source, and the result, which is read and
/// written.
type Operands = [DevicePointer; 5];

impl ScatterRows {
    /// Returns the numbers of elements that indices, source and result span in memory.
    fn spans(&self) -> [u64; 3] {
        let [outer, extent, count, inner] = self.sizes;
        if [outer, count, inner].contains(&0) {
            return [0, 0, outer * extent * inner];
        }
        let [by_outer, by_count, by_inner] = self.source_strides;
        let source = 1 + (outer - 1) * by_outer + (count - 1) * by_count + (inner - 1) * by_inner;
        [1 + (count - 1) * self.index_stride, source, outer * extent * inner]
    }

    /// Returns the number of elements that a thread handles.
    fn width(&self, at: &Operands) -> u64 {
        let width = VECTOR / self.dtype.size_bytes() as u64;
        let [.., source, result] = at;
        let is_whole = |elements: u64| elements.is_multiple_of(width);
        let fits = self.source_strides[2] == 1
            && is_whole(self.sizes[3])
            && self.source_strides[..2].iter().all(|&stride| is_whole(stride))
            && [source, result].iter().all(|operand| operand.address().is_multiple_of(VECTOR));
        if fits { width } else { 1 }
    }

    /// Returns the row of the result that an index names.
    fn row(&self, index: &[i64], k: u64) -> Option<u64> {
        u64::try_from(index[(k * self.index_stride) as usize]).ok().filter(|&row| row < self.sizes[1])
    }

    fn run<T: Wide>(&self, index: &[i64], source: &[T], result: &mut [T]) {
        let [outer, extent, count, inner] = self.sizes;
        // 16-bit floats are rounded once: they are kept wide until all are combined.
        let mut rows: Vec<Vec<u64>> = vec![Vec::new(); extent as usize];
        (0..count)
            .filter_map(|k| Some((k, self.row(index, k)?)))
            .for_each(|(k, row)| rows[row as usize].push(k));
        for (row, named) in rows.iter().enumerate().filter(|(_, named)| !named.is_empty()) {
            for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
                let place = &mut result[((o * extent + row as u64) * inner + i) as usize];
                let element = |k: u64| {
                    let [by_outer, by_count, by_inner] = self.source_strides;
                    source[(o * by_outer + k * by_count + i * by_inner) as usize].widened()
                };
                let all = named.iter().fold(place.widened(), |sum, &k| sum.combine(self.combine, element(k)));
                *place = T::narrowed(all);
            }
        }
    }
}

/// Returns the name of the entry point for a dtype and this number of elements per thread.
fn name(dtype: DType, width: u64) -> &'static str {
    match (dtype, width) {
        (DType::F16, 1) => "scatter_rows_float16",
        (DType::F16, _) => "scatter_rows_float16_8",
        (DType::Bf16, 1) => "scatter_rows_bfloat16",
        (DType::Bf16, _) => "scatter_rows_bfloat16_8",
        (DType::F32, 1) => "scatter_rows_float32",
        (DType::F32, _) => "scatter_rows_float32_4",
        (DType::F64, 1) => "scatter_rows_float64",
        (DType::F64, _) => "scatter_rows_float64_2",
        (_, 1) => "scatter_rows_int64",
        _ => "scatter_rows_int64_2",
    }
}

fn print(dtype: DType, width: u64) -> String {
    let [element, sum, load, store] = names(dtype);
    let code = TEMPLATE
        .replace("COMBINE", &c_of(dtype, "combined"))
        .replace("NAME", name(dtype, width))
        .replace("ELEMENT", &element)
        .replace("SUM", &sum)
        .replace("LOAD", &load)
        .replace("STORE", &store)
        .replace("WIDTH", &width.to_string());
    with_prelude(&code)
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    DTYPES.into_iter().flat_map(|dtype| {
        [1, VECTOR / dtype.size_bytes() as u64]
            .map(|width| (name(dtype, width).to_owned(), print(dtype, width)))
    })
}

impl NativeKernel for Placed<ScatterRows, Operands> {
    fn name(&self) -> &str {
        name(self.kernel.dtype, self.kernel.width(&self.at))
    }

    fn source(&self) -> String {
        print(self.kernel.dtype, self.kernel.width(&self.at))
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        Arc::new(run_on_host)
    }

    fn check(&self) -> Result<(), Fault> {
        check("scatter_rows", self.kernel.dtype)
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let [outer, _, count, inner] = self.kernel.sizes;
        let items = outer * count * (inner / self.kernel.width(&self.at));
        let blocks = items.div_ceil(BLOCK).min((1 << 31) - 1) as u32;
        (!self.kernel.spans().contains(&0))
            .then_some(LaunchShape { grid: [blocks, 1, 1], block: [BLOCK as u32, 1, 1] })
    }

    fn words(&self) -> Words {
        arguments::pack(&self.at, &self.kernel)
    }

    fn accesses(&self) -> Accesses {
        let (sizes, element) = (&self.kernel, self.kernel.dtype.size_bytes() as u64);
        let ([outer, extent, count, inner], [indices, sources, _]) = (sizes.sizes, sizes.spans());
        let [index, counters, groups, source, result] = self.at;
        let word = size_of::<i32>() as u64;
        let group_words = match sizes.combine {
            Combine::Replace => 0,
            _ => GroupIndices::words_of_groups(count, extent),
        };
        Accesses::from_iter([
            Access::read(index, indices * size_of::<i64>() as u64),
            Access::read(counters, GroupIndices::counters(extent) * word),
            Access::read(groups, group_words * word),
            Access::read(source, sources * element),
            // The other rows keep their values.
            result_of(sizes, result).touching(Touch::chosen(outer * count * inner * element)),
        ])
    }
}

/// Returns the access to the entire result, of which a launch touches the rows that the indices name.
fn result_of(sizes: &ScatterRows, result: DevicePointer) -> Access {
    Access::read_write(result, sizes.spans()[2] * sizes.dtype.size_bytes() as u64)
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (sizes, addresses, []): (ScatterRows, _, _) = arguments::unpack("scatter_rows", launch)?;
    typed!(sizes.dtype, T => run_typed::<T>(launch, &sizes, addresses))
}

fn run_typed<T: Wide>(
    launch: &HostLaunch<'_>,
    sizes: &ScatterRows,
    addresses: [DevicePointer; 5],
) -> Result<(), HostFault> {
    let [index, _, _, source, result] = addresses;
    let [indices, sources, results] = sizes.spans().map(|span| span as usize);
    let (index, source) = (launch.read::<i64>(index, indices)?, launch.read::<T>(source, sources)?);
    sizes.run(index, source, launch.write::<T>(result, results)?);
    if launch.has_tickets() {
        let [outer, extent, count, inner] = sizes.sizes;
        let bytes = inner * size_of::<T>() as u64;
        let rows = (0..count).filter_map(|k| sizes.row(index, k));
        let parts = rows.flat_map(|row| (0..outer).map(move |o| o * extent + row));
        launch.touched(&result_of(sizes, result), parts.map(|row| (result.address() + row * bytes, bytes)));
    }
    Ok(())
}

const TEMPLATE: &str = "\
struct NAME_arguments {
    const i64* index;
    const u32* counters;
    const u32* groups;
    const ELEMENT* source;
    ELEMENT* result;
    u64 outer;
    u64 extent;
    u64 count;
    u64 inner;
    u64 index_stride;
    u64 source_strides[3];
    u64 combine;
    u64 dtype;
};

COMBINE
struct alignas(WIDTH * sizeof(ELEMENT)) vector {
    ELEMENT at[WIDTH];
};

extern \"C\" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ NAME_arguments x) {
    const u64 parts = x.inner / WIDTH, items = x.outer * x.count * parts;
    const u32* const offsets = x.groups;
    const u32* const ranks = offsets + x.extent;
    const u32* const list = ranks + x.count;
    for (u64 item = u64(blockIdx.x) * 256 + threadIdx.x; item < items; item += u64(gridDim.x) * 256) {
        u64 part, o, k;
        if (items <= 0xffffffffu) {
            const u32 row = u32(item) / u32(parts);
            part = u32(item) - row * u32(parts);
            o = row / u32(x.count);
            k = row - u32(o) * u32(x.count);
        } else {
            part = item % parts;
            k = item / parts % x.count;
            o = item / parts / x.count;
        }
        const i64 row = x.index[k * x.index_stride];
        if (u64(row) >= x.extent) {
            continue;
        }
        const ELEMENT* const source = x.source + o * x.source_strides[0] + part * WIDTH * x.source_strides[2];
        vector* const at = (vector*)(x.result + (o * x.extent + u64(row)) * x.inner + part * WIDTH);
        const u32 size = x.counters[row];
        if (x.combine == 0) {
            if (size == u32(k) + 1) {
                *at = *(const vector*)(source + k * x.source_strides[1]);
            }
            continue;
        }
        if (ranks[k] != 0) {
            continue;
        }
        const vector former = *at;
        SUM sums[WIDTH];
        #pragma unroll
        for (u32 i = 0; i < WIDTH; ++i) {
            sums[i] = LOAD(former.at[i]);
        }
        if (size == 1) {
            const vector value = *(const vector*)(source + k * x.source_strides[1]);
            #pragma unroll
            for (u32 i = 0; i < WIDTH; ++i) {
                sums[i] = combined(x.combine, sums[i], LOAD(value.at[i]));
            }
        } else {
            const u32* const named = list + offsets[row];
            u32 j = 0;
            // Four rows are read at once, and combined in order.
            for (; j + 4 <= size; j += 4) {
                vector values[4];
                #pragma unroll
                for (u32 at = 0; at < 4; ++at) {
                    values[at] = *(const vector*)(source + named[j + at] * x.source_strides[1]);
                }
                #pragma unroll
                for (u32 at = 0; at < 4; ++at) {
                    #pragma unroll
                    for (u32 i = 0; i < WIDTH; ++i) {
                        sums[i] = combined(x.combine, sums[i], LOAD(values[at].at[i]));
                    }
                }
            }
            for (; j < size; ++j) {
                const vector value = *(const vector*)(source + named[j] * x.source_strides[1]);
                #pragma unroll
                for (u32 i = 0; i < WIDTH; ++i) {
                    sums[i] = combined(x.combine, sums[i], LOAD(value.at[i]));
                }
            }
        }
        vector after;
        #pragma unroll
        for (u32 i = 0; i < WIDTH; ++i) {
            after.at[i] = STORE(sums[i]);
        }
        *at = after;
    }
}
";
