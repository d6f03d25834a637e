struct NAME_arguments {
    const ELEMENT* source;
    POINTER other;
    ELEMENT* result;
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

struct NAME_point {
    SUM value;
    OTHER other;
};

static __device__ __forceinline__ NAME_point NAME_combine(NAME_point left, NAME_point right) {
    COMBINE
}

static __device__ __forceinline__ NAME_point NAME_lane(NAME_point point, u32 lane) {
    point.value = __shfl_sync(~0u, point.value, lane);
    point.other = __shfl_sync(~0u, point.other, lane);
    return point;
}

// Combines each lane's point with those of the lanes before it, by doubling distances.
static __device__ __forceinline__ NAME_point NAME_running(NAME_point point, u32 lane) {
    #pragma unroll
    for (u32 distance = 1; distance < 32; distance *= 2) {
        NAME_point left;
        left.value = __shfl_up_sync(~0u, point.value, distance);
        left.other = __shfl_up_sync(~0u, point.other, distance);
        if (lane >= distance) {
            point = NAME_combine(left, point);
        }
    }
    return point;
}

static __device__ __forceinline__ void NAME_turn(NAME_point (&points)[8]) {
    #pragma unroll
    for (u32 j = 0; j < 4; ++j) {
        const NAME_point point = points[j];
        points[j] = points[7 - j];
        points[7 - j] = point;
    }
}

// Loads the eight points from a place of a row on, as far as they are inside of it.
static __device__ __forceinline__ void NAME_load(
    const NAME_arguments& x, u64 origin, u64 first, bool wide, NAME_point (&points)[8]) {
    constexpr u32 WIDTH = 16 / sizeof(ELEMENT);
    if (wide) {
        const u64 start = origin + (x.reversed ? x.length - 8 - first : first);
        #pragma unroll
        for (u32 part = 0; part < 8; part += WIDTH) {
            const pack<ELEMENT, WIDTH> source = *(const pack<ELEMENT, WIDTH>*)(x.source + start + part);
            LOAD_OTHER
            #pragma unroll
            for (u32 e = 0; e < WIDTH; ++e) {
                NAME_point point;
                point.value = LOAD(source.element[e]);
                point.other = WIDE_SECOND;
                points[part + e] = point;
            }
        }
        if (x.reversed) {
            NAME_turn(points);
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
            points[j].other = SECOND;
        }
    }
}

static __device__ __forceinline__ void NAME_store(
    const NAME_arguments& x, u64 origin, u64 first, bool wide, NAME_point (&points)[8]) {
    constexpr u32 WIDTH = 16 / sizeof(ELEMENT);
    if (wide) {
        if (x.reversed) {
            NAME_turn(points);
        }
        const u64 start = origin + (x.reversed ? x.length - 8 - first : first);
        #pragma unroll
        for (u32 part = 0; part < 8; part += WIDTH) {
            pack<ELEMENT, WIDTH> result;
            #pragma unroll
            for (u32 e = 0; e < WIDTH; ++e) {
                result.element[e] = STORE(points[part + e].value);
            }
            *(pack<ELEMENT, WIDTH>*)(x.result + start + part) = result;
        }
        WIDE_WRITE
        return;
    }
    #pragma unroll
    for (u32 j = 0; j < 8; ++j) {
        if (first + j < x.length) {
            const u64 at = x.reversed ? x.length - 1 - first - j : first + j;
            const u64 place = origin + at * x.inner;
            x.result[place] = STORE(points[j].value);
            WRITE
        }
    }
}

// What stands before a thread's points: of the lanes or warps before it, and of the chunks before.
struct NAME_before {
    NAME_point point;
    bool exists;
};

static __device__ __forceinline__ void NAME_prepend(NAME_before& before, NAME_point left) {
    before.point = before.exists ? NAME_combine(left, before.point) : left;
    before.exists = true;
}

static __device__ __forceinline__ void NAME_finish(
    const NAME_arguments& x, u64 origin, u64 first, bool wide, const NAME_before& before, NAME_point (&points)[8]) {
    if (before.exists) {
        #pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            points[j] = NAME_combine(before.point, points[j]);
        }
    }
    NAME_store(x, origin, first, wide, points);
}

// What comes before a part of a row: the totals of the parts before it, 32 at a time.
static __device__ __forceinline__ NAME_before NAME_parts_before(const NAME_arguments& x, u64 row, u64 number, u32 lane) {
    const NAME_point* const totals = (const NAME_point*)x.totals + row * x.parts;
    NAME_before before = {{}, false};
    for (u64 first = 0; first < number; first += 32) {
        const u64 rest = number - first, own = lane < rest ? lane : rest - 1;
        const NAME_point running = NAME_running(totals[first + own], lane);
        const NAME_point total = NAME_lane(running, rest < 32 ? u32(rest) - 1 : 31);
        before.point = before.exists ? NAME_combine(before.point, total) : total;
        before.exists = true;
    }
    return before;
}

// Rows that are contiguous, or parts of them: `warps` of a block, or each warp of a block alone, walk one.
static __device__ __forceinline__ void NAME_rows(const NAME_arguments& x, NAME_point* totals) {
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
        NAME_before carried = {{}, false};
        if (x.phase == 2) {
            carried = NAME_parts_before(x, row, item % x.parts, lane);
        }
        for (u64 chunk = begin; chunk < end; chunk += 256 * warps) {
            const u64 first = chunk + part * 256 + lane * 8;
            const bool wide = x.vectors && first + 8 <= x.length;
            NAME_point points[8];
            NAME_load(x, origin, first, wide, points);
            #pragma unroll
            for (u32 j = 1; j < 8; ++j) {
                points[j] = NAME_combine(points[j - 1], points[j]);
            }
            const NAME_point running = NAME_running(points[7], lane);
            NAME_before before = {NAME_lane(running, lane > 0 ? lane - 1 : 0), lane > 0};
            NAME_point total = NAME_lane(running, 31);
            if (warps > 1) {
                if (lane == 0) {
                    totals[warp] = total;
                }
                __syncthreads();
                const NAME_point of_warps = NAME_running(totals[lane < warps ? lane : 0], lane);
                const NAME_point left = NAME_lane(of_warps, part > 0 ? part - 1 : 0);
                total = NAME_lane(of_warps, warps - 1);
                if (part > 0) {
                    NAME_prepend(before, left);
                }
                // Before the totals are another chunk's.
                __syncthreads();
            }
            if (carried.exists) {
                NAME_prepend(before, carried.point);
                total = NAME_combine(carried.point, total);
            }
            carried = {total, true};
            if (x.phase != 1) {
                NAME_finish(x, origin, first, wide, before, points);
            }
        }
        if (x.phase == 1 && part == 0 && lane == 0) {
            ((NAME_point*)x.totals)[item] = carried.point;
        }
    }
}

// Rows that lie side by side: a lane walks one, and the warps of a block eight points of it each.
static __device__ __forceinline__ void NAME_columns(const NAME_arguments& x, NAME_point* totals) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = u32(x.warps);
    const u64 columns = x.outer * x.inner;
    for (u64 base = u64(blockIdx.x) * 32; base < columns; base += u64(gridDim.x) * 32) {
        const u64 column = base + lane;
        const u64 origin = column / x.inner * x.length * x.inner + column % x.inner;
        NAME_point carried = {};
        for (u64 chunk = 0; chunk < x.length; chunk += 8 * warps) {
            const u64 first = column < columns ? chunk + warp * 8 : x.length;
            NAME_point points[8];
            NAME_load(x, origin, first, false, points);
            #pragma unroll
            for (u32 j = 1; j < 8; ++j) {
                points[j] = NAME_combine(points[j - 1], points[j]);
            }
            totals[warp * 33 + lane] = points[7];
            __syncthreads();
            for (u32 turned = warp; turned < 32; turned += warps) {
                const NAME_point running = NAME_running(totals[(lane < warps ? lane : 0) * 33 + turned], lane);
                __syncwarp();
                if (lane < warps) {
                    totals[lane * 33 + turned] = running;
                }
            }
            __syncthreads();
            NAME_before before = {totals[(warp > 0 ? warp - 1 : 0) * 33 + lane], warp > 0};
            NAME_point total = totals[(warps - 1) * 33 + lane];
            // Before the totals are another chunk's.
            __syncthreads();
            if (chunk > 0) {
                NAME_prepend(before, carried);
                total = NAME_combine(carried, total);
            }
            carried = total;
            NAME_finish(x, origin, first, false, before, points);
        }
    }
}

extern "C" __global__ void __launch_bounds__(1024) NAME(const __grid_constant__ NAME_arguments x) {
    __shared__ NAME_point totals[32 * 33];
    if (x.inner == 1) {
        NAME_rows(x, totals);
    } else {
        NAME_columns(x, totals);
    }
}
