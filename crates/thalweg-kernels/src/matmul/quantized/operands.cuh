#pragma once
#ifndef NAME
#include "../../defaults.cuh"
#endif

struct arguments {
    const Element* input;
    const u8* weight;
    const Element* scales;
    Element* result;
    u64 m;
    u64 n;
    u64 k;
    u64 group;
    u64 dtype;
    u64 split;
};
