// Scans of rows and columns. A thread combines eight points, then lanes, warps and parts of a row are combined.
#ifndef NAME
#include "../defaults.cuh"
#define OP 0
#endif

// The numbers of `ScanOp`.
enum : u32 { SUM, PRODUCT, LOG_SUM_EXP, MAX, MIN, RECURRENCE };
#define HAS_PLACES (OP == MAX || OP == MIN)

struct arguments {
    const Element* source;
    void* other;
    Element* result;
    void* totals;
    u64 outer;
    u64 length;
    u64 inner;
    u64 reversed;
    u64 dtype;
    u64 op;
    u64 phase;
    u64 part;
    u64 parts;
    u64 warps;
    u64 vectors;
};

// The second number of a point: its position, a factor, or none.
template <u32 KIND> struct second { typedef i32 type; };
template <> struct second<MAX> { typedef i64 type; };
template <> struct second<MIN> { typedef i64 type; };
template <> struct second<RECURRENCE> { typedef Sum type; };
typedef second<OP>::type Other;

struct Point {
    Sum value;
    Other other;
};

// Combines a point with those before it.
template <class P> static __device__ __forceinline__ P combine(P left, P right) {
    if constexpr (OP == SUM) {
        right.value = left.value + right.value;
    } else if constexpr (OP == PRODUCT) {
        right.value = left.value * right.value;
    } else if constexpr (OP == LOG_SUM_EXP) {
        const auto low = left.value < right.value ? left.value : right.value;
        const auto high = left.value < right.value ? right.value : left.value;
        if (left.value != left.value) { return left; }
        if (right.value != right.value) { return right; }
        right.value = low != high || low - low == Sum(0) ? high + log1p(exp(low - high)) : left.value;
    } else if constexpr (OP == MAX) {
        return right.value != right.value || (left.value == left.value && right.value >= left.value) ? right : left;
    } else if constexpr (OP == MIN) {
        return right.value != right.value || (left.value == left.value && right.value <= left.value) ? right : left;
    } else {
        right.value = right.value + right.other * left.value;
        right.other = right.other * left.other;
    }
    return right;
}

static __device__ __forceinline__ Point from_lane(Point point, u32 lane) {
    point.value = __shfl_sync(~0u, point.value, lane);
    point.other = __shfl_sync(~0u, point.other, lane);
    return point;
}

// Combines each lane's point with those of the preceding lanes, by doubling distances.
static __device__ __forceinline__ Point scan_lanes(Point point, u32 lane) {
    #pragma unroll
    for (u32 distance = 1; distance < 32; distance *= 2) {
        Point left;
        left.value = __shfl_up_sync(~0u, point.value, distance);
        left.other = __shfl_up_sync(~0u, point.other, distance);
        if (lane >= distance) {
            point = combine(left, point);
        }
    }
    return point;
}

static __device__ __forceinline__ void turn(Point (&points)[8]) {
    #pragma unroll
    for (u32 j = 0; j < 4; ++j) {
        const Point point = points[j];
        points[j] = points[7 - j];
        points[7 - j] = point;
    }
}

// Loads eight points beginning at a position of a row, up to the end of the row.
static __device__ __forceinline__ void load(
    const arguments& x, u64 origin, u64 first, bool wide, Point (&points)[8]) {
    #define WIDTH u32(16 / sizeof(Element))
    if (wide) {
        const u64 start = origin + (x.reversed ? x.length - 8 - first : first);
        #pragma unroll
        for (u32 part = 0; part < 8; part += WIDTH) {
            const pack<Element, WIDTH> source = *(const pack<Element, WIDTH>*)(x.source + start + part);
            pack<Element, WIDTH> other = {};
            if (OP == RECURRENCE) {
                other = *(const pack<Element, WIDTH>*)((const Element*)x.other + start + part);
            }
            #pragma unroll
            for (u32 e = 0; e < WIDTH; ++e) {
                Point point;
                point.value = LOAD(source.element[e]);
                point.other = HAS_PLACES ? Other((x.reversed ? x.length - 8 - first : first) + part + e) : OP == RECURRENCE ? Other(LOAD(other.element[e])) : Other(0);
                points[part + e] = point;
            }
        }
        if (x.reversed) {
            turn(points);
        }
        return;
    }
    #pragma unroll
    for (u32 j = 0; j < 8; ++j) {
        points[j] = {};
        if (first + j < x.length) {
            const u64 at = x.reversed ? x.length - 1 - first - j : first + j;
            const u64 place = origin + at * x.inner;
            points[j].value = LOAD(x.source[place]);
            points[j].other = HAS_PLACES ? Other(at) : OP == RECURRENCE ? Other(LOAD(((const Element*)x.other)[place])) : Other(0);
        }
    }
}

static __device__ __forceinline__ void store(
    const arguments& x, u64 origin, u64 first, bool wide, Point (&points)[8]) {
    #define WIDTH u32(16 / sizeof(Element))
    if (wide) {
        if (x.reversed) {
            turn(points);
        }
        const u64 start = origin + (x.reversed ? x.length - 8 - first : first);
        #pragma unroll
        for (u32 part = 0; part < 8; part += WIDTH) {
            pack<Element, WIDTH> result;
            #pragma unroll
            for (u32 e = 0; e < WIDTH; ++e) {
                result.element[e] = STORE(points[part + e].value);
            }
            *(pack<Element, WIDTH>*)(x.result + start + part) = result;
        }
        if (HAS_PLACES) {
            #pragma unroll
            for (u32 part = 0; part < 8; part += 2) {
                pack<i64, 2> places;
                places.element[0] = i64(points[part].other);
                places.element[1] = i64(points[part + 1].other);
                *(pack<i64, 2>*)((i64*)x.other + start + part) = places;
            }
        }
        return;
    }
    #pragma unroll
    for (u32 j = 0; j < 8; ++j) {
        if (first + j < x.length) {
            const u64 at = x.reversed ? x.length - 1 - first - j : first + j;
            const u64 place = origin + at * x.inner;
            x.result[place] = STORE(points[j].value);
            if (HAS_PLACES) {
                ((i64*)x.other)[place] = i64(points[j].other);
            }
        }
    }
}

// The combination of everything before a thread's points: of the preceding lanes or warps, and of the preceding chunks.
struct Before {
    Point point;
    bool exists;
};

static __device__ __forceinline__ void prepend(Before& before, Point left) {
    before.point = before.exists ? combine(left, before.point) : left;
    before.exists = true;
}

static __device__ __forceinline__ void finish(
    const arguments& x, u64 origin, u64 first, bool wide, const Before& before, Point (&points)[8]) {
    if (before.exists) {
        #pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            points[j] = combine(before.point, points[j]);
        }
    }
    store(x, origin, first, wide, points);
}

// The combination of everything before a part of a row: the totals of the preceding parts, 32 at a time.
static __device__ __forceinline__ Before parts_before(const arguments& x, u64 row, u64 number, u32 lane) {
    const Point* const totals = (const Point*)x.totals + row * x.parts;
    Before before = {{}, false};
    for (u64 first = 0; first < number; first += 32) {
        const u64 rest = number - first, own = lane < rest ? lane : rest - 1;
        const Point running = scan_lanes(totals[first + own], lane);
        const Point total = from_lane(running, rest < 32 ? u32(rest) - 1 : 31);
        before.point = before.exists ? combine(before.point, total) : total;
        before.exists = true;
    }
    return before;
}

// Scans contiguous rows, or parts of them: `warps` warps of a block scan one row together, or each warp scans its own.
static __device__ __forceinline__ void rows(const arguments& x, Point* totals) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = u32(x.warps);
    const u32 part = warp % warps, together = blockDim.x / 32 / warps;
    const u64 items = x.outer * x.parts;
    for (u64 base = u64(blockIdx.x) * together; base < items; base += u64(gridDim.x) * together) {
        const u64 item = base + warp / warps;
        if (item >= items) {
            break;
        }
        const u64 row = item / x.parts, begin = item % x.parts * x.part, origin = row * x.length;
        const u64 end = x.length - begin < x.part ? x.length : begin + x.part;
        Before carried = {{}, false};
        if (x.phase == 2) {
            carried = parts_before(x, row, item % x.parts, lane);
        }
        for (u64 chunk = begin; chunk < end; chunk += 256 * warps) {
            const u64 first = chunk + part * 256 + lane * 8;
            const bool wide = x.vectors && first + 8 <= x.length;
            Point points[8];
            load(x, origin, first, wide, points);
            #pragma unroll
            for (u32 j = 1; j < 8; ++j) {
                points[j] = combine(points[j - 1], points[j]);
            }
            const Point running = scan_lanes(points[7], lane);
            Before before = {from_lane(running, lane > 0 ? lane - 1 : 0), lane > 0};
            Point total = from_lane(running, 31);
            if (warps > 1) {
                if (lane == 0) {
                    totals[warp] = total;
                }
                __syncthreads();
                const Point of_warps = scan_lanes(totals[lane < warps ? lane : 0], lane);
                const Point left = from_lane(of_warps, part > 0 ? part - 1 : 0);
                total = from_lane(of_warps, warps - 1);
                if (part > 0) {
                    prepend(before, left);
                }
                // Before the totals are overwritten by those of the next chunk.
                __syncthreads();
            }
            if (carried.exists) {
                prepend(before, carried.point);
                total = combine(carried.point, total);
            }
            carried = {total, true};
            if (x.phase != 1) {
                finish(x, origin, first, wide, before, points);
            }
        }
        if (x.phase == 1 && part == 0 && lane == 0) {
            ((Point*)x.totals)[item] = carried.point;
        }
    }
}

// Adjacent rows: each lane scans one row, and each warp of the block scans eight of its points.
static __device__ __forceinline__ void columns(const arguments& x, Point* totals) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = u32(x.warps);
    const u64 columns = x.outer * x.inner;
    for (u64 base = u64(blockIdx.x) * 32; base < columns; base += u64(gridDim.x) * 32) {
        const u64 column = base + lane;
        const u64 origin = column / x.inner * x.length * x.inner + column % x.inner;
        Point carried = {};
        for (u64 chunk = 0; chunk < x.length; chunk += 8 * warps) {
            const u64 first = column < columns ? chunk + warp * 8 : x.length;
            Point points[8];
            load(x, origin, first, false, points);
            #pragma unroll
            for (u32 j = 1; j < 8; ++j) {
                points[j] = combine(points[j - 1], points[j]);
            }
            totals[warp * 33 + lane] = points[7];
            __syncthreads();
            for (u32 turned = warp; turned < 32; turned += warps) {
                const Point running = scan_lanes(totals[(lane < warps ? lane : 0) * 33 + turned], lane);
                __syncwarp();
                if (lane < warps) {
                    totals[lane * 33 + turned] = running;
                }
            }
            __syncthreads();
            Before before = {totals[(warp > 0 ? warp - 1 : 0) * 33 + lane], warp > 0};
            Point total = totals[(warps - 1) * 33 + lane];
            // Before the totals are overwritten by those of the next chunk.
            __syncthreads();
            if (chunk > 0) {
                prepend(before, carried);
                total = combine(carried, total);
            }
            carried = total;
            finish(x, origin, first, false, before, points);
        }
    }
}

extern "C" __global__ void __launch_bounds__(1024) NAME(const __grid_constant__ arguments x) {
    __shared__ Point totals[32 * 33];
    if (x.inner == 1) {
        rows(x, totals);
    } else {
        columns(x, totals);
    }
}
