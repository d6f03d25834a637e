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

struct embedding_arguments {
    const f32* input0;
    const i64* input1;
    f32* output0;
    i64 scalar0;
    i64 scalar1;
    u64 rows;
    u64 points;
    u64 row_extent0;
    u64 row_extent1;
    u64 input0_elements;
    u64 input1_row_stride0;
    u64 input1_row_stride1;
    u64 output0_row_stride0;
    u64 output0_row_stride1;
};

extern "C" __global__ void __launch_bounds__(256) embedding(const __grid_constant__ embedding_arguments a) {
    launch_dependents();
    wait_for_previous();
    const u32 count = u32(a.rows * a.points);
    const u32 threads = u32(gridDim.x) * blockDim.x;
    const u32 thread = u32(blockIdx.x) * blockDim.x + threadIdx.x;
    for (u32 i = thread; i < count; i += threads) {
        const u32 row1 = i % u32(a.row_extent1);
        const u32 before_row1 = i / u32(a.row_extent1);
        const u32 row0 = before_row1;
        const u32 at_input1 = row0 * u32(a.input1_row_stride0) + row1 * u32(a.input1_row_stride1);
        const u32 at_output0 = row0 * u32(a.output0_row_stride0) + row1 * u32(a.output0_row_stride1);
        const i64 v0 = a.input1[at_input1];
        const i64 v1 = i64(a.scalar0);
        const i64 v2 = i64(a.scalar1);
        const bool v4 = 0ll <= v0;
        const bool v5 = v0 < v2;
        const bool v6 = v4 && v5;
        const i64 v7 = i64(u64(v0) * u64(v1));
        const i64 v8 = i64(row1);
        const i64 v9 = i64(u64(v7) + u64(v8));
        const f32 v10 = v6 ? a.input0[v9] : 0.0f;
        a.output0[at_output0] = v10;
    }
}
