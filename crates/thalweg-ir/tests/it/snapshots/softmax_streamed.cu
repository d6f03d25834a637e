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
// Rows that stream through the shared memory of a cluster of BLOCKS blocks. Each block has every BLOCKS-th piece of a row, where a
// piece is one vector per thread of a group.

// The state that the groups of a block share: barriers of the rows in progress, and the combined values of the warps of all blocks.
template <u32 BLOCKS, u32 GROUPS, u32 STAGES, u32 THREADS, u32 VALUES> struct streamed_rows {
    u64 full[GROUPS][STAGES], exchanged[GROUPS][2], columns;
    u64 values[GROUPS][2][VALUES][BLOCKS * THREADS / 32];
};

static __device__ __forceinline__ u32 in_shared(const void* const at) { return u32(__cvta_generic_to_shared(at)); }

// Waits until all blocks of the cluster have reached this point.
static __device__ __forceinline__ void meet_cluster() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

template <u32 BLOCKS, u32 GROUPS, u32 STAGES, u32 THREADS, u32 VALUES>
static __device__ __forceinline__ void begin_streaming(streamed_rows<BLOCKS, GROUPS, STAGES, THREADS, VALUES>& shared) {
    constexpr u32 BARRIERS = GROUPS * STAGES + GROUPS * 2 + 1;
    if (threadIdx.x < BARRIERS) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(in_shared(&shared.full[0][0] + threadIdx.x)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    meet_cluster();
}

// Sets the number of bytes that a barrier expects.
static __device__ __forceinline__ void expect_bytes(u64& barrier, const u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(in_shared(&barrier)), "r"(bytes) : "memory");
}

// Waits for data from this block or another block of the cluster at a barrier.
static __device__ __forceinline__ void await_bytes(u64& barrier, const u32 parity) {
    asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@!done bra AGAIN;\n}"
                 :: "r"(in_shared(&barrier)), "r"(parity) : "memory");
}

// Waits for the threads of a group.
template <u32 THREADS> static __device__ __forceinline__ void meet_group(const u32 group) {
    asm volatile("bar.sync %0, %1;" :: "r"(1 + group), "n"(THREADS) : "memory");
}

// The number of elements of a row that a block has, if a piece has PIECE elements.
template <u32 BLOCKS, u32 PIECE, class I> static __device__ __forceinline__ u32 elements_of_block(const I points, const u32 rank) {
    const I whole = points / (BLOCKS * PIECE), rest = points - whole * (BLOCKS * PIECE), before = I(rank) * PIECE;
    return u32(whole) * PIECE + (rest > before ? u32(rest - before < PIECE ? rest - before : PIECE) : 0);
}

// Begins to copy a block's pieces of a row: each lane of a warp one at a time.
template <u32 BLOCKS, u32 PIECE, class T, class I>
static __device__ __forceinline__ void copy_pieces(T* const to, const T* const from, const I points, const u32 rank, u64& barrier) {
    u32 piece = threadIdx.x % 32;
    for (I first = (I(piece) * BLOCKS + rank) * PIECE; first < points; first += 32 * BLOCKS * PIECE, piece += 32) {
        const u32 bytes = u32(points - first < PIECE ? points - first : PIECE) * u32(sizeof(T));
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :: "r"(in_shared(to + piece * PIECE)), "l"(__cvta_generic_to_global(from + first)), "r"(bytes), "r"(in_shared(&barrier)) : "memory");
    }
}

// Sends the combined value of a warp to all blocks of the cluster: each of the warp's first lanes sends it to one block.
template <u32 BLOCKS, class T> static __device__ __forceinline__ void send(const T value, u64& to, u64& barrier) {
    const u32 block = threadIdx.x % 32;
    if (block < BLOCKS) {
        u32 at, arrives;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(in_shared(&to)), "r"(block));
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(arrives) : "r"(in_shared(&barrier)), "r"(block));
        if constexpr (sizeof(T) == 8) {
            asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" :: "r"(at), "l"(*(const u64*)&value), "r"(arrives) : "memory");
        } else {
            u32 bits = 0;
            *(T*)&bits = value;
            asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" :: "r"(at), "r"(bits), "r"(arrives) : "memory");
        }
    }
}

// Combines the values that the warps of all blocks have sent; all threads get the result.
template <class T, u32 N, class Combine> static __device__ __forceinline__ T combine_sent(const u64 (&values)[N], const Combine combine) {
    constexpr u32 LANES = N < 32 ? N : 32, EACH = N / LANES;
    T own[EACH];
    #pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
        own[i] = *(const T*)&values[threadIdx.x % LANES * EACH + i];
    }
    return combine_warp<LANES>(combine_vector(own, combine), combine);
}

// Stores values that this kernel does not read again.
template <class P> static __device__ __forceinline__ void store_once(P* const to, const P& from) {
    if constexpr (sizeof(P) == 16) {
        __stcs((float4*)to, *(const float4*)&from);
    } else {
        *to = from;
    }
}

struct softmax_arguments {
    const f16* input0;
    f16* output0;
    u64 rows;
    u64 points;
};

extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(512, 1) softmax(const __grid_constant__ softmax_arguments a) {
    launch_dependents();
    wait_for_previous();
    extern __shared__ __align__(128) unsigned char dynamic_shared[];
    __shared__ streamed_rows<4, 2, 3, 256, 1> shared;
    const u32 rank = blockIdx.x % 4, group = threadIdx.x / 256;
    const u32 thread = threadIdx.x % 256, lane = rank * 256 + thread;
    const u32 rows = u32(a.rows), points = u32(a.points);
    const u32 elements = elements_of_block<4, 2048>(points, rank);
    begin_streaming(shared);
    const u32 clusters = u32(gridDim.x) / 4, step = clusters * 2;
    const u32 begin = u32(blockIdx.x) / 4 + group * clusters;
    const auto fetch = [&](const u32 row, const u32 stage) {
        if (row < rows) {
            if (thread == 0) {
                expect_bytes(shared.full[group][stage], elements * 2);
            }
            __syncwarp();
            unsigned char* const to = dynamic_shared + (group * 3 + stage) * 32768;
            copy_pieces<4, 2048>((f16*)(to + 0), a.input0 + row * points, points, rank, shared.full[group][stage]);
        }
    };
    if (thread < 32) {
        for (u32 stage = 0; stage < 3; ++stage) {
            fetch(begin + stage * step, stage);
        }
    }
    u32 stage = 0, phase = 0, turn = 0;
    for (u32 row = begin; row < rows; row += step) {
        const u32 row_start = row * u32(a.points);
        unsigned char* const staged = dynamic_shared + (group * 3 + stage) * 32768;
        const pack<f16, 8>* const copied0 = (const pack<f16, 8>*)(staged + 0);
        await_bytes(shared.full[group][stage], phase);
        f32 lanes0[8];
        #pragma unroll
        for (u32 e = 0; e < 8; ++e) {
            lanes0[e] = __uint_as_float(0xff800000u);
        }
        #pragma unroll
        for (u32 k = 0; k < 8; ++k) {
            const u32 first = (k * 1024 + lane) * 8;
            if (k < 7 || first < points) {
                const pack<f16, 8> input0 = copied0[k * 256 + thread];
                #pragma unroll
                for (u32 e = 0; e < 8; ++e) {
                    const f16 v0 = input0.element[e];
                    const f32 v1 = f32_from_f16(v0);
                    lanes0[e] = maximum<f32>(lanes0[e], v1);
                }
            }
        }
        if (thread == 0) {
            expect_bytes(shared.exchanged[group][turn & 1], 128);
        }
        const f32 own0 = combine_warp<32>(combine_vector(lanes0, [](const f32 x, const f32 y) { return maximum<f32>(x, y); }), [](const f32 x, const f32 y) { return maximum<f32>(x, y); });
        send<4>(own0, shared.values[group][turn & 1][0][rank * 8 + thread / 32], shared.exchanged[group][turn & 1]);
        await_bytes(shared.exchanged[group][turn & 1], turn >> 1 & 1);
        const f32 reduced0 = combine_sent<f32>(shared.values[group][turn & 1][0], [](const f32 x, const f32 y) { return maximum<f32>(x, y); });
        ++turn;
        f32 lanes1[8];
        #pragma unroll
        for (u32 e = 0; e < 8; ++e) {
            lanes1[e] = 0.0f;
        }
        #pragma unroll
        for (u32 k = 0; k < 8; ++k) {
            const u32 first = (k * 1024 + lane) * 8;
            if (k < 7 || first < points) {
                const pack<f16, 8> input0 = copied0[k * 256 + thread];
                #pragma unroll
                for (u32 e = 0; e < 8; ++e) {
                    const f16 v0 = input0.element[e];
                    const f32 v1 = f32_from_f16(v0);
                    const f32 v4 = v1 - reduced0;
                    const f32 v5 = __expf(v4);
                    lanes1[e] = lanes1[e] + v5;
                }
            }
        }
        if (thread == 0) {
            expect_bytes(shared.exchanged[group][turn & 1], 128);
        }
        const f32 own1 = combine_warp<32>(combine_vector(lanes1, [](const f32 x, const f32 y) { return x + y; }), [](const f32 x, const f32 y) { return x + y; });
        send<4>(own1, shared.values[group][turn & 1][0][rank * 8 + thread / 32], shared.exchanged[group][turn & 1]);
        await_bytes(shared.exchanged[group][turn & 1], turn >> 1 & 1);
        const f32 reduced1 = combine_sent<f32>(shared.values[group][turn & 1][0], [](const f32 x, const f32 y) { return x + y; });
        ++turn;
        #pragma unroll
        for (u32 k = 0; k < 8; ++k) {
            const u32 first = (k * 1024 + lane) * 8;
            if (k < 7 || first < points) {
                const pack<f16, 8> input0 = copied0[k * 256 + thread];
                pack<f16, 8> output0;
                #pragma unroll
                for (u32 e = 0; e < 8; ++e) {
                    const f16 v0 = input0.element[e];
                    const f32 v1 = f32_from_f16(v0);
                    const f32 v4 = v1 - reduced0;
                    const f32 v5 = __expf(v4);
                    const f32 v7 = v5 / reduced1;
                    output0.element[e] = f16_from_f32(v7);
                }
                store_once((pack<f16, 8>*)(a.output0 + row_start + first), output0);
            }
        }
        meet_group<256>(group);
        if (thread < 32) {
            fetch(row + 3 * step, stage);
        }
        ++stage;
        if (stage == 3) {
            stage = 0;
            phase ^= 1;
        }
    }
    meet_cluster();
}
