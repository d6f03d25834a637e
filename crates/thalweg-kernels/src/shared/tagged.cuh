#pragma once
#ifndef NAME
#include "../defaults.cuh"
#endif

// Pairs of elements, and values that the blocks of a decoder's layers exchange.

static __device__ __forceinline__ f32 low(const u32 x) {
    return LOAD(Element{u16(x)});
}

static __device__ __forceinline__ f32 high(const u32 x) {
    return LOAD(Element{u16(x >> 16)});
}

static __device__ __forceinline__ u32 pair_of(const f32 a, const f32 b) {
    u32 y;
    asm("cvt.rn." ELEMENT_NAME "x2.f32 %0, %2, %1;" : "=r"(y) : "f"(a), "f"(b));
    return y;
}

#if __CUDA_ARCH__ >= 800
// Two values of 32 bits, each with the tag of the layer that wrote it: a reader that finds the tag has the value.
struct tagged { u32 a, a_tag, b, b_tag; };

static __device__ __forceinline__ tagged peek(const u32* at) {
    tagged x;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.a), "=r"(x.a_tag), "=r"(x.b), "=r"(x.b_tag) : "l"(at) : "memory");
    return x;
}

static __device__ __forceinline__ void put(u32* at, const u32 value, const u32 tag) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" :: "l"(at), "r"(value), "r"(tag) : "memory");
}

static __device__ __forceinline__ void put(u32* at, const u32 a, const u32 b, const u32 tag) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %3, %2, %3};" :: "l"(at), "r"(a), "r"(b), "r"(tag) : "memory");
}

// Waits until values have the tag.
template <u32 N> static __device__ __forceinline__ void await(tagged (&values)[N], const u32* (&at)[N], const u32 tag) {
    bool is_there;
    do {
        is_there = true;
        #pragma unroll
        for (u32 i = 0; i < N; ++i) {
            values[i] = peek(at[i]);
        }
        #pragma unroll
        for (u32 i = 0; i < N; ++i) {
            is_there = is_there && values[i].a_tag == tag && values[i].b_tag == tag;
        }
    } while (!is_there);
}

// A power of two.
static __device__ __forceinline__ f32 power(const f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif
