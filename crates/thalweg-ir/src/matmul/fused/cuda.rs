//! The kernel of a [`FusedMatmul`].
//!
//! A block of 256 threads computes one tile of 32 × 32 elements of D. Four groups of 64 threads share the terms: of each 64 terms
//! a group sums 16, each of its threads for 4 × 4 elements, in registers. The tiles of A and B for 64 terms lie in shared memory,
//! twice, so that the next ones are stored while these are read; those after the next are on their way to registers meanwhile.
//! At last the groups' sums are added up, with bias and addend, by all threads.
//!
//! Quads of elements that lie on 16 bytes are loaded and stored at once; where they do not, or at an edge, element by element.

use super::{FusedMatmul, TILE};
use crate::cuda::{LaunchShape, prelude};

/// Groups of threads that share the terms of a tile.
pub const GROUPS: usize = 4;

/// Neighbouring terms that one group sums before the next group's come.
pub const RUN: usize = 16;

/// The name of the entry point.
pub const NAME: &str = "fused_matmul_float32";

/// The translation unit, to be compiled with [`OPTIONS`](crate::cuda::OPTIONS). Its entry point, [`NAME`], takes the words of
/// [`FusedMatmul::pack`] as one structure by value.
pub fn print() -> String {
    prelude::needed_by(TEXT) + "\n" + TEXT
}

/// The launch. The grid is never empty: whoever launches skips a product without elements itself.
pub fn launch_shape(fused: &FusedMatmul) -> LaunchShape {
    let product = &fused.product;
    let tiles = product.m.div_ceil(TILE) * product.n.div_ceil(TILE) * product.batch;
    LaunchShape { grid: [tiles.clamp(1, (1 << 31) - 1) as u32, 1, 1], block: [256, 1, 1] }
}

const TEXT: &str = "\
struct fused_matmul_float32_arguments {
    const f32* a;
    const f32* b;
    f32* d;
    const f32* bias;
    const f32* addend;
    f32* row_sums;
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
    u64 addend_leading_dimension;
    u64 addend_batch_stride;
    u64 flags;
};

typedef pack<f32, 4> quad;

// A tile of 64 terms of 32 lines (rows of op(A) or columns of op(B)): term by term, with room between that spreads the banks.
typedef f32 tile[64][36];

// A factor as a block sees it. Neighbours in memory are terms of one line, or lines of one term.
struct factor {
    const f32* elements;
    u64 leading_dimension;
    u64 first_line;
    u64 lines;
    u64 terms;
    bool along_terms;
    bool quads;
};

// Which elements a thread moves, of the two quads that it has: the first one's term and line in the tile.
static __device__ __forceinline__ void place_of(const factor& f, const u32 part, u32& term, u32& line) {
    const u32 item = threadIdx.x + part * 256;
    if (f.along_terms) {
        term = item / 128 * 16 + item % 4 * 4;
        line = item / 4 % 32;
    } else {
        term = item / 8;
        line = item % 8 * 4;
    }
}

// Elements beyond the edges are zeros.
static __device__ __forceinline__ void load(const factor& f, const u64 first_term, quad (&parts)[2]) {
    #pragma unroll
    for (u32 part = 0; part < 2; ++part) {
        u32 in_term, in_line;
        place_of(f, part, in_term, in_line);
        const u64 term = first_term + in_term, line = f.first_line + in_line;
        const u64 at = f.along_terms ? line * f.leading_dimension + term : term * f.leading_dimension + line;
        const u64 past = f.along_terms ? f.terms : f.lines, first = f.along_terms ? term : line;
        const bool inside = f.along_terms ? line < f.lines : term < f.terms;
        if (f.quads && inside && first + 4 <= past) {
            parts[part] = *(const quad*)(f.elements + at);
        } else {
            #pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                parts[part].element[i] = inside && first + i < past ? f.elements[at + i] : 0.0f;
            }
        }
    }
}

static __device__ __forceinline__ void store(const factor& f, const quad (&parts)[2], tile& target) {
    #pragma unroll
    for (u32 part = 0; part < 2; ++part) {
        u32 term, line;
        place_of(f, part, term, line);
        if (f.along_terms) {
            #pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                target[term + i][line] = parts[part].element[i];
            }
        } else {
            *(quad*)&target[term][line] = parts[part];
        }
    }
}

extern \"C\" __global__ void __launch_bounds__(256)
fused_matmul_float32(const __grid_constant__ fused_matmul_float32_arguments x) {
    alignas(16) __shared__ f32 memory[2 * 2 * 64 * 36];
    tile* const tiles = (tile*)memory;
    const u32 column_tiles = u32((x.n + 31) / 32), row_tiles = u32((x.m + 31) / 32);
    const u32 column_tile = blockIdx.x % column_tiles, row_tile = blockIdx.x / column_tiles % row_tiles;
    const u64 item = blockIdx.x / column_tiles / row_tiles;
    const u64 first_row = u64(row_tile) * 32, first_column = u64(column_tile) * 32;
    const factor a = {x.a + item * x.a_batch_stride, x.a_leading_dimension, first_row, x.m, x.k,
                      (x.flags & 1) == 0, (x.flags & 32) != 0};
    const factor b = {x.b + item * x.b_batch_stride, x.b_leading_dimension, first_column, x.n, x.k,
                      (x.flags & 2) != 0, (x.flags & 64) != 0};
    const u32 group = threadIdx.x / 64, row = threadIdx.x % 64 / 8 * 4, column = threadIdx.x % 8 * 4;
    const bool sums_rows = (x.flags & 16) != 0 && column_tile == 0;

    f32 sums[4][4] = {};
    f32 row_sums[4] = {};
    quad a_parts[2][2], b_parts[2][2];
    load(a, 0, a_parts[0]);
    load(b, 0, b_parts[0]);
    load(a, 64, a_parts[1]);
    load(b, 64, b_parts[1]);
    store(a, a_parts[0], tiles[0]);
    store(b, b_parts[0], tiles[1]);
    __syncthreads();
    for (u64 start = 0; start < x.k; start += 128) {
        #pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u64 first = start + half * 64;
            if (first < x.k) {
                load(a, first + 128, a_parts[half]);
                load(b, first + 128, b_parts[half]);
                #pragma unroll
                for (u32 step = 0; step < 16; ++step) {
                    const quad left = *(const quad*)&tiles[2 * half][group * 16 + step][row];
                    const quad right = *(const quad*)&tiles[2 * half + 1][group * 16 + step][column];
                    #pragma unroll
                    for (u32 i = 0; i < 4; ++i) {
                        #pragma unroll
                        for (u32 j = 0; j < 4; ++j) {
                            sums[i][j] = fmaf(left.element[i], right.element[j], sums[i][j]);
                        }
                    }
                    if (sums_rows) {
                        #pragma unroll
                        for (u32 i = 0; i < 4; ++i) {
                            row_sums[i] = row_sums[i] + left.element[i];
                        }
                    }
                }
                store(a, a_parts[1 - half], tiles[2 * (1 - half)]);
                store(b, b_parts[1 - half], tiles[2 * (1 - half) + 1]);
            }
            __syncthreads();
        }
    }

    // The groups' sums, in the memory of the tiles.
    f32 (*const parts)[32][36] = (f32 (*)[32][36])memory;
    f32 (*const row_parts)[32] = (f32 (*)[32])(memory + 4 * 32 * 36);
    #pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        *(quad*)&parts[group][row + i][column] = {sums[i][0], sums[i][1], sums[i][2], sums[i][3]};
        if (column == 0) {
            row_parts[group][row + i] = row_sums[i];
        }
    }
    __syncthreads();
    if (sums_rows && threadIdx.x < 32 && first_row + threadIdx.x < x.m) {
        f32 sum = row_parts[0][threadIdx.x];
        #pragma unroll
        for (u32 other = 1; other < 4; ++other) {
            sum = sum + row_parts[other][threadIdx.x];
        }
        x.row_sums[first_row + threadIdx.x] = sum;
    }
    const u32 tile_row = threadIdx.x / 8;
    const u64 to_row = first_row + tile_row, to_column = first_column + column;
    if (to_row >= x.m || to_column >= x.n) {
        return;
    }
    quad result = *(const quad*)&parts[0][tile_row][column];
    #pragma unroll
    for (u32 other = 1; other < 4; ++other) {
        #pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            result.element[i] = result.element[i] + parts[other][tile_row][column + i];
        }
    }
    f32* const to = x.d + item * x.d_batch_stride + to_row * x.d_leading_dimension + to_column;
    const f32* const bias = x.bias + to_column;
    const f32* const addend =
        x.addend + item * x.addend_batch_stride + to_row * x.addend_leading_dimension + to_column;
    const bool has_bias = (x.flags & 4) != 0, has_addend = (x.flags & 8) != 0;
    if ((x.flags & 128) != 0 && to_column + 4 <= x.n) {
        const quad zeros = {};
        const quad biases = has_bias ? *(const quad*)bias : zeros;
        const quad addends = has_addend ? *(const quad*)addend : zeros;
        #pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            f32 value = result.element[i];
            value = has_bias ? value + biases.element[i] : value;
            result.element[i] = has_addend ? value + addends.element[i] : value;
        }
        *(quad*)to = result;
    } else {
        for (u32 i = 0; i < 4 && to_column + i < x.n; ++i) {
            f32 value = result.element[i];
            value = has_bias ? value + bias[i] : value;
            to[i] = has_addend ? value + addend[i] : value;
        }
    }
}
";
