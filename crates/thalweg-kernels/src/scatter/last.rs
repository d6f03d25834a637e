//! [`LastIndices`]: the last of a list of indices that names each row, for rows that are [replaced](super::rows).
//!
//! An index that does not name a row is ignored.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use crate::arguments::{self, arguments};
use crate::native::{Accesses, NativeKernel, Placed, along_x, native};
use crate::operands::span;
use crate::source::Source;

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LastIndices {
    /// The number of indices, fewer than 2³¹.
    pub count: u64,
    /// The number of rows.
    pub rows: u64,
    /// The stride of the indices, in elements.
    pub stride: u64,
}

arguments! { LastIndices { count, rows, stride } }

/// The number of threads of a block.
const BLOCK: u64 = 1024;

/// The name of the entry point.
const NAME: &str = "last_indices";

fn print() -> String {
    Source::new(NAME).print(include_str!("last.cu"))
}

/// Returns name and source of the kernel.
pub(crate) fn sources() -> [(String, String); 1] {
    [(NAME.to_owned(), print())]
}

impl LastIndices {
    /// Returns the number of elements that the indices span in memory.
    fn span(&self) -> u64 {
        span([self.count], [self.stride])
    }
}

/// Operands: the indices (i64); and for each row the number of the last index that names it, plus one (32 bits), which is 0 before.
impl NativeKernel for Placed<LastIndices, [DevicePointer; 2]> {
    native! { self: NAME, print(), run_on_host, words }

    fn check(&self) -> Result<(), Fault> {
        Fault::unless(self.kernel.count < 1 << 31, || {
            format!("last_indices: {} indices are too many", self.kernel.count)
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        along_x(self.kernel.count.div_ceil(BLOCK), BLOCK)
    }

    fn accesses(&self) -> Accesses {
        let [index, last] = self.at;
        Accesses::from_iter([
            Access::read(index, self.kernel.span() * size_of::<i64>() as u64),
            Access::read_write(last, self.kernel.rows * size_of::<u32>() as u64),
        ])
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (kernel, [index, last], []): (LastIndices, [DevicePointer; 2], _) = arguments::unpack(NAME, launch)?;
    let index = launch.read::<i64>(index, kernel.span() as usize)?;
    let last = launch.write::<u32>(last, kernel.rows as usize)?;
    for k in 0..kernel.count as usize {
        let row = u64::try_from(index[k * kernel.stride as usize]).ok().filter(|&row| row < kernel.rows);
        if let Some(row) = row {
            last[row as usize] = k as u32 + 1;
        }
    }
    Ok(())
}
