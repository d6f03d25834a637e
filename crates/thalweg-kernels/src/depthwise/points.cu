// The output of a depthwise convolution, or the gradient of its input. KERNEL is the extent of a window, STRIDE the distance between
// windows.
#ifndef NAME
#include "../defaults.cuh"
#define KERNEL 5
#define STRIDE 2
#define BACKWARD 1
#endif
#include "../shared/planes.cuh"
#include "sizes.cuh"

// The terms of a point along an axis: the elements of its window; or the windows that contain it, the last one first.
constexpr i32 TERMS = BACKWARD ? (KERNEL + STRIDE - 1) / STRIDE : KERNEL;
constexpr i32 ROWS_AT_ONCE = TERMS > 3 ? 1 : TERMS;

struct Axis {
    i32 first;
    i32 element;
    i32 extent;

    __device__ __forceinline__ Axis(const arguments& x, const u32 axis, const i32 at) {
        const i32 padding = i32(x.padding[axis]);
        first = BACKWARD ? (at + padding) / STRIDE : at * STRIDE - padding;
        element = BACKWARD ? (at + padding) % STRIDE : 0;
        extent = i32(BACKWARD ? x.output[axis] : x.input[axis]);
    }

    // The point that is read.
    __device__ __forceinline__ i32 from(const i32 term) const { return BACKWARD ? first - term : first + term; }

    // The element of the window.
    __device__ __forceinline__ i32 of(const i32 term) const { return BACKWARD ? element + term * STRIDE : term; }

    __device__ __forceinline__ bool has(const i32 term) const { return of(term) < KERNEL && from(term) >= 0 && from(term) < extent; }
};

// A point of some images.
struct Point {
    const Axis& of_y;
    const Axis& of_x;
    const Element* const read;
    const Element* const weight;
    Element* const result;
    const u64 (&read_strides)[4];
    const u64 stride;
    const Sum bias;

    template <u32 COUNT> __device__ __forceinline__ void operator()(const u32 (&images)[COUNT]) const {
        const Element* planes[COUNT];
        Sum sums[COUNT];
        #pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            planes[i] = read + images[i] * read_strides[0];
            sums[i] = bias;
        }
        #pragma unroll ROWS_AT_ONCE
        for (i32 j = 0; j < TERMS; ++j) {
            if (!of_y.has(j)) {
                continue;
            }
            const u64 row = u64(of_y.from(j)) * read_strides[2];
            #pragma unroll
            for (i32 k = 0; k < TERMS; ++k) {
                if (of_x.has(k)) {
                    const u64 at = row + u64(of_x.from(k)) * read_strides[3];
                    const Sum factor = LOAD(weight[of_y.of(j) * KERNEL + of_x.of(k)]);
                    #pragma unroll
                    for (u32 i = 0; i < COUNT; ++i) {
                        sums[i] = fma(factor, Sum(LOAD(planes[i][at])), sums[i]);
                    }
                }
            }
        }
        #pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            result[images[i] * stride] = STORE(sums[i]);
        }
    }
};

// Each block along z handles one channel, unless channels are innermost.
extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64* extents = BACKWARD ? x.input : x.output;
    const u64 (&read_strides)[4] = BACKWARD ? x.output_strides : x.input_strides;
    const u64 (&strides)[4] = BACKWARD ? x.input_strides : x.output_strides;
    const u32 width = u32(extents[1]), inner = x.channels_last ? u32(x.channels) : 1;
    const PlaneShare share(u32(extents[0]) * width * inner, u32(x.images));
    if (share.first >= share.planes) {
        return;
    }
    const u32 point = inner == 1 ? share.point : share.point / inner;
    const u32 channel = inner == 1 ? blockIdx.z : share.point - point * inner;
    const u32 line = point / width, column = point - line * width;
    const Axis of_y(x, 0, i32(line)), of_x(x, 1, i32(column));
    Element* const result = x.result + channel * strides[1] + line * strides[2] + column * strides[3];
    const Element* const read = x.read + channel * read_strides[1];
    const Sum bias = x.bias ? Sum(LOAD(x.bias[channel])) : Sum(0);
    share.each<4>(Point{of_y, of_x, read, x.weight + channel * (KERNEL * KERNEL), result, read_strides, strides[0], bias});
}
