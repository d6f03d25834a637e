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
template <class T, u32 N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) pack {
    T element[N];
};
// Combines the neighbouring lanes of a thread, lane t with lane t + step.
template <u32 N, class T, class Combine>
static __device__ __forceinline__ T combine_vector(T (&lanes)[N], const Combine combine) {
    #pragma unroll
    for (u32 step = 1; step < N; step *= 2) {
        #pragma unroll
        for (u32 lane = 0; lane + step < N; lane += 2 * step) {
            lanes[lane] = combine(lanes[lane], lanes[lane + step]);
        }
    }
    return lanes[0];
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

struct softmax_arguments {
    const f16* input0;
    f16* output0;
    u64 rows;
    u64 points;
};

extern "C" __global__ void __launch_bounds__(64) softmax(const __grid_constant__ softmax_arguments a) {
    launch_dependents();
    wait_for_previous();
    __shared__ u64 shared[2][2];
    const u32 rows = u32(a.rows);
    const u32 lane = threadIdx.x;
    const u32 points = u32(a.points);
    for (u32 row = u32(blockIdx.x); row < rows; row += u32(gridDim.x)) {
        const u32 row_start = row * u32(a.points);
        f32 lanes0[8];
        #pragma unroll
        for (u32 e = 0; e < 8; ++e) {
            lanes0[e] = __uint_as_float(0xff800000u);
        }
        pack<f16, 8> input0[4];
        #pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            const u32 first = (k * 64 + lane) * 8;
            if (first < points) {
                input0[k] = *(const pack<f16, 8>*)(a.input0 + row_start + first);
            }
        }
        #pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            const u32 first = (k * 64 + lane) * 8;
            if (first < points) {
                #pragma unroll
                for (u32 e = 0; e < 8; ++e) {
                    const f16 v0 = input0[k].element[e];
                    const f32 v1 = f32_from_f16(v0);
                    lanes0[e] = maximum<f32>(lanes0[e], v1);
                }
            }
        }
        f32 reduced0 = combine_vector(lanes0, [](const f32 x, const f32 y) { return maximum<f32>(x, y); });
        reduced0 = combine_block<64>(reduced0, shared[0], [](const f32 x, const f32 y) { return maximum<f32>(x, y); });
        f32 lanes1[8];
        #pragma unroll
        for (u32 e = 0; e < 8; ++e) {
            lanes1[e] = 0.0f;
        }
        #pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            const u32 first = (k * 64 + lane) * 8;
            if (first < points) {
                #pragma unroll
                for (u32 e = 0; e < 8; ++e) {
                    const f16 v0 = input0[k].element[e];
                    const f32 v1 = f32_from_f16(v0);
                    const f32 v4 = v1 - reduced0;
                    const f32 v5 = __expf(v4);
                    lanes1[e] = lanes1[e] + v5;
                }
            }
        }
        f32 reduced1 = combine_vector(lanes1, [](const f32 x, const f32 y) { return x + y; });
        reduced1 = combine_block<64>(reduced1, shared[1], [](const f32 x, const f32 y) { return x + y; });
        #pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            const u32 first = (k * 64 + lane) * 8;
            if (first < points) {
                pack<f16, 8> output0;
                #pragma unroll
                for (u32 e = 0; e < 8; ++e) {
                    const f16 v0 = input0[k].element[e];
                    const f32 v1 = f32_from_f16(v0);
                    const f32 v4 = v1 - reduced0;
                    const f32 v5 = __expf(v4);
                    const f32 v7 = v5 / reduced1;
                    output0.element[e] = f16_from_f32(v7);
                }
                *(pack<f16, 8>*)(a.output0 + row_start + first) = output0;
            }
        }
    }
}
