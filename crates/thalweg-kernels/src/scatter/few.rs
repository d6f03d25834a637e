//! [`ScatterFew`]: rows that are combined at a short list of indices, in one launch.
//!
//! The result is (outer, extent, inner), contiguous; the source is (outer, count, inner) with any strides, and its (o, k, i) is combined
//! with the result's (o, index of k, i). The rows of an index are combined in their order, or, if they are more than 16, those of each eighth
//! of the list in their order, and then the eighths; their sum is combined with the result's row. So the result does not depend on timing.
//! The first place of an index does the work of all. On a GPU that is one warp for each 64 to 256 columns, which finds the others by comparing all
//! indices with its own: a block shares the indices that it compares, 2,048 at a time in shared memory. The eight warps of a block share the
//! rows of an index that has many. The cost is that of the rows, and of comparing each index with every other; a warp reads the rows of one
//! index eight at a time.
//!
//! Rows that no place names are not written. An index out of range, and the one that is skipped, write nothing.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch, Touch};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use super::combine::typed;
use super::{Combine, Term, VECTOR, Wide, width_of};
use crate::arguments::{self, arguments};
use crate::dtypes::{DTYPES, check};
use crate::native::{Accesses, NativeKernel, Placed, along_x, native};
use crate::operands::span;
use crate::source::Source;

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ScatterFew {
    /// The outer extent, the extent that is indexed, the number of indices, and the inner extent.
    pub sizes: [u64; 4],
    /// The stride of the indices, in elements.
    pub index_stride: u64,
    /// The strides of the source, in elements.
    pub source_strides: [u64; 3],
    /// The index whose rows are skipped; `u64::MAX` if there is none.
    pub skipped: u64,
    /// The way in which elements are combined: not [`Combine::Replace`].
    pub combine: Combine,
    /// Whether the result is zeros, and is not read.
    pub from_zeros: bool,
    /// The dtype of source and result: a floating-point type, or int64. 16-bit floats are combined in f32 and rounded once.
    pub dtype: DType,
}

arguments! { ScatterFew { sizes, index_stride, source_strides, skipped, combine, from_zeros, dtype } }

/// Threads of a block.
const BLOCK: u64 = 256;
/// The number of places of a block: one for each warp.
const PLACES: u64 = 8;
/// The most rows of an index that are combined sequentially; more rows are divided into [`PLACES`] equal parts of the list.
const MANY: usize = 16;
/// The most columns of a warp: eight for each lane.
const COLUMNS: u64 = 256;

/// The most indices of a short list per row of the result, and the most pairs of indices that a launch compares. One block combines
/// all rows of an index, so a launch takes as long as the most frequent index; the time of a sort does not depend on the indices.
const MOST_OF_A_ROW: u64 = 1024;
const MOST_PAIRS: u64 = 1 << 26;

/// The operands of a launch: indices (i64), source, and result.
type Operands = [DevicePointer; 3];

impl ScatterFew {
    /// Returns whether the list is so short that comparing all indices with each other takes less time than a sort: of the outer extent, the
    /// extent that is indexed, the number of indices, and the inner extent.
    pub fn are_few([outer, extent, count, inner]: [u64; 4]) -> bool {
        let shares = outer.saturating_mul(inner.div_ceil(COLUMNS));
        let pairs = count.saturating_mul(count);
        count <= extent.saturating_mul(MOST_OF_A_ROW) && shares.saturating_mul(pairs) <= MOST_PAIRS
    }

    /// Returns the numbers of elements that indices, source and result span in memory.
    fn spans(&self) -> [u64; 3] {
        let [outer, extent, count, inner] = self.sizes;
        let source = span([outer, count, inner], self.source_strides);
        [span([count], [self.index_stride]), source, outer * extent * inner]
    }

    /// Returns the rows of the result that the places name, with their places in order.
    fn rows(&self, index: &[i64]) -> Vec<Vec<usize>> {
        let mut rows = vec![Vec::new(); self.sizes[1] as usize];
        for place in 0..self.sizes[2] as usize {
            let named = u64::try_from(index[place * self.index_stride as usize]).ok();
            if let Some(row) = named.filter(|&row| row < self.sizes[1] && row != self.skipped) {
                rows[row as usize].push(place);
            }
        }
        rows
    }

    fn form(&self, at: &Operands) -> Form {
        let dtype = DTYPES.into_iter().find(|&dtype| dtype == self.dtype).unwrap_or(DType::F32);
        let width = width_of(self.dtype, self.sizes[3], self.source_strides, [at[1], at[2]]);
        Form { dtype, is_wide: width > 1, is_sum: self.combine == Combine::Sum }
    }
}

/// A variant of the kernel.
struct Form {
    dtype: DType,
    is_wide: bool,
    is_sum: bool,
}

/// The names of the entry points by dtype: of sums, for elements that are read one by one and for vectors of 16 bytes, and of other ways to
/// combine.
const NAMES: [[&str; 4]; DTYPES.len()] = {
    macro_rules! names {
        ($($dtype:literal)*) => {
            [$([
                concat!("scatter_few_", $dtype),
                concat!("scatter_few_", $dtype, "_wide"),
                concat!("scatter_few_any_", $dtype),
                concat!("scatter_few_any_", $dtype, "_wide"),
            ]),*]
        };
    }
    names!["float32" "float64" "float16" "bfloat16" "int64"]
};

impl Form {
    fn name(&self) -> &'static str {
        let number = DTYPES.into_iter().position(|dtype| dtype == self.dtype).unwrap_or(0);
        NAMES[number][usize::from(self.is_wide) + 2 * usize::from(!self.is_sum)]
    }

    /// Returns the number of elements of a vector.
    fn width(&self) -> u64 {
        if self.is_wide { VECTOR / self.dtype.size_bytes() as u64 } else { 1 }
    }

    /// Returns the number of columns of a warp.
    fn columns(&self) -> u64 {
        COLUMNS.min(64 * self.width())
    }

    fn print(&self) -> String {
        let width = self.width();
        let call = format_args!("combine_few<{}, {width}, {}>(x)", self.dtype.short_name(), self.is_sum);
        Source::new(self.name()).define("CALL", call).print(include_str!("few.cu"))
    }
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    let forms = DTYPES.into_iter().flat_map(|dtype| {
        (0..4).map(move |bits| Form { dtype, is_wide: bits & 1 == 1, is_sum: bits & 2 == 0 })
    });
    forms.map(|form| (form.name().to_owned(), form.print()))
}

impl NativeKernel for Placed<ScatterFew, Operands> {
    native! { self: self.kernel.form(&self.at).name(), self.kernel.form(&self.at).print(), run_on_host, words }

    fn check(&self) -> Result<(), Fault> {
        check("scatter_few", self.kernel.dtype)?;
        let [_, extent, count, _] = self.kernel.sizes;
        if self.kernel.combine == Combine::Replace {
            return Err(Fault::new("scatter_few combines rows, and replaces none".to_owned()));
        }
        match extent.max(count) < u64::from(u32::MAX) {
            true => Ok(()),
            false => Err(Fault::new(format!("scatter_few: {count} indices of {extent} rows are too many"))),
        }
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let [outer, _, count, inner] = self.kernel.sizes;
        let blocks = outer * count.div_ceil(PLACES) * inner.div_ceil(self.kernel.form(&self.at).columns());
        along_x(blocks, BLOCK).filter(|_| !self.kernel.spans().contains(&0))
    }

    fn accesses(&self) -> Accesses {
        let (kernel, element) = (&self.kernel, self.kernel.dtype.size_bytes() as u64);
        let ([outer, _, count, inner], [indices, sources, _]) = (kernel.sizes, kernel.spans());
        let [index, source, result] = self.at;
        Accesses::from_iter([
            Access::read(index, indices * size_of::<i64>() as u64),
            Access::read(source, sources * element),
            // The other rows keep their values.
            result_of(kernel, result).touching(Touch::chosen(outer * count * inner * element)),
        ])
    }
}

/// Returns the access to the entire result, of which a launch touches the rows that the indices name.
fn result_of(kernel: &ScatterFew, result: DevicePointer) -> Access {
    Access::read_write(result, kernel.spans()[2] * kernel.dtype.size_bytes() as u64)
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (kernel, at, []): (ScatterFew, _, _) = arguments::unpack("scatter_few", launch)?;
    typed!(kernel.dtype, T => run_typed::<T>(launch, &kernel, at))
}

fn run_typed<T: Wide>(
    launch: &HostLaunch<'_>,
    kernel: &ScatterFew,
    [index, source, result]: Operands,
) -> Result<(), HostFault> {
    let [indices, sources, results] = kernel.spans().map(|span| span as usize);
    let (index, source) = (launch.read::<i64>(index, indices)?, launch.read::<T>(source, sources)?);
    let access = result_of(kernel, result);
    let result = launch.write::<T>(result, results)?;
    let [outer, extent, _, inner] = kernel.sizes.map(|size| size as usize);
    let [by_outer, by_row, by_column] = kernel.source_strides.map(|stride| stride as usize);
    let share = kernel.sizes[2].div_ceil(PLACES) as usize;
    let rows = kernel.rows(index);
    let named =
        || (0..outer).flat_map(|o| rows.iter().enumerate().map(move |(row, places)| (o, row, places)));
    for (o, row, places) in named() {
        for column in 0..inner {
            let value = |&place: &usize| source[o * by_outer + place * by_row + column * by_column].widened();
            let combined = |sum: T::Sum, value: T::Sum| sum.combine(kernel.combine, value);
            let sum = match places.len() {
                0..=MANY => places.iter().map(value).reduce(combined),
                _ => {
                    let shares = places.chunk_by(|a, b| a / share == b / share);
                    shares.filter_map(|own| own.iter().map(value).reduce(combined)).reduce(combined)
                }
            };
            let Some(sum) = sum else { break };
            let to = &mut result[(o * extent + row) * inner + column];
            *to = T::narrowed(match kernel.from_zeros {
                true => sum,
                false => to.widened().combine(kernel.combine, sum),
            });
        }
    }
    if launch.has_tickets() {
        let bytes = (inner * size_of::<T>()) as u64;
        let touched = named().filter(|(_, _, places)| !places.is_empty());
        let parts = touched.map(|(o, row, _)| (access.start + (o * extent + row) as u64 * bytes, bytes));
        launch.touched(&access, parts);
    }
    Ok(())
}
