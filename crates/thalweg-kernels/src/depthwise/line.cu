// The output of a depthwise convolution whose windows are lines along the last axis, at distance 1, or the gradient of its input. The number
// of elements of a window is an argument.
#ifndef NAME
#include "../defaults.cuh"
#define BACKWARD 1
#endif
#include "../shared/planes.cuh"
#include "sizes.cuh"

// The neighbouring points of a line that a thread computes, the elements of a window that it multiplies at a time, and the points that
// it reads for these.
constexpr i32 RUN = 8, AT_ONCE = 8, READ = RUN + AT_ONCE - 1;

// A run of points of a line.
struct Run {
    const Element* const line;
    const Element* const weight;
    const u64 stride;
    const i32 extent;
    const i32 kernel;

    // Adds the products with elements of the window from one on. The first point that is read for them is `from`. Points beyond
    // the line are not added.
    template <bool IS_INSIDE> __device__ __forceinline__ void add(const i32 element, const i32 from, Sum (&sums)[RUN]) const {
        Sum values[READ];
        #pragma unroll
        for (i32 i = 0; i < READ; ++i) {
            values[i] = IS_INSIDE || (from + i >= 0 && from + i < extent) ? Sum(LOAD(line[u64(from + i) * stride])) : Sum(0);
        }
        #pragma unroll
        for (i32 k = 0; k < AT_ONCE; ++k) {
            if (element + k < kernel) {
                const Sum factor = LOAD(weight[element + k]);
                #pragma unroll
                for (i32 i = 0; i < RUN; ++i) {
                    const i32 at = BACKWARD ? i - k + AT_ONCE - 1 : i + k;
                    if (IS_INSIDE || (from + at >= 0 && from + at < extent)) {
                        sums[i] = fma(factor, values[at], sums[i]);
                    }
                }
            }
        }
    }
};

// Each block along z handles one channel, unless channels are innermost.
extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u64* extents = BACKWARD ? x.input : x.output;
    const u64 (&read_strides)[4] = BACKWARD ? x.output_strides : x.input_strides;
    const u64 (&strides)[4] = BACKWARD ? x.input_strides : x.output_strides;
    const u32 lines = u32(extents[0]), runs = (u32(extents[1]) + RUN - 1) / RUN, inner = x.channels_last ? u32(x.channels) : 1;
    const PlaneShare share(lines * runs * inner, u32(x.images));
    if (share.first >= share.planes) {
        return;
    }
    const u32 point = inner == 1 ? share.point : share.point / inner;
    const u32 channel = inner == 1 ? blockIdx.z : share.point - point * inner;
    // Neighbouring threads have neighbouring lines where these are adjacent in memory.
    const bool by_lines = read_strides[2] < read_strides[3];
    const u32 divisor = by_lines ? lines : runs, outer = point / divisor, within = point - outer * divisor;
    const u32 number = by_lines ? within : outer;
    const i32 first = i32(by_lines ? outer : within) * RUN;
    const i32 kernel = i32(x.kernel[1]), padding = i32(x.padding[1]), extent = i32(BACKWARD ? x.output[1] : x.input[1]);
    const Sum bias = x.bias ? Sum(LOAD(x.bias[channel])) : Sum(0);
    const Element* const read = x.read + channel * read_strides[1] + number * read_strides[2];
    Element* const result = x.result + channel * strides[1] + number * strides[2];
    for (u32 image = share.first; image < share.planes; image += share.step) {
        const Run run{read + image * read_strides[0], x.weight + u64(channel) * kernel, read_strides[3], extent, kernel};
        Sum sums[RUN];
        #pragma unroll
        for (i32 i = 0; i < RUN; ++i) {
            sums[i] = bias;
        }
        for (i32 element = 0; element < kernel; element += AT_ONCE) {
            const i32 from = BACKWARD ? first + padding - element - (AT_ONCE - 1) : first - padding + element;
            if (from >= 0 && from + READ <= extent) {
                run.add<true>(element, from, sums);
            } else {
                run.add<false>(element, from, sums);
            }
        }
        #pragma unroll
        for (i32 i = 0; i < RUN; ++i) {
            if (first + i < i32(extents[1])) {
                result[image * strides[0] + u64(first + i) * strides[3]] = STORE(sums[i]);
            }
        }
    }
}
