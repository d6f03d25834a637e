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
use thalweg_ir::cuda::{FloatNames, LaunchShape, with_prelude};

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
    let integer = || FloatNames {
        element: dtype.short_name(),
        sum: "u64",
        load: "u64".into(),
        store: dtype.short_name().into(),
    };
    let FloatNames { element, sum, load, store } =
        if dtype.is_integer() { integer() } else { FloatNames::of(dtype) };
    let multiply_add = match sum {
        "f64" => "fma",
        "f32" => "fmaf",
        _ => "multiply_add",
    };
    let code = TEMPLATE
        .replace("NAME", name(dtype))
        .replace("ELEMENT", element)
        .replace("SUM", sum)
        .replace("LOAD", &load)
        .replace("STORE", &store)
        .replace("MULTIPLY_ADD", multiply_add);
    with_prelude(&code)
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

const TEMPLATE: &str = "\
struct NAME_arguments {
    const ELEMENT* a;
    const ELEMENT* b;
    ELEMENT* d;
    u64 m;
    u64 n;
    u64 k;
    u64 batch;
    u64 a_leading_dimension;
    u64 a_batch_stride;
    u64 b_leading_dimension;
    u64 b_batch_stride;
    u64 d_leading_dimension;
    u64 d_batch_stride;
    u64 flags;
    f64 alpha;
    f64 beta;
};

// Only the kernel of integers calls it: of a template that is not a warning.
template <typename INTEGER>
static __device__ __forceinline__ INTEGER multiply_add(const INTEGER a, const INTEGER b, const INTEGER sum) {
    return a * b + sum;
}

// Copies the tile of op(M) whose first element is (row, column) to shared memory, with zeros beyond its edges.
// Neighbouring threads read neighbouring elements of what is stored.
template <u32 ROWS, u32 COLUMNS>
static __device__ __forceinline__ void load_tile(
    SUM (*const tile)[COLUMNS], const ELEMENT* const matrix, const u64 leading_dimension, const bool transposed,
    const u64 row, const u64 column, const u64 rows, const u64 columns) {
    #pragma unroll
    for (u32 i = threadIdx.x; i < ROWS * COLUMNS; i += 256) {
        const u32 r = transposed ? i % ROWS : i / COLUMNS;
        const u32 c = transposed ? i / ROWS : i % COLUMNS;
        const u64 at = transposed ? (column + c) * leading_dimension + row + r
                                  : (row + r) * leading_dimension + column + c;
        tile[r][c] = row + r < rows && column + c < columns ? LOAD(matrix[at]) : SUM(0);
    }
}

extern \"C\" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ NAME_arguments x) {
    __shared__ SUM a_tile[64][16];
    __shared__ SUM b_tile[16][64];
    const u32 thread_row = threadIdx.x / 16;
    const u32 thread_column = threadIdx.x % 16;
    const u64 first_column = u64(blockIdx.x) * 64;
    for (u64 batch = blockIdx.z; batch < x.batch; batch += gridDim.z) {
        const ELEMENT* const a = x.a + batch * x.a_batch_stride;
        const ELEMENT* const b = x.b + batch * x.b_batch_stride;
        ELEMENT* const d = x.d + batch * x.d_batch_stride;
        for (u64 first_row = u64(blockIdx.y) * 64; first_row < x.m; first_row += u64(gridDim.y) * 64) {
            SUM sums[4][4] = {};
            for (u64 depth = 0; depth < x.k; depth += 16) {
                load_tile<64, 16>(a_tile, a, x.a_leading_dimension, x.flags & 1, first_row, depth, x.m, x.k);
                load_tile<16, 64>(b_tile, b, x.b_leading_dimension, x.flags & 2, depth, first_column, x.k, x.n);
                __syncthreads();
                #pragma unroll
                for (u32 step = 0; step < 16; ++step) {
                    #pragma unroll
                    for (u32 i = 0; i < 4; ++i) {
                        #pragma unroll
                        for (u32 j = 0; j < 4; ++j) {
                            sums[i][j] = MULTIPLY_ADD(
                                a_tile[thread_row + 16 * i][step], b_tile[step][thread_column + 16 * j], sums[i][j]);
                        }
                    }
                }
                __syncthreads();
            }
            #pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                #pragma unroll
                for (u32 j = 0; j < 4; ++j) {
                    const u64 row = first_row + thread_row + 16 * i;
                    const u64 column = first_column + thread_column + 16 * j;
                    if (row < x.m && column < x.n) {
                        ELEMENT* const place = d + row * x.d_leading_dimension + column;
                        SUM value = SUM(x.alpha) * sums[i][j];
                        if (x.beta != 0.0) {
                            value = MULTIPLY_ADD(SUM(x.beta), LOAD(*place), value);
                        }
                        *place = STORE(value);
                    }
                }
            }
        }
    }
}
";
