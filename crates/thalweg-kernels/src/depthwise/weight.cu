// Parts of the weight gradient of a depthwise convolution, one part per warp. ROWS and COLUMNS are the extents of a window, or of the part
// of it that a block along z handles; STRIDE is the distance between windows.
#ifndef NAME
#include "../defaults.cuh"
#define ROWS 5
#define COLUMNS 5
#define STRIDE 2
#define CHANNELS_LAST 0
#endif

struct arguments {
    const Element* gradient;
    const Element* input;
    // The sums of each part; if there is a single part, the elements of the gradient.
    void* parts;
    const Element* bias;
    u64 images;
    u64 channels;
    u64 input_extents[2];
    u64 output[2];
    u64 padding[2];
    u64 output_strides[4];
    u64 input_strides[4];
    u64 channels_last;
    u64 kernel[2];
    u64 stride;
    u64 dtype;
    u64 pass;
    u64 part_count;
};

// The windows of a row that a lane handles at once, and the elements of a row of the input in them.
constexpr i32 RUN = 4, READ = (RUN - 1) * STRIDE + COLUMNS;

// Adds the products of a run of windows to the sums of a channel, for elements of the windows from a column on.
static __device__ __forceinline__ void
add_run(const arguments& x, const Element* const gradient, const Element* const input, const i32 row, const i32 first, const i32 column, Sum (&sums)[ROWS][COLUMNS]) {
    const i32 height = i32(x.input_extents[0]), width = i32(x.input_extents[1]);
    Sum factors[RUN];
    #pragma unroll
    for (i32 i = 0; i < RUN; ++i) {
        factors[i] = first + i < i32(x.output[1]) ? Sum(LOAD(gradient[u64(row) * x.output_strides[2] + u64(first + i) * x.output_strides[3]])) : Sum(0);
    }
    const i32 top = row * STRIDE - i32(x.padding[0]), left = first * STRIDE - i32(x.padding[1]) + column;
    #pragma unroll
    for (i32 j = 0; j < ROWS; ++j) {
        if (top + j < 0 || top + j >= height) {
            continue;
        }
        const Element* const line = input + u64(top + j) * x.input_strides[2];
        Sum values[READ];
        #pragma unroll
        for (i32 at = 0; at < READ; ++at) {
            values[at] = left + at >= 0 && left + at < width ? Sum(LOAD(line[u64(left + at) * x.input_strides[3]])) : Sum(0);
        }
        #pragma unroll
        for (i32 k = 0; k < COLUMNS; ++k) {
            #pragma unroll
            for (i32 i = 0; i < RUN; ++i) {
                sums[j][k] = fma(factors[i], values[i * STRIDE + k], sums[j][k]);
            }
        }
    }
}

// A warp handles a part of the runs of a channel, which its lanes share; if channels are innermost, a part of the runs of 32
// channels, one per lane.
extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const u32 lane = threadIdx.x % 32, runs = (u32(x.output[1]) + RUN - 1) / RUN;
    const u64 part = u64(blockIdx.x) * 8 + threadIdx.x / 32;
    const u32 channel = CHANNELS_LAST ? blockIdx.y * 32 + lane : blockIdx.y;
    if (part >= x.part_count || channel >= x.channels) {
        return;
    }
    const u32 rows = u32(x.output[0]), first = blockIdx.z * COLUMNS;
    // Neighbouring lanes have neighbouring rows where these are adjacent in memory.
    const bool by_rows = x.input_strides[2] < x.input_strides[3];
    const u64 all = x.images * rows * runs, step = x.part_count * (CHANNELS_LAST ? 1 : 32);
    Sum sums[ROWS][COLUMNS] = {};
    for (u64 run = CHANNELS_LAST ? part : part * 32 + lane; run < all; run += step) {
        const u32 inner = by_rows ? rows : runs, outer = by_rows ? runs : rows;
        const u32 line = u32(run / inner), within = u32(run - u64(line) * inner);
        const u32 image = line / outer, other = line - image * outer;
        const u32 row = by_rows ? within : other, column = by_rows ? other : within;
        const Element* const gradient = x.gradient + image * x.output_strides[0] + channel * x.output_strides[1];
        const Element* const input = x.input + image * x.input_strides[0] + channel * x.input_strides[1];
        add_run(x, gradient, input, i32(row), i32(column) * RUN, i32(first), sums);
    }
    const u32 columns = u32(x.kernel[1]);
    const u64 to = (part * x.channels + channel) * (ROWS * columns) + first;
    #pragma unroll
    for (i32 j = 0; j < ROWS; ++j) {
        #pragma unroll
        for (i32 k = 0; k < COLUMNS; ++k) {
            Sum sum = sums[j][k];
            if (!CHANNELS_LAST) {
                #pragma unroll
                for (u32 distance = 16; distance > 0; distance /= 2) {
                    sum += __shfl_down_sync(0xffffffffu, sum, distance);
                }
            }
            if ((CHANNELS_LAST || lane == 0) && first + k < columns) {
                if (x.part_count == 1) {
                    ((Element*)x.parts)[to + j * columns + k] = STORE(sum);
                } else {
                    ((Sum*)x.parts)[to + j * columns + k] = sum;
                }
            }
        }
    }
}
