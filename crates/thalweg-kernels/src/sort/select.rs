//! [`Select`]: the first points of a row in the order of a sort, without sorting the row.
//!
//! A point's key followed by its place is an integer that no other point has, so the order of the result is unique. A block reads
//! its row and counts the digits of eleven bits, the highest first, until few points remain up to the last requested one. It
//! gathers these and sorts them. Most rows are read twice.

use std::sync::LazyLock;

use bytemuck::Pod;
use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use super::keys::Keys;
use super::source::{elements_of, of_selection};
use super::{SHORT, Sort};
use crate::arguments::{self, arguments};
use crate::native::{Accesses, NativeKernel, Placed, Words, along_x, native};

/// The sizes of a selection: elements are (outer, length, inner), results are (outer, count, inner), without gaps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Select {
    /// The order, and the rows, of floats of up to 32 bits.
    pub sort: Sort,
    /// The number of requested points of each row: up to [`MOST`], and no more than the row has.
    pub count: u64,
}

/// The words of a selection after its addresses, in the order of the CUDA code.
pub(super) struct Sizes {
    pub outer: u64,
    pub length: u64,
    pub inner: u64,
    pub flags: u64,
    pub count: u64,
    pub dtype: DType,
}

arguments! { Sizes { outer, length, inner, flags, count, dtype } }

impl Sizes {
    fn of(select: &Select) -> Self {
        let Sort { outer, length, inner, descending, dtype } = select.sort;
        Self { outer, length, inner, flags: descending.into(), count: select.count, dtype }
    }

    /// Returns the rows.
    pub fn sort(&self) -> Sort {
        let Self { outer, length, inner, flags, dtype, .. } = *self;
        Sort { outer, length, inner, descending: flags & 1 != 0, dtype }
    }
}

/// The most points of a row that can be requested.
pub const MOST: u64 = 1024;

/// The number of points above which rows are sorted by many blocks, unless there are at least [`MANY`] rows.
const LONG: u64 = 1 << 18;

/// The least number of rows for which rows longer than [`LONG`] are selected by one block each.
const MANY: u64 = 16;

/// The threads of a block, for few points of a short row and for other selections. A block can sort twice as many points as it has
/// threads.
const BLOCKS: [u32; 2] = [256, 1024];

/// The most points that are selected from a short row.
const FEW: u64 = 128;

/// The least length of a row, and how many times longer than the selection it is, for which a selection is faster than a sort.
const LEAST_LENGTH: u64 = 256;
const LEAST_SHARE: u64 = 8;

/// The dtypes for which there is a kernel.
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

impl Select {
    /// Returns whether there is a kernel for the description, and something for it to compute.
    pub fn is_possible(&self) -> bool {
        let Sort { length, dtype, .. } = self.sort;
        DTYPES.contains(&dtype)
            && (1..=MOST.min(length)).contains(&self.count)
            && length <= u64::from(u32::MAX)
            && self.sort.rows() > 0
    }

    /// Returns whether a selection is possible and faster than a complete sort.
    pub fn is_better(&self) -> bool {
        let length = self.sort.length;
        let is_short = length > LEAST_LENGTH && self.count <= FEW && self.count * LEAST_SHARE <= length;
        self.is_possible() && (length > SHORT || is_short) && (length <= LONG || self.sort.rows() >= MANY)
    }

    /// Returns the name of the entry point, always the same string, because kernels are found by it.
    fn name(&self) -> &'static str {
        static NAMES: LazyLock<[[String; 2]; DTYPES.len()]> = LazyLock::new(|| {
            DTYPES.map(|dtype| BLOCKS.map(|block| format!("select_{block}_{}", dtype.name())))
        });
        let dtype = DTYPES.into_iter().position(|dtype| dtype == self.sort.dtype);
        dtype.map_or("select", |dtype| &NAMES[dtype][self.form()])
    }

    fn form(&self) -> usize {
        usize::from(self.sort.length > SHORT || self.count > FEW)
    }

    fn print(&self) -> String {
        let block = BLOCKS[self.form()];
        let call = format!("select_first<{}, {block}>(x)", elements_of(self.sort.dtype));
        of_selection(self.name(), block, &call)
    }

    fn results(&self) -> u64 {
        self.sort.rows() * self.count
    }
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    DTYPES.into_iter().flat_map(|dtype| {
        [1, SHORT + 1].map(|length| {
            let sort = Sort { outer: 1, length, inner: 1, descending: false, dtype };
            let select = Select { sort, count: 1 };
            (select.name().to_owned(), select.print())
        })
    })
}

/// Operands: the source; the values that come first, in order; and their places in the source's row (int64).
impl NativeKernel for Placed<Select, [DevicePointer; 3]> {
    native! { self: self.kernel.name(), self.kernel.print(), run_on_host }

    fn check(&self) -> Result<(), Fault> {
        let Select { sort, count } = self.kernel;
        let is_inside = count <= MOST.min(sort.length) && sort.length <= u64::from(u32::MAX);
        Fault::unless(DTYPES.contains(&sort.dtype) && is_inside, || {
            format!(
                "a selection takes up to {MOST} of fewer than 2^32 floats of up to 32 bits, not {count} of {} {}",
                sort.length, sort.dtype
            )
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let results = self.kernel.results();
        along_x(self.kernel.sort.rows(), BLOCKS[self.kernel.form()]).filter(|_| results > 0)
    }

    fn words(&self) -> Words {
        arguments::pack(&self.at, &Sizes::of(&self.kernel))
    }

    fn accesses(&self) -> Accesses {
        let Select { sort, .. } = self.kernel;
        let (size, results) = (sort.dtype.size_bytes() as u64, self.kernel.results());
        let [source, values, places] = self.at;
        Accesses::from_iter([
            Access::read(source, sort.elements() * size),
            Access::write(values, results * size),
            Access::write(places, results * size_of::<i64>() as u64),
        ])
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (sizes, at, []): (Sizes, _, _) = arguments::unpack("select", launch)?;
    let select = Select { sort: sizes.sort(), count: sizes.count };
    match select.sort.dtype.size_bytes() {
        2 => run_bits::<u16>(launch, &select, at),
        4 => run_bits::<u32>(launch, &select, at),
        _ => Err(HostFault(format!("select: {} is not a dtype of it", select.sort.dtype))),
    }
}

/// Selects elements by comparing their bits.
fn run_bits<T: Pod + Into<u64>>(
    launch: &HostLaunch<'_>,
    select: &Select,
    at: [DevicePointer; 3],
) -> Result<(), HostFault> {
    let Select { sort, count } = *select;
    let [source, values, places] = at;
    let keys = Keys::new(sort.dtype, sort.descending);
    let source = launch.read::<T>(source, sort.elements() as usize)?;
    let values = launch.write::<T>(values, select.results() as usize)?;
    let places = launch.write::<i64>(places, select.results() as usize)?;
    let [length, inner, count] = [sort.length, sort.inner, count].map(|extent| extent as usize);
    for row in 0..sort.rows() as usize {
        let (from_first, to_first) = (sort.first(row, sort.length), sort.first(row, select.count));
        let key = |at: usize| keys.of(source[from_first + at * inner].into());
        let mut order: Vec<(u64, usize)> = (0..length).map(|at| (key(at), at)).collect();
        // Keys with their places are all different, so equal keys stay in the order of the row.
        if count < length {
            order.select_nth_unstable(count);
        }
        order.truncate(count);
        order.sort_unstable();
        for (to, (_, from)) in order.into_iter().enumerate() {
            values[to_first + to * inner] = source[from_first + from * inner];
            places[to_first + to * inner] = from as i64;
        }
    }
    Ok(())
}
