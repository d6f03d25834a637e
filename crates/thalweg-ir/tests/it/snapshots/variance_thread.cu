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

struct variance_arguments {
    const f32* input0;
    f32* output0;
    u64 rows;
    u64 points;
    u64 row_extent0;
    u64 inner_extent0;
    u64 inner_extent1;
    u64 input0_row_stride0;
    u64 input0_inner_stride0;
    u64 input0_inner_stride1;
    u64 output0_row_stride0;
};

extern "C" __global__ void __launch_bounds__(128) variance(const __grid_constant__ variance_arguments a) {
    launch_dependents();
    wait_for_previous();
    const u32 rows = u32(a.rows);
    const u32 threads = u32(gridDim.x) * blockDim.x;
    const u32 thread = u32(blockIdx.x) * blockDim.x + threadIdx.x;
    for (u32 row = thread; row < rows; row += threads) {
        const u32 row0 = row;
        const u32 start_input0 = row0 * u32(a.input0_row_stride0);
        const u32 start_output0 = row0 * u32(a.output0_row_stride0);
        f32 reduced0 = 0.0f;
        f32 reduced1 = 0.0f;
        for (u32 inner0 = 0; inner0 < u32(a.inner_extent0); ++inner0) {
            for (u32 inner1 = 0; inner1 < u32(a.inner_extent1); ++inner1) {
                const u32 at_input0 = start_input0 + inner0 * u32(a.input0_inner_stride0) + inner1 * u32(a.input0_inner_stride1);
                const f32 v0 = a.input0[at_input0];
                reduced0 = reduced0 + 1.0f;
                reduced1 = reduced1 + v0;
            }
        }
        const f32 v4 = reduced1 / reduced0;
        f32 reduced2 = 0.0f;
        for (u32 inner0 = 0; inner0 < u32(a.inner_extent0); ++inner0) {
            for (u32 inner1 = 0; inner1 < u32(a.inner_extent1); ++inner1) {
                const u32 at_input0 = start_input0 + inner0 * u32(a.input0_inner_stride0) + inner1 * u32(a.input0_inner_stride1);
                const f32 v0 = a.input0[at_input0];
                const f32 v5 = v0 - v4;
                const f32 v6 = v5 * v5;
                reduced2 = reduced2 + v6;
            }
        }
        const f32 v8 = reduced2 / reduced0;
        a.output0[start_output0] = v8;
    }
}
