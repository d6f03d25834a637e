//! [`TensorMap`]: a tensor's tiles as the copy engine of a multiprocessor reads them (CUDA's `CUtensorMap`, compute
//! capability 9.0 and later).

use crate::{Code, DevicePointer, Error, Result};

/// The greatest number of bytes in a row of a tile in shared memory.
pub const TILE_ROW_BYTES: u64 = 128;

/// A tensor of 16-bit elements in three dimensions, the last of them contiguous, and the tiles in which it is copied. A
/// tile's rows are 128 bytes at most, and its chunks of 16 bytes are permuted within eight rows
/// (`CU_TENSOR_MAP_SWIZZLE_128B`). Elements outside the tensor are read as 0 and not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorTiles {
    /// The address of the first element, a multiple of 16.
    pub address: DevicePointer,
    /// Matrices, rows, and elements of a row; each at least 1 and below 2³².
    pub extents: [u64; 3],
    /// Bytes from one matrix and from one row to the next: multiples of 16, from 16 on and below 2⁴⁰.
    pub strides: [u64; 2],
    /// Rows of a tile, from 1 to 256, and elements of its rows, from 1 to 64.
    pub tile: [u32; 2],
}

/// A tensor and its tiles as a kernel's argument: 128 bytes, which only the driver that created them and its device can
/// interpret. Valid as long as the tensor stays at its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorMap(pub [u64; 16]);

impl TensorTiles {
    /// Returns a map that contains the plain description, for drivers whose kernels do not read it: address, extents,
    /// strides and tile, followed by zeros.
    #[must_use]
    pub fn described(&self) -> TensorMap {
        let Self { address, extents: [matrices, rows, elements], strides: [matrix, row], tile } = *self;
        let [tile_rows, tile_elements] = tile.map(u64::from);
        let numbers = [address.address(), matrices, rows, elements, matrix, row, tile_rows, tile_elements];
        TensorMap(std::array::from_fn(|at| numbers.get(at).copied().unwrap_or(0)))
    }

    /// Checks whether there is a map for these tiles.
    ///
    /// # Errors
    /// [`InvalidValue`](Code::InvalidValue), naming the number that is out of range.
    pub fn check(&self) -> Result<()> {
        let fail = |why: String| Err(Error::new(Code::InvalidValue, "cuTensorMapEncodeTiled", why));
        if !self.address.address().is_multiple_of(16) {
            return fail(format!("the tensor begins at {:?}, which is not a multiple of 16", self.address));
        }
        if let Some(extent) = self.extents.into_iter().find(|extent| !(1..1 << 32).contains(extent)) {
            return fail(format!("an extent is {extent}, not between 1 and 2³²"));
        }
        let is_stride = |stride: u64| stride.is_multiple_of(16) && (16..1 << 40).contains(&stride);
        if let Some(stride) = self.strides.into_iter().find(|stride| !is_stride(*stride)) {
            return fail(format!("a stride is {stride} bytes, not a multiple of 16 below 2⁴⁰"));
        }
        let [rows, elements] = self.tile;
        if !(1..=256).contains(&rows) || !(1..=64).contains(&elements) || !elements.is_multiple_of(8) {
            return fail(format!(
                "a tile is {rows} rows of {elements} elements, not up to 256 rows of up to 64 by eights"
            ));
        }
        Ok(())
    }
}
