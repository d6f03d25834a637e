#pragma once
#ifndef NAME
#include "../defaults.cuh"
#endif

// A number that is greater the nearer the value is to the extremum and, among equal values, the earlier its position. 0 is below all
// such numbers.
static __device__ __forceinline__ u64 ranked(const f32 value, const u32 place, const bool smallest) {
    const u32 bits = __float_as_uint(value + 0.0f), sign = bits >> 31;
    u32 rank = sign ? ~bits : bits | 0x80000000u;
    rank = smallest ? ~rank : rank;
    rank = value != value ? 0xffffffffu : rank;
    return u64(rank) << 32 | u64(~place);
}

static __device__ __forceinline__ u64 greater(const u64 a, const u64 b) {
    return a < b ? b : a;
}
