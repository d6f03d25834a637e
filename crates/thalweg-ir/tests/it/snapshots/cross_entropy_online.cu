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
static __device__ __forceinline__ bf16 bf16_from_f32(const f32 x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
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

struct cross_entropy_arguments {
    const bf16* input0;
    const i64* input1;
    bf16* output0;
    u64 rows;
    u64 points;
    u64 row_extent0;
    u64 inner_extent0;
    u64 input0_row_stride0;
    u64 input0_inner_stride0;
    u64 input1_row_stride0;
    u64 input1_inner_stride0;
    u64 output0_row_stride0;
};

extern "C" __global__ void __launch_bounds__(256) cross_entropy(const __grid_constant__ cross_entropy_arguments a) {
    launch_dependents();
    wait_for_previous();
    __shared__ u64 shared[4][8];
    const u32 rows = u32(a.rows);
    const u32 lane = threadIdx.x;
    const u32 points = u32(a.points);
    for (u32 row = u32(blockIdx.x); row < rows; row += u32(gridDim.x)) {
        const u32 row0 = row;
        const u32 start_input0 = row0 * u32(a.input0_row_stride0);
        const u32 start_input1 = row0 * u32(a.input1_row_stride0);
        const u32 start_output0 = row0 * u32(a.output0_row_stride0);
        const i64 v2 = a.input1[start_input1];
        const i64 reduced0 = v2;
        const i64 place2 = reduced0;
        const bool inside2 = place2 >= 0 && place2 < i64(points);
        const bf16 picked2_0 = inside2 ? a.input0[start_input0 + u32(place2)] : bf16();
        f32 greatest = (-3.4028235e38f);
        f32 sum = 0.0f;
        for (u32 begin = lane * 8; begin < points; begin += 2048) {
            pack<bf16, 8> input0[1];
            #pragma unroll
            for (u32 k = 0; k < 1; ++k) {
                const u32 first = begin + k * 2048;
                if (first < points) {
                    input0[k] = *(const pack<bf16, 8>*)(a.input0 + start_input0 + first);
                }
            }
            f32 values[8], candidates[8];
            #pragma unroll
            for (u32 k = 0; k < 1; ++k) {
                const u32 first = begin + k * 2048;
                #pragma unroll
                for (u32 e = 0; e < 8; ++e) {
                    values[k * 8 + e] = __uint_as_float(0xff800000u);
                    if (first < points) {
                        const bf16 v0 = input0[k].element[e];
                        const f32 v1 = f32_from_bf16(v0);
                        values[k * 8 + e] = v1;
                    }
                    candidates[k * 8 + e] = values[k * 8 + e];
                }
            }
            const f32 higher = maximum<f32>(greatest, combine_vector(candidates, [](const f32 x, const f32 y) { return maximum<f32>(x, y); }));
            #pragma unroll
            for (u32 e = 0; e < 8; ++e) {
                values[e] = expf(values[e] - higher);
            }
            sum = sum * expf(greatest - higher) + combine_vector(values, [](const f32 x, const f32 y) { return x + y; });
            greatest = higher;
        }
        f32 reduced1 = greatest;
        reduced1 = combine_block<256>(reduced1, shared[1], [](const f32 x, const f32 y) { return maximum<f32>(x, y); });
        f32 reduced3 = sum * expf(greatest - reduced1);
        reduced3 = combine_block<256>(reduced3, shared[3], [](const f32 x, const f32 y) { return x + y; });
        f32 reduced2 = 0.0f;
        if (inside2) {
            const bf16 v0 = picked2_0;
            const f32 v1 = f32_from_bf16(v0);
            const f32 v7 = v1 - reduced1;
            reduced2 = v7;
        }
        const f32 v15 = logf(reduced3);
        const f32 v16 = v15 - reduced2;
        if (lane == 0) {
            a.output0[start_output0] = bf16_from_f32(v16);
        }
    }
}
