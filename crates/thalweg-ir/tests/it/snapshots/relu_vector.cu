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
struct bf16 { u16 bits; };
static __device__ __forceinline__ f32 f32_from_bf16(const bf16 x) {
    return __uint_as_float(u32(x.bits) << 16);
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
template <class T, u32 N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) pack {
    T element[N];
};

struct relu_arguments {
    const bf16* input0;
    f32* output0;
    u64 rows;
    u64 points;
};

static __device__ __forceinline__ void relu_point(const relu_arguments& a, const u64 i, const bf16 input0, f32& output0) {
    const bf16 v0 = input0;
    const f32 v1 = f32_from_bf16(v0);
    const f32 v3 = maximum<f32>(v1, 0.0f);
    output0 = v3;
}

extern "C" __global__ void __launch_bounds__(256) relu(const __grid_constant__ relu_arguments a) {
    launch_dependents();
    wait_for_previous();
    const u64 count = u64(a.rows * a.points);
    const u64 threads = u64(gridDim.x) * blockDim.x;
    const u64 thread = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    const u64 vectors = count / 8;
    const u64 begin = u64(blockIdx.x) * 512 + threadIdx.x;
    const u64 step = u64(gridDim.x) * 512;
    for (u64 first = begin; first < vectors; first += step) {
        pack<bf16, 8> input0[2];
        #pragma unroll
        for (u32 k = 0; k < 2; ++k) {
            const u64 i = first + k * 256;
            if (i < vectors) {
                input0[k] = ((const pack<bf16, 8>*)a.input0)[i];
            }
        }
        #pragma unroll
        for (u32 k = 0; k < 2; ++k) {
            const u64 i = first + k * 256;
            if (i < vectors) {
                pack<f32, 8> output0;
                #pragma unroll
                for (u32 e = 0; e < 8; ++e) {
                    relu_point(a, i * 8 + e, input0[k].element[e], output0.element[e]);
                }
                ((pack<f32, 8>*)a.output0)[i] = output0;
            }
        }
    }
    for (u64 i = count / 8 * 8 + thread; i < count; i += threads) {
        relu_point(a, i, a.input0[i], a.output0[i]);
    }
}
