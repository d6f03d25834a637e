// A block computes tiles of 64 × 64 elements of a product, along its terms in steps of 16.
#ifndef NAME
#include "../defaults.cuh"
#endif

struct arguments {
    const Element* a;
    const Element* b;
    Element* d;
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

// The product plus the sum: of floats, rounded once.
static __device__ __forceinline__ f32 multiply_add(const f32 a, const f32 b, const f32 sum) { return fmaf(a, b, sum); }
static __device__ __forceinline__ f64 multiply_add(const f64 a, const f64 b, const f64 sum) { return fma(a, b, sum); }
static __device__ __forceinline__ u64 multiply_add(const u64 a, const u64 b, const u64 sum) { return a * b + sum; }

// Copies the tile of op(M) whose first element is (row, column) to shared memory, with zeros beyond its edges.
// Neighbouring threads read neighbouring elements of what is stored.
template <u32 ROWS, u32 COLUMNS>
static __device__ __forceinline__ void load_tile(
    Sum (*const tile)[COLUMNS], const Element* const matrix, const u64 leading_dimension, const bool transposed,
    const u64 row, const u64 column, const u64 rows, const u64 columns) {
    #pragma unroll
    for (u32 i = threadIdx.x; i < ROWS * COLUMNS; i += 256) {
        const u32 r = transposed ? i % ROWS : i / COLUMNS;
        const u32 c = transposed ? i / ROWS : i % COLUMNS;
        const u64 at = transposed ? (column + c) * leading_dimension + row + r
                                  : (row + r) * leading_dimension + column + c;
        tile[r][c] = row + r < rows && column + c < columns ? LOAD(matrix[at]) : Sum(0);
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    __shared__ Sum a_tile[64][16];
    __shared__ Sum b_tile[16][64];
    const u32 thread_row = threadIdx.x / 16;
    const u32 thread_column = threadIdx.x % 16;
    const u64 first_column = u64(blockIdx.x) * 64;
    for (u64 batch = blockIdx.z; batch < x.batch; batch += gridDim.z) {
        const Element* const a = x.a + batch * x.a_batch_stride;
        const Element* const b = x.b + batch * x.b_batch_stride;
        Element* const d = x.d + batch * x.d_batch_stride;
        for (u64 first_row = u64(blockIdx.y) * 64; first_row < x.m; first_row += u64(gridDim.y) * 64) {
            Sum sums[4][4] = {};
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
                            sums[i][j] = multiply_add(
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
                        Element* const place = d + row * x.d_leading_dimension + column;
                        Sum value = Sum(x.alpha) * sums[i][j];
                        if (x.beta != 0.0) {
                            value = multiply_add(Sum(x.beta), LOAD(*place), value);
                        }
                        *place = STORE(value);
                    }
                }
            }
        }
    }
}
