// One block: the place of the greatest score, which then is the token at the next position.
struct NAME_arguments {
    const ELEMENT* scores;
    i64 *token, *position, *history;
    u64 count, context;
    u64 dtype;
    // Where a position behind the context is told of.
    i64* told;
};

// Scores in an order in which NaN is the greatest, as unsigned numbers; 0 is below all.
static __device__ __forceinline__ u32 ordered(const f32 x) {
    // Zeros are equal.
    const u32 bits = __float_as_uint(x + 0.0f);
    return x != x ? 0xffffffffu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// A score and its place: the greater score, then the earlier place, is the greater number.
static __device__ __forceinline__ u64 both(const f32 x, const u32 place) {
    return u64(ordered(x)) << 32 | u32(~place);
}

static __device__ __forceinline__ u64 greater(const u64 a, const u64 b) { return a > b ? a : b; }

extern "C" __global__ void __launch_bounds__(1024) NAME(const __grid_constant__ NAME_arguments x) {
    __shared__ u64 of_warps[32];
    const u32 thread = threadIdx.x, count = u32(x.count);
    constexpr u32 WIDTH = 16 / sizeof(ELEMENT);
    const u32 whole = u64(x.scores) % 16 == 0 ? count / WIDTH : 0;
    u64 best = 0;
    const i64 next = thread == 0 ? *x.position + 1 : 0;
    #pragma unroll 4
    for (u32 i = thread; i < whole; i += 1024) {
        union { uint4 whole; ELEMENT parts[WIDTH]; } given;
        given.whole = ((const uint4*)x.scores)[i];
        #pragma unroll
        for (u32 j = 0; j < WIDTH; ++j) {
            best = greater(best, both(LOAD(given.parts[j]), i * WIDTH + j));
        }
    }
    for (u32 i = whole * WIDTH + thread; i < count; i += 1024) {
        best = greater(best, both(LOAD(x.scores[i]), i));
    }
    #pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2) {
        best = greater(best, __shfl_xor_sync(0xffffffffu, best, apart));
    }
    if (thread % 32 == 0) {
        of_warps[thread / 32] = best;
    }
    __syncthreads();
    if (thread < 32) {
        best = of_warps[thread];
        #pragma unroll
        for (u32 apart = 16; apart > 0; apart /= 2) {
            best = greater(best, __shfl_xor_sync(0xffffffffu, best, apart));
        }
        if (thread == 0) {
            const i64 token = i64(u32(~best));
            *x.token = token;
            *x.position = next;
            if (next >= 0 && next < i64(x.context)) {
                x.history[next] = token;
            } else {
                x.told[0] = next;
                x.told[1] = i64(x.context) + 1;
            }
        }
    }
}
