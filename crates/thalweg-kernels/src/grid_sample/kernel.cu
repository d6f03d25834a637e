// Images at the points of a grid, and the gradients. TAPS is the number of elements that a point is computed from, along each axis.
#ifndef NAME
#include "../defaults.cuh"
#define TAPS 4
#define BACKWARD 0
#endif
#include "../shared/planes.cuh"

struct arguments {
    const Element* input;
    const Element* grid;
    // In the forward pass the result, in the backward pass its gradient, which is read.
    Element* output;
    Sum* of_input;
    Element* of_grid;
    u64 batch;
    u64 channels;
    u64 extents[2];
    u64 points[2];
    u64 input_strides[4];
    u64 grid_strides[4];
    u64 output_strides[4];
    u64 interpolation;
    u64 padding;
    u64 align_corners;
    u64 dtype;
    u64 backward;
    u64 slices;
};

enum Padding : u64 { ZEROS, BORDER, REFLECTION };

// A number and its derivative with respect to the coordinate.
struct Place {
    Sum at;
    Sum slope;
};

// The points of an axis that contribute (−1 outside of the image), their weights, and the derivatives of the weights.
struct Taps {
    i32 at[TAPS];
    Sum weight[TAPS];
    Sum slope[TAPS];
};

static __device__ __forceinline__ Place clipped(const Place place, const Sum last) {
    if (place.at > Sum(0) && place.at < last) {
        return place;
    }
    // NaN is clipped to 0.
    return {place.at >= last ? last : Sum(0), Sum(0)};
}

// A position, moved outside of every image if it cannot be the index of an element.
static __device__ __forceinline__ Place bounded(const Place place) {
    return place.at >= Sum(-2147483648.0) && place.at <= Sum(2147483646.0) ? place : Place{Sum(-100), Sum(0)};
}

static __device__ __forceinline__ Place padded(const arguments& x, const Sum extent, const Place place) {
    const Sum last = extent - Sum(1);
    if (x.padding == BORDER) {
        return clipped(place, last);
    }
    if (x.padding == REFLECTION) {
        const Sum low = x.align_corners ? Sum(0) : Sum(-0.5), span = x.align_corners ? last : extent;
        if (span == Sum(0)) {
            return {place.at * Sum(0), Sum(0)};
        }
        const Sum moved = place.at - low, distance = moved < Sum(0) ? -moved : moved;
        const Sum extra = fmod(distance, span), turns = floor(distance / span);
        const bool is_even = fmod(turns, Sum(2)) == Sum(0);
        const Sum sign = moved < Sum(0) ? -place.slope : moved > Sum(0) ? place.slope : Sum(0);
        return clipped({(is_even ? extra : span - extra) + low, is_even ? sign : -sign}, last);
    }
    return place;
}

static __device__ __forceinline__ void cubic(const Sum t, Sum& weight, Sum& slope, const bool is_far) {
    const Sum a = Sum(-0.75);
    if (is_far) {
        const Sum u = t + Sum(1);
        weight = ((a * u - Sum(5) * a) * u + Sum(8) * a) * u - Sum(4) * a;
        slope = (Sum(3) * a * u - Sum(10) * a) * u + Sum(8) * a;
    } else {
        weight = ((a + Sum(2)) * t - (a + Sum(3))) * t * t + Sum(1);
        slope = (Sum(3) * (a + Sum(2)) * t - Sum(2) * (a + Sum(3))) * t;
    }
}

static __device__ __forceinline__ Taps taps_of(const arguments& x, const u32 axis, const Sum coordinate) {
    const Sum extent = Sum(x.extents[axis]), last = extent - Sum(1), from_zero = coordinate + Sum(1);
    Place place;
    if (x.align_corners) {
        place = {from_zero * (last / Sum(2)), last / Sum(2)};
    } else {
        place = {(from_zero * extent - Sum(1)) / Sum(2), extent / Sum(2)};
    }
    Taps taps;
    Sum points[TAPS];
#if TAPS == 4
    const Sum first = floor(place.at), t = place.at - first, rest = Sum(1) - t;
    cubic(t, taps.weight[0], taps.slope[0], true);
    cubic(t, taps.weight[1], taps.slope[1], false);
    cubic(rest, taps.weight[2], taps.slope[2], false);
    cubic(rest, taps.weight[3], taps.slope[3], true);
    #pragma unroll
    for (i32 tap = 0; tap < TAPS; ++tap) {
        points[tap] = padded(x, extent, {first + Sum(tap - 1), Sum(0)}).at;
        taps.slope[tap] *= tap < 2 ? place.slope : -place.slope;
    }
#elif TAPS == 2
    place = bounded(padded(x, extent, place));
    const Sum first = floor(place.at), weight = place.at - first;
    points[0] = first;
    points[1] = first + Sum(1);
    taps.weight[0] = Sum(1) - weight;
    taps.weight[1] = weight;
    taps.slope[0] = -place.slope;
    taps.slope[1] = place.slope;
#else
    points[0] = rint(padded(x, extent, place).at);
    taps.weight[0] = Sum(1);
    taps.slope[0] = Sum(0);
#endif
    #pragma unroll
    for (i32 tap = 0; tap < TAPS; ++tap) {
        taps.at[tap] = points[tap] >= Sum(0) && points[tap] <= last ? i32(points[tap]) : -1;
    }
    return taps;
}

// The elements of a plane that contribute to a point: their positions, and whether they are inside of the image.
struct Elements {
    u64 at[TAPS][TAPS];
    bool is_inside[TAPS][TAPS];

    __device__ __forceinline__ Elements(const arguments& x, const Taps& of_y, const Taps& of_x) {
        #pragma unroll
        for (i32 j = 0; j < TAPS; ++j) {
            #pragma unroll
            for (i32 i = 0; i < TAPS; ++i) {
                is_inside[j][i] = of_y.at[j] >= 0 && of_x.at[i] >= 0;
                at[j][i] = is_inside[j][i] ? u64(of_y.at[j]) * x.input_strides[2] + u64(of_x.at[i]) * x.input_strides[3] : 0;
            }
        }
    }

    // Returns an element of a plane, or 0 outside of the image.
    __device__ __forceinline__ Sum of(const Element* plane, const i32 j, const i32 i) const {
        return is_inside[j][i] ? Sum(LOAD(plane[at[j][i]])) : Sum(0);
    }
};

// A point of the grid.
struct Point {
    u64 image, line, column;

    __device__ __forceinline__ Point(const arguments& x, const u64 number) {
        const u64 plane = x.points[0] * x.points[1];
        image = number / plane;
        line = u64(u32(number - image * plane) / u32(x.points[1]));
        column = number - image * plane - line * x.points[1];
    }

    __device__ __forceinline__ u64 offset(const u64 (&strides)[4]) const { return image * strides[0] + line * strides[2] + column * strides[3]; }
};

// The taps of a point along both axes.
struct Both {
    Taps of_x, of_y;

    __device__ __forceinline__ Both(const arguments& x, const Point& point) {
        const Element* grid = x.grid + point.image * x.grid_strides[0] + point.line * x.grid_strides[1] + point.column * x.grid_strides[2];
        of_x = taps_of(x, 1, Sum(LOAD(grid[0])));
        of_y = taps_of(x, 0, Sum(LOAD(grid[x.grid_strides[3]])));
    }
};

#if !BACKWARD
// A point of the grid, in some channels.
struct Forward {
    const arguments& x;
    const Element* const input;
    Element* const output;
    const Both& taps;
    const Elements& elements;

    template <u32 COUNT> __device__ __forceinline__ void operator()(const u32 (&channels)[COUNT]) const {
        Sum sums[COUNT] = {};
        #pragma unroll
        for (i32 j = 0; j < TAPS; ++j) {
            #pragma unroll
            for (i32 i = 0; i < TAPS; ++i) {
                const Sum weight = taps.of_y.weight[j] * taps.of_x.weight[i];
                #pragma unroll
                for (u32 one = 0; one < COUNT; ++one) {
                    sums[one] += elements.of(input + channels[one] * x.input_strides[1], j, i) * weight;
                }
            }
        }
        #pragma unroll
        for (u32 one = 0; one < COUNT; ++one) {
            output[channels[one] * x.output_strides[1]] = STORE(sums[one]);
        }
    }
};

static __device__ __forceinline__ void sample(const arguments& x) {
    const PlaneShare share(u32(x.batch * x.points[0] * x.points[1]), u32(x.channels));
    if (share.first >= share.planes) {
        return;
    }
    const Point point(x, share.point);
    const Both taps(x, point);
    const Elements elements(x, taps.of_y, taps.of_x);
    const Element* const input = x.input + point.image * x.input_strides[0];
    share.each<TAPS == 4 ? 1 : 4>(Forward{x, input, x.output + point.offset(x.output_strides), taps, elements});
}
#else
// The number of channels that a thread reads at once.
constexpr u32 AT_ONCE = 4;

// Adds the contribution of a point to the gradient of the input in every `step`th channel, and returns its contribution to the
// gradient of the grid.
struct Along {
    Sum x = Sum(0), y = Sum(0);

    __device__ __forceinline__ void add(const arguments& a, const Point& point, const Both& taps, const u64 from, const u64 step) {
        const Elements elements(a, taps.of_y, taps.of_x);
        const Element* const input = a.input + point.image * a.input_strides[0];
        const Element* const output = a.output + point.offset(a.output_strides);
        const u64 extent = a.extents[0] * a.extents[1];
        constexpr u32 COUNT = TAPS == 4 ? 1 : AT_ONCE;
        for (u64 first = from; first < a.channels; first += COUNT * step) {
            Sum gradients[COUNT], values[COUNT][TAPS][TAPS];
            #pragma unroll
            for (u32 one = 0; one < COUNT; ++one) {
                const u64 channel = first + one * step;
                if (channel < a.channels) {
                    gradients[one] = Sum(LOAD(output[channel * a.output_strides[1]]));
                    #pragma unroll
                    for (i32 j = 0; j < TAPS; ++j) {
                        #pragma unroll
                        for (i32 i = 0; i < TAPS; ++i) {
                            values[one][j][i] = a.of_grid ? elements.of(input + channel * a.input_strides[1], j, i) : Sum(0);
                        }
                    }
                }
            }
            #pragma unroll
            for (u32 one = 0; one < COUNT; ++one) {
                const u64 channel = first + one * step;
                if (channel < a.channels) {
                    Sum* const to = a.of_input ? a.of_input + (point.image * a.channels + channel) * extent : nullptr;
                    add_one(a, taps, elements, to, gradients[one], values[one]);
                }
            }
        }
    }

    __device__ __forceinline__ void add_one(const arguments& a, const Both& taps, const Elements& elements, Sum* const to,
                                            const Sum gradient, const Sum (&values)[TAPS][TAPS]) {
        #pragma unroll
        for (i32 j = 0; j < TAPS; ++j) {
            #pragma unroll
            for (i32 i = 0; i < TAPS; ++i) {
                if (to && elements.is_inside[j][i]) {
                    const u64 at = u64(taps.of_y.at[j]) * a.extents[1] + u64(taps.of_x.at[i]);
                    atomicAdd(to + at, gradient * (taps.of_y.weight[j] * taps.of_x.weight[i]));
                }
                const Sum value = gradient * values[j][i];
                y += value * taps.of_y.slope[j] * taps.of_x.weight[i];
                x += value * taps.of_y.weight[j] * taps.of_x.slope[i];
            }
        }
    }
};

// The channels of a point are divided among `slices` threads of a block, whose sums are added in order.
static __device__ __forceinline__ void sample(const arguments& x) {
    __shared__ Sum parts[2][256];
    const u32 width = 256 / u32(x.slices), slice = threadIdx.x / width, lane = threadIdx.x - slice * width;
    const u64 count = x.batch * x.points[0] * x.points[1], own = u64(blockIdx.x) * width + lane;
    Along along;
    if (own < count) {
        const Point point(x, own);
        along.add(x, point, Both(x, point), slice, x.slices);
    }
    if (!x.of_grid) {
        return;
    }
    if (x.slices > 1) {
        parts[0][threadIdx.x] = along.x;
        parts[1][threadIdx.x] = along.y;
        __syncthreads();
        for (u32 other = 1; slice == 0 && other < x.slices; ++other) {
            along.x += parts[0][other * width + lane];
            along.y += parts[1][other * width + lane];
        }
    }
    if (own < count && slice == 0) {
        x.of_grid[own * 2] = STORE(along.x);
        x.of_grid[own * 2 + 1] = STORE(along.y);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    sample(x);
}
