#pragma once
#ifndef NAME
#define HALF
#include "../defaults.cuh"
#endif

// Adds the products of 32 terms of eight rows of weights, of which a lane has eight of one, and as many of up to sixteen rows, of which it has eight of two. The same
// values twice are a row that stands in all of them.
static __device__ __forceinline__ void multiply(f32 (&sums)[4], const uint4 weights, const uint4 upper, const uint4 lower) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT_NAME "." ELEMENT_NAME ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(upper.x), "r"(lower.x), "r"(upper.y), "r"(lower.y), "r"(weights.x), "r"(weights.y));
    asm("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT_NAME "." ELEMENT_NAME ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(upper.z), "r"(lower.z), "r"(upper.w), "r"(lower.w), "r"(weights.z), "r"(weights.w));
}
