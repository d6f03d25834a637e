//! [`PadRows`]: copies a matrix to one with rows of another length, or with more rows; additional elements are zeros.
//!
//! Fast products take rows whose distance is a multiple of 16 bytes; this makes such rows of others, and others of such. Each thread
//! writes 16 aligned bytes of the result and shifts the words that it reads.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use crate::arguments::{self, arguments};
use crate::native::{Accesses, NativeKernel, Placed, along_x, native};
use crate::operands::span;
use crate::source::Source;

/// The sizes of a copy; all bytes are multiples of 2. The result is contiguous. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PadRows {
    /// The rows that are read.
    pub rows: u64,
    /// The bytes of a row that are read.
    pub row_bytes: u64,
    /// The distance of rows that are read, in bytes.
    pub source_distance: u64,
    /// The rows of the result.
    pub target_rows: u64,
    /// The bytes of a row of the result.
    pub target_row_bytes: u64,
}

arguments! { PadRows { rows, row_bytes, source_distance, target_rows, target_row_bytes } }

/// The vectors of 16 bytes that a block writes.
const VECTORS_OF_A_BLOCK: u64 = 1024;

/// The operands of a launch: source and result.
type Operands = [DevicePointer; 2];

/// The name of the entry point.
const NAME: &str = "pad_rows";

/// Returns name and source of the kernel.
pub(crate) fn sources() -> [(String, String); 1] {
    [(NAME.to_owned(), print())]
}

fn print() -> String {
    Source::new(NAME).print(include_str!("pad_rows.cu"))
}

impl PadRows {
    /// Returns the rows and the bytes of a row that are copied.
    fn copied(&self) -> [u64; 2] {
        [self.rows.min(self.target_rows), self.row_bytes.min(self.target_row_bytes)]
    }
}

impl NativeKernel for Placed<PadRows, Operands> {
    native! { self: NAME, print(), run_on_host, words }

    fn check(&self) -> Result<(), Fault> {
        let PadRows { row_bytes, source_distance, target_row_bytes, .. } = self.kernel;
        let [source, target] = self.at.map(DevicePointer::address);
        let all = row_bytes | source_distance | target_row_bytes | source | target;
        Fault::unless(all.is_multiple_of(2), || {
            "pad_rows: an element has a multiple of 2 bytes".to_owned().to_owned()
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let width = self.kernel.target_row_bytes.div_ceil(16) + 1;
        let vectors = if self.kernel.target_row_bytes == 0 { 0 } else { width * self.kernel.target_rows };
        along_x(vectors.div_ceil(VECTORS_OF_A_BLOCK), 256u32)
    }

    fn accesses(&self) -> Accesses {
        let ([source, target], [rows, row_bytes]) = (self.at, self.kernel.copied());
        let read =
            if row_bytes == 0 { 0 } else { span([rows], [self.kernel.source_distance]) + row_bytes - 1 };
        let read = if rows == 0 { 0 } else { read };
        let written = self.kernel.target_rows * self.kernel.target_row_bytes;
        Accesses::from_iter([Access::read(source, read), Access::write(target, written)])
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (sizes, [source, target], []): (PadRows, Operands, _) = arguments::unpack("pad_rows", launch)?;
    let [rows, row] = sizes.copied().map(|extent| extent as usize);
    let width = sizes.target_row_bytes as usize / 2;
    let written = launch.write::<u16>(target, width * sizes.target_rows as usize)?;
    let distance = sizes.source_distance as usize / 2;
    let read = if rows == 0 { 0 } else { (rows - 1) * distance + row / 2 };
    let from = launch.read::<u16>(source, read)?;
    for (number, to) in written.chunks_exact_mut(width.max(1)).enumerate() {
        let copied = if number < rows { &from[number * distance..][..row / 2] } else { &[] };
        let (begin, rest) = to.split_at_mut(copied.len());
        begin.copy_from_slice(copied);
        rest.fill(0);
    }
    Ok(())
}
