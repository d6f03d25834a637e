//! The kernels of a [`FewRows`](super::FewRows): one for each dtype, for 1, 4 or 16 rows of A, and for 1 or 4 rows of W at a time, some with a layer norm of A's rows.
//!
//! A warp reads 512 bytes of each of its rows of W at once, 16 a lane, and several such chunks before it uses the first; rows that are long,
//! or few, are shared by two to eight warps of a block, which take chunks in turn. Rows of A come from the cache. A lane's products
//! are summed in registers, then over the warp, then over the warps in shared memory. Where rows of A are normalized first, each block does
//! so itself, into shared memory, while its first weights are on their way.
//!
//! The kernel begins before the one in front of it is complete: it brings its weights into the L2, and then waits.

use thalweg_ir::DType;
use thalweg_ir::cuda::{FloatNames, with_prelude};

use crate::shared::OVER_BLOCK;

/// Rows of A, rows of W at a time, and whether rows of A are normalized first, that there are kernels for.
pub const VARIANTS: [(u64, u64, bool); 10] = [
    (1, 1, false),
    (1, 4, false),
    (4, 1, false),
    (4, 4, false),
    (16, 1, false),
    (16, 4, false),
    (1, 1, true),
    (1, 4, true),
    (4, 1, true),
    (4, 4, true),
];

/// The most rows of A that are normalized.
pub const MOST_NORM_ROWS: u64 = 4;

/// The bytes that hold the rows of A while they are normalized.
pub const NORM_BYTES: u64 = 32 << 10;

/// Lists the names of a dtype's variants.
macro_rules! names {
    ($dtype:literal) => {
        [
            concat!("few_rows_", $dtype, "_1_1"),
            concat!("few_rows_", $dtype, "_1_4"),
            concat!("few_rows_", $dtype, "_4_1"),
            concat!("few_rows_", $dtype, "_4_4"),
            concat!("few_rows_", $dtype, "_16_1"),
            concat!("few_rows_", $dtype, "_16_4"),
            concat!("few_rows_", $dtype, "_1_1_norm"),
            concat!("few_rows_", $dtype, "_1_4_norm"),
            concat!("few_rows_", $dtype, "_4_1_norm"),
            concat!("few_rows_", $dtype, "_4_4_norm"),
        ]
    };
}

/// Returns the name of the entry point.
///
/// # Panics
/// If there is no such kernel.
pub fn name(dtype: DType, rows: u64, lines: u64, norm: bool) -> &'static str {
    let variant =
        VARIANTS.iter().position(|&variant| variant == (rows, lines, norm)).expect("one of the variants");
    let names = match dtype {
        DType::F32 => names!("float32"),
        DType::F16 => names!("float16"),
        DType::Bf16 => names!("bfloat16"),
        other => panic!("products of few rows of {other}: there is no kernel"),
    };
    names[variant]
}

/// Returns the translation unit, to be compiled with [`OPTIONS`](thalweg_ir::cuda::OPTIONS). Its entry point, [`name`], takes the words of
/// [`FewRows::pack`](super::FewRows::pack) as one structure by value.
///
/// # Panics
/// If there is no such kernel.
pub fn print(dtype: DType, rows: u64, lines: u64, norm: bool) -> String {
    let FloatNames { element, load, store, .. } = FloatNames::of(dtype);
    let code = TEMPLATE
        .replace("OVER_BLOCK", OVER_BLOCK)
        .replace("FIND_LINES", FIND_LINES)
        .replace("READ_WEIGHTS", READ_WEIGHTS)
        .replace("NAME", name(dtype, rows, lines, norm))
        .replace("HAS_NORM", if norm { "1" } else { "0" })
        .replace("HELD", &(NORM_BYTES / dtype.size_bytes() as u64).to_string())
        .replace("ELEMENT", element)
        .replace("WIDTH", &(16 / dtype.size_bytes()).to_string())
        .replace("ROWS", &rows.to_string())
        .replace("LINES", &lines.to_string())
        .replace("DEPTH", if lines == 1 { "4" } else { "2" })
        .replace("LOAD", &load)
        .replace("STORE", &store);
    with_prelude(&code)
}

/// The warp's rows of W, from `first` on; of those behind the last, the last.
const FIND_LINES: &str = "\
#pragma unroll
    for (u32 i = 0; i < LINES; ++i) {
        const u32 nearest = first + i < columns ? first + i : columns - 1;
        lines[i] = x.b + u64(nearest) * x.b_leading_dimension;
    }";

/// Loads of the next chunks of the warp's rows of W.
const READ_WEIGHTS: &str = "\
#pragma unroll
    for (u32 ahead = 0; ahead < DEPTH; ++ahead) {
        #pragma unroll
        for (u32 i = 0; i < LINES; ++i) {
            if (start + ahead * step < terms) {
                weights[ahead][i] = *(const quad*)(lines[i] + start + ahead * step);
            }
        }
    }";

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
    const ELEMENT* norm_weight;
    const ELEMENT* norm_bias;
    u64 eps;
};

typedef pack<ELEMENT, WIDTH> quad;

#if HAS_NORM
OVER_BLOCK
#endif

extern \"C\" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ NAME_arguments x) {
    __shared__ f32 parts[8][ROWS * LINES < 8 ? 8 : ROWS * LINES];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 split = 1u << u32(x.flags & 7), part = warp % split;
    const u32 columns = u32(x.n), terms = u32(x.k), rows = u32(x.m);
    const u32 each = 8 / split * LINES, own_line = warp / split * LINES;
    u32 first = blockIdx.x * each + own_line;
    const ELEMENT* lines[LINES];
    FIND_LINES
    // While the kernel in front is at work, weights come into the L2.
    launch_dependents();
    for (u32 at = (part * 32 + lane) * (8 * WIDTH); at < terms; at += split * 32 * (8 * WIDTH)) {
        #pragma unroll
        for (u32 i = 0; i < LINES; ++i) {
            prefetch(lines[i] + at);
        }
    }
    wait_for_previous();
    quad weights[DEPTH][LINES];
    const u32 step = split * 32 * WIDTH, begin = (part * 32 + lane) * WIDTH;
    u32 start = begin;
    READ_WEIGHTS
#if HAS_NORM
    // While the first weights are on their way.
    __shared__ __align__(16) ELEMENT normal[HELD];
    const u32 own = threadIdx.x * WIDTH;
    quad scale = {}, shift = {};
    if (own < terms) {
        scale = *(const quad*)(x.norm_weight + own);
        shift = *(const quad*)(x.norm_bias + own);
    }
    for (u32 row = 0; row < rows; ++row) {
        ELEMENT* const held = normal + row * terms;
        f32 mean = 0.0f, square = 0.0f;
        for (u32 at = own; at < terms; at += 256 * WIDTH) {
            const quad values = *(const quad*)(x.a + row * x.a_leading_dimension + at);
            *(quad*)(held + at) = values;
            #pragma unroll
            for (u32 term = 0; term < WIDTH; ++term) {
                mean = mean + LOAD(values.element[term]);
            }
        }
        mean = over_block(mean, parts[0]) / f32(terms);
        for (u32 at = own; at < terms; at += 256 * WIDTH) {
            const quad values = *(const quad*)(held + at);
            #pragma unroll
            for (u32 term = 0; term < WIDTH; ++term) {
                const f32 apart = LOAD(values.element[term]) - mean;
                square = fmaf(apart, apart, square);
            }
        }
        square = over_block(square, parts[0]) / f32(terms);
        const f32 factor = rsqrtf(square + __uint_as_float(u32(x.eps)));
        for (u32 at = own; at < terms; at += 256 * WIDTH) {
            quad values = *(const quad*)(held + at);
            const quad by = at == own ? scale : *(const quad*)(x.norm_weight + at);
            const quad plus = at == own ? shift : *(const quad*)(x.norm_bias + at);
            #pragma unroll
            for (u32 term = 0; term < WIDTH; ++term) {
                const f32 value = (LOAD(values.element[term]) - mean) * factor;
                values.element[term] = STORE(fmaf(value, LOAD(by.element[term]), LOAD(plus.element[term])));
            }
            *(quad*)(held + at) = values;
        }
    }
    __syncthreads();
    const ELEMENT* const left_rows = normal;
    const u64 left_step = terms;
#else
    const ELEMENT* const left_rows = x.a;
    const u64 left_step = x.a_leading_dimension;
#endif
    // A block that has more rows of W begins to read the next while the sums of these are put together.
    for (u32 line = first; line - own_line < columns; line = first) {
        f32 sums[ROWS][LINES] = {};
        while (start < terms) {
            #pragma unroll
            for (u32 ahead = 0; ahead < DEPTH; ++ahead) {
                const u32 at = start + ahead * step;
                if (at < terms) {
                    #pragma unroll
                    for (u32 row = 0; row < ROWS; ++row) {
                        if (row < rows) {
                            const quad left = *(const quad*)(left_rows + row * left_step + at);
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
            start += DEPTH * step;
            READ_WEIGHTS
        }
        #pragma unroll
        for (u32 row = 0; row < ROWS; ++row) {
            #pragma unroll
            for (u32 i = 0; i < LINES; ++i) {
                f32 sum = sums[row][i];
                #pragma unroll
                for (u32 apart = 1; apart < 32; apart *= 2) {
                    sum = sum + __shfl_down_sync(0xffffffffu, sum, apart);
                }
                if (lane == 0) {
                    parts[warp][row * LINES + i] = sum;
                }
            }
        }
        __syncthreads();
        first = line + gridDim.x * each;
        start = begin;
        if (first - own_line < columns) {
            FIND_LINES
            READ_WEIGHTS
        }
        // A thread of the first of the warps that share a row adds up their sums.
        for (u32 own = lane; part == 0 && own < ROWS * LINES; own += 32) {
            const u32 row = own / LINES, column = line + own % LINES;
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
        __syncthreads();
    }
}
";
