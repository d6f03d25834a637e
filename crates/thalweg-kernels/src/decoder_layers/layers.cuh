#pragma once
#ifndef NAME
#define LAYERS 32
#include "../defaults.cuh"
#endif

// A matrix (rows, terms) or a norm's scale, with its bias, if it has one.
struct affine { const Element *weight, *bias; };
// A layer: its norms, its four products in their order, and the caches (heads of keys, context, width).
struct layer { affine norms[2]; affine products[4]; Element *keys, *values; };

struct arguments {
    const Element* x;
    Element* result;
    const i64* position;
    u32* exchange;
    // If they are passed, the row is that of the token in `x`, plus that of the position in `added`.
    const i64* token;
    const Element* added;
    // Cosines and sines of the rotations (context, width / 2), of layers that have them.
    const f32 *cosines, *sines;
    u64 layers, context, scale, eps, vocabulary;
    layer layer_of[LAYERS];
    // The sizes, as the host function receives them.
    u64 sizes, more_sizes;
};
