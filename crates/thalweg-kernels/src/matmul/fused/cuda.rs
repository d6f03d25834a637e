//! The kernel of a [`FusedMatmul`].
//!
//! A block of 256 threads computes one tile of 16 × 32 elements of D. Its eight warps share the terms: of each 64 terms a warp
//! sums eight, each of its threads for 4 × 4 elements, in registers. The tiles of A and B for 64 terms are in shared memory,
//! twice, so that the next ones are stored while the current ones are read; the tiles after these are meanwhile loaded into
//! registers. At the end, the warps' sums are added, with bias and addend.
//!
//! Tiles are small so that even the gradient of a small weight, with few elements but many terms, has a block for most
//! multiprocessors. Values that are computed once per thread (places, and whether they are inside) stay out of the loop over
//! terms, whose cost is dominated by instructions other than the multiplications.
//!
//! Quads of elements that are aligned to 16 bytes are loaded and stored at once; unaligned quads, and those at an edge, element
//! by element.

use super::{FusedMatmul, TILE_COLUMNS, TILE_ROWS};
use thalweg_ir::cuda::LaunchShape;

use crate::source::Source;

/// The name of the entry point.
pub const NAME: &str = "fused_matmul_float32";

/// Returns the translation unit, to be compiled with [`OPTIONS`](thalweg_ir::cuda::OPTIONS). Its entry point, [`NAME`], takes
/// the words of [`FusedMatmul::pack`] as one structure by value.
pub fn print() -> String {
    Source::new(NAME).print(include_str!("kernel.cu"))
}

/// Returns the launch. The grid is never empty: the caller must skip a product without elements.
pub fn launch_shape(fused: &FusedMatmul) -> LaunchShape {
    let product = &fused.product;
    let tiles = product.m.div_ceil(TILE_ROWS) * product.n.div_ceil(TILE_COLUMNS) * product.batch;
    LaunchShape { grid: [tiles.clamp(1, (1 << 31) - 1) as u32, 1, 1], block: [256, 1, 1] }
}
