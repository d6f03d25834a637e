//! [`Segments`]: rows that are combined by key, in an order in which rows of equal keys are neighbours
//! ([`SortIndices`](crate::sort::SortIndices)). However many rows have one key, the work is divided evenly.
//!
//! Rows are divided into chunks of [`CHUNK`], which groups of lanes combine row by row. A key whose rows are all in one chunk is
//! complete, and its sum is combined with the result's row. The sums of other keys become rows of the next launch: each chunk has
//! room for two, that of its first key and that of its last key. So the next launch has a sixteenth of the rows, and the last one
//! has one chunk. The order of all sums follows from the keys, and does not depend on timing.

use std::sync::LazyLock;

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch, Touch};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use super::combine::typed;
use super::{Combine, Term, VECTOR, Wide, width_of};
use crate::arguments::{self, arguments};
use crate::dtypes::{DTYPES, check};
use crate::native::{Accesses, NativeKernel, Placed, Words, along_x, native};
use crate::operands::span;
use crate::source::Source;

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Segments {
    /// The outer extent, the number of rows of the result, the number of rows of the source, and the inner extent.
    pub sizes: [u64; 4],
    /// The strides of the source, in elements.
    pub source_strides: [u64; 3],
    /// The number of rows of the source's memory.
    pub source_rows: u64,
    /// The stride of the list of rows through which the source is read, in elements.
    pub through_stride: u64,
    /// The key whose rows are not combined; none if it is `u64::MAX`. Those that are not a row of the result are not combined either.
    pub skipped: u64,
    /// The way in which elements are combined: not [`Combine::Replace`].
    pub combine: Combine,
    /// Whether the result is zeros, and is not read.
    pub from_zeros: bool,
    /// Whether the source is the rows of an earlier launch, in the dtype in which elements are combined.
    pub is_later: bool,
    /// The dtype of the result, and of the first source: a floating-point type, or int64. 16-bit floats are combined in f32 and
    /// rounded once.
    pub dtype: DType,
}

/// The number of rows that a group of lanes combines.
pub const CHUNK: u64 = 32;

/// Threads of a block.
const BLOCK: u64 = 256;

/// The key of a position without a row.
const HOLE: u32 = u32::MAX;

/// The operands of a launch: the sorted keys (32 bits); the row of each (32 bits), or a null address if they are in order; a list (i64)
/// whose element at a row is the row of the source, or a null address if rows are the source's own; the source; the result; and keys and
/// rows of the next launch, or null addresses if this one has only one chunk.
type Operands = [DevicePointer; 7];

impl Segments {
    /// Returns the number of chunks.
    pub fn chunks(&self) -> u64 {
        self.sizes[2].div_ceil(CHUNK)
    }

    /// Returns the launch that combines the rows of this one which are not complete; `None` if all are.
    pub fn next(&self) -> Option<Self> {
        let [outer, extent, _, inner] = self.sizes;
        let count = 2 * self.chunks();
        (self.chunks() > 1).then_some(Self {
            sizes: [outer, extent, count, inner],
            source_strides: [count * inner, inner, 1],
            source_rows: count,
            through_stride: 0,
            is_later: true,
            ..*self
        })
    }

    /// Returns the dtype of the source.
    fn source_dtype(&self) -> DType {
        if self.is_later { self.dtype.compute() } else { self.dtype }
    }

    /// Returns the number of elements that the source spans in memory.
    fn span(&self) -> u64 {
        let [outer, _, _, inner] = self.sizes;
        span([outer, self.source_rows, inner], self.source_strides)
    }

    /// Returns the number of elements that the list of rows spans in memory.
    fn listed(&self) -> u64 {
        span([self.sizes[2]], [self.through_stride])
    }

    /// Returns the number of elements that a thread handles.
    fn width(&self, at: &Operands) -> u64 {
        width_of(self.dtype, self.sizes[3], self.source_strides, [at[3], at[4]])
    }

    /// Returns the number of lanes that share a chunk.
    fn lanes(&self, at: &Operands) -> u64 {
        (self.sizes[3] / self.width(at)).max(1).next_power_of_two().min(32)
    }

    /// Returns whether a key is a row of the result.
    fn takes(&self, key: u32) -> bool {
        u64::from(key) < self.sizes[1] && u64::from(key) != self.skipped
    }

    fn form(&self, at: &Operands) -> &'static Form {
        static FORMS: LazyLock<Vec<Form>> = LazyLock::new(|| forms().collect());
        let is_later = self.is_later && self.dtype.compute() != self.dtype;
        let wanted = [self.width(at) > 1, is_later, self.combine == Combine::Sum];
        let is_wanted =
            |form: &&Form| form.dtype == self.dtype && [form.is_wide, form.is_later, form.is_sum] == wanted;
        FORMS.iter().find(is_wanted).unwrap_or(&FORMS[0])
    }
}

/// A variant of the kernel.
struct Form {
    dtype: DType,
    is_wide: bool,
    is_later: bool,
    is_sum: bool,
    name: String,
}

fn forms() -> impl Iterator<Item = Form> {
    let all = DTYPES.into_iter().flat_map(|dtype| {
        (0..8).map(move |bits| {
            let [is_wide, is_later, is_sum] = [0, 1, 2].map(|bit| bits >> bit & 1 == 1);
            let any = if is_sum { "" } else { "any_" };
            let later = if is_later { "_later" } else { "" };
            let wide = if is_wide { "_wide" } else { "" };
            let name = format!("scatter_segments_{any}{}{later}{wide}", dtype.name());
            Form { dtype, is_wide, is_later, is_sum, name }
        })
    });
    all.filter(|form| !form.is_later || form.dtype.compute() != form.dtype)
}

impl Form {
    fn print(&self) -> String {
        let (element, sum) = (self.dtype.short_name(), self.dtype.compute().short_name());
        let source = if self.is_later { sum } else { element };
        let width = if self.is_wide { VECTOR / self.dtype.size_bytes() as u64 } else { 1 };
        let call = format_args!("segments<{element}, {source}, {width}, {}>(x)", self.is_sum);
        // The blocks that share a multiprocessor, so that enough rows are in flight.
        let blocks = if width > 4 { 3 } else { 4 };
        let source = Source::new(&self.name).define("CALL", call).define("BLOCKS", format_args!("{blocks}"));
        source.print(include_str!("segments.cu"))
    }
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    forms().map(|form| (form.name.clone(), form.print()))
}

/// The words of a launch after its addresses, in the order of the CUDA code.
struct Sizes {
    sizes: [u64; 4],
    source_strides: [u64; 3],
    source_rows: u64,
    through_stride: u64,
    skipped: u64,
    combine: Combine,
    from_zeros: bool,
    is_later: bool,
    dtype: DType,
    lanes: u64,
}

arguments! {
    Sizes { sizes, source_strides, source_rows, through_stride, skipped, combine, from_zeros, is_later, dtype, lanes }
}

impl NativeKernel for Placed<Segments, Operands> {
    native! { self: &self.kernel.form(&self.at).name, self.kernel.form(&self.at).print(), run_on_host }

    fn check(&self) -> Result<(), Fault> {
        check("scatter_segments", self.kernel.dtype)?;
        match self.kernel.combine {
            Combine::Replace => {
                Err(Fault::new("scatter_segments combines rows, and replaces none".to_owned()))
            }
            _ => Ok(()),
        }
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let [outer, _, _, inner] = self.kernel.sizes;
        let (width, lanes) = (self.kernel.width(&self.at), self.kernel.lanes(&self.at));
        let items = outer * self.kernel.chunks() * (inner / width).div_ceil(lanes);
        along_x((items * lanes).div_ceil(BLOCK), BLOCK)
    }

    fn words(&self) -> Words {
        let Segments {
            sizes,
            source_strides,
            source_rows,
            through_stride,
            skipped,
            combine,
            from_zeros,
            is_later,
            dtype,
        } = self.kernel;
        let lanes = self.kernel.lanes(&self.at);
        let words = Sizes {
            sizes,
            source_strides,
            source_rows,
            through_stride,
            skipped,
            combine,
            from_zeros,
            is_later,
            dtype,
            lanes,
        };
        arguments::pack(&self.at, &words)
    }

    fn accesses(&self) -> Accesses {
        let kernel = &self.kernel;
        let [outer, _, count, inner] = kernel.sizes;
        let [keys, order, through, source, result, next_keys, next_rows] = self.at;
        let sum = kernel.dtype.compute().size_bytes() as u64;
        let slots = if kernel.chunks() > 1 { 2 * kernel.chunks() } else { 0 };
        Accesses::from_iter([
            Access::read(keys, count * 4),
            Access::read(order, if order.address() == 0 { 0 } else { count * 4 }),
            Access::read(through, if through.address() == 0 { 0 } else { kernel.listed() * 8 }),
            Access::read(source, kernel.span() * kernel.source_dtype().size_bytes() as u64),
            // The other rows keep their values.
            result_of(kernel, result)
                .touching(Touch::chosen(outer * count * inner * kernel.dtype.size_bytes() as u64)),
            Access::write(next_keys, slots * 4),
            Access::write(next_rows, outer * slots * inner * sum),
        ])
    }
}

/// Returns the access to the entire result, of which a launch touches the rows whose keys are complete.
fn result_of(kernel: &Segments, result: DevicePointer) -> Access {
    let [outer, extent, _, inner] = kernel.sizes;
    Access::read_write(result, outer * extent * inner * kernel.dtype.size_bytes() as u64)
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (words, at, []): (Sizes, Operands, _) = arguments::unpack("scatter_segments", launch)?;
    let Sizes { sizes, source_strides, source_rows, through_stride, .. } = words;
    let Sizes { skipped, combine, from_zeros, is_later, dtype, .. } = words;
    let kernel = Segments {
        sizes,
        source_strides,
        source_rows,
        through_stride,
        skipped,
        combine,
        from_zeros,
        is_later,
        dtype,
    };
    typed!(dtype, T => {
        let widen = |source: T| source.widened();
        match is_later {
            true => run_typed::<T, <T as Wide>::Sum>(launch, &kernel, at, |sum| sum),
            false => run_typed::<T, T>(launch, &kernel, at, widen),
        }
    })
}

/// A key's rows within a chunk: their places among the sorted keys, and whether the key's rows continue before and after the chunk.
struct Run {
    key: u32,
    places: Vec<usize>,
    is_head: bool,
    is_tail: bool,
}

/// Returns the runs of a chunk.
fn runs_of(kernel: &Segments, keys: &[u32], chunk: usize) -> Vec<Run> {
    let begin = chunk * CHUNK as usize;
    let end = (begin + CHUNK as usize).min(keys.len());
    let mut runs: Vec<Run> = Vec::new();
    for place in (begin..end).filter(|&place| kernel.takes(keys[place])) {
        match runs.last_mut() {
            Some(run) if run.key == keys[place] => run.places.push(place),
            _ => runs.push(Run { key: keys[place], places: vec![place], is_head: false, is_tail: false }),
        }
    }
    let not_hole = |key: &&u32| **key != HOLE;
    let before = keys[begin.saturating_sub(2)..begin].iter().rfind(not_hole);
    let after = keys[end..].iter().take(2).find(not_hole);
    if let Some(first) = runs.first_mut() {
        first.is_head = before == Some(&first.key);
    }
    if let Some(last) = runs.last_mut() {
        last.is_tail = after == Some(&last.key);
    }
    runs
}

fn run_typed<T: Wide, S: thalweg_ir::Element>(
    launch: &HostLaunch<'_>,
    kernel: &Segments,
    [keys, order, through, source, result, next_keys, next_rows]: Operands,
    widen: impl Fn(S) -> T::Sum,
) -> Result<(), HostFault> {
    let [outer, extent, count, inner] = kernel.sizes.map(|size| size as usize);
    let chunks = kernel.chunks() as usize;
    let keys = launch.read::<u32>(keys, count)?;
    let order = if order.address() == 0 { None } else { Some(launch.read::<u32>(order, count)?) };
    let through = match through.address() {
        0 => None,
        _ => Some(launch.read::<i64>(through, kernel.listed() as usize)?),
    };
    let source = launch.read::<S>(source, kernel.span() as usize)?;
    let access = result_of(kernel, result);
    let result = launch.write::<T>(result, outer * extent * inner)?;
    let slots = if chunks > 1 { 2 * chunks } else { 0 };
    let next_keys = launch.write::<u32>(next_keys, slots)?;
    let next_rows = launch.write::<T::Sum>(next_rows, outer * slots * inner)?;
    next_keys.fill(HOLE);
    let mut touched = Vec::new();
    for (chunk, run) in
        (0..chunks).flat_map(|chunk| runs_of(kernel, keys, chunk).into_iter().map(move |run| (chunk, run)))
    {
        let slot = (run.is_head || run.is_tail).then_some(2 * chunk + usize::from(!run.is_head));
        if let Some(slot) = slot {
            next_keys[slot] = run.key;
        }
        for o in 0..outer {
            let to = (o * extent + run.key as usize) * inner;
            for column in 0..inner {
                let value = |place: usize| {
                    let row = order.map_or(place, |order| order[place] as usize);
                    let row = through.map_or(row, |list| list[row * kernel.through_stride as usize] as usize);
                    let [by_outer, by_row, by_column] = kernel.source_strides.map(|stride| stride as usize);
                    match row < kernel.source_rows as usize {
                        true => widen(source[o * by_outer + row * by_row + column * by_column]),
                        false => T::Sum::no_number(),
                    }
                };
                let sum = run.places.iter().map(|&place| value(place));
                let sum =
                    sum.reduce(|sum, value| sum.combine(kernel.combine, value)).expect("a run has rows");
                match slot {
                    Some(slot) => next_rows[(o * slots + slot) * inner + column] = sum,
                    None if kernel.from_zeros => result[to + column] = T::narrowed(sum),
                    None => {
                        let all = result[to + column].widened().combine(kernel.combine, sum);
                        result[to + column] = T::narrowed(all);
                    }
                }
            }
            if slot.is_none() {
                touched.push(to as u64);
            }
        }
    }
    if launch.has_tickets() {
        let size = size_of::<T>() as u64;
        launch
            .touched(&access, touched.into_iter().map(|to| (access.start + to * size, inner as u64 * size)));
    }
    Ok(())
}
