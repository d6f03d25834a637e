#pragma once
#include "arguments.cuh"

// Stores a sum after applying the operations that are fused with it.
static __device__ __forceinline__ void finish(const arguments& x, const u32 row, const u32 column, f32 value) {
    if ((x.flags & 16) != 0) {
        value = value + LOAD(x.bias[column]);
    }
    if ((x.flags & 64) != 0) {
        const f32 inner = 0.7978845608f * (value + 0.044715f * value * value * value);
        value = 0.5f * value * (1.0f + tanhf(inner));
    }
    if ((x.flags & 32) != 0) {
        value = value + LOAD(x.addend[row * x.addend_leading_dimension + column]);
    }
    x.d[row * x.d_leading_dimension + column] = STORE(value);
}
