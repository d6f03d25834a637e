//! The CUDA C of a sort's launches. Each works on the bits of elements, so that one text serves every dtype of the same width.

use thalweg_ir::cuda::with_prelude;

use super::Work;
use super::keys::Keys;

/// Returns a translation unit.
pub(super) fn print(work: Work, name: &str, keys: &Keys, items: u64) -> String {
    let parts: &[&str] = match work {
        Work::Rows => &[ARGUMENTS, KEYS, ORDER, ROWS],
        Work::Count(_) => &[ARGUMENTS, KEYS, COUNT],
        Work::Add => &[ARGUMENTS, ADD],
        Work::Place(_) => &[ARGUMENTS, KEYS, ORDER, PLACE],
    };
    with_prelude(&element_code(&parts.concat().replace("ITEMS", &items.to_string()), name, keys))
}

/// Returns code with the element type of these keys, and a name, filled in.
pub(super) fn element_code(code: &str, name: &str, keys: &Keys) -> String {
    let bits = keys.mask().count_ones();
    let (element, key) = match bits {
        16 => ("unsigned short", "u32"),
        32 => ("u32", "u32"),
        _ => ("u64", "u64"),
    };
    let encode = match keys.infinity {
        None => "    const KEY key = KEY(bits) ^ KEY(SIGN);\n".to_owned(),
        Some(infinity) => ENCODE_FLOAT.replace("INFINITY_BITS", &format!("{infinity:#x}ull")),
    };
    // Of equal floats only zeros and NaNs have different bits: these are read again.
    let same = if keys.infinity.is_some() { "key != KEY(MASK) && key != KEY(SIGN)" } else { "true" };
    let decode = if keys.infinity.is_some() {
        "(ELEMENT)(key & KEY(SIGN) ? key ^ KEY(SIGN) : ~key)"
    } else {
        "(ELEMENT)(key ^ KEY(SIGN))"
    };
    code.replace("ENCODE", &encode)
        .replace("DECODE", decode)
        .replace("IS_EXACT", same)
        .replace("SIGN", &format!("{:#x}ull", keys.sign))
        .replace("MASK", &format!("{:#x}ull", keys.mask()))
        .replace("BITS", &bits.to_string())
        .replace("ELEMENT", element)
        .replace("KEY", key)
        .replace("NAME", name)
}

const ENCODE_FLOAT: &str = "\
    const KEY magnitude = KEY(bits) & ~KEY(SIGN);
    const bool is_nan = magnitude > KEY(INFINITY_BITS);
    const bool is_below = (KEY(bits) & KEY(SIGN)) != 0 && magnitude != 0;
    const KEY key = is_nan ? KEY(MASK) : is_below ? ~KEY(bits) & KEY(MASK) : magnitude | KEY(SIGN);
";

const ARGUMENTS: &str = "\
struct NAME_arguments {
    const ELEMENT* source;
    ELEMENT* values;
    i64* places;
    const ELEMENT* keys_from;
    ELEMENT* keys_to;
    const u32* marks_from;
    u32* marks_to;
    u32* counts;
    u32* sums;
    u64 outer;
    u64 length;
    u64 inner;
    u64 flags;
    u64 dtype;
    u64 digit;
    u64 work;
    u64 tiles;
};

";

/// CUDA functions for the keys and places of points; they follow arguments with `length`, `inner` and `flags`.
pub(super) const KEYS: &str = "\
static __device__ __forceinline__ KEY NAME_key(ELEMENT bits, u64 flags) {
ENCODE    return flags & 1 ? ~key & KEY(MASK) : key;
}

/// Returns the place in memory of a row's first point.
static __device__ __forceinline__ u64 NAME_first(const NAME_arguments& x, u64 row) {
    return row / x.inner * x.length * x.inner + row % x.inner;
}

";

const ORDER: &str = "\
/// Writes a point of a row.
static __device__ __forceinline__ void NAME_write(const NAME_arguments& x, u64 first, u64 to, KEY ordered, u32 place) {
    const KEY key = x.flags & 1 ? ~ordered & KEY(MASK) : ordered;
    x.values[first + to * x.inner] = IS_EXACT ? DECODE : x.source[first + u64(place) * x.inner];
    x.places[first + to * x.inner] = i64(place);
}

/// Returns how many points of this digit the warp had before this thread's, and counts it.
static __device__ __forceinline__ u32 NAME_rank(unsigned short* counts, u32 digit) {
    const u32 same = __match_any_sync(~0u, digit);
    const u32 before = __popc(same & ((1u << (threadIdx.x & 31u)) - 1u));
    u32 base = 0;
    if (before == 0) {
        base = counts[digit];
        counts[digit] = (unsigned short)(base + __popc(same));
    }
    __syncwarp();
    return __shfl_sync(~0u, base, __ffs(same) - 1) + before;
}

/// Returns the sum of what the threads before this one have. Synchronises the block.
static __device__ __forceinline__ u32 NAME_before(u32 value, u32* sums) {
    const u32 lane = threadIdx.x & 31u, warp = threadIdx.x / 32;
    u32 sum = value;
    for (u32 step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(~0u, sum, step);
        sum += lane >= step ? other : 0;
    }
    if (lane == 31) {
        sums[warp] = sum;
    }
    __syncthreads();
    for (u32 other = 0; other < warp; ++other) {
        sum += sums[other];
    }
    return sum - value;
}

/// The place where a block's points go within it, by one digit: points of a warp are neighbours, first those of its first item.
struct NAME_block {
    unsigned short counts[8][256];
    u32 sums[8];

    __device__ __forceinline__ void order(const KEY* key, u32 shift, u32* rank) {
        const u32 warp = threadIdx.x / 32;
        for (u32 other = 0; other < 8; ++other) {
            counts[other][threadIdx.x] = 0;
        }
        __syncthreads();
#pragma unroll
        for (u32 item = 0; item < ITEMS; ++item) {
            rank[item] = NAME_rank(counts[warp], u32(key[item] >> shift) & 255u);
        }
        __syncthreads();
        u32 total = 0;
        for (u32 other = 0; other < 8; ++other) {
            total += counts[other][threadIdx.x];
        }
        u32 before = NAME_before(total, sums);
        for (u32 other = 0; other < 8; ++other) {
            const u32 count = counts[other][threadIdx.x];
            counts[other][threadIdx.x] = (unsigned short)before;
            before += count;
        }
        __syncthreads();
#pragma unroll
        for (u32 item = 0; item < ITEMS; ++item) {
            rank[item] += counts[warp][u32(key[item] >> shift) & 255u];
        }
    }
};

";

const ROWS: &str = "\
extern \"C\" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ NAME_arguments x) {
    __shared__ NAME_block block;
    __shared__ KEY keys[256 * ITEMS];
    __shared__ unsigned short places[256 * ITEMS];
    const u32 begin = threadIdx.x / 32 * 32 * ITEMS + threadIdx.x % 32;
    for (u64 row = blockIdx.x; row < x.outer * x.inner; row += gridDim.x) {
        const u64 first = NAME_first(x, row);
        KEY key[ITEMS];
        u32 place[ITEMS], rank[ITEMS];
#pragma unroll
        for (u32 item = 0; item < ITEMS; ++item) {
            place[item] = begin + item * 32;
            // Beyond the end: behind all that are equal.
            key[item] = place[item] < x.length ? NAME_key(x.source[first + place[item] * x.inner], x.flags) : KEY(MASK);
        }
        for (u32 shift = 0; shift < BITS; shift += 8) {
            block.order(key, shift, rank);
#pragma unroll
            for (u32 item = 0; item < ITEMS; ++item) {
                keys[rank[item]] = key[item];
                places[rank[item]] = (unsigned short)place[item];
            }
            __syncthreads();
#pragma unroll
            for (u32 item = 0; item < ITEMS; ++item) {
                key[item] = keys[begin + item * 32];
                place[item] = places[begin + item * 32];
            }
        }
#pragma unroll
        for (u32 item = 0; item < ITEMS; ++item) {
            const u32 to = begin + item * 32;
            if (to < x.length) {
                NAME_write(x, first, to, key[item], place[item]);
            }
        }
        __syncthreads();
    }
}
";

const COUNT: &str = "\
extern \"C\" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ NAME_arguments x) {
    __shared__ u32 counts[4][256];
    const u32 shift = u32(x.digit) * 8;
    for (u64 tile = blockIdx.x; tile < x.outer * x.inner * x.tiles; tile += gridDim.x) {
        const u64 row = tile / x.tiles, number = tile % x.tiles;
        const u64 first = NAME_first(x, row), begin = number * 256 * ITEMS;
        for (u32 copy = 0; copy < 4; ++copy) {
            counts[copy][threadIdx.x] = 0;
        }
        __syncthreads();
#pragma unroll
        for (u32 item = 0; item < ITEMS; ++item) {
            const u64 at = begin + item * 256 + threadIdx.x;
            if (at < x.length) {
                const KEY key = x.digit == 0 ? NAME_key(x.source[first + at * x.inner], x.flags) : KEY(x.keys_from[row * x.length + at]);
                atomicAdd(&counts[threadIdx.x / 64][u32(key >> shift) & 255u], 1u);
            }
        }
        __syncthreads();
        u32 sum = 0;
        for (u32 copy = 0; copy < 4; ++copy) {
            sum += counts[copy][threadIdx.x];
        }
        x.counts[(row * 256 + threadIdx.x) * x.tiles + number] = sum;
        __syncthreads();
    }
}
";

const ADD: &str = "\
extern \"C\" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ NAME_arguments x) {
    const u32 lane = threadIdx.x & 31u;
    const u64 lines = x.outer * x.inner * 256;
    for (u64 line = u64(blockIdx.x) * 8 + threadIdx.x / 32; line < lines; line += u64(gridDim.x) * 8) {
        u32 carried = 0;
        for (u64 begin = 0; begin < x.tiles; begin += 32) {
            const u64 tile = begin + lane;
            const u32 count = tile < x.tiles ? x.counts[line * x.tiles + tile] : 0;
            u32 sum = count;
            for (u32 step = 1; step < 32; step *= 2) {
                const u32 other = __shfl_up_sync(~0u, sum, step);
                sum += lane >= step ? other : 0;
            }
            if (tile < x.tiles) {
                x.counts[line * x.tiles + tile] = carried + sum - count;
            }
            carried += __shfl_sync(~0u, sum, 31);
        }
        if (lane == 0) {
            x.sums[line] = carried;
        }
    }
}
";

const PLACE: &str = "\
extern \"C\" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ NAME_arguments x) {
    __shared__ NAME_block block;
    __shared__ KEY keys[256 * ITEMS];
    __shared__ u32 marks[256 * ITEMS];
    // Where the points of each digit go, less where they begin in the tile.
    __shared__ u32 offsets[256];
    const u32 shift = u32(x.digit) * 8;
    const u32 start = threadIdx.x / 32 * 32 * ITEMS + threadIdx.x % 32;
    for (u64 tile = blockIdx.x; tile < x.outer * x.inner * x.tiles; tile += gridDim.x) {
        const u64 row = tile / x.tiles, number = tile % x.tiles;
        const u64 first = NAME_first(x, row), begin = number * 256 * ITEMS;
        KEY key[ITEMS];
        u32 mark[ITEMS], rank[ITEMS];
#pragma unroll
        for (u32 item = 0; item < ITEMS; ++item) {
            const u64 at = begin + start + item * 32;
            // Beyond the end: behind all of the last digit.
            key[item] = KEY(MASK);
            mark[item] = 0;
            if (at < x.length) {
                const u64 place = row * x.length + at;
                key[item] = x.digit == 0 ? NAME_key(x.source[first + at * x.inner], x.flags) : KEY(x.keys_from[place]);
                mark[item] = x.digit == 0 ? u32(at) : x.marks_from[place];
            }
        }
        block.order(key, shift, rank);
        // The first warp's counts are where each digit begins.
        const u32 line = x.sums[row * 256 + threadIdx.x];
        const u32 before = NAME_before(line, block.sums);
        offsets[threadIdx.x] =
            before + x.counts[(row * 256 + threadIdx.x) * x.tiles + number] - block.counts[0][threadIdx.x];
#pragma unroll
        for (u32 item = 0; item < ITEMS; ++item) {
            keys[rank[item]] = key[item];
            marks[rank[item]] = mark[item];
        }
        __syncthreads();
        const u64 left = x.length - begin;
#pragma unroll
        for (u32 item = 0; item < ITEMS; ++item) {
            const u32 at = item * 256 + threadIdx.x;
            if (at < left) {
                const KEY moved = keys[at];
                const u64 to = at + offsets[u32(moved >> shift) & 255u];
                if (x.digit + 1 == BITS / 8) {
                    NAME_write(x, first, to, moved, marks[at]);
                } else {
                    x.keys_to[row * x.length + to] = (ELEMENT)moved;
                    x.marks_to[row * x.length + to] = marks[at];
                }
            }
        }
        __syncthreads();
    }
}
";
