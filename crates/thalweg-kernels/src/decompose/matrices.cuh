#pragma once
#ifndef NAME
#include "../defaults.cuh"
#endif

struct arguments {
    void* first;
    void* second;
    void* third;
    u64 batch;
    u64 rows;
    u64 columns;
    u64 width;
    u64 flags;
    u64 method;
};
