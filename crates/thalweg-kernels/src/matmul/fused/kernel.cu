// A block computes tiles of 16 × 32 elements of a product; its warps share the terms.
#ifndef NAME
#include "../../defaults.cuh"
#endif

struct arguments {
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

// A factor as a thread sees it: its lines are rows of op(A) or columns of op(B). Neighbours in memory are terms of one line, or lines
// of one term. Of a tile of 64 terms, a thread moves the quad at (line, term) and the quads 32 terms later.
template <u32 LINES> struct factor {
    const f32* at;
    u64 half;
    u32 line;
    u32 term;
    u32 lines;
    u32 terms;
    u32 quad_terms;
    bool along_terms;

    __device__ __forceinline__ factor(
        const f32* const elements, const u64 leading_dimension, const u64 first_line, const u64 all_lines,
        const u64 all_terms, const bool along, const bool quads) {
        const u64 lines_left = all_lines - first_line;
        lines = lines_left < LINES ? u32(lines_left) : LINES;
        terms = u32(all_terms);
        along_terms = along;
        line = along ? threadIdx.x / 4 % LINES : threadIdx.x % (LINES / 4) * 4;
        term = along ? threadIdx.x / (4 * LINES) * 16 + threadIdx.x % 4 * 4 : threadIdx.x / (LINES / 4);
        at = elements + (along ? (first_line + line) * leading_dimension + term
                               : term * leading_dimension + first_line + line);
        half = along ? 32 : 32 * leading_dimension;
        // Before this term, a complete quad is inside of the matrix.
        const bool whole = quads && (along ? line < lines : line + 4 <= lines);
        quad_terms = !whole ? 0 : along ? terms / 4 * 4 : terms;
    }

    // The quads of the tile that begins with this term; `at` is relative to that tile. Elements beyond the edges are zeros.
    __device__ __forceinline__ void load(const u32 first_term, quad (&parts)[LINES / 16]) const {
        #pragma unroll
        for (u32 part = 0; part < LINES / 16; ++part) {
            const u32 now = first_term + term + 32 * part;
            const f32* const from = at + part * half;
            if (now < quad_terms) {
                parts[part] = *(const quad*)from;
            } else {
                #pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    const bool inside = along_terms ? now + i < terms && line < lines : now < terms && line + i < lines;
                    parts[part].element[i] = inside ? from[i] : 0.0f;
                }
            }
        }
    }

    __device__ __forceinline__ void store(const quad (&parts)[LINES / 16], f32 (*const tile)[LINES + 4]) const {
        #pragma unroll
        for (u32 part = 0; part < LINES / 16; ++part) {
            if (along_terms) {
                #pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    tile[term + 32 * part + i][line] = parts[part].element[i];
                }
            } else {
                *(quad*)&tile[term + 32 * part][line] = parts[part];
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(256)
NAME(const __grid_constant__ arguments x) {
    // Term by term, with gaps so that accesses are spread over the banks.
    alignas(16) __shared__ f32 memory[2 * 64 * (20 + 36)];
    f32 (*const a_tiles)[64][20] = (f32 (*)[64][20])memory;
    f32 (*const b_tiles)[64][36] = (f32 (*)[64][36])(memory + 2 * 64 * 20);
    const u32 column_tiles = u32((x.n + 31) / 32), row_tiles = u32((x.m + 15) / 16);
    const u32 column_tile = blockIdx.x % column_tiles, row_tile = blockIdx.x / column_tiles % row_tiles;
    const u64 item = blockIdx.x / column_tiles / row_tiles;
    const u64 first_row = u64(row_tile) * 16, first_column = u64(column_tile) * 32;
    factor<16> a(x.a + item * x.a_batch_stride, x.a_leading_dimension, first_row, x.m, x.k,
                 (x.flags & 1) == 0, (x.flags & 32) != 0);
    factor<32> b(x.b + item * x.b_batch_stride, x.b_leading_dimension, first_column, x.n, x.k,
                 (x.flags & 2) != 0, (x.flags & 64) != 0);
    const u32 warp = threadIdx.x / 32, row = threadIdx.x % 32 / 8 * 4, column = threadIdx.x % 8 * 4;
    const bool sums_rows = (x.flags & 16) != 0 && column_tile == 0;
    const u32 terms = u32(x.k);

    f32 sums[4][4] = {};
    quad row_sums = {};
    quad a_parts[2][1], b_parts[2][2];
    #pragma unroll
    for (u32 tile = 0; tile < 2; ++tile) {
        a.load(tile * 64, a_parts[tile]);
        b.load(tile * 64, b_parts[tile]);
        a.at += 2 * a.half;
        b.at += 2 * b.half;
    }
    a.store(a_parts[0], a_tiles[0]);
    b.store(b_parts[0], b_tiles[0]);
    __syncthreads();
    for (u32 start = 0; start < terms; start += 128) {
        #pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 first = start + half * 64;
            if (first < terms) {
                if (sums_rows) {
                    #pragma unroll
                    for (u32 i = 0; i < 4; ++i) {
                        row_sums.element[i] = row_sums.element[i] + a_parts[half][0].element[i];
                    }
                }
                a.load(first + 128, a_parts[half]);
                b.load(first + 128, b_parts[half]);
                a.at += 2 * a.half;
                b.at += 2 * b.half;
                #pragma unroll
                for (u32 step = 0; step < 8; ++step) {
                    const quad left = *(const quad*)&a_tiles[half][warp * 8 + step][row];
                    const quad right = *(const quad*)&b_tiles[half][warp * 8 + step][column];
                    #pragma unroll
                    for (u32 i = 0; i < 4; ++i) {
                        #pragma unroll
                        for (u32 j = 0; j < 4; ++j) {
                            sums[i][j] = fmaf(left.element[i], right.element[j], sums[i][j]);
                        }
                    }
                }
                a.store(a_parts[1 - half], a_tiles[1 - half]);
                b.store(b_parts[1 - half], b_tiles[1 - half]);
            }
            __syncthreads();
        }
    }

    // The warps' sums, in the memory of the tiles.
    f32 (*const parts)[16][36] = (f32 (*)[16][36])memory;
    f32 (*const row_parts)[64] = (f32 (*)[64])(memory + 8 * 16 * 36);
    #pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        *(quad*)&parts[warp][row + i][column] = {sums[i][0], sums[i][1], sums[i][2], sums[i][3]};
        if (sums_rows) {
            // One term out of 64 for four rows, or four terms for one row.
            row_parts[a.along_terms ? a.line : a.line + i][a.along_terms ? a.term + i : a.term] = row_sums.element[i];
        }
    }
    __syncthreads();
    if (sums_rows) {
        // Sixteen threads per row, with four terms each.
        const u32 of_row = threadIdx.x / 16;
        const quad own = *(const quad*)&row_parts[of_row][threadIdx.x % 16 * 4];
        f32 sum = own.element[0] + own.element[1];
        sum = sum + own.element[2];
        sum = sum + own.element[3];
        sum = combine_warp<16>(sum, [](const f32 left, const f32 right) { return left + right; });
        if (threadIdx.x % 16 == 0 && first_row + of_row < x.m) {
            x.row_sums[first_row + of_row] = sum;
        }
    }
    const u32 tile_row = threadIdx.x / 8;
    const u64 to_row = first_row + tile_row, to_column = first_column + column;
    if (tile_row >= 16 || to_row >= x.m || to_column >= x.n) {
        return;
    }
    quad result = *(const quad*)&parts[0][tile_row][column];
    #pragma unroll
    for (u32 other = 1; other < 8; ++other) {
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
