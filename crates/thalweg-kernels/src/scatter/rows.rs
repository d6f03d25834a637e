//! [`ScatterRows`]: rows that replace the rows named by a list of indices.
//!
//! The result is (outer, extent, inner), contiguous; the source is (outer, count, inner) with any strides, and its (o, k, i) replaces
//! the result's (o, index of k, i), if k is the [last index](super::last) that names the row. A single index is the last one, so its
//! launch does not read the list of last indices. A thread copies up to 16 bytes of a row.

use bytemuck::Pod;
use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch, Touch};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use super::combine::typed;
use super::width_of;
use crate::arguments::{self, arguments};
use crate::dtypes::check;
use crate::native::{Accesses, NativeKernel, Placed, along_x, native};
use crate::operands::span;
use crate::source::Source;

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ScatterRows {
    /// The outer extent, the extent that is indexed, the number of indices, and the inner extent.
    pub sizes: [u64; 4],
    /// The stride of the indices, in elements.
    pub index_stride: u64,
    /// The strides of the source, in elements.
    pub source_strides: [u64; 3],
    /// The dtype of source and result: a floating-point type, or int64.
    pub dtype: DType,
}

arguments! { ScatterRows { sizes, index_stride, source_strides, dtype } }

/// Threads of a block.
const BLOCK: u64 = 256;

/// The operands of a launch: indices (i64), the last index of each row plus one (32 bits; a null address for a single index), source, and
/// result.
type Operands = [DevicePointer; 4];

impl ScatterRows {
    /// Returns the numbers of elements that indices, source and result span in memory.
    fn spans(&self) -> [u64; 3] {
        let [outer, extent, count, inner] = self.sizes;
        let walked = [outer, count, inner];
        // A row's elements share an index.
        let index_strides = [0, self.index_stride, 0];
        [span(walked, index_strides), span(walked, self.source_strides), outer * extent * inner]
    }

    /// Returns the number of elements that a thread handles.
    fn width(&self, at: &Operands) -> u64 {
        width_of(self.dtype, self.sizes[3], self.source_strides, [at[2], at[3]])
    }

    /// Returns the row of the result that an index names.
    fn row(&self, index: &[i64], k: u64) -> Option<u64> {
        u64::try_from(index[(k * self.index_stride) as usize]).ok().filter(|&row| row < self.sizes[1])
    }

    fn form(&self, at: &Operands) -> &'static Form {
        let width = self.width(at);
        let bytes = self.dtype.size_bytes() as u64;
        FORMS.iter().find(|form| form.width == width && form.bytes == bytes).unwrap_or(&FORMS[0])
    }
}

/// A kernel: the number of bytes of an element, the number of elements of a thread, and the type of both together.
struct Form {
    bytes: u64,
    width: u64,
    name: &'static str,
    part: &'static str,
}

const fn form(bytes: u64, width: u64, name: &'static str, part: &'static str) -> Form {
    Form { bytes, width, name, part }
}

/// The kernels, which copy bits.
const FORMS: [Form; 6] = [
    form(2, 1, "scatter_rows_2", "u16"),
    form(2, 8, "scatter_rows_2_8", "uint4"),
    form(4, 1, "scatter_rows_4", "u32"),
    form(4, 4, "scatter_rows_4_4", "uint4"),
    form(8, 1, "scatter_rows_8", "u64"),
    form(8, 2, "scatter_rows_8_2", "uint4"),
];

impl Form {
    fn print(&self) -> String {
        let call = format_args!("replace_rows<{}, {}>(x)", self.part, self.width);
        Source::new(self.name).define("CALL", call).print(include_str!("rows.cu"))
    }
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    FORMS.iter().map(|form| (form.name.to_owned(), form.print()))
}

impl NativeKernel for Placed<ScatterRows, Operands> {
    native! { self: self.kernel.form(&self.at).name, self.kernel.form(&self.at).print(), run_on_host, words }

    fn check(&self) -> Result<(), Fault> {
        check("scatter_rows", self.kernel.dtype)
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let [outer, _, count, inner] = self.kernel.sizes;
        let items = outer * count * (inner / self.kernel.width(&self.at));
        along_x(items.div_ceil(BLOCK), BLOCK).filter(|_| !self.kernel.spans().contains(&0))
    }

    fn accesses(&self) -> Accesses {
        let (sizes, element) = (&self.kernel, self.kernel.dtype.size_bytes() as u64);
        let ([outer, extent, count, inner], [indices, sources, _]) = (sizes.sizes, sizes.spans());
        let [index, last, source, result] = self.at;
        let lasts = if count > 1 { extent } else { 0 };
        Accesses::from_iter([
            Access::read(index, indices * size_of::<i64>() as u64),
            Access::read(last, lasts * size_of::<u32>() as u64),
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

fn run_typed<T: Pod>(launch: &HostLaunch<'_>, sizes: &ScatterRows, at: Operands) -> Result<(), HostFault> {
    let [index, last, source, result] = at;
    let [indices, sources, results] = sizes.spans().map(|span| span as usize);
    let (index, source) = (launch.read::<i64>(index, indices)?, launch.read::<T>(source, sources)?);
    let [outer, extent, count, inner] = sizes.sizes;
    let last = if count > 1 { launch.read::<u32>(last, extent as usize)? } else { &[] };
    let written = launch.write::<T>(result, results)?;
    let named = |k: u64| {
        Some((k, sizes.row(index, k).filter(|&row| count == 1 || u64::from(last[row as usize]) == k + 1)?))
    };
    for (k, row) in (0..count).filter_map(named) {
        for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
            let [by_outer, by_count, by_inner] = sizes.source_strides;
            written[((o * extent + row) * inner + i) as usize] =
                source[(o * by_outer + k * by_count + i * by_inner) as usize];
        }
    }
    if launch.has_tickets() {
        let bytes = inner * size_of::<T>() as u64;
        let rows = (0..count).filter_map(|k| sizes.row(index, k));
        let parts = rows.flat_map(|row| (0..outer).map(move |o| o * extent + row));
        launch.touched(&result_of(sizes, result), parts.map(|row| (result.address() + row * bytes, bytes)));
    }
    Ok(())
}
