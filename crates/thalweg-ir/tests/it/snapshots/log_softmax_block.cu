typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;
// Lets a kernel that waits for this one itself begin as soon as all blocks of this one have come here.
static __device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// Waits until the kernel in front is complete. In front of it nothing is read or written, only prefetched.
static __device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
template <class T> static __device__ __forceinline__ T maximum(const T a, const T b) {
    return a > b || a != a ? a : b;
}
// One instruction, which knows NaN.
template <> [[maybe_unused]] __device__ __forceinline__ f32 maximum<f32>(const f32 a, const f32 b) {
    f32 y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
// The same for LANES neighbouring threads of a warp; all of them get the result.
template <u32 LANES, class T, class Combine>
static __device__ __forceinline__ T combine_warp(T value, const Combine combine) {
    #pragma unroll
    for (u32 step = 1; step < LANES; step *= 2) {
        value = combine(value, T(__shfl_down_sync(0xffffffffu, value, step, LANES)));
    }
    return T(__shfl_sync(0xffffffffu, value, 0, LANES));
}
// The same for the threads of a block. Before it is called again with this memory, the block meets at a barrier.
template <u32 LANES, class T, class Combine>
static __device__ __forceinline__ T combine_block(T value, void* const shared, const Combine combine) {
    T* const warps = (T*)shared;
    value = combine_warp<32>(value, combine);
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = value;
    }
    __syncthreads();
    return combine_warp<LANES / 32>(warps[threadIdx.x % (LANES / 32)], combine);
}

struct log_softmax_arguments {
    const f32* input0;
    f32* output0;
    u64 rows;
    u64 points;
    u64 row_extent0;
    u64 inner_extent0;
    u64 input0_row_stride0;
    u64 input0_inner_stride0;
    u64 output0_row_stride0;
    u64 output0_inner_stride0;
};

extern "C" __global__ void __launch_bounds__(256) log_softmax(const __grid_constant__ log_softmax_arguments a) {
    launch_dependents();
    wait_for_previous();
    __shared__ u64 shared[2][8];
    const u64 rows = u64(a.rows);
    const u32 lane = threadIdx.x;
    const u64 points = u64(a.points);
    for (u64 row = u64(blockIdx.x); row < rows; row += u64(gridDim.x)) {
        const u64 row0 = row;
        const u64 start_input0 = row0 * u64(a.input0_row_stride0);
        const u64 start_output0 = row0 * u64(a.output0_row_stride0);
        f32 reduced0 = __uint_as_float(0xff800000u);
        for (u64 point = lane; point < points; point += 256) {
            const u64 inner0 = point;
            const u64 at_input0 = start_input0 + inner0 * u64(a.input0_inner_stride0);
            const f32 v0 = a.input0[at_input0];
            reduced0 = maximum<f32>(reduced0, v0);
        }
        reduced0 = combine_block<256>(reduced0, shared[0], [](const f32 x, const f32 y) { return maximum<f32>(x, y); });
        f32 reduced1 = 0.0f;
        for (u64 point = lane; point < points; point += 256) {
            const u64 inner0 = point;
            const u64 at_input0 = start_input0 + inner0 * u64(a.input0_inner_stride0);
            const f32 v0 = a.input0[at_input0];
            const f32 v3 = v0 - reduced0;
            const f32 v4 = expf(v3);
            reduced1 = reduced1 + v4;
        }
        reduced1 = combine_block<256>(reduced1, shared[1], [](const f32 x, const f32 y) { return x + y; });
        const f32 v6 = logf(reduced1);
        for (u64 point = lane; point < points; point += 256) {
            const u64 inner0 = point;
            const u64 at_input0 = start_input0 + inner0 * u64(a.input0_inner_stride0);
            const u64 at_output0 = start_output0 + inner0 * u64(a.output0_inner_stride0);
            const f32 v0 = a.input0[at_input0];
            const f32 v3 = v0 - reduced0;
            const f32 v7 = v3 - v6;
            a.output0[at_output0] = v7;
        }
    }
}
