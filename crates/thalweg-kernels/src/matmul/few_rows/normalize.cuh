#pragma once
#include "../../shared/over_block.cuh"
#include "arguments.cuh"

// Writes the layer norm of each row of A into shared memory, with `apart` elements from one to the next.
static __device__ __forceinline__ void normalize(const arguments& x, Element* normal, const u32 apart, f32* parts) {
    const u32 terms = u32(x.k), rows = u32(x.m), own = threadIdx.x * WIDTH;
    quad scale = {}, shift = {};
    if (own < terms) {
        scale = *(const quad*)(x.norm_weight + own);
        shift = *(const quad*)(x.norm_bias + own);
    }
    for (u32 row = 0; row < rows; ++row) {
        Element* const held = normal + row * apart;
        f32 mean = 0.0f, square = 0.0f;
        for (u32 at = own; at < terms; at += 256 * WIDTH) {
            const quad values = *(const quad*)(x.a + row * x.a_leading_dimension + at);
            *(quad*)(held + at) = values;
            #pragma unroll
            for (u32 term = 0; term < WIDTH; ++term) {
                mean = mean + LOAD(values.element[term]);
            }
        }
        mean = over_block(mean, parts) / f32(terms);
        for (u32 at = own; at < terms; at += 256 * WIDTH) {
            const quad values = *(const quad*)(held + at);
            #pragma unroll
            for (u32 term = 0; term < WIDTH; ++term) {
                const f32 off = LOAD(values.element[term]) - mean;
                square = fmaf(off, off, square);
            }
        }
        square = over_block(square, parts) / f32(terms);
        const f32 factor = rsqrtf(square + __uint_as_float(u32(x.eps)));
        for (u32 at = own; at < terms; at += 256 * WIDTH) {
            quad values = *(const quad*)(held + at);
            const quad by = at == own ? scale : *(const quad*)(x.norm_weight + at);
            const quad plus = at == own ? shift : *(const quad*)(x.norm_bias + at);
            #pragma unroll
            for (u32 term = 0; term < WIDTH; ++term) {
                const f32 value = (LOAD(values.element[term]) - mean) * factor;
                values.element[term] = STORE(fmaf(value, LOAD(by.element[term]), LOAD(plus.element[term])));
            }
            *(quad*)(held + at) = values;
        }
    }
    __syncthreads();
}
