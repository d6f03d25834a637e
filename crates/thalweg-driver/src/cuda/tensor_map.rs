//! Maps of tensors for the copy engines of multiprocessors.

use super::state::CudaDriver;
use crate::Result;
use crate::tensor_map::{TensorMap, TensorTiles};

/// `CU_TENSOR_MAP_DATA_TYPE_UINT16`: bits are copied unchanged.
const ELEMENTS_OF_16_BITS: u32 = 1;
/// `CU_TENSOR_MAP_INTERLEAVE_NONE`.
const NO_INTERLEAVE: u32 = 0;
/// `CU_TENSOR_MAP_SWIZZLE_128B`.
const SWIZZLE_128_BYTES: u32 = 3;
/// `CU_TENSOR_MAP_L2_PROMOTION_L2_256B`.
const PROMOTION_256_BYTES: u32 = 3;
/// `CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE`: elements outside the tensor are 0.
const FILL_ZERO: u32 = 0;

/// The memory into which the driver writes a map, with the required alignment.
#[repr(C, align(64))]
struct Aligned([u64; 16]);

impl CudaDriver {
    pub(super) fn tensor_map(&self, tiles: &TensorTiles) -> Result<TensorMap> {
        tiles.check()?;
        let mut map = Aligned([0; 16]);
        let [matrices, rows, elements] = tiles.extents;
        let [matrix_bytes, row_bytes] = tiles.strides;
        let (extents, strides) = ([elements, rows, matrices], [row_bytes, matrix_bytes]);
        let (tile, steps) = ([tiles.tile[1], tiles.tile[0], 1], [1_u32; 3]);
        // SAFETY: writes the 128 bytes of `map`, which is aligned to 64; reads three extents, two strides, three numbers of
        // a tile and three steps. The address is stored as a number.
        let outcome = unsafe {
            self.cuda.table.tensor_map_encode_tiled(
                map.0.as_mut_ptr().cast(),
                ELEMENTS_OF_16_BITS,
                3,
                tiles.address.address(),
                extents.as_ptr(),
                strides.as_ptr(),
                tile.as_ptr(),
                steps.as_ptr(),
                NO_INTERLEAVE,
                SWIZZLE_128_BYTES,
                PROMOTION_256_BYTES,
                FILL_ZERO,
            )
        };
        self.cuda.check(outcome, || format!("{tiles:?}"))?;
        Ok(TensorMap(map.0))
    }
}
