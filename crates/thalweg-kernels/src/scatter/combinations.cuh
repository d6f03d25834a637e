#pragma once
#ifndef NAME
#include "../defaults.cuh"
#endif

// Combines two values by the operation with a given number.
template <class SUM> static __device__ __forceinline__ SUM added(const SUM a, const SUM b) { return a + b; }
template <class SUM> static __device__ __forceinline__ SUM multiplied(const SUM a, const SUM b) { return a * b; }
// Signed arithmetic that overflows is undefined in C.
template <> __device__ __forceinline__ i64 added<i64>(const i64 a, const i64 b) { return i64(u64(a) + u64(b)); }
template <> __device__ __forceinline__ i64 multiplied<i64>(const i64 a, const i64 b) { return i64(u64(a) * u64(b)); }

template <class SUM> static __device__ __forceinline__ SUM combine(const u64 way, const SUM a, const SUM b) {
    switch (way) {
        case 1: return added(a, b);
        case 2: return multiplied(a, b);
        case 3: return a > b || a != a ? a : b;
        default: return a < b || a != a ? a : b;
    }
}

// The same operation, where index 0 selects the second value.
template <class SUM> static __device__ __forceinline__ SUM combine_or_replace(const u64 way, const SUM a, const SUM b) {
    switch (way) {
        case 0: return b;
        case 1: return added(a, b);
        case 2: return multiplied(a, b);
        case 3: return a > b || a != a ? a : b;
        default: return a < b || a != a ? a : b;
    }
}
