#pragma once
#ifndef NAME
#include "../defaults.cuh"
#endif

// Elements as unsigned integers that have the same order. Sorts compare these keys; the elements that come first have smaller keys.

template <bool WIDE> struct key_type { typedef u32 type; };
template <> struct key_type<true> { typedef u64 type; };

// Elements by their bits: integers with a sign, or floats, whose infinity has the bits INFINITE. NaNs have the greatest key, and
// zeros of both signs have one.
template <class BITS, u64 INFINITE> struct elements_of {
    // The type of keys between launches.
    typedef BITS moved;
    typedef typename key_type<sizeof(BITS) == 8>::type key;
    static constexpr u32 width = 8 * sizeof(BITS);
    static constexpr key sign = key(1) << (width - 1), mask = sign | (sign - 1);

    static __device__ __forceinline__ key encoded(const BITS bits, const bool is_descending) {
        key ordered = key(bits) ^ sign;
        if constexpr (INFINITE != 0) {
            const key magnitude = key(bits) & (sign - 1);
            const bool is_below = (key(bits) & sign) != 0 && magnitude != 0;
            ordered = magnitude > key(INFINITE) ? mask : is_below ? ~key(bits) & mask : magnitude | sign;
        }
        return is_descending ? ~ordered & mask : ordered;
    }

    // Returns the bits of the only element with a key. Of equal floats only zeros and NaNs have different bits.
    static __device__ __forceinline__ BITS decoded(const key ordered) {
        return INFINITE == 0 ? BITS(ordered ^ sign) : BITS(ordered & sign ? ordered ^ sign : ~ordered);
    }
    static __device__ __forceinline__ bool is_only(const key ordered) {
        return INFINITE == 0 || (ordered != mask && ordered != sign);
    }

    template <class X> static __device__ __forceinline__ key at(const X& x, const u64 position) {
        return encoded(((const BITS*)x.source)[position], x.flags & 1);
    }

    template <class X>
    static __device__ __forceinline__ void write(const X& x, const u64 first, const u64 to, const key sorted, const u32 from) {
        const key ordered = x.flags & 1 ? ~sorted & mask : sorted;
        ((BITS*)x.values)[first + to * x.inner] =
            is_only(ordered) ? decoded(ordered) : ((const BITS*)x.source)[first + u64(from) * x.inner];
        ((i64*)x.places)[first + to * x.inner] = i64(from);
    }
};

// Indices below a limit are their own keys; all other numbers have the limit as key.
struct indices_of {
    typedef u32 moved, key;
    static constexpr key mask = ~0u;

    template <class X> static __device__ __forceinline__ key at(const X& x, const u64 position) {
        const u64 index = u64(((const i64*)x.source)[position]);
        return u32(index < x.limit ? index : x.limit);
    }

    template <class X>
    static __device__ __forceinline__ void write(const X& x, const u64 first, const u64 to, const key sorted, const u32 from) {
        ((u32*)x.values)[to] = sorted;
        ((u32*)x.places)[to] = from;
    }
};

// Returns the place in memory of a row's first point.
template <class X> static __device__ __forceinline__ u64 first_of(const X& x, const u64 row) {
    return row / x.inner * x.length * x.inner + row % x.inner;
}
