#pragma once
#ifndef NAME
#include "../../defaults.cuh"
#endif

struct arguments {
    const Element* a;
    const Element* b;
    Element* d;
    const Element* bias;
    const Element* addend;
    u64 m;
    u64 n;
    u64 k;
    u64 a_leading_dimension;
    u64 b_leading_dimension;
    u64 d_leading_dimension;
    u64 addend_leading_dimension;
    u64 flags;
    const Element* norm_weight;
    const Element* norm_bias;
    u64 eps;
};

#define WIDTH u32(16 / sizeof(Element))
typedef pack<Element, WIDTH> quad;
