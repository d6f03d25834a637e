// Rows that are combined at a short list of indices. The rows of each index are combined in order; if there are many, in order within
// each part of the list, and then the parts.
#ifndef NAME
#include "../defaults.cuh"
#define CALL combine_few<f32, 4, true>(x)
#endif
#include "../shared/elements.cuh"
#include "combinations.cuh"

struct arguments {
    const i64* index;
    const void* source;
    void* result;
    u64 outer;
    u64 extent;
    u64 count;
    u64 inner;
    u64 index_stride;
    u64 source_strides[3];
    u64 skipped;
    u64 combine;
    u64 from_zeros;
    u64 dtype;
};

// The number of indices that are compared at once, and the number of rows that are read at once.
constexpr u32 THREADS = 256, WARPS = THREADS / 32, TILE = 2048, AT_ONCE = 8;

// The most rows of an index that one warp combines. If there are more, all warps of its block share them, each with its part of the
// list.
constexpr u32 MANY = 16;

// The key of an index that names no row.
constexpr u32 NONE = ~0u;

// The elements of a lane in the columns of its warp.
template <class T, u32 WIDTH, bool IS_SUM> struct Columns {
    // Elements that are read one by one are divided into few parts, because more parts mean more code, which takes time to fetch.
    static constexpr u32 OWN = WIDTH < 4 ? 2 * WIDTH : 8, PARTS = OWN / WIDTH;
    typedef typename combined<T>::type SUM;
    u64 first, count;
    SUM sum[OWN];
    bool is_empty = true;

    __device__ __forceinline__ bool has(const u32 part) const { return first + part * 32 * WIDTH < count; }

    // Combines the first `rows` of the AT_ONCE rows in a list.
    __device__ __forceinline__ void add(const arguments& x, const T* const source, const u32* const places, const u32 rows) {
        vector<T, WIDTH> values[AT_ONCE][PARTS];
        #pragma unroll
        for (u32 i = 0; i < AT_ONCE; ++i) {
            if (i < rows) {
                const T* const row = source + places[i] * x.source_strides[1];
                #pragma unroll
                for (u32 part = 0; part < PARTS; ++part) {
                    if (has(part)) {
                        values[i][part] = *(const vector<T, WIDTH>*)(row + (first + part * 32 * WIDTH) * x.source_strides[2]);
                    }
                }
            }
        }
        if constexpr (IS_SUM) {
            accumulate<1>(values, rows);
            return;
        }
        // The operation is chosen once: a choice at each element would take longer than the operation.
        switch (x.combine) {
            case 2: accumulate<2>(values, rows); break;
            case 3: accumulate<3>(values, rows); break;
            default: accumulate<4>(values, rows);
        }
    }

    template <u64 WAY> __device__ __forceinline__ void accumulate(const vector<T, WIDTH> (&values)[AT_ONCE][PARTS], const u32 rows) {
        #pragma unroll
        for (u32 i = 0; i < AT_ONCE; ++i) {
            if (i < rows) {
                #pragma unroll
                for (u32 part = 0; part < PARTS; ++part) {
                    if (has(part)) {
                        #pragma unroll
                        for (u32 j = 0; j < WIDTH; ++j) {
                            SUM& own = sum[part * WIDTH + j];
                            const SUM value = widened(values[i][part].at[j]);
                            own = is_empty ? value : combine<SUM>(WAY, own, value);
                        }
                    }
                }
                is_empty = false;
            }
        }
    }

    // Combines the rows of a queue, AT_ONCE at a time, and leaves the remaining ones in it. Returns the number of rows that remain.
    __device__ __forceinline__ u32 drain(const arguments& x, const T* const source, u32* const queue, const u32 queued) {
        const u32 lane = threadIdx.x % 32;
        u32 done = 0;
        for (; queued - done >= AT_ONCE; done += AT_ONCE) {
            add(x, source, queue + done, AT_ONCE);
        }
        const u32 left = lane < queued - done ? queue[done + lane] : 0;
        __syncwarp();
        queue[lane] = left;
        __syncwarp();
        return queued - done;
    }

    // Combines the rows with a given index at the positions from `first` to `end` (exclusive).
    __device__ __forceinline__ void add_share(
        const arguments& x, const T* const source, u32* const queue, const u32 key, const u64 first, const u64 end) {
        const u32 lane = threadIdx.x % 32;
        u32 queued = 0;
        for (u64 start = first; start < end; start += 32) {
            const u64 place = start + lane;
            const bool is_equal = place < end && u64(x.index[place * x.index_stride]) == key;
            const u32 lanes = __ballot_sync(~0u, is_equal);
            if (is_equal) {
                queue[queued + __popc(lanes & ((1u << lane) - 1))] = u32(place);
            }
            __syncwarp();
            queued = drain(x, source, queue, queued + __popc(lanes));
        }
        add(x, source, queue, queued);
    }

    __device__ __forceinline__ void write(const arguments& x, T* const row) const {
        #pragma unroll
        for (u32 part = 0; part < PARTS; ++part) {
            if (!has(part)) {
                continue;
            }
            vector<T, WIDTH>* const to = (vector<T, WIDTH>*)(row + first + part * 32 * WIDTH);
            vector<T, WIDTH> all;
            if (!x.from_zeros) {
                all = *to;
            }
            #pragma unroll
            for (u32 j = 0; j < WIDTH; ++j) {
                const SUM own = sum[part * WIDTH + j];
                all.at[j] = narrowing<T>::of(x.from_zeros ? own : combine<SUM>(IS_SUM ? 1 : x.combine, widened(all.at[j]), own));
            }
            *to = all;
        }
    }
};

// A warp handles one position of the list, and some columns of its row. It combines the rows of all positions with its index, unless
// an earlier position has that index. The positions of a block are far apart, because the first positions of frequent indices are
// mostly close together.
template <class T, u32 WIDTH, bool IS_SUM> static __device__ __forceinline__ void combine_few(const arguments& x) {
    typedef typename combined<T>::type SUM;
    constexpr u32 OWN = Columns<T, WIDTH, IS_SUM>::OWN;
    __shared__ u32 tile[TILE], queues[WARPS][64], of_many[WARPS];
    __shared__ SUM shares[WARPS][OWN][32];
    __shared__ bool is_share[WARPS];
    const u32 thread = threadIdx.x, lane = thread % 32;
    u32* const queue = queues[thread / 32];
    const u64 parts = (x.inner + 32 * OWN - 1) / (32 * OWN), blocks = (x.count + WARPS - 1) / WARPS;
    for (u64 item = blockIdx.x; item < x.outer * blocks * parts; item += gridDim.x) {
        const u64 part = item % parts, place = item / parts % blocks + thread / 32 * blocks, o = item / parts / blocks;
        Columns<T, WIDTH, IS_SUM> columns;
        columns.first = part * 32 * OWN + lane * WIDTH;
        columns.count = x.inner;
        const T* const source = (const T*)x.source + o * x.source_strides[0];
        const u64 index = place < x.count ? u64(x.index[place * x.index_stride]) : ~0ull;
        const u32 key = index < x.extent && index != x.skipped ? u32(index) : NONE;
        bool is_first = key != NONE;
        u32 rows = 0;
        for (u64 first = 0; first < x.count && __syncthreads_or(is_first && rows <= MANY); first += TILE) {
            const u32 size = x.count - first < TILE ? u32(x.count - first) : TILE;
            for (u32 i = thread; i < TILE; i += THREADS) {
                const u64 other = i < size ? u64(x.index[(first + i) * x.index_stride]) : ~0ull;
                tile[i] = other < x.extent ? u32(other) : NONE;
            }
            __syncthreads();
            for (u32 start = 0; is_first && rows <= MANY && start < size; start += 256) {
                // Compares eight windows of 32 indices at once: most contain no equal index.
                u32 equal = 0;
                #pragma unroll
                for (u32 i = 0; i < 8; ++i) {
                    equal |= u32(tile[start + 32 * i + lane] == key) << i;
                }
                if (!__any_sync(~0u, equal != 0)) {
                    continue;
                }
                for (u32 i = 0; is_first && rows <= MANY && i < 8; ++i) {
                    const u32 lanes = __ballot_sync(~0u, equal >> i & 1);
                    const u64 window = first + start + 32 * i;
                    if (lanes == 0) {
                        continue;
                    }
                    // An earlier position has this index: its warp combines the rows.
                    is_first = rows > 0 || window + __ffs(i32(lanes)) - 1 >= place;
                    const u32 before = rows;
                    rows += __popc(lanes);
                    if (is_first && rows <= MANY && (equal >> i & 1)) {
                        queue[before + __popc(lanes & ((1u << lane) - 1))] = u32(window) + lane;
                    }
                }
            }
        }
        __syncwarp();
        const bool has_many = is_first && rows > MANY;
        if (is_first && !has_many) {
            for (u32 first = 0; first < rows; first += AT_ONCE) {
                columns.add(x, source, queue + first, rows - first < AT_ONCE ? rows - first : AT_ONCE);
            }
            columns.write(x, (T*)x.result + (o * x.extent + key) * x.inner);
        }
        if (!__syncthreads_or(has_many)) {
            continue;
        }
        if (lane == 0) {
            of_many[thread / 32] = has_many ? key : NONE;
        }
        __syncthreads();
        const u64 share = (x.count + WARPS - 1) / WARPS, begin = thread / 32 * share;
        for (u32 owner = 0; owner < WARPS; ++owner) {
            const u32 many = of_many[owner];
            if (many == NONE) {
                continue;
            }
            columns.is_empty = true;
            columns.add_share(x, source, queue, many, begin, begin + share < x.count ? begin + share : x.count);
            #pragma unroll
            for (u32 j = 0; j < OWN; ++j) {
                shares[thread / 32][j][lane] = columns.sum[j];
            }
            is_share[thread / 32] = !columns.is_empty;
            __syncthreads();
            if (thread / 32 == owner) {
                columns.is_empty = true;
                for (u32 warp = 0; warp < WARPS; ++warp) {
                    if (!is_share[warp]) {
                        continue;
                    }
                    #pragma unroll
                    for (u32 j = 0; j < OWN; ++j) {
                        const SUM value = shares[warp][j][lane];
                        columns.sum[j] = columns.is_empty ? value : combine<SUM>(IS_SUM ? 1 : x.combine, columns.sum[j], value);
                    }
                    columns.is_empty = false;
                }
                columns.write(x, (T*)x.result + (o * x.extent + many) * x.inner);
            }
            __syncthreads();
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ arguments x) {
    CALL;
}
