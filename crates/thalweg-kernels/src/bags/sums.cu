// Rows of a table that are summed, averaged or compared in bags.
#ifndef NAME
#include "../defaults.cuh"
#define CALL bags<f32, 4, false>(x)
#endif
#include "../shared/elements.cuh"

struct arguments {
    const void* table;
    const i64* indices;
    const i64* offsets;
    const void* factors;
    void* result;
    i64* bags_of;
    i64* sizes;
    i64* maxima;
    u64 count;
    u64 bags;
    u64 rows;
    u64 features;
    u64 mode;
    i64 padding;
    u64 dtype;
    u64 lanes;
    u64 groups;
    volatile i64* report;
};

constexpr u32 THREADS = 256, AT_ONCE = 4;

// The numbers of `BagMode`.
enum Mode : u64 { SUM, MEAN, MAX };

// The combination of some rows of a bag: for maxima, also the position of each among the indices, or −1 if there is none.
template <class SUM_TYPE, u32 WIDTH, bool IS_MAX> struct Part {
    SUM_TYPE sum[WIDTH];
    i64 place[IS_MAX ? WIDTH : 1];
    u64 count;
};

// Returns whether a number replaces another one as the maximum: NaN is the greatest, and among equal numbers the first one is kept.
template <class SUM_TYPE>
static __device__ __forceinline__ bool replaces(const SUM_TYPE old, const i64 old_place, const SUM_TYPE value, const i64 place) {
    if (place < 0 || old_place < 0) {
        return place >= 0;
    }
    const bool is_nan = value != value, was_nan = old != old;
    const bool is_equal = value == old || (is_nan && was_nan);
    return is_equal ? place < old_place : !was_nan && (is_nan || value > old);
}

// Combines the rows of some bags: each block combines several bags, with `groups` groups of `lanes` threads per bag. A group combines
// every `groups`-th row, and then the groups are combined in pairs, so that a result does not depend on timing.
template <class T, u32 WIDTH, bool IS_MAX> static __device__ __forceinline__ void bags(const arguments& x) {
    typedef typename combined<T>::type SUM_TYPE;
    typedef Part<SUM_TYPE, WIDTH, IS_MAX> PART;
    extern __shared__ __align__(16) unsigned char shared[];
    PART* const parts = (PART*)shared;
    const u32 thread = threadIdx.x, lanes = u32(x.lanes), groups = u32(x.groups);
    const u32 lane = thread % lanes, group = thread / lanes % groups, abreast = THREADS / (lanes * groups);
    const u64 columns = (x.features + WIDTH - 1) / WIDTH, tiles = (columns + lanes - 1) / lanes;
    const u64 items = (x.bags + abreast - 1) / abreast * tiles;
    const auto limited = [&](const i64 offset) { return offset < 0 ? 0 : u64(offset) < x.count ? u64(offset) : x.count; };
    for (u64 item = blockIdx.x; item < items; item += gridDim.x) {
        const u64 tile = item % tiles, bag = item / tiles * abreast + thread / (lanes * groups);
        const u64 column = (tile * lanes + lane) * WIDTH;
        const bool has_bag = bag < x.bags, has_column = has_bag && column < x.features, is_first = tile == 0 && lane == 0;
        const u64 begin = has_bag && bag > 0 ? limited(x.offsets[bag]) : 0;
        const u64 end = !has_bag ? 0 : bag + 1 < x.bags ? limited(x.offsets[bag + 1]) : x.count;
        if (has_bag && is_first && group == 0) {
            // The first bag begins with the first index, and none begins after the last one.
            const i64 offset = x.offsets[bag];
            const u64 last = bag == 0 ? 0 : x.count;
            if (u64(offset) > last) {
                x.report[0] = offset;
                x.report[1] = i64(last) + 2;
            }
        }
        PART part;
        #pragma unroll
        for (u32 j = 0; j < WIDTH; ++j) {
            part.sum[j] = SUM_TYPE(0);
            part.place[IS_MAX ? j : 0] = -1;
        }
        part.count = 0;
        for (u64 first = begin + group; first < end; first += groups * AT_ONCE) {
            bool is_counted[AT_ONCE];
            vector<T, WIDTH> rows[AT_ONCE];
            SUM_TYPE factors[AT_ONCE];
            #pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
                const u64 place = first + i * groups;
                is_counted[i] = false;
                if (place >= end) {
                    continue;
                }
                const i64 named = x.indices[place];
                if (is_first) {
                    x.bags_of[place] = i64(bag);
                }
                if (u64(named) >= x.rows) {
                    x.report[0] = named;
                    x.report[1] = i64(x.rows) + 1;
                } else if (named != x.padding) {
                    is_counted[i] = true;
                    if (has_column) {
                        rows[i] = *(const vector<T, WIDTH>*)((const T*)x.table + u64(named) * x.features + column);
                    }
                    factors[i] = x.factors == nullptr ? SUM_TYPE(1) : widened(((const T*)x.factors)[place]);
                }
            }
            #pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
                if (!is_counted[i]) {
                    continue;
                }
                ++part.count;
                if (!has_column) {
                    continue;
                }
                #pragma unroll
                for (u32 j = 0; j < WIDTH; ++j) {
                    const SUM_TYPE value = widened(rows[i].at[j]);
                    if constexpr (IS_MAX) {
                        const i64 place = i64(first + i * groups);
                        if (replaces(part.sum[j], part.place[j], value, place)) {
                            part.sum[j] = value;
                            part.place[j] = place;
                        }
                    } else {
                        part.sum[j] = part.sum[j] + value * factors[i];
                    }
                }
            }
        }
        for (u32 step = groups / 2; step > 0; step /= 2) {
            parts[thread] = part;
            __syncthreads();
            if (group < step) {
                const PART& other = parts[thread + step * lanes];
                #pragma unroll
                for (u32 j = 0; j < WIDTH; ++j) {
                    if constexpr (IS_MAX) {
                        if (replaces(part.sum[j], part.place[j], other.sum[j], other.place[j])) {
                            part.sum[j] = other.sum[j];
                            part.place[j] = other.place[j];
                        }
                    } else {
                        part.sum[j] = part.sum[j] + other.sum[j];
                    }
                }
                part.count += other.count;
            }
            __syncthreads();
        }
        if (group > 0 || !has_bag) {
            continue;
        }
        if (is_first) {
            x.sizes[bag] = i64(part.count);
        }
        if (has_column) {
            const SUM_TYPE divisor = SUM_TYPE(part.count > 0 ? part.count : 1);
            vector<T, WIDTH> row;
            #pragma unroll
            for (u32 j = 0; j < WIDTH; ++j) {
                row.at[j] = narrowing<T>::of(x.mode == MEAN ? part.sum[j] / divisor : part.sum[j]);
                if constexpr (IS_MAX) {
                    x.maxima[bag * x.features + column + j] = part.place[j] < 0 ? -1 : x.indices[part.place[j]];
                }
            }
            *(vector<T, WIDTH>*)((T*)x.result + bag * x.features + column) = row;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ arguments x) {
    CALL;
}
