// Rows that are combined at sorted indices.
#ifndef NAME
#include "../defaults.cuh"
#define CALL segments<f32, f32, 4, true>(x)
#define BLOCKS 4
#endif
#include "../shared/elements.cuh"
#include "combinations.cuh"

struct arguments {
    const u32* keys;
    const u32* order;
    const i64* through;
    const void* source;
    void* result;
    u32* next_keys;
    void* next_rows;
    u64 outer;
    u64 extent;
    u64 count;
    u64 inner;
    u64 source_strides[3];
    u64 source_rows;
    u64 through_stride;
    u64 skipped;
    u64 combine;
    u64 from_zeros;
    u64 is_later;
    u64 dtype;
    u64 lanes;
};

constexpr u32 THREADS = 256, CHUNK = 32;

// The key of a position without a row, and the row of an index out of range.
constexpr u32 HOLE = ~0u;

// Returns the key of the row before a position, or of the row at or after it. At most one position in between is a hole if the rows
// belong together.
static __device__ __forceinline__ u32 key_before(const arguments& x, const u64 place) {
    const u32 key = place > 0 ? x.keys[place - 1] : HOLE;
    return key == HOLE && place > 1 ? x.keys[place - 2] : key;
}

static __device__ __forceinline__ u32 key_from(const arguments& x, const u64 place) {
    const u32 key = place < x.count ? x.keys[place] : HOLE;
    return key == HOLE && place + 1 < x.count ? x.keys[place + 1] : key;
}

// Combines the rows of each key in some chunks. Rows of a key that are all in one chunk are complete, and are combined with the
// result. The others become up to two rows of the next launch: the chunk's first ones, and its last ones.
template <class T, class SOURCE, u32 WIDTH, bool IS_SUM> static __device__ __forceinline__ void segments(const arguments& x) {
    typedef typename combined<T>::type SUM;
    // With more rows in registers, fewer threads share a multiprocessor.
    constexpr u32 AT_ONCE = WIDTH > 4 ? 2 : 4;
    const u64 way = IS_SUM ? 1 : x.combine;
    const u32 lanes = u32(x.lanes), lane = threadIdx.x % lanes;
    const u64 chunks = (x.count + CHUNK - 1) / CHUNK;
    const u64 columns = x.inner / WIDTH, tiles = (columns + lanes - 1) / lanes;
    const u64 groups = u64(gridDim.x) * (THREADS / lanes);
    // Lanes that share a chunk look up the rows of as many places, so that many loads are in flight.
    const bool are_shared = lanes >= AT_ONCE;
    const u32 group = lanes == 32 ? ~0u : ((1u << lanes) - 1) << (threadIdx.x % 32 / lanes * lanes);
    const auto look_up = [&](const u64 place, const u64 end, u32& key, u32& row) {
        key = place < end ? x.keys[place] : HOLE;
        if (key >= x.extent || key == x.skipped) {
            key = HOLE;
            return;
        }
        const u64 own = x.order == nullptr ? place : u64(x.order[place]);
        const u64 from = x.through == nullptr ? own : u64(x.through[own * x.through_stride]);
        row = from < x.source_rows ? u32(from) : HOLE;
    };
    for (u64 item = (u64(blockIdx.x) * THREADS + threadIdx.x) / lanes; item < x.outer * chunks * tiles; item += groups) {
        const u64 tile = item % tiles, chunk = item / tiles % chunks, o = item / tiles / chunks;
        const u64 begin = chunk * CHUNK, end = min(begin + CHUNK, x.count), column = (tile * lanes + lane) * WIDTH;
        const bool has_column = column < x.inner;
        const SOURCE* const source = (const SOURCE*)x.source + o * x.source_strides[0] + column * x.source_strides[2];
        const u32 before = key_before(x, begin), after = key_from(x, end);
        u32 key = HOLE, own_key = HOLE, own_row = HOLE, slots[2] = {HOLE, HOLE};
        bool is_first = true;
        SUM sum[WIDTH];
        const auto finish = [&](const bool is_last) {
            const bool is_head = is_first && before == key, is_tail = is_last && after == key;
            is_first = false;
            if (is_head || is_tail) {
                const u32 slot = is_head ? 0 : 1;
                slots[slot] = key;
                if (has_column) {
                    vector<SUM, WIDTH> row;
                    #pragma unroll
                    for (u32 i = 0; i < WIDTH; ++i) {
                        row.at[i] = sum[i];
                    }
                    SUM* const to = (SUM*)x.next_rows + ((o * chunks + chunk) * 2 + slot) * x.inner + column;
                    *(vector<SUM, WIDTH>*)to = row;
                }
            } else if (has_column) {
                vector<T, WIDTH>* const to = (vector<T, WIDTH>*)((T*)x.result + (o * x.extent + key) * x.inner + column);
                vector<T, WIDTH> row;
                if (!x.from_zeros) {
                    row = *to;
                }
                #pragma unroll
                for (u32 i = 0; i < WIDTH; ++i) {
                    const SUM all = x.from_zeros ? sum[i] : combine<SUM>(way, widened(row.at[i]), sum[i]);
                    row.at[i] = narrowing<T>::of(all);
                }
                *to = row;
            }
        };
        for (u64 first = begin; first < end; first += AT_ONCE) {
            const u32 from = u32(first - begin) & (lanes - 1);
            if (are_shared && from == 0) {
                look_up(first + lane, end, own_key, own_row);
            }
            u32 keys[AT_ONCE];
            vector<SOURCE, WIDTH> rows[AT_ONCE];
            #pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
                u32 row;
                if (are_shared) {
                    keys[i] = __shfl_sync(group, own_key, from + i, lanes);
                    row = __shfl_sync(group, own_row, from + i, lanes);
                } else {
                    look_up(first + i, end, keys[i], row);
                }
                if (keys[i] == HOLE || !has_column) {
                    continue;
                }
                if (row != HOLE) {
                    rows[i] = *(const vector<SOURCE, WIDTH>*)(source + u64(row) * x.source_strides[1]);
                } else {
                    #pragma unroll
                    for (u32 j = 0; j < WIDTH; ++j) {
                        rows[i].at[j] = no_number<SOURCE>();
                    }
                }
            }
            #pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
                if (keys[i] == HOLE) {
                    continue;
                }
                const bool is_new = keys[i] != key;
                if (is_new) {
                    if (key != HOLE) {
                        finish(false);
                    }
                    key = keys[i];
                }
                #pragma unroll
                for (u32 j = 0; j < WIDTH; ++j) {
                    const SUM value = widened(rows[i].at[j]);
                    sum[j] = is_new ? value : combine<SUM>(way, sum[j], value);
                }
            }
        }
        if (key != HOLE) {
            finish(true);
        }
        if (x.next_keys != nullptr && tile == 0 && o == 0 && lane == 0) {
            x.next_keys[2 * chunk] = slots[0];
            x.next_keys[2 * chunk + 1] = slots[1];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(const __grid_constant__ arguments x) {
    CALL;
}
