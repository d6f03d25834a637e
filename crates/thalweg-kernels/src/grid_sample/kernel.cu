// Images at the points of a grid, and the gradients.
#ifndef NAME
#include "../defaults.cuh"
#define BACKWARD 0
#endif

struct arguments {
    const Element* input;
    const Element* grid;
    // Forward the result; backward the gradient of the result, which is read.
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
};

enum Interpolation : u64 { LINEAR, NEAREST, CUBIC };
enum Padding : u64 { ZEROS, BORDER, REFLECTION };

// A number and its derivative with respect to the coordinate.
struct Place {
    Sum at;
    Sum slope;
};

// The points of an axis that contribute, -1 outside of the image; their weights, and the derivatives of these.
struct Taps {
    i32 at[4];
    Sum weight[4];
    Sum slope[4];
    i32 count;
};

static __device__ __forceinline__ Place clipped(const Place place, const Sum last) {
    if (place.at > Sum(0) && place.at < last) {
        return place;
    }
    // NaN is clipped to 0.
    return {place.at >= last ? last : Sum(0), Sum(0)};
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
    Taps taps = {};
    Sum points[4] = {};
    if (x.interpolation == CUBIC) {
        const Sum first = floor(place.at), t = place.at - first, rest = Sum(1) - t;
        taps.count = 4;
        cubic(t, taps.weight[0], taps.slope[0], true);
        cubic(t, taps.weight[1], taps.slope[1], false);
        cubic(rest, taps.weight[2], taps.slope[2], false);
        cubic(rest, taps.weight[3], taps.slope[3], true);
        #pragma unroll
        for (i32 tap = 0; tap < 4; ++tap) {
            points[tap] = padded(x, extent, {first + Sum(tap - 1), Sum(0)}).at;
            taps.slope[tap] *= tap < 2 ? place.slope : -place.slope;
        }
    } else {
        place = padded(x, extent, place);
        if (x.interpolation == NEAREST) {
            taps.count = 1;
            taps.weight[0] = Sum(1);
            points[0] = rint(place.at);
        } else {
            const Sum first = floor(place.at), weight = place.at - first;
            taps.count = 2;
            points[0] = first;
            points[1] = first + Sum(1);
            taps.weight[0] = Sum(1) - weight;
            taps.weight[1] = weight;
            taps.slope[0] = -place.slope;
            taps.slope[1] = place.slope;
        }
    }
    #pragma unroll
    for (i32 tap = 0; tap < 4; ++tap) {
        taps.at[tap] = tap < taps.count && points[tap] >= Sum(0) && points[tap] <= last ? i32(points[tap]) : -1;
    }
    return taps;
}

static __device__ __forceinline__ Sum forward(const arguments& x, const Element* plane, const Taps& of_y, const Taps& of_x) {
    Sum sum = Sum(0);
    #pragma unroll
    for (i32 j = 0; j < 4; ++j) {
        #pragma unroll
        for (i32 i = 0; i < 4; ++i) {
            if (j < of_y.count && i < of_x.count) {
                const bool inside = of_y.at[j] >= 0 && of_x.at[i] >= 0;
                const u64 at = inside ? u64(of_y.at[j]) * x.input_strides[2] + u64(of_x.at[i]) * x.input_strides[3] : 0;
                const Sum value = inside ? Sum(LOAD(plane[at])) : Sum(0);
                sum += value * (of_y.weight[j] * of_x.weight[i]);
            }
        }
    }
    return sum;
}

#if BACKWARD
// Adds a point's part of the gradient of the input, and returns its parts of the gradient of the grid: along y, and along x.
static __device__ __forceinline__ void backward(
    const arguments& x, const Element* plane, Sum* to, const Sum gradient, const Taps& of_y, const Taps& of_x, Sum& along_y, Sum& along_x) {
    #pragma unroll
    for (i32 j = 0; j < 4; ++j) {
        #pragma unroll
        for (i32 i = 0; i < 4; ++i) {
            if (j < of_y.count && i < of_x.count && of_y.at[j] >= 0 && of_x.at[i] >= 0) {
                if (to) {
                    atomicAdd(to + u64(of_y.at[j]) * x.extents[1] + u64(of_x.at[i]), gradient * (of_y.weight[j] * of_x.weight[i]));
                }
                const Sum value = gradient * Sum(LOAD(plane[u64(of_y.at[j]) * x.input_strides[2] + u64(of_x.at[i]) * x.input_strides[3]]));
                along_y += value * of_y.slope[j] * of_x.weight[i];
                along_x += value * of_y.weight[j] * of_x.slope[i];
            }
        }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64 plane = x.points[0] * x.points[1], count = x.batch * plane;
    for (u64 own = u64(blockIdx.x) * 256 + threadIdx.x; own < count; own += u64(gridDim.x) * 256) {
        const u64 image = own / plane, point = own - image * plane;
        const u64 line = u64(u32(point) / u32(x.points[1])), column = point - line * x.points[1];
        const Element* grid = x.grid + image * x.grid_strides[0] + line * x.grid_strides[1] + column * x.grid_strides[2];
        const Taps of_x = taps_of(x, 1, Sum(LOAD(grid[0])));
        const Taps of_y = taps_of(x, 0, Sum(LOAD(grid[x.grid_strides[3]])));
        const Element* input = x.input + image * x.input_strides[0];
        Element* output = x.output + image * x.output_strides[0] + line * x.output_strides[2] + column * x.output_strides[3];
#if BACKWARD
        Sum along_y = Sum(0), along_x = Sum(0);
        for (u64 channel = 0; channel < x.channels; ++channel) {
            Sum* to = x.of_input ? x.of_input + (image * x.channels + channel) * x.extents[0] * x.extents[1] : nullptr;
            const Sum gradient = Sum(LOAD(output[channel * x.output_strides[1]]));
            backward(x, input + channel * x.input_strides[1], to, gradient, of_y, of_x, along_y, along_x);
        }
        if (x.of_grid) {
            x.of_grid[own * 2] = STORE(along_x);
            x.of_grid[own * 2 + 1] = STORE(along_y);
        }
#else
        for (u64 channel = blockIdx.y; channel < x.channels; channel += gridDim.y) {
            output[channel * x.output_strides[1]] = STORE(forward(x, input + channel * x.input_strides[1], of_y, of_x));
        }
#endif
    }
}
