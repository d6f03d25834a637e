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
// The same for each of N rows of a thread, in a block of ROWS threads with other rows, where neighbouring threads are the same lane:
// first the lanes of a warp, then those of different warps. The block has eight bytes of memory for each thread.
template <u32 LANES, u32 ROWS, u32 N, class T, class Combine>
static __device__ __forceinline__ void combine_columns(T (&values)[N], void* const shared, const Combine combine) {
    constexpr u32 NEAR = ROWS < 32 && LANES * ROWS >= 32 ? 32 / ROWS : 1, FAR = LANES / NEAR;
    constexpr u32 FITS = NEAR * 8 / sizeof(T), AT_ONCE = N < FITS ? N : FITS;
    T* const lanes = (T*)shared;
    const u32 lane = threadIdx.x / ROWS, row = threadIdx.x % ROWS;
    #pragma unroll
    for (u32 n = 0; n < N; ++n) {
        #pragma unroll
        for (u32 step = 1; step < NEAR; step *= 2) {
            values[n] = combine(values[n], T(__shfl_down_sync(0xffffffffu, values[n], step * ROWS)));
        }
    }
    #pragma unroll
    for (u32 first = 0; first < N; first += AT_ONCE) {
        #pragma unroll
        for (u32 n = 0; n < AT_ONCE; ++n) {
            if (lane % NEAR == 0) {
                lanes[(n * FAR + lane / NEAR) * ROWS + row] = values[first + n];
            }
        }
        __syncthreads();
        for (u32 column = threadIdx.x; column < AT_ONCE * ROWS; column += LANES * ROWS) {
            T* const own = lanes + column / ROWS * FAR * ROWS + column % ROWS;
            T far[FAR];
            #pragma unroll
            for (u32 k = 0; k < FAR; ++k) {
                far[k] = own[k * ROWS];
            }
            *own = combine_vector(far, combine);
        }
        __syncthreads();
        #pragma unroll
        for (u32 n = 0; n < AT_ONCE; ++n) {
            values[first + n] = lanes[n * FAR * ROWS + row];
        }
        __syncthreads();
    }
}

struct variance_arguments {
    const f32* input0;
    f32* output0;
    u64 rows;
    u64 points;
    u64 row_extent0;
    u64 inner_extent0;
    u64 input0_row_stride0;
    u64 input0_inner_stride0;
    u64 output0_row_stride0;
};

extern "C" __global__ void __launch_bounds__(512) variance(const __grid_constant__ variance_arguments a) {
    launch_dependents();
    wait_for_previous();
    __shared__ u64 shared[512];
    const u32 rows = u32(a.rows);
    const u32 lane = threadIdx.x / 8;
    const u32 step = u32(gridDim.x) * 8;
    for (u32 first = u32(blockIdx.x) * 8; first < rows; first += step) {
        const bool active = first + threadIdx.x % 8 < rows;
        const u32 row = active ? first + threadIdx.x % 8 : 0;
        const u32 points = active ? u32(a.points) : 0;
        const u32 row0 = row;
        const u32 start_input0 = row0 * u32(a.input0_row_stride0);
        const u32 start_output0 = row0 * u32(a.output0_row_stride0);
        f32 results0[1];
        f32 results1[1];
        #pragma unroll
        for (u32 e = 0; e < 1; ++e) {
            results0[e] = 0.0f;
            results1[e] = 0.0f;
        }
        for (u32 next = lane; next < points; next += 512) {
            pack<f32, 1> input0[8];
            #pragma unroll
            for (u32 k = 0; k < 8; ++k) {
                const u32 point = next + k * 64;
                if (point < points) {
                    const u32 inner0 = point;
                    const u32 at_input0 = start_input0 + inner0 * u32(a.input0_inner_stride0);
                    input0[k] = *(const pack<f32, 1>*)(a.input0 + at_input0);
                }
            }
            #pragma unroll
            for (u32 k = 0; k < 8; ++k) {
                const u32 point = next + k * 64;
                if (point < points) {
                    #pragma unroll
                    for (u32 e = 0; e < 1; ++e) {
                        const f32 v0 = input0[k].element[e];
                        results0[e] = results0[e] + 1.0f;
                        results1[e] = results1[e] + v0;
                    }
                }
            }
        }
        combine_columns<64, 8>(results0, shared, [](const f32 x, const f32 y) { return x + y; });
        combine_columns<64, 8>(results1, shared, [](const f32 x, const f32 y) { return x + y; });
        f32 row_v4[1];
        #pragma unroll
        for (u32 e = 0; e < 1; ++e) {
            const f32 reduced1 = results1[e];
            const f32 reduced0 = results0[e];
            const f32 v4 = reduced1 / reduced0;
            row_v4[e] = v4;
        }
        f32 results2[1];
        #pragma unroll
        for (u32 e = 0; e < 1; ++e) {
            results2[e] = 0.0f;
        }
        for (u32 next = lane; next < points; next += 512) {
            pack<f32, 1> input0[8];
            #pragma unroll
            for (u32 k = 0; k < 8; ++k) {
                const u32 point = next + k * 64;
                if (point < points) {
                    const u32 inner0 = point;
                    const u32 at_input0 = start_input0 + inner0 * u32(a.input0_inner_stride0);
                    input0[k] = *(const pack<f32, 1>*)(a.input0 + at_input0);
                }
            }
            #pragma unroll
            for (u32 k = 0; k < 8; ++k) {
                const u32 point = next + k * 64;
                if (point < points) {
                    #pragma unroll
                    for (u32 e = 0; e < 1; ++e) {
                        const f32 v4 = row_v4[e];
                        const f32 v0 = input0[k].element[e];
                        const f32 v5 = v0 - v4;
                        const f32 v6 = v5 * v5;
                        results2[e] = results2[e] + v6;
                    }
                }
            }
        }
        combine_columns<64, 8>(results2, shared, [](const f32 x, const f32 y) { return x + y; });
        if (active && lane == 0) {
            pack<f32, 1> output0;
            #pragma unroll
            for (u32 e = 0; e < 1; ++e) {
                const f32 reduced2 = results2[e];
                const f32 reduced0 = results0[e];
                const f32 v8 = reduced2 / reduced0;
                output0.element[e] = v8;
            }
            *(pack<f32, 1>*)(a.output0 + start_output0) = output0;
        }
    }
}
