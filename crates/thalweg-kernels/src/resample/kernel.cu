// Planes of another size, and the gradient. TAPS is the number of points that a new point is computed from, along each axis.
#ifndef NAME
#include "../defaults.cuh"
#define TAPS 4
#define BACKWARD 0
#endif
#include "../shared/planes.cuh"

struct arguments {
    const Element* read;
    Element* written;
    u64 images;
    u64 channels;
    u64 source[3];
    u64 target[3];
    f64 scale[3];
    i64 before[3];
    u64 strides[5];
    u64 channels_last;
    u64 by;
    u64 dtype;
    u64 backward;
};

// The numbers of `ResampleBy`.
enum By : u64 { NEAREST, NEAREST_EXACT, REFLECTED, REPLICATED, CIRCULAR, LINEAR, LINEAR_CORNERS, CUBIC, CUBIC_CORNERS };

// The old points of an axis that a new point is computed from, with their weights: only the first one if there is a single point.
struct Taps {
    i32 at[TAPS];
    Sum weight[TAPS];
    i32 count;
};

static __device__ __forceinline__ i32 clamped(const i32 at, const i32 last) {
    return at < 0 ? 0 : at > last ? last : at;
}

static __device__ __forceinline__ Sum far(const Sum t) {
    const Sum a = Sum(-0.75), u = t + Sum(1);
    return ((a * u - Sum(5) * a) * u + Sum(8) * a) * u - Sum(4) * a;
}

static __device__ __forceinline__ Sum near(const Sum t) {
    const Sum a = Sum(-0.75);
    return ((a + Sum(2)) * t - (a + Sum(3))) * t * t + Sum(1);
}

// The position of a new point on the old axis; a nearest point is at or before it.
static __device__ __forceinline__ Sum position(const arguments& x, const u32 axis, const i32 to) {
    const Sum scale = Sum(x.scale[axis]);
    switch (x.by) {
        case NEAREST: case LINEAR_CORNERS: case CUBIC_CORNERS: return Sum(to) * scale;
        case NEAREST_EXACT: return (Sum(to) + Sum(0.5)) * scale;
        default: return (Sum(to) + Sum(0.5)) * scale - Sum(0.5);
    }
}

static __device__ __forceinline__ i32 nearest(const arguments& x, const u32 axis, const i32 to) {
    const i32 last = i32(x.source[axis]) - 1;
    const i32 moved = to - i32(x.before[axis]);
    switch (x.by) {
        case REFLECTED: {
            const i32 low = moved < 0 ? -moved : moved;
            const i32 high = last - low;
            return last - (high < 0 ? -high : high);
        }
        case REPLICATED: return clamped(moved, last);
        case CIRCULAR: return moved < 0 ? moved + last + 1 : moved > last ? moved - last - 1 : moved;
        default: return clamped(i32(floor(position(x, axis, to))), last);
    }
}

static __device__ __forceinline__ Taps taps_of(const arguments& x, const u32 axis, const i32 to) {
    Taps taps;
    const i32 last = i32(x.source[axis]) - 1;
    taps.count = last == 0 ? 1 : TAPS;
    if (TAPS == 1 || last == 0) {
        taps.at[0] = last == 0 ? 0 : nearest(x, axis, to);
        taps.weight[0] = Sum(1);
        return taps;
    }
    const Sum place = position(x, axis, to);
#if TAPS == 2
    const Sum inside = place < Sum(0) ? Sum(0) : place;
    const i32 first = clamped(i32(floor(inside)), last);
    taps.at[0] = first;
    taps.at[1] = clamped(first + 1, last);
    taps.weight[1] = inside - Sum(first);
    taps.weight[0] = Sum(1) - taps.weight[1];
#elif TAPS == 4
    const Sum before = floor(place);
    const Sum t = place - before, rest = Sum(1) - t;
    taps.weight[0] = far(t);
    taps.weight[1] = near(t);
    taps.weight[2] = near(rest);
    taps.weight[3] = far(rest);
    #pragma unroll
    for (i32 tap = 0; tap < 4; ++tap) {
        taps.at[tap] = clamped(i32(before) - 1 + tap, last);
    }
#endif
    return taps;
}

// The new points of an axis that may be computed from an old one.
struct Range {
    i32 first;
    i32 count;
};

static __device__ __forceinline__ Range uses_of(const arguments& x, const u32 axis, const i32 at) {
    const i32 last = i32(x.source[axis]) - 1, size = i32(x.target[axis]);
    if (x.by == REFLECTED || x.by == CIRCULAR) {
        return {0, 3};
    }
    if (x.by == REPLICATED) {
        const i32 own = at + i32(x.before[axis]);
        const i32 first = at == 0 ? 0 : own, end = at == last ? size : own + 1;
        return {clamped(first, size), clamped(end, size) - clamped(first, size)};
    }
    const Sum scale = Sum(x.scale[axis]);
    if (last == 0 || !(scale > Sum(0))) {
        return {0, size};
    }
    const bool is_halved = x.by == LINEAR || x.by == CUBIC;
    const Sum moved = x.by == NEAREST_EXACT || is_halved ? Sum(0.5) : Sum(0), back = is_halved ? Sum(0.5) : Sum(0);
    // The range is widened by more than the rounding error of a position.
    const Sum wider = (Sum(at) + Sum(4)) * Sum(1e-6);
    const Sum low = (Sum(at) - Sum(TAPS / 2) - wider + back) / scale - moved;
    const Sum high = (Sum(at) + Sum(TAPS == 1 ? 1 : TAPS / 2) + wider + back) / scale - moved;
    const i32 first = at == 0 || low < Sum(1) ? 0 : low > Sum(size) ? size : i32(low);
    const i32 end = at == last || high > Sum(size) - Sum(2) ? size : high < Sum(0) ? 0 : i32(high) + 2;
    return {first, end > first ? end - first : 0};
}

// The new point with a number among those that may be computed from an old one, or -1.
static __device__ __forceinline__ i32 use(const arguments& x, const u32 axis, const i32 at, const Range range, const i32 number) {
    const i32 last = i32(x.source[axis]) - 1, before = i32(x.before[axis]);
    i32 to = range.first + number;
    if (x.by == REFLECTED) {
        to = number == 0 ? before + at : number == 1 ? before - at : before + 2 * last - at;
        to = (number == 1 && at == 0) || (number == 2 && at == last) ? -1 : to;
    } else if (x.by == CIRCULAR) {
        to = before + at + (number - 1) * (last + 1);
    }
    return to < i32(x.target[axis]) ? to : -1;
}

// The weight of an old point in a new one.
static __device__ __forceinline__ Sum weight_of(const arguments& x, const u32 axis, const i32 at, const i32 to) {
    if (to < 0) {
        return Sum(0);
    }
    const Taps taps = taps_of(x, axis, to);
    Sum sum = Sum(0);
    #pragma unroll
    for (i32 tap = 0; tap < TAPS; ++tap) {
        if (tap < taps.count && taps.at[tap] == at) {
            sum += taps.weight[tap];
        }
    }
    return sum;
}

// The offsets of the points of an axis from the first point of the plane, with their weights.
struct Places {
    u32 at[TAPS];
    Sum weight[TAPS];
};

static __device__ __forceinline__ Places places_of(const arguments& x, const u32 axis, const i32 to) {
    const Taps taps = taps_of(x, axis, to);
    Places places;
    #pragma unroll
    for (i32 tap = 0; tap < TAPS; ++tap) {
        places.at[tap] = tap < taps.count ? u32(taps.at[tap]) * u32(x.strides[axis + 2]) : 0;
        places.weight[tap] = tap < taps.count ? taps.weight[tap] : Sum(0);
    }
    return places;
}

#if !BACKWARD
#if TAPS == 1
// One point of planes that begin at these elements. Elements of other dtypes are copied as integers of their width.
struct Forward {
    static constexpr u32 PLANES = 4;
    const u32 at;

    template <u32 COUNT> __device__ __forceinline__ void operator()(const Element* const (&planes)[COUNT], Element (&results)[COUNT]) const {
        #pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            results[i] = planes[i][at];
        }
    }
};
#else
// Adds a weighted value to a sum of COUNT values; a single value has the weight 1. Sums begin with −0, so that a single −0 keeps its
// sign.
template <i32 COUNT> static __device__ __forceinline__ void add_weighted(Sum& sum, const i32 number, const Sum weight, const Sum value) {
    sum = COUNT == 1 ? value : (number == 0 ? Sum(-0.0) : sum) + weight * value;
}

// A point of planes that begin at these elements, from LAYERS x ROWS x COLUMNS old ones.
template <i32 LAYERS, i32 ROWS, i32 COLUMNS> struct Forward {
    static constexpr u32 PLANES = LAYERS * ROWS * COLUMNS > 8 ? 1 : LAYERS * ROWS * COLUMNS > 4 ? 2 : 4;
    const Places (&places)[3];

    template <u32 COUNT> __device__ __forceinline__ void operator()(const Element* const (&planes)[COUNT], Element (&results)[COUNT]) const {
        Sum sums[COUNT];
        #pragma unroll
        for (i32 z = 0; z < LAYERS; ++z) {
            Sum of_rows[COUNT];
            #pragma unroll
            for (i32 y = 0; y < ROWS; ++y) {
                Sum of_row[COUNT];
                #pragma unroll
                for (i32 column = 0; column < COLUMNS; ++column) {
                    const u32 at = places[0].at[z] + places[1].at[y] + places[2].at[column];
                    #pragma unroll
                    for (u32 i = 0; i < COUNT; ++i) {
                        add_weighted<COLUMNS>(of_row[i], column, places[2].weight[column], LOAD(planes[i][at]));
                    }
                }
                #pragma unroll
                for (u32 i = 0; i < COUNT; ++i) {
                    add_weighted<ROWS>(of_rows[i], y, places[1].weight[y], of_row[i]);
                }
            }
            #pragma unroll
            for (u32 i = 0; i < COUNT; ++i) {
                add_weighted<LAYERS>(sums[i], z, places[0].weight[z], of_rows[i]);
            }
        }
        #pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            results[i] = STORE(sums[i]);
        }
    }
};
#endif
#else
// The new points, at most MOST, that an old point contributes to along an axis, with their weights; the other entries have weight 0.
template <i32 MOST> struct Uses {
    u32 at[MOST];
    Sum weight[MOST];

    __device__ __forceinline__ Uses(const arguments& x, const u32 axis, const i32 of, const Range range) {
        #pragma unroll
        for (i32 number = 0; number < MOST; ++number) {
            const i32 to = number < range.count ? use(x, axis, of, range, number) : -1;
            weight[number] = weight_of(x, axis, of, to);
            at[number] = to < 0 ? 0 : u32(to) * u32(x.strides[axis + 2]);
        }
    }
};

// Leaves out the new points at both ends of a range that are not computed from the old one.
static __device__ __forceinline__ Range without_ends(const arguments& x, const u32 axis, const i32 of, Range range) {
    if (x.by == REFLECTED || x.by == CIRCULAR) {
        return range;
    }
    while (range.count > 0 && weight_of(x, axis, of, use(x, axis, of, range, range.count - 1)) == Sum(0)) {
        --range.count;
    }
    while (range.count > 0 && weight_of(x, axis, of, use(x, axis, of, range, 0)) == Sum(0)) {
        ++range.first;
        --range.count;
    }
    return range;
}

#if TAPS == 1
// The new points that are copies of an old one along an axis: some side by side, or, of an axis that is mirrored or repeated, up to three.
struct Copies {
    i32 first, second, third, count;
    bool is_list;

    __device__ __forceinline__ Copies(const arguments& x, const u32 axis, const i32 of, const Range range)
        : first(range.first), second(0), third(0), count(range.count), is_list(x.by == REFLECTED || x.by == CIRCULAR) {
        if (!is_list) {
            return;
        }
        count = 0;
        #pragma unroll
        for (i32 number = 0; number < 3; ++number) {
            const i32 to = use(x, axis, of, range, number);
            if (weight_of(x, axis, of, to) != Sum(0)) {
                (count == 0 ? first : count == 1 ? second : third) = to;
                ++count;
            }
        }
    }

    __device__ __forceinline__ u32 operator[](const i32 number) const {
        return u32(!is_list ? first + number : number == 0 ? first : number == 1 ? second : third);
    }
};

// The gradient of an old point, from its copies.
struct FromCopies {
    static constexpr u32 PLANES = 4;
    const arguments& x;
    const Copies layers, rows, columns;

    __device__ __forceinline__ FromCopies(const arguments& x, const i32 (&of)[3], const Range (&ranges)[3])
        : x(x), layers(x, 0, of[0], ranges[0]), rows(x, 1, of[1], ranges[1]), columns(x, 2, of[2], ranges[2]) {}

    template <u32 COUNT> __device__ __forceinline__ void operator()(const Element* const (&planes)[COUNT], Element (&results)[COUNT]) const {
        Sum sums[COUNT] = {};
        for (i32 k = 0; k < layers.count; ++k) {
            Sum of_layer[COUNT] = {};
            for (i32 j = 0; j < rows.count; ++j) {
                Sum of_row[COUNT] = {};
                for (i32 number = 0; number < columns.count; ++number) {
                    const u32 at = layers[k] * u32(x.strides[2]) + rows[j] * u32(x.strides[3]) + columns[number] * u32(x.strides[4]);
                    #pragma unroll
                    for (u32 i = 0; i < COUNT; ++i) {
                        of_row[i] += LOAD(planes[i][at]);
                    }
                }
                #pragma unroll
                for (u32 i = 0; i < COUNT; ++i) {
                    of_layer[i] += of_row[i];
                }
            }
            #pragma unroll
            for (u32 i = 0; i < COUNT; ++i) {
                sums[i] += of_layer[i];
            }
        }
        #pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            results[i] = STORE(sums[i]);
        }
    }
};
#else
// The gradient of an old point in planes that begin at these elements: a sum over the new points that are computed from it, each the
// last axis within the second within the first. `rows` adds the sums over the second and the last axis.
template <u32 COUNT, class Rows>
static __device__ __forceinline__ void
over_depth(const arguments& x, const Element* const (&planes)[COUNT], Element (&results)[COUNT], const i32 of, const Range range, const Rows& rows) {
    Sum sums[COUNT] = {};
    for (i32 number = 0; number < range.count; ++number) {
        const i32 z = use(x, 0, of, range, number);
        const Sum weight = x.source[0] == 1 ? Sum(1) : weight_of(x, 0, of, z);
        if (weight != Sum(0)) {
            const Element* layers[COUNT];
            Sum parts[COUNT];
            #pragma unroll
            for (u32 i = 0; i < COUNT; ++i) {
                layers[i] = planes[i] + u32(z) * u32(x.strides[2]);
                parts[i] = Sum(0);
            }
            rows.add(layers, parts);
            #pragma unroll
            for (u32 i = 0; i < COUNT; ++i) {
                sums[i] += weight * parts[i];
            }
        }
    }
    #pragma unroll
    for (u32 i = 0; i < COUNT; ++i) {
        results[i] = STORE(sums[i]);
    }
}

// The gradient of an old point, from lists of the points of the second and the last axis.
template <i32 MOST> struct FromLists {
    static constexpr u32 PLANES = MOST > 4 ? 1 : 2;
    const arguments& x;
    const i32 depth;
    const Range range;
    const Uses<MOST> rows, columns;

    __device__ __forceinline__ FromLists(const arguments& x, const i32 (&of)[3], const Range (&ranges)[3])
        : x(x), depth(of[0]), range(ranges[0]), rows(x, 1, of[1], ranges[1]), columns(x, 2, of[2], ranges[2]) {}

    // Adds the sums over both axes.
    template <u32 COUNT> __device__ __forceinline__ void add(const Element* const (&planes)[COUNT], Sum (&sums)[COUNT]) const {
        #pragma unroll
        for (i32 j = 0; j < MOST; ++j) {
            Sum of_row[COUNT] = {};
            if (rows.weight[j] == Sum(0)) {
                continue;
            }
            #pragma unroll
            for (i32 k = 0; k < MOST; ++k) {
                const bool is_used = columns.weight[k] != Sum(0);
                #pragma unroll
                for (u32 i = 0; i < COUNT; ++i) {
                    const Sum value = is_used ? LOAD(planes[i][rows.at[j] + columns.at[k]]) : Sum(0);
                    of_row[i] += columns.weight[k] * value;
                }
            }
            #pragma unroll
            for (u32 i = 0; i < COUNT; ++i) {
                sums[i] += rows.weight[j] * of_row[i];
            }
        }
    }

    template <u32 COUNT> __device__ __forceinline__ void operator()(const Element* const (&planes)[COUNT], Element (&results)[COUNT]) const {
        over_depth(x, planes, results, depth, range, *this);
    }
};

// The gradient of an old point from any number of points, whose weights are computed for each group of planes.
struct FromRanges {
    static constexpr u32 PLANES = 2;
    const arguments& x;
    const i32 (&of)[3];
    const Range (&ranges)[3];

    // Adds the sums over the second and the last axis.
    template <u32 COUNT> __device__ __forceinline__ void add(const Element* const (&planes)[COUNT], Sum (&sums)[COUNT]) const {
        for (i32 j = 0; j < ranges[1].count; ++j) {
            const i32 y = use(x, 1, of[1], ranges[1], j);
            const Sum y_weight = weight_of(x, 1, of[1], y);
            if (y_weight == Sum(0)) {
                continue;
            }
            Sum of_row[COUNT] = {};
            for (i32 k = 0; k < ranges[2].count; ++k) {
                const i32 column = use(x, 2, of[2], ranges[2], k);
                const Sum weight = weight_of(x, 2, of[2], column);
                if (weight != Sum(0)) {
                    #pragma unroll
                    for (u32 i = 0; i < COUNT; ++i) {
                        of_row[i] += weight * LOAD(planes[i][u32(y) * u32(x.strides[3]) + u32(column) * u32(x.strides[4])]);
                    }
                }
            }
            #pragma unroll
            for (u32 i = 0; i < COUNT; ++i) {
                sums[i] += y_weight * of_row[i];
            }
        }
    }

    template <u32 COUNT> __device__ __forceinline__ void operator()(const Element* const (&planes)[COUNT], Element (&results)[COUNT]) const {
        over_depth(x, planes, results, of[0], ranges[0], *this);
    }
};
#endif
#endif

// Writes a point of planes, from a function of their first elements.
template <class Point> struct Written {
    const arguments& x;
    const Element* const first;
    const u32 count;
    Element* const written;
    const Point& point;

    template <u32 COUNT> __device__ __forceinline__ void operator()(const u32 (&numbers)[COUNT]) const {
        const Element* planes[COUNT];
        Element results[COUNT];
        if (x.channels_last || x.images == 1) {
            const u64 bytes = (x.channels_last ? x.strides[0] : x.strides[1]) * sizeof(Element);
            #pragma unroll
            for (u32 i = 0; i < COUNT; ++i) {
                planes[i] = (const Element*)((const u8*)first + numbers[i] * bytes);
            }
        } else {
            #pragma unroll
            for (u32 i = 0; i < COUNT; ++i) {
                const u32 image = numbers[i] / u32(x.channels);
                planes[i] = first + image * x.strides[0] + (numbers[i] - image * u32(x.channels)) * x.strides[1];
            }
        }
        point(planes, results);
        #pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            written[u64(numbers[i]) * count] = results[i];
        }
    }
};

template <class Point>
static __device__ __forceinline__ void write_points(const arguments& x, const PlaneShare& share, const u32 count, const u32 channel, const Point& point) {
    const Element* const first = x.read + (x.channels_last ? channel * x.strides[1] : 0);
    share.each<Point::PLANES>(Written<Point>{x, first, count, x.written + share.point, point});
}

#if !BACKWARD
#if TAPS > 1
// An axis with one old point contributes to every new point.
template <i32 LAYERS, i32 ROWS>
static __device__ __forceinline__ void write_of(const arguments& x, const PlaneShare& share, const u32 count, const u32 channel, const Places (&places)[3]) {
    if (x.source[2] > 1) {
        write_points(x, share, count, channel, Forward<LAYERS, ROWS, TAPS>{places});
    } else {
        write_points(x, share, count, channel, Forward<LAYERS, ROWS, 1>{places});
    }
}

template <i32 LAYERS>
static __device__ __forceinline__ void write_of(const arguments& x, const PlaneShare& share, const u32 count, const u32 channel, const Places (&places)[3]) {
    if (x.source[1] > 1) {
        write_of<LAYERS, TAPS>(x, share, count, channel, places);
    } else {
        write_of<LAYERS, 1>(x, share, count, channel, places);
    }
}
#endif

// Writes new points.
static __device__ __forceinline__ void write(const arguments& x, const PlaneShare& share, const u32 count, const u32 channel, const i32 (&at)[3]) {
    const Places places[3] = {places_of(x, 0, at[0]), places_of(x, 1, at[1]), places_of(x, 2, at[2])};
#if TAPS == 1
    write_points(x, share, count, channel, Forward{places[0].at[0] + places[1].at[0] + places[2].at[0]});
#else
    if (x.source[0] > 1) {
        write_of<TAPS>(x, share, count, channel, places);
    } else {
        write_of<1>(x, share, count, channel, places);
    }
#endif
}
#else
// Writes the gradients of old points.
static __device__ __forceinline__ void write(const arguments& x, const PlaneShare& share, const u32 count, const u32 channel, const i32 (&at)[3]) {
    Range ranges[3];
    #pragma unroll
    for (u32 axis = 0; axis < 3; ++axis) {
        ranges[axis] = without_ends(x, axis, at[axis], uses_of(x, axis, at[axis]));
    }
#if TAPS == 1
    write_points(x, share, count, channel, FromCopies(x, at, ranges));
#else
    const i32 most = ranges[1].count > ranges[2].count ? ranges[1].count : ranges[2].count;
    // The lanes of a warp use lists of one length.
    if (__all_sync(__activemask(), most <= 4)) {
        write_points(x, share, count, channel, FromLists<4>(x, at, ranges));
    } else if (__all_sync(__activemask(), most <= 8)) {
        write_points(x, share, count, channel, FromLists<8>(x, at, ranges));
    } else {
        write_points(x, share, count, channel, FromRanges{x, at, ranges});
    }
#endif
}
#endif

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64* extents = BACKWARD ? x.source : x.target;
    const u32 depth = u32(extents[0]), height = u32(extents[1]), width = u32(extents[2]);
    const u32 inner = x.channels_last ? u32(x.channels) : 1;
    const u32 count = depth * height * width * inner;
    const PlaneShare share(count, u32(x.channels_last ? x.images : x.images * x.channels));
    if (share.first >= share.planes) {
        return;
    }
    const u32 point = inner == 1 ? share.point : share.point / inner, channel = share.point - point * inner;
    const u32 line = point / width;
    i32 at[3] = {0, i32(line), i32(point - line * width)};
    if (depth > 1) {
        at[0] = i32(line / height);
        at[1] = i32(line - u32(at[0]) * height);
    }
    write(x, share, count, channel, at);
}
