// Elements that are combined at the positions given by indices: each thread processes one column.
#ifndef NAME
#include "../defaults.cuh"
#endif
#include "combinations.cuh"

struct arguments {
    const i64* index;
    const Element* source;
    Element* result;
    u64 outer;
    u64 extent;
    u64 count;
    u64 inner;
    u64 index_strides[3];
    u64 source_strides[3];
    u64 dtype;
    u64 combine;
};

extern "C" __global__ void __launch_bounds__(128) NAME(const __grid_constant__ arguments x) {
    const u64 columns = x.outer * x.inner, threads = u64(gridDim.x) * blockDim.x;
    for (u64 column = u64(blockIdx.x) * blockDim.x + threadIdx.x; column < columns; column += threads) {
        const u64 o = column / x.inner, i = column % x.inner;
        const i64* index = x.index + o * x.index_strides[0] + i * x.index_strides[2];
        const Element* source = x.source + o * x.source_strides[0] + i * x.source_strides[2];
        for (u64 k = 0; k < x.count; ++k) {
            const i64 place = index[k * x.index_strides[1]];
            if (place >= 0 && u64(place) < x.extent) {
                Element* at = x.result + (o * x.extent + u64(place)) * x.inner + i;
                *at = combine_or_replace<Element>(x.combine, *at, source[k * x.source_strides[1]]);
            }
        }
    }
}
