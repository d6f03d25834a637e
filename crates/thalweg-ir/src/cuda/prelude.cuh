// The types and functions that kernels may use. A line that begins with `//:` names the definition that follows it: a unit gets the
// definitions whose names it mentions. An editor, and a compiler of a kernel's file alone, include the whole file.
#pragma once

//: types
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;
//: DEVICE
#define DEVICE static __device__ __forceinline__
//: launch_dependents
// Lets a kernel that waits for this one itself begin as soon as all blocks of this one have come here.
static __device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
//: wait_for_previous
// Waits until the kernel in front is complete. In front of it nothing is read or written, only prefetched.
static __device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
//: prefetch
// Brings the 128 bytes about an address into the L2. There is no value in it, so it is right while another kernel still writes them.
static __device__ __forceinline__ void prefetch(const void* at) {
    asm volatile("prefetch.global.L2 [%0];" :: "l"(__cvta_generic_to_global(at)));
}
//: f16
struct f16 { u16 bits; };
//: bf16
struct bf16 { u16 bits; };
//: f8e4m3
struct f8e4m3 { u8 bits; };
//: f8e5m2
struct f8e5m2 { u8 bits; };
//: complex_of
// A complex number with parts of type F. Quotients use Smith's algorithm, as on the host.
template <class F> struct alignas(2 * sizeof(F)) complex_of { F re, im; };
template <class F> static __device__ __forceinline__ complex_of<F> operator-(const complex_of<F> a) { return {-a.re, -a.im}; }
template <class F> static __device__ __forceinline__ bool operator==(const complex_of<F> a, const complex_of<F> b) {
    return a.re == b.re && a.im == b.im;
}
template <class F> static __device__ __forceinline__ complex_of<F> operator+(const complex_of<F> a, const complex_of<F> b) {
    return {a.re + b.re, a.im + b.im};
}
template <class F> static __device__ __forceinline__ complex_of<F> operator-(const complex_of<F> a, const complex_of<F> b) {
    return {a.re - b.re, a.im - b.im};
}
template <class F> static __device__ __forceinline__ complex_of<F> operator*(const complex_of<F> a, const complex_of<F> b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
template <class F> static __device__ __forceinline__ complex_of<F> operator/(const complex_of<F> a, const complex_of<F> b) {
    const F wide = fabs(b.re), high = fabs(b.im);
    if (wide >= high) {
        if (wide == 0 && high == 0) {
            return {a.re / wide, a.im / high};
        }
        const F ratio = b.im / b.re, scale = 1 / (b.re + b.im * ratio);
        return {(a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale};
    }
    const F ratio = b.re / b.im, scale = 1 / (b.re * ratio + b.im);
    return {(a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale};
}
//: c64
typedef complex_of<f32> c64;
//: c128
typedef complex_of<f64> c128;
//: f32_from_f16
static __device__ __forceinline__ f32 f32_from_f16(const f16 x) {
    f32 y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
//: f16_from_f32
static __device__ __forceinline__ f16 f16_from_f32(const f32 x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
//: f32_from_bf16
static __device__ __forceinline__ f32 f32_from_bf16(const bf16 x) {
    return __uint_as_float(u32(x.bits) << 16);
}
//: bf16_from_f32
static __device__ __forceinline__ bf16 bf16_from_f32(const f32 x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
//: f32_from_f8e4m3
static __device__ __forceinline__ f32 f32_from_f8e4m3(const f8e4m3 x) {
    const u32 sign = u32(x.bits & 0x80) << 24, magnitude = x.bits & 0x7f;
    const u32 value = magnitude == 0x7f ? 0x7fc00000u
        : magnitude < 8 ? __float_as_uint(f32(magnitude) * 0x1p-9f) : (magnitude << 20) + (120u << 23);
    return __uint_as_float(sign | value);
}
//: f32_from_f8e5m2
static __device__ __forceinline__ f32 f32_from_f8e5m2(const f8e5m2 x) {
    return f32_from_f16(f16{u16(x.bits << 8)});
}
//: f8_magnitude
// The magnitude of a finite f32, rounded to a float with FRACTION bits of fraction and this bias; what is too large for the
// exponent runs over into the bits above.
template <u32 FRACTION, u32 BIAS> static __device__ __forceinline__ u8 f8_magnitude(const u32 x) {
    constexpr u32 aligned = (151 - BIAS - FRACTION) << 23, shift = 23 - FRACTION;
    if (x < (128 - BIAS) << 23) {
        return u8(__float_as_uint(__fadd_rn(__uint_as_float(x), __uint_as_float(aligned))) - aligned);
    }
    return u8((x + ((1u << (shift - 1)) - 1 + (x >> shift & 1)) - ((127 - BIAS) << 23)) >> shift);
}
//: f8e4m3_from_f32
static __device__ __forceinline__ f8e4m3 f8e4m3_from_f32(const f32 x) {
    const u32 bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    const u8 rounded = magnitude >= 0x43f00000u ? 0x7f : f8_magnitude<3, 7>(magnitude);
    return f8e4m3{u8(bits >> 24 & 0x80 | rounded)};
}
//: f8e5m2_from_f32
static __device__ __forceinline__ f8e5m2 f8e5m2_from_f32(const f32 x) {
    const u32 bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    const u8 rounded = magnitude > 0x7f800000u ? 0x7f : magnitude >= 0x47800000u ? 0x7c : f8_magnitude<2, 15>(magnitude);
    return f8e5m2{u8(bits >> 24 & 0x80 | rounded)};
}
//: saturate
// A float as the integer of type T nearest towards zero: T's lowest or highest where it is beyond them, 0 where it is NaN.
template <class T, class F> static __device__ __forceinline__ T saturate(const F x) {
    constexpr bool is_signed = T(-1) < T(0);
    constexpr u64 above = u64(1) << (sizeof(T) * 8 - is_signed);
    constexpr F lowest = is_signed ? -F(above) : F(0);
    return x >= F(above) ? T(above - 1) : x >= lowest ? T(x) : is_signed && x < F(0) ? T(above) : T(0);
}
//: divide
template <class T> static __device__ __forceinline__ T divide(const T a, const T b) {
    // Most numbers of 64 bits fit into 32, which divide several times faster.
    if (sizeof(T) == 8 && ((u64(a) | u64(b)) >> 32) == 0) {
        return b == 0 ? T(0) : T(u32(a) / u32(b));
    }
    return b == 0 ? T(0) : T(-1) < T(0) && b == T(-1) ? T(0 - u64(a)) : T(a / b);
}
//: remainder_of
template <class T> static __device__ __forceinline__ T remainder_of(const T a, const T b) {
    if (sizeof(T) == 8 && ((u64(a) | u64(b)) >> 32) == 0) {
        return b == 0 ? T(0) : T(u32(a) % u32(b));
    }
    return b == 0 || (T(-1) < T(0) && b == T(-1)) ? T(0) : T(a % b);
}
//: maximum
template <class T> static __device__ __forceinline__ T maximum(const T a, const T b) {
    return a > b || a != a ? a : b;
}
// One instruction, which knows NaN.
template <> [[maybe_unused]] __device__ __forceinline__ f32 maximum<f32>(const f32 a, const f32 b) {
    f32 y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
//: minimum
template <class T> static __device__ __forceinline__ T minimum(const T a, const T b) {
    return a < b || a != a ? a : b;
}
// One instruction, which knows NaN.
template <> [[maybe_unused]] __device__ __forceinline__ f32 minimum<f32>(const f32 a, const f32 b) {
    f32 y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
//: near_reciprocal
// 1 / x but for one unit in the last place.
static __device__ __forceinline__ f32 near_reciprocal(const f32 x) {
    f32 y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
//: philox_block
// The block of words with a number of a subsequence under a seed, by Philox4x32, counted as cuRAND does.
template <u32 ROUNDS>
static __device__ __forceinline__ void philox_block(u32 (&c)[4], const u64 seed, const u64 subsequence, const u64 block) {
    c[0] = u32(block), c[1] = u32(block >> 32), c[2] = u32(subsequence), c[3] = u32(subsequence >> 32);
    u32 k0 = u32(seed), k1 = u32(seed >> 32);
    #pragma unroll
    for (u32 round = 0; round < ROUNDS; ++round) {
        const u64 low = u64(0xd2511f53u) * c[0], high = u64(0xcd9e8d57u) * c[2];
        c[0] = u32(high >> 32) ^ c[1] ^ k0;
        c[1] = u32(high);
        c[2] = u32(low >> 32) ^ c[3] ^ k1;
        c[3] = u32(low);
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
}
//: philox_words
// The block of words that a thread drew from last, by ten rounds: its next draws of the subsequence are mostly in it.
struct philox_words {
    u64 seed, subsequence, block;
    u32 words[4];
    bool is_drawn;

    __device__ __forceinline__ u32 word(const u64 from, const u64 of, const u64 position) {
        if (!is_drawn || block != position / 4 || subsequence != of || seed != from) {
            seed = from, subsequence = of, block = position / 4, is_drawn = true;
            philox_block<10>(words, from, of, block);
        }
        const u32 place = u32(position) & 3;
        return place == 0 ? words[0] : place == 1 ? words[1] : place == 2 ? words[2] : words[3];
    }
};
//: pack
template <class T, u32 N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) pack {
    T element[N];
};
//: split_vectors
// Vectors of a thread: the first are in registers, the others in shared memory, where neighbouring threads have neighbours.
template <class P, u32 OWN, u32 THREADS> struct split_vectors {
    P own[OWN];
    P* const others;
    __device__ __forceinline__ split_vectors(unsigned char* const shared) : others((P*)shared + threadIdx.x) {}
    __device__ __forceinline__ void set(const u32 k, const P& vector) {
        if (k < OWN) { own[k < OWN ? k : 0] = vector; } else { others[(k - OWN) * THREADS] = vector; }
    }
    __device__ __forceinline__ P get(const u32 k) const {
        return k < OWN ? own[k < OWN ? k : 0] : others[(k - OWN) * THREADS];
    }
};
//: combine_vector
// Combines the neighbouring lanes of a thread, lane t with lane t + step.
template <u32 N, class T, class Combine>
static __device__ __forceinline__ T combine_vector(T (&lanes)[N], const Combine combine) {
    #pragma unroll
    for (u32 step = 1; step < N; step *= 2) {
        #pragma unroll
        for (u32 lane = 0; lane + step < N; lane += 2 * step) {
            lanes[lane] = combine(lanes[lane], lanes[lane + step]);
        }
    }
    return lanes[0];
}
//: combine_warp
// The same for LANES neighbouring threads of a warp; all of them get the result.
template <u32 LANES, class T, class Combine>
static __device__ __forceinline__ T combine_warp(T value, const Combine combine) {
    #pragma unroll
    for (u32 step = 1; step < LANES; step *= 2) {
        value = combine(value, T(__shfl_down_sync(0xffffffffu, value, step, LANES)));
    }
    return T(__shfl_sync(0xffffffffu, value, 0, LANES));
}
//: combine_block
// The same for the threads of a block. Before it is called again with this memory, the block meets at a barrier.
template <u32 LANES, class T, class Combine>
static __device__ __forceinline__ T combine_block(T value, void* const shared, const Combine combine) {
    T* const warps = (T*)shared;
    value = combine_warp<32>(value, combine);
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = value;
    }
    __syncthreads();
    return combine_warp<LANES / 32>(warps[threadIdx.x % (LANES / 32)], combine);
}
//: combine_columns
// The same for each of N rows of a thread, in a block of ROWS threads with other rows, where neighbouring threads are the same lane:
// first the lanes of a warp, then those of different warps. The block has eight bytes of memory for each thread.
template <u32 LANES, u32 ROWS, u32 N, class T, class Combine>
static __device__ __forceinline__ void combine_columns(T (&values)[N], void* const shared, const Combine combine) {
    constexpr u32 NEAR = ROWS < 32 && LANES * ROWS >= 32 ? 32 / ROWS : 1, FAR = LANES / NEAR;
    constexpr u32 FITS = NEAR * 8 / sizeof(T), AT_ONCE = N < FITS ? N : FITS;
    T* const lanes = (T*)shared;
    const u32 lane = threadIdx.x / ROWS, row = threadIdx.x % ROWS;
    #pragma unroll
    for (u32 n = 0; n < N; ++n) {
        #pragma unroll
        for (u32 step = 1; step < NEAR; step *= 2) {
            values[n] = combine(values[n], T(__shfl_down_sync(0xffffffffu, values[n], step * ROWS)));
        }
    }
    #pragma unroll
    for (u32 first = 0; first < N; first += AT_ONCE) {
        #pragma unroll
        for (u32 n = 0; n < AT_ONCE; ++n) {
            if (lane % NEAR == 0) {
                lanes[(n * FAR + lane / NEAR) * ROWS + row] = values[first + n];
            }
        }
        __syncthreads();
        for (u32 column = threadIdx.x; column < AT_ONCE * ROWS; column += LANES * ROWS) {
            T* const own = lanes + column / ROWS * FAR * ROWS + column % ROWS;
            T far[FAR];
            #pragma unroll
            for (u32 k = 0; k < FAR; ++k) {
                far[k] = own[k * ROWS];
            }
            *own = combine_vector(far, combine);
        }
        __syncthreads();
        #pragma unroll
        for (u32 n = 0; n < AT_ONCE; ++n) {
            values[first + n] = lanes[n * FAR * ROWS + row];
        }
        __syncthreads();
    }
}
//: combine_abreast
// The same for one row of a thread.
template <u32 LANES, u32 ROWS, class T, class Combine>
static __device__ __forceinline__ T combine_abreast(const T value, void* const shared, const Combine combine) {
    T values[1] = {value};
    combine_columns<LANES, ROWS>(values, shared, combine);
    return values[0];
}
