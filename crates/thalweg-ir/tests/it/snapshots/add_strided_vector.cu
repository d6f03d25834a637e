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
template <class T, u32 N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) pack {
    T element[N];
};

struct add_arguments {
    const f32* input0;
    const f32* input1;
    f32* output0;
    u64 rows;
    u64 points;
    u64 row_extent0;
    u64 row_extent1;
    u64 row_extent2;
    u64 input0_row_stride0;
    u64 input0_row_stride1;
    u64 input0_row_stride2;
    u64 input1_row_stride0;
    u64 input1_row_stride1;
    u64 input1_row_stride2;
    u64 output0_row_stride0;
    u64 output0_row_stride1;
    u64 output0_row_stride2;
};

extern "C" __global__ void __launch_bounds__(256) add(const __grid_constant__ add_arguments a) {
    launch_dependents();
    wait_for_previous();
    const u32 count = u32(a.rows * a.points);
    const u32 threads = u32(gridDim.x) * blockDim.x;
    const u32 thread = u32(blockIdx.x) * blockDim.x + threadIdx.x;
    const u32 vectors = u32(a.row_extent2) / 4;
    for (u32 i = thread; i < count / 4; i += threads) {
        const u32 row2 = i % vectors * 4;
        const u32 outside = i / vectors;
        const u32 row1 = outside % u32(a.row_extent1);
        const u32 before_row1 = outside / u32(a.row_extent1);
        const u32 row0 = before_row1;
        const u32 at_input0 = row0 * u32(a.input0_row_stride0) + row1 * u32(a.input0_row_stride1) + row2 * u32(a.input0_row_stride2);
        const u32 at_input1 = row0 * u32(a.input1_row_stride0) + row1 * u32(a.input1_row_stride1) + row2 * u32(a.input1_row_stride2);
        const u32 at_output0 = row0 * u32(a.output0_row_stride0) + row1 * u32(a.output0_row_stride1) + row2 * u32(a.output0_row_stride2);
        const pack<f32, 4> input0 = *(const pack<f32, 4>*)(a.input0 + at_input0);
        pack<f32, 4> output0;
        #pragma unroll
        for (u32 e = 0; e < 4; ++e) {
            const f32 v0 = input0.element[e];
            const f32 v1 = a.input1[at_input1];
            const f32 v2 = v0 + v1;
            output0.element[e] = v2;
        }
        *(pack<f32, 4>*)(a.output0 + at_output0) = output0;
    }
}
