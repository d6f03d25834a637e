#pragma once
#ifndef NAME
#include "../defaults.cuh"
#endif

// Rotations. Every thread of the block calls these functions with the same arguments.
struct turn {
    f64 cosine;
    f64 sine;
    f64 tangent;
};

// The rotation that makes an element off the diagonal 0, from the cotangent of twice its angle.
static __device__ __forceinline__ turn rotation(f64 cotangent) {
    const f64 sign = cotangent < 0.0 ? -1.0 : 1.0;
    const f64 tangent = sign / (fabs(cotangent) + sqrt(cotangent * cotangent + 1.0));
    const f64 cosine = 1.0 / sqrt(tangent * tangent + 1.0);
    return turn{cosine, tangent * cosine, tangent};
}

// Rotates two columns of a matrix.
static __device__ __forceinline__ void rotate(
    f64* a, u64 rows, u64 columns, u64 p, u64 q, turn turn
) {
    for (u64 i = threadIdx.x; i < rows; i += 256) {
        const f64 left = a[i * columns + p], right = a[i * columns + q];
        a[i * columns + p] = turn.cosine * left - turn.sine * right;
        a[i * columns + q] = turn.sine * left + turn.cosine * right;
    }
}

static __device__ __forceinline__ void identity(f64* v, u64 n) {
    for (u64 place = threadIdx.x; place < n * n; place += 256) {
        v[place] = place / n == place % n ? 1.0 : 0.0;
    }
}

static __device__ __forceinline__ void swap(f64* a, u64 rows, u64 columns, u64 p, u64 q) {
    for (u64 i = threadIdx.x; i < rows; i += 256) {
        const f64 moved = a[i * columns + p];
        a[i * columns + p] = a[i * columns + q];
        a[i * columns + q] = moved;
    }
}
