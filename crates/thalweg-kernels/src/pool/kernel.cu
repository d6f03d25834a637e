// Means and greatest elements of windows, and their gradients.
#ifndef NAME
#include "../defaults.cuh"
#define IS_GREATEST 1
#define IS_BACKWARD 0
#define IS_WITHIN 0
#define POINTS 1
#define WIDE 8
#endif
#include "../shared/planes.cuh"

// Converts to Sum without changing the value.
#define INFINITE Sum(__int_as_float(0x7f800000))

// The place of a window's greatest element: in its plane; or within the window, of which 255 is none.
#if IS_WITHIN
typedef u8 Spot;
#else
typedef i64 Spot;
#endif

struct arguments {
    const Element* source;
    Spot* places;
    Element* result;
    u64 planes;
    u64 inner;
    u64 extents[3];
    u64 windows[3];
    u64 kernel[3];
    u64 stride[3];
    u64 padding[3];
    u64 dilation[3];
    u64 counts_padding;
    u64 divisor;
    u64 dtype;
    u64 pass;
    u64 vector;
};

// The windows that can contain a coordinate of an axis, or the coordinates of a window: from `first` to `end` (exclusive).
struct range {
    i32 first;
    i32 end;
};

static __device__ __forceinline__ i32 lower(i32 a, i32 b) {
    return a < b ? a : b;
}

static __device__ __forceinline__ i32 higher(i32 a, i32 b) {
    return a < b ? b : a;
}

// The first coordinate of a window, and the one after its last, if windows divide the axis evenly.
static __device__ __forceinline__ range divided(const arguments& x, u32 axis, i32 window) {
    const u32 extent = u32(x.extents[axis]), windows = u32(x.windows[axis]);
    return {i32(u32(window) * extent / windows), i32((u32(window + 1) * extent + windows - 1) / windows)};
}

static __device__ __forceinline__ bool are_divided(const arguments& x) {
    return x.stride[2] == 0;
}

static __device__ __forceinline__ range windows_of(const arguments& x, u32 axis, i32 at) {
    const i32 windows = i32(x.windows[axis]), stride = i32(x.stride[axis]);
    if (are_divided(x)) {
        const u32 extent = u32(x.extents[axis]);
        return {i32(u32(at) * u32(windows) / extent), i32((u32(at + 1) * u32(windows) + extent - 1) / extent)};
    }
    if (windows == 1 && x.extents[axis] == 1) {
        return {0, 1};
    }
    const i32 padded = at + i32(x.padding[axis]);
    const i32 reach = i32(x.kernel[axis] - 1) * i32(x.dilation[axis]);
    const u32 first = padded > reach ? u32(padded - reach + stride - 1) / u32(stride) : 0;
    return {i32(first), lower(i32(u32(padded) / u32(stride)) + 1, windows)};
}

// The first coordinate of a window, which may be before the plane.
static __device__ __forceinline__ i32 start_of(const arguments& x, u32 axis, i32 window) {
    return are_divided(x) ? divided(x, axis, window).first : window * i32(x.stride[axis]) - i32(x.padding[axis]);
}

// The elements of a window along an axis that are points of the plane.
static __device__ __forceinline__ range inside(const arguments& x, u32 axis, i32 window) {
    if (are_divided(x)) {
        const range all = divided(x, axis, window);
        return {0, all.end - all.first};
    }
    const i32 first = start_of(x, axis, window);
    const i32 dilation = i32(x.dilation[axis]), kernel = i32(x.kernel[axis]), rest = i32(x.extents[axis]) - first;
    if (dilation == 1) {
        return {higher(-first, 0), lower(kernel, rest)};
    }
    return {first < 0 ? i32(u32(-first + dilation - 1) / u32(dilation)) : 0, rest <= 0 ? 0 : lower(kernel, i32(u32(rest + dilation - 1) / u32(dilation)))};
}

// The divisor of an average over a window, along one axis.
static __device__ __forceinline__ i32 span(const arguments& x, u32 axis, i32 window) {
    if (are_divided(x)) {
        const range all = divided(x, axis, window);
        return all.end - all.first;
    }
    const i32 extent = i32(x.extents[axis]), padding = i32(x.padding[axis]);
    const i32 first = window * i32(x.stride[axis]) - padding;
    const i32 end = lower(first + i32(x.kernel[axis]), extent + padding);
    return x.counts_padding ? end - first : lower(end, extent) - higher(first, 0);
}

static __device__ __forceinline__ Sum divisor(const arguments& x, i32 z, i32 y, i32 column) {
    if (x.divisor) {
        return Sum(i64(x.divisor));
    }
    return Sum(span(x, 0, z) * span(x, 1, y) * span(x, 2, column));
}

// One window in each of COUNT planes.
template <u32 COUNT>
static __device__ __forceinline__ void of_window(const arguments& x, const u32 (&planes)[COUNT], const u32 channel, const i32 (&at)[3], const u64 own) {
    // Elements of a row that are loaded before the first is used.
    constexpr i32 ABREAST = 4 / i32(COUNT);
    const u32 inner = u32(x.inner);
    const u64 points = x.extents[0] * x.extents[1] * x.extents[2] * inner, windows = x.windows[0] * x.windows[1] * x.windows[2] * inner;
    i32 first[3];
    #pragma unroll
    for (u32 axis = 0; axis < 3; ++axis) {
        first[axis] = start_of(x, axis, at[axis]);
    }
    const Element* sources[COUNT];
    Sum sums[COUNT] = {}, greatest[COUNT];
    i32 found[COUNT];
    #pragma unroll
    for (u32 i = 0; i < COUNT; ++i) {
        sources[i] = x.source + planes[i] * points + channel;
        greatest[i] = -INFINITE;
        found[i] = 0x7fffffff;
    }
    const i32 height = i32(x.extents[1]), width = i32(x.extents[2]);
    const range of_z = inside(x, 0, at[0]), of_y = inside(x, 1, at[1]), of_x = inside(x, 2, at[2]);
    for (i32 k = of_z.first; k < of_z.end; ++k) {
        const i32 z = first[0] + k * i32(x.dilation[0]);
        for (i32 j = of_y.first; j < of_y.end; ++j) {
            const i32 row = (z * height + first[1] + j * i32(x.dilation[1])) * width + first[2];
            for (i32 start = of_x.first; start < of_x.end; start += ABREAST) {
                Sum values[ABREAST][COUNT];
                #pragma unroll
                for (i32 next = 0; next < ABREAST; ++next) {
                    if (start + next < of_x.end) {
                        #pragma unroll
                        for (u32 i = 0; i < COUNT; ++i) {
                            values[next][i] = LOAD(sources[i][u32(row + (start + next) * i32(x.dilation[2])) * inner]);
                        }
                    }
                }
                #pragma unroll
                for (i32 next = 0; next < ABREAST; ++next) {
                    if (start + next < of_x.end) {
                        #pragma unroll
                        for (u32 i = 0; i < COUNT; ++i) {
                            const Sum value = values[next][i];
                            if (!IS_GREATEST) {
                                sums[i] += value;
                            } else if (value > greatest[i] || found[i] == 0x7fffffff || (value != value && greatest[i] == greatest[i])) {
                                greatest[i] = value;
                                found[i] = IS_WITHIN ? (k * i32(x.kernel[1]) + j) * i32(x.kernel[2]) + start + next : row + (start + next) * i32(x.dilation[2]);
                            }
                        }
                    }
                }
            }
        }
    }
    const Sum count = IS_GREATEST ? Sum(1) : divisor(x, at[0], at[1], at[2]);
    #pragma unroll
    for (u32 i = 0; i < COUNT; ++i) {
        const u64 place = planes[i] * windows + own;
        x.result[place] = STORE(IS_GREATEST ? greatest[i] : sums[i] / count);
        if (IS_GREATEST) {
            x.places[place] = Spot(found[i]);
        }
    }
}

// A point of COUNT planes, from the gradients of the means of the windows that contain it.
template <u32 COUNT>
static __device__ __forceinline__ void of_means(const arguments& x, const u32 (&planes)[COUNT], const u32 channel, const i32 (&at)[3], const u64 own) {
    const u32 inner = u32(x.inner);
    const u64 points = x.extents[0] * x.extents[1] * x.extents[2] * inner, windows = x.windows[0] * x.windows[1] * x.windows[2] * inner;
    const i32 height = i32(x.windows[1]), width = i32(x.windows[2]);
    const range of_z = windows_of(x, 0, at[0]), of_y = windows_of(x, 1, at[1]), of_x = windows_of(x, 2, at[2]);
    Sum sums[COUNT] = {};
    for (i32 z = of_z.first; z < of_z.end; ++z) {
        for (i32 y = of_y.first; y < of_y.end; ++y) {
            for (i32 column = of_x.first; column < of_x.end; ++column) {
                const Sum count = divisor(x, z, y, column);
                const u64 window = u64(u32((z * height + y) * width + column)) * inner + channel;
                #pragma unroll
                for (u32 i = 0; i < COUNT; ++i) {
                    sums[i] += LOAD(x.source[planes[i] * windows + window]) / count;
                }
            }
        }
    }
    #pragma unroll
    for (u32 i = 0; i < COUNT; ++i) {
        x.result[planes[i] * points + own] = STORE(sums[i]);
    }
}

// The first place of a window that is on the line of a point; none that a window has, if the window has no such line.
static __device__ __forceinline__ i32 line_of(const arguments& x, const i32 (&at)[3], const i32 z, const i32 y) {
    if (!IS_WITHIN) {
        return 0;
    }
    const i32 deep = at[0] - start_of(x, 0, z), high = at[1] - start_of(x, 1, y);
    const i32 k = deep / i32(x.dilation[0]), j = high / i32(x.dilation[1]);
    const bool has_line = k * i32(x.dilation[0]) == deep && j * i32(x.dilation[1]) == high;
    return has_line ? (k * i32(x.kernel[1]) + j) * i32(x.kernel[2]) : 256;
}

// The number of points from a first one of a line, which is in column `at`, to the place of a window's greatest element. It is negative
// if that is on another line.
static __device__ __forceinline__ i32 point_of(const arguments& x, const i32 place, const i32 line, const i32 column, const i32 at, const i32 first) {
    if (!IS_WITHIN) {
        return place - first;
    }
    const i32 within = place - line;
    return u32(within) < u32(x.kernel[2]) ? start_of(x, 2, column) + within * i32(x.dilation[2]) - at : -1;
}

// Neighbouring points of a plane, from the gradients of the maxima of the windows that contain them.
static __device__ __forceinline__ void
of_greatest(const arguments& x, const u64 plane, const u32 channel, const i32 (&at)[3], const i32 first, const u64 own) {
    const u32 inner = u32(x.inner);
    const u64 origin = plane * x.windows[0] * x.windows[1] * x.windows[2] * inner + channel;
    const u64 place = plane * x.extents[0] * x.extents[1] * x.extents[2] * inner + own;
    const i32 height = i32(x.windows[1]), width = i32(x.windows[2]);
    const i32 rest = i32(x.extents[2]) - at[2];
    const i32 points = rest < POINTS ? rest : POINTS;
    const range of_z = windows_of(x, 0, at[0]);
    const range of_y = windows_of(x, 1, at[1]);
    range of_x = windows_of(x, 2, at[2]);
    if (points > 1) {
        of_x.end = windows_of(x, 2, at[2] + points - 1).end;
    }
    Sum sums[POINTS] = {};
    for (i32 z = of_z.first; z < of_z.end; ++z) {
        for (i32 y = of_y.first; y < of_y.end; ++y) {
            const i32 row = (z * height + y) * width, line = line_of(x, at, z, y);
            for (i32 column = of_x.first; column < of_x.end; ++column) {
                const u64 window = origin + u64(u32(row + column)) * inner;
                const i32 point = point_of(x, i32(x.places[window]), line, column, at[2], first);
                if (u32(point) < u32(points)) {
                    const Sum value = LOAD(x.source[window]);
                    #pragma unroll
                    for (i32 other = 0; other < POINTS; ++other) {
                        if (other == point) {
                            sums[other] += value;
                        }
                    }
                }
            }
        }
    }
    #pragma unroll
    for (i32 point = 0; point < POINTS; ++point) {
        if (point < points) {
            x.result[place + u64(point) * inner] = STORE(sums[point]);
        }
    }
}

// Neighbouring channels of a window, of images whose channels are innermost.
static __device__ __forceinline__ void of_window_wide(const arguments& x, const u32 plane, const u32 channel, const i32 (&at)[3], const u64 own) {
    const u32 inner = u32(x.inner);
    const u64 points = x.extents[0] * x.extents[1] * x.extents[2] * inner, windows = x.windows[0] * x.windows[1] * x.windows[2] * inner;
    const Element* const source = x.source + plane * points + channel;
    Sum values[WIDE];
    i32 found[WIDE];
    #pragma unroll
    for (u32 v = 0; v < WIDE; ++v) {
        values[v] = IS_GREATEST ? -INFINITE : Sum(0);
        found[v] = 0x7fffffff;
    }
    const range of_z = inside(x, 0, at[0]), of_y = inside(x, 1, at[1]), of_x = inside(x, 2, at[2]);
    for (i32 k = of_z.first; k < of_z.end; ++k) {
        const i32 z = start_of(x, 0, at[0]) + k * i32(x.dilation[0]);
        for (i32 j = of_y.first; j < of_y.end; ++j) {
            const i32 row = (z * i32(x.extents[1]) + start_of(x, 1, at[1]) + j * i32(x.dilation[1])) * i32(x.extents[2]) + start_of(x, 2, at[2]);
            const i32 line = (k * i32(x.kernel[1]) + j) * i32(x.kernel[2]);
            for (i32 i = of_x.first; i < of_x.end; ++i) {
                const i32 place = row + i * i32(x.dilation[2]);
                const pack<Element, WIDE> loaded = *(const pack<Element, WIDE>*)(source + u64(u32(place)) * inner);
                #pragma unroll
                for (u32 v = 0; v < WIDE; ++v) {
                    const Sum value = LOAD(loaded.element[v]);
                    if (!IS_GREATEST) {
                        values[v] += value;
                    } else if (value > values[v] || found[v] == 0x7fffffff || (value != value && values[v] == values[v])) {
                        values[v] = value;
                        found[v] = IS_WITHIN ? line + i : place;
                    }
                }
            }
        }
    }
    const Sum count = IS_GREATEST ? Sum(1) : divisor(x, at[0], at[1], at[2]);
    pack<Element, WIDE> result;
    pack<Spot, WIDE> places;
    #pragma unroll
    for (u32 v = 0; v < WIDE; ++v) {
        result.element[v] = STORE(IS_GREATEST ? values[v] : values[v] / count);
        places.element[v] = Spot(found[v]);
    }
    *(pack<Element, WIDE>*)(x.result + plane * windows + own) = result;
    if (IS_GREATEST) {
        *(pack<Spot, WIDE>*)(x.places + plane * windows + own) = places;
    }
}

// Neighbouring channels of a point, from the gradients of the windows that contain it.
static __device__ __forceinline__ void of_point_wide(const arguments& x, const u32 plane, const u32 channel, const i32 (&at)[3], const i32 first, const u64 own) {
    const u32 inner = u32(x.inner);
    const u64 points = x.extents[0] * x.extents[1] * x.extents[2] * inner, windows = x.windows[0] * x.windows[1] * x.windows[2] * inner;
    const i32 height = i32(x.windows[1]), width = i32(x.windows[2]);
    const range of_z = windows_of(x, 0, at[0]), of_y = windows_of(x, 1, at[1]), of_x = windows_of(x, 2, at[2]);
    Sum sums[WIDE] = {};
    for (i32 z = of_z.first; z < of_z.end; ++z) {
        for (i32 y = of_y.first; y < of_y.end; ++y) {
            const i32 line = line_of(x, at, z, y);
            for (i32 column = of_x.first; column < of_x.end; ++column) {
                const u64 window = plane * windows + u64(u32((z * height + y) * width + column)) * inner + channel;
                const pack<Element, WIDE> loaded = *(const pack<Element, WIDE>*)(x.source + window);
                const Sum count = IS_GREATEST ? Sum(1) : divisor(x, z, y, column);
                pack<Spot, WIDE> places;
                if (IS_GREATEST) {
                    places = *(const pack<Spot, WIDE>*)(x.places + window);
                }
                #pragma unroll
                for (u32 v = 0; v < WIDE; ++v) {
                    const Sum value = LOAD(loaded.element[v]);
                    if (!IS_GREATEST) {
                        sums[v] += value / count;
                    } else if (point_of(x, i32(places.element[v]), line, column, at[2], first) == 0) {
                        sums[v] += value;
                    }
                }
            }
        }
    }
    pack<Element, WIDE> result;
    #pragma unroll
    for (u32 v = 0; v < WIDE; ++v) {
        result.element[v] = STORE(sums[v]);
    }
    *(pack<Element, WIDE>*)(x.result + plane * points + own) = result;
}

// A window, or neighbouring points of a row, in some planes.
struct Place {
    const arguments& x;
    const u32 channel;
    const i32 (&at)[3];
    const i32 first;
    const u64 own;

    template <u32 COUNT> __device__ __forceinline__ void operator()(const u32 (&planes)[COUNT]) const {
        if (!IS_BACKWARD) {
            of_window(x, planes, channel, at, own);
        } else if (IS_GREATEST) {
            of_greatest(x, planes[0], channel, at, first, own);
        } else {
            of_means(x, planes, channel, at, own);
        }
    }
};

// Neighbouring channels of a window or of a point in one plane.
struct WidePlace {
    const arguments& x;
    const u32 channel;
    const i32 (&at)[3];
    const i32 first;
    const u64 own;

    __device__ __forceinline__ void operator()(const u32 (&planes)[1]) const {
        if (!IS_BACKWARD) {
            of_window_wide(x, planes[0], channel, at, own);
        } else {
            of_point_wide(x, planes[0], channel, at, first, own);
        }
    }
};

// The work of a thread: CHANNELS neighbouring channels of LENGTH neighbouring points of a row.
template <u32 CHANNELS, i32 LENGTH>
static __device__ __forceinline__ void run(const arguments& x) {
    const u64* extents = IS_BACKWARD ? x.extents : x.windows;
    const i32 depth = i32(extents[0]), height = i32(extents[1]), width = i32(extents[2]);
    const u32 inner = u32(x.inner) / CHANNELS, pieces = u32(width + LENGTH - 1) / LENGTH;
    const PlaneShare share(u32(depth * height) * pieces * inner, u32(x.planes));
    if (share.first >= share.planes) {
        return;
    }
    const u32 group = inner == 1 ? share.point : share.point / inner, channel = (share.point - group * inner) * CHANNELS;
    const u32 line = group / pieces;
    i32 at[3] = {0, i32(line), i32(group - line * pieces) * LENGTH};
    if (depth > 1) {
        at[0] = i32(line / u32(height));
        at[1] = i32(line) - at[0] * height;
    }
    const i32 first = i32(line) * width + at[2];
    const u64 own = u64(u32(first)) * x.inner + channel;
    if constexpr (CHANNELS == 1) {
        share.each<IS_BACKWARD && IS_GREATEST ? 1 : 4>(Place{x, channel, at, first, own});
    } else {
        share.each<1>(WidePlace{x, channel, at, first, own});
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    if (x.vector == 1) {
        run<1, POINTS>(x);
    } else {
        run<WIDE, 1>(x);
    }
}
