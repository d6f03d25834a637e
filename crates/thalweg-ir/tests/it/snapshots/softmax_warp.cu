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
struct f16 { u16 bits; };
static __device__ __forceinline__ f32 f32_from_f16(const f16 x) {
    f32 y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
static __device__ __forceinline__ f16 f16_from_f32(const f32 x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
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

struct softmax_arguments {
    const f16* input0;
    f16* output0;
    u64 rows;
    u64 points;
};

extern "C" __global__ void __launch_bounds__(128) softmax(const __grid_constant__ softmax_arguments a) {
    launch_dependents();
    wait_for_previous();
    const u32 rows = u32(a.rows);
    const u32 lane = threadIdx.x % 8;
    const u32 step = u32(gridDim.x) * 16;
    for (u32 first = u32(blockIdx.x) * 16; first < rows; first += step) {
        const bool active = first + threadIdx.x / 8 < rows;
        const u32 row = active ? first + threadIdx.x / 8 : 0;
        const u32 points = active ? u32(a.points) : 0;
        const u32 row_start = row * u32(a.points);
        f32 reduced0 = __uint_as_float(0xff800000u);
        for (u32 point = lane; point < points; point += 8) {
            const u32 at = row_start + point;
            const f16 v0 = a.input0[at];
            const f32 v1 = f32_from_f16(v0);
            reduced0 = maximum<f32>(reduced0, v1);
        }
        reduced0 = combine_warp<8>(reduced0, [](const f32 x, const f32 y) { return maximum<f32>(x, y); });
        f32 reduced1 = 0.0f;
        for (u32 point = lane; point < points; point += 8) {
            const u32 at = row_start + point;
            const f16 v0 = a.input0[at];
            const f32 v1 = f32_from_f16(v0);
            const f32 v4 = v1 - reduced0;
            const f32 v5 = __expf(v4);
            reduced1 = reduced1 + v5;
        }
        reduced1 = combine_warp<8>(reduced1, [](const f32 x, const f32 y) { return x + y; });
        for (u32 point = lane; point < points; point += 8) {
            const u32 at = row_start + point;
            const f16 v0 = a.input0[at];
            const f32 v1 = f32_from_f16(v0);
            const f32 v4 = v1 - reduced0;
            const f32 v5 = __expf(v4);
            const f32 v7 = v5 / reduced1;
            a.output0[at] = f16_from_f32(v7);
        }
    }
}
