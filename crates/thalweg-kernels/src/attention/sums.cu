// The numbers of each query that the gradient reads: sixteen threads have a row, and take a chunk at a time.
#include "tiles.cuh"

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    const i64 item = i64(blockIdx.x) * 16 + threadIdx.x / 16, head = item / x.padded, row = item % x.padded;
    f32 sum = 0;
    const bool is = head < x.all_heads && row < x.queries;
    for (u32 column = threadIdx.x % 16 * PER_CHUNK; is && column < x.columns; column += 16 * PER_CHUNK) {
        const i64 batch = head / x.heads, own = head % x.heads;
        const uint4 a = *(const uint4*)(x.o.at + batch * x.o.batch + own * x.o.head + row * x.o.row + column);
        const uint4 b = *(const uint4*)(x.grad_o.at + batch * x.grad_o.batch + own * x.grad_o.head + row * x.grad_o.row + column);
        const u32 left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
        #pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            sum = __fmaf_rn(low_of(left[i]), low_of(right[i]), sum);
#if !WIDE
            sum = __fmaf_rn(high_of(left[i]), high_of(right[i]), sum);
#endif
        }
    }
    #pragma unroll
    for (u32 step = 8; step > 0; step /= 2) { sum += __shfl_xor_sync(0xffffffffu, sum, step); }
    if (head < x.all_heads && threadIdx.x % 16 == 0) {
        const f32 lse = is ? x.lse[head * x.queries + row] : -INFINITE;
        // A row whose keys are all masked has weights of 0.
        x.sums[item] = lse == -INFINITE ? INFINITE : lse * 1.44269504088896341f;
        x.sums[x.all_heads * x.padded + item] = sum;
    }
}
