#pragma once
#ifndef NAME
#include "../defaults.cuh"
#endif

// The type in which elements of a type are combined.
template <class T> struct combined { typedef T type; };
template <> struct combined<f16> { typedef f32 type; };
template <> struct combined<bf16> { typedef f32 type; };

template <class T> static __device__ __forceinline__ T widened(const T x) { return x; }
static __device__ __forceinline__ f32 widened(const f16 x) { return f32_from_f16(x); }
static __device__ __forceinline__ f32 widened(const bf16 x) { return f32_from_bf16(x); }

template <class T> struct narrowing {
    static __device__ __forceinline__ T of(const T x) { return x; }
};
template <> struct narrowing<f16> {
    static __device__ __forceinline__ f16 of(const f32 x) { return f16_from_f32(x); }
};
template <> struct narrowing<bf16> {
    static __device__ __forceinline__ bf16 of(const f32 x) { return bf16_from_f32(x); }
};

// The element that an index out of range results in: NaN, or 0 for integers.
template <class T> static __device__ __forceinline__ T no_number() {
    return narrowing<T>::of(typename combined<T>::type(__int_as_float(0x7fc00000)));
}
template <> __device__ __forceinline__ i64 no_number<i64>() { return 0; }

// Neighbouring elements that are loaded and stored at once.
template <class T, u32 WIDTH> struct alignas(WIDTH * sizeof(T)) vector {
    T at[WIDTH];
};
