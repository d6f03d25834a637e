//! The kernels of a [`FewRows`](super::FewRows): one for each dtype, for 1, 4 or 16 rows of A, and for 1 or 4 rows of W at a time.
//!
//! A warp reads 512 bytes of each of its rows of W at once, 16 a lane, and several such chunks before it uses the first; rows that are long,
//! or few, are shared by two to eight warps of a block, which take chunks in turn. Rows of A come from the cache. A lane's products
//! are summed in registers, then over the warp, then over the warps in shared memory.

use thalweg_ir::DType;
use thalweg_ir::cuda::{FloatNames, with_prelude};

/// Rows of A and rows of W that there are kernels for.
pub const VARIANTS: [(u64, u64); 6] = [(1, 1), (1, 4), (4, 1), (4, 4), (16, 1), (16, 4)];

/// Returns the name of the entry point.
///
/// # Panics
/// If there is no such kernel.
pub fn name(dtype: DType, rows: u64, lines: u64) -> &'static str {
    let variant = VARIANTS.iter().position(|&variant| variant == (rows, lines)).expect("a variant");
    let names = match dtype {
        DType::F32 => [
            "few_rows_float32_1_1",
            "few_rows_float32_1_4",
            "few_rows_float32_4_1",
            "few_rows_float32_4_4",
            "few_rows_float32_16_1",
            "few_rows_float32_16_4",
        ],
        DType::F16 => [
            "few_rows_float16_1_1",
            "few_rows_float16_1_4",
            "few_rows_float16_4_1",
            "few_rows_float16_4_4",
            "few_rows_float16_16_1",
            "few_rows_float16_16_4",
        ],
        DType::Bf16 => [
            "few_rows_bfloat16_1_1",
            "few_rows_bfloat16_1_4",
            "few_rows_bfloat16_4_1",
            "few_rows_bfloat16_4_4",
            "few_rows_bfloat16_16_1",
            "few_rows_bfloat16_16_4",
        ],
        other => panic!("products of few rows of {other}: there is no kernel"),
    };
    names[variant]
}

/// Returns the translation unit, to be compiled with [`OPTIONS`](thalweg_ir::cuda::OPTIONS). Its entry point, [`name`], takes the words of
/// [`FewRows::pack`](super::FewRows::pack) as one structure by value.
///
/// # Panics
/// If there is no such kernel.
pub fn print(dtype: DType, rows: u64, lines: u64) -> String {
    let FloatNames { element, load, store, .. } = FloatNames::of(dtype);
    let code = TEMPLATE
        .replace("NAME", name(dtype, rows, lines))
        .replace("ELEMENT", element)
        .replace("WIDTH", &(16 / dtype.size_bytes()).to_string())
        .replace("ROWS", &rows.to_string())
        .replace("LINES", &lines.to_string())
        .replace("DEPTH", if lines == 1 { "4" } else { "2" })
        .replace("LOAD", &load)
        .replace("STORE", &store);
    with_prelude(&code)
}

const TEMPLATE: &str = "\
struct NAME_arguments {
    const ELEMENT* a;
    const ELEMENT* b;
    ELEMENT* d;
    const ELEMENT* bias;
    const ELEMENT* addend;
    u64 m;
    u64 n;
    u64 k;
    u64 a_leading_dimension;
    u64 b_leading_dimension;
    u64 d_leading_dimension;
    u64 addend_leading_dimension;
    u64 flags;
};

typedef pack<ELEMENT, WIDTH> quad;

extern \"C\" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ NAME_arguments x) {
    __shared__ f32 parts[8][ROWS * LINES];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 split = 1u << u32(x.flags & 7), part = warp % split;
    const u32 columns = u32(x.n), terms = u32(x.k), rows = u32(x.m);
    const u32 first = (blockIdx.x * (8 / split) + warp / split) * LINES;
    const ELEMENT* lines[LINES];
    #pragma unroll
    for (u32 i = 0; i < LINES; ++i) {
        const u32 line = first + i < columns ? first + i : columns - 1;
        lines[i] = x.b + u64(line) * x.b_leading_dimension;
    }
    f32 sums[ROWS][LINES] = {};
    for (u32 start = (part * 32 + lane) * WIDTH; start < terms; start += DEPTH * split * 32 * WIDTH) {
        quad weights[DEPTH][LINES];
        #pragma unroll
        for (u32 ahead = 0; ahead < DEPTH; ++ahead) {
            const u32 at = start + ahead * split * 32 * WIDTH;
            #pragma unroll
            for (u32 i = 0; i < LINES; ++i) {
                if (at < terms) {
                    weights[ahead][i] = *(const quad*)(lines[i] + at);
                }
            }
        }
        #pragma unroll
        for (u32 ahead = 0; ahead < DEPTH; ++ahead) {
            const u32 at = start + ahead * split * 32 * WIDTH;
            if (at < terms) {
                #pragma unroll
                for (u32 row = 0; row < ROWS; ++row) {
                    if (row < rows) {
                        const quad left = *(const quad*)(x.a + row * x.a_leading_dimension + at);
                        #pragma unroll
                        for (u32 i = 0; i < LINES; ++i) {
                            #pragma unroll
                            for (u32 term = 0; term < WIDTH; ++term) {
                                sums[row][i] = fmaf(LOAD(weights[ahead][i].element[term]),
                                                    LOAD(left.element[term]), sums[row][i]);
                            }
                        }
                    }
                }
            }
        }
    }
    #pragma unroll
    for (u32 row = 0; row < ROWS; ++row) {
        #pragma unroll
        for (u32 i = 0; i < LINES; ++i) {
            f32 sum = sums[row][i];
            #pragma unroll
            for (u32 step = 1; step < 32; step *= 2) {
                sum = sum + __shfl_down_sync(0xffffffffu, sum, step);
            }
            if (lane == 0) {
                parts[warp][row * LINES + i] = sum;
            }
        }
    }
    __syncthreads();
    // A thread of the first of the warps that share a row adds up their sums.
    for (u32 own = lane; part == 0 && own < ROWS * LINES; own += 32) {
        const u32 row = own / LINES, column = first + own % LINES;
        if (row < rows && column < columns) {
            f32 value = parts[warp][own];
            for (u32 other = 1; other < split; ++other) {
                value = value + parts[warp + other][own];
            }
            if ((x.flags & 16) != 0) {
                value = value + LOAD(x.bias[column]);
            }
            if ((x.flags & 64) != 0) {
                const f32 inner = 0.7978845608f * (value + 0.044715f * value * value * value);
                value = 0.5f * value * (1.0f + tanhf(inner));
            }
            if ((x.flags & 32) != 0) {
                value = value + LOAD(x.addend[row * x.addend_leading_dimension + column]);
            }
            x.d[row * x.d_leading_dimension + column] = STORE(value);
        }
    }
}
";
