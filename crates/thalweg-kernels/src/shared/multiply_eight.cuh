#pragma once
#ifndef NAME
#define HALF
#include "../defaults.cuh"
#endif

// Adds the products of 32 terms of eight rows of weights (a lane has eight terms of one row) and of up to sixteen other rows (a lane
// has eight terms of two rows). If both of a lane's values are the same, a single row is used as all sixteen.
static __device__ __forceinline__ void multiply(f32 (&sums)[4], const uint4 weights, const uint4 upper, const uint4 lower) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT_NAME "." ELEMENT_NAME ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(upper.x), "r"(lower.x), "r"(upper.y), "r"(lower.y), "r"(weights.x), "r"(weights.y));
    asm("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT_NAME "." ELEMENT_NAME ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(upper.z), "r"(lower.z), "r"(upper.w), "r"(lower.w), "r"(weights.z), "r"(weights.w));
}
