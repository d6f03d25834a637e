// Eight rows of weights by 32 terms: a lane has eight terms of one row. The left factor has the values in each of its rows.
static __device__ __forceinline__ void multiply(f32 (&sums)[4], const uint4 weights, const uint4 values) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.MMA.MMA.f32 {%0, %1, %2, %3}, {%4, %4, %5, %5}, {%6, %7}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) : "r"(values.x), "r"(values.y), "r"(weights.x), "r"(weights.y));
    asm("mma.sync.aligned.m16n8k16.row.col.f32.MMA.MMA.f32 {%0, %1, %2, %3}, {%4, %4, %5, %5}, {%6, %7}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) : "r"(values.z), "r"(values.w), "r"(weights.z), "r"(weights.w));
}
