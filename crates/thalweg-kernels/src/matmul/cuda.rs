//! The product as a kernel of our own, for GPUs where cuBLASLt is absent.
//!
//! A block of 256 threads computes a tile of 64 × 64 elements of D. It advances along k in steps of 16: the block copies a tile
//! of A and one of B to shared memory, widened to the type of the sums, then each thread multiplies 4 × 4 elements in registers.
//! Sums run over k in order, with one fused multiplication and addition per term, so a result depends neither on the grid nor on
//! the GPU. Sizes are arguments: there is one kernel per dtype. Integers are multiplied and added modulo 2⁶⁴.
//!
//! The kernel uses no tensor cores: it serves products that the library does not support, and programs that run without the
//! library.

use std::sync::LazyLock;

use super::{Matmul, takes};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;

use crate::source::Source;

/// Rows and columns of D in a tile.
const TILE: u64 = 64;
/// The most blocks in y and z that a grid may have.
const GRID_MOST: u64 = 65_535;

/// Returns the name of the entry point for a dtype.
///
/// # Panics
/// If there is no product of the dtype.
pub fn name(dtype: DType) -> &'static str {
    static NAMES: LazyLock<[String; DType::ALL.len()]> =
        LazyLock::new(|| DType::ALL.map(|dtype| format!("matmul_{dtype}")));
    assert!(takes(dtype), "matmul on {dtype}: there is no product of it");
    &NAMES[dtype as usize]
}

/// Returns the translation unit for a dtype, to be compiled with [`OPTIONS`](thalweg_ir::cuda::OPTIONS). Its entry point,
/// [`name`], takes the words of [`Matmul::pack`] as one structure by value.
///
/// # Panics
/// If there is no product of the dtype.
pub fn print(dtype: DType) -> String {
    let source = Source::new(name(dtype));
    let source = match dtype.is_integer() {
        true => source.names(dtype.short_name(), "u64", "u64", dtype.short_name()),
        false => source.elements(dtype),
    };
    source.print(include_str!("product.cu"))
}

/// Returns the launch of a product. The grid is never empty: the caller must skip a product without elements.
pub fn launch_shape(matmul: &Matmul) -> LaunchShape {
    let tiles = |extent: u64, most: u64| extent.div_ceil(TILE).clamp(1, most) as u32;
    LaunchShape {
        grid: [
            tiles(matmul.n, (1 << 31) - 1),
            tiles(matmul.m, GRID_MOST),
            matmul.batch.clamp(1, GRID_MOST) as u32,
        ],
        block: [256, 1, 1],
    }
}
