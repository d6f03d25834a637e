//! [`SelectOne`]: one point of each row in the order of a sort, such as a median, without sorting the row.
//!
//! A block reads its row and counts the digits of eleven bits of the keys, the highest first, until only one point, or only equal
//! ones, can be the wanted one. Of equal points it then finds the wanted one in the order of the row.

use std::sync::LazyLock;

use bytemuck::Pod;
use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use super::keys::Keys;
use super::select::Sizes;
use super::source::{elements_of, of_selection};
use super::{DTYPES, SHORT, Sort, check};
use crate::arguments;
use crate::native::{Accesses, NativeKernel, Placed, Words, along_x, native};

/// The sizes of a selection: elements are (outer, length, inner), results are (outer, inner), without gaps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SelectOne {
    /// The order, and the rows.
    pub sort: Sort,
    /// The place of the wanted point in the order, counted from 0.
    pub place: u64,
    /// Whether the last NaN of a row is selected instead, if it has one.
    pub takes_nan: bool,
}

/// The number of points above which many blocks read a row, unless there are at least [`MANY`] rows.
const LONG: u64 = 1 << 17;

/// The least number of rows for which rows longer than [`LONG`] are handled by one block each.
const MANY: u64 = 64;

/// The threads of a block, for rows that a short sort would take and for longer ones.
const BLOCKS: [u32; 2] = [256, 1024];

impl SelectOne {
    /// Returns whether there is a kernel for the description.
    pub fn is_possible(&self) -> bool {
        let Sort { length, dtype, .. } = self.sort;
        DTYPES.contains(&dtype) && self.place < length && length <= u64::from(u32::MAX)
    }

    /// Returns whether rows are so few and so long that [many blocks](super::SelectLong) select from each.
    pub fn is_long(&self) -> bool {
        self.sort.length > LONG && self.sort.rows() < MANY && self.sort.inner == 1
    }

    /// Returns the words of a launch after its addresses.
    pub(super) fn words(&self) -> Sizes {
        let Self { sort: Sort { outer, length, inner, descending, dtype }, place, takes_nan } = *self;
        let flags = u64::from(descending) | u64::from(takes_nan) << 1;
        Sizes { outer, length, inner, flags, count: place + 1, dtype }
    }

    fn form(&self) -> usize {
        usize::from(self.sort.length > SHORT)
    }

    /// Returns the name of the entry point, always the same string, because kernels are found by it.
    fn name(&self) -> &'static str {
        static NAMES: LazyLock<[[String; 2]; DTYPES.len()]> = LazyLock::new(|| {
            DTYPES.map(|dtype| BLOCKS.map(|block| format!("select_one_{block}_{}", dtype.name())))
        });
        let dtype = DTYPES.into_iter().position(|dtype| dtype == self.sort.dtype);
        dtype.map_or("select_one", |dtype| &NAMES[dtype][self.form()])
    }

    fn print(&self) -> String {
        let block = BLOCKS[self.form()];
        let call = format!("select_one<{}, {block}>(x)", elements_of(self.sort.dtype));
        of_selection(self.name(), block, &call)
    }
}

/// Returns name and source of every kernel of this module.
pub(super) fn sources() -> impl Iterator<Item = (String, String)> {
    DTYPES.into_iter().flat_map(|dtype| {
        [1, SHORT + 1].map(|length| {
            let sort = Sort { outer: 1, length, inner: 1, descending: false, dtype };
            let select = SelectOne { sort, place: 0, takes_nan: false };
            (select.name().to_owned(), select.print())
        })
    })
}

/// Operands: the source; the selected values; and their places in the source's row (int64).
impl NativeKernel for Placed<SelectOne, [DevicePointer; 3]> {
    native! { self: self.kernel.name(), self.kernel.print(), run_on_host }

    fn check(&self) -> Result<(), Fault> {
        let SelectOne { sort, place, .. } = self.kernel;
        check("select_one", sort.dtype)?;
        Fault::unless(place < sort.length && sort.length <= u64::from(u32::MAX), || {
            format!("select_one takes a point of fewer than 2^32, not point {place} of {}", sort.length)
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        along_x(self.kernel.sort.rows(), BLOCKS[self.kernel.form()])
    }

    fn words(&self) -> Words {
        arguments::pack(&self.at, &self.kernel.words())
    }

    fn accesses(&self) -> Accesses {
        let sort = self.kernel.sort;
        let size = sort.dtype.size_bytes() as u64;
        let [source, values, places] = self.at;
        Accesses::from_iter([
            Access::read(source, sort.elements() * size),
            Access::write(values, sort.rows() * size),
            Access::write(places, sort.rows() * size_of::<i64>() as u64),
        ])
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (sizes, at, []): (Sizes, _, _) = arguments::unpack("select_one", launch)?;
    match sizes.dtype.size_bytes() {
        2 => run_bits::<u16>(launch, &sizes, at),
        4 => run_bits::<u32>(launch, &sizes, at),
        _ => run_bits::<u64>(launch, &sizes, at),
    }
}

/// Selects elements by comparing their bits.
pub(super) fn run_bits<T: Pod + Into<u64>>(
    launch: &HostLaunch<'_>,
    sizes: &Sizes,
    [source, values, places]: [DevicePointer; 3],
) -> Result<(), HostFault> {
    let sort = sizes.sort();
    let keys = Keys::new(sort.dtype, sort.descending);
    let source = launch.read::<T>(source, sort.elements() as usize)?;
    let values = launch.write::<T>(values, sort.rows() as usize)?;
    let places = launch.write::<i64>(places, sort.rows() as usize)?;
    let (length, inner) = (sort.length as usize, sort.inner as usize);
    for row in 0..sort.rows() as usize {
        let first = sort.first(row, sort.length);
        let key = |at: usize| keys.of(source[first + at * inner].into());
        // Keys with their places are all different, so equal keys stay in the order of the row.
        let mut order: Vec<(u64, usize)> = (0..length).map(|at| (key(at), at)).collect();
        let has_nan = sizes.flags & 2 != 0 && order.iter().any(|&(key, _)| key == keys.mask());
        let wanted = if has_nan { length - 1 } else { sizes.count as usize - 1 };
        let (_, &mut (_, place), _) = order.select_nth_unstable(wanted);
        values[row] = source[first + place * inner];
        places[row] = place as i64;
    }
    Ok(())
}
