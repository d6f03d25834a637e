// Elements that are combined, in shared memory, at the positions given by indices.
#ifndef NAME
#include "../defaults.cuh"
#endif
#include "combinations.cuh"

struct arguments {
    const i64* index;
    const Element* source;
    const Element* target;
    Element* result;
    u64 outer;
    u64 extent;
    u64 count;
    u64 inner;
    u64 index_strides[3];
    u64 source_strides[3];
    u64 combine;
    u64 from_zeros;
    u64 dtype;
    u64 columns;
    u64 places;
};

extern __shared__ __align__(16) unsigned char memory[];

extern "C" __global__ void __launch_bounds__(512, 2) NAME(const __grid_constant__ arguments x) {
    const u32 thread = threadIdx.x, warp = thread / 32, none = 0xffffffffu;
    const u32 columns = u32(x.columns);
    // The elements that the threads bring, the tile, and the thread that claims each position of it.
    Sum* const brought = (Sum*)memory;
    Sum* const tile = brought + 512;
    u32* const claims = (u32*)(tile + columns * u32(x.places));
    const u64 strips = (x.inner + columns - 1) / columns, parts = (x.extent + x.places - 1) / x.places;
    for (u64 item = blockIdx.x; item < x.outer * strips * parts; item += gridDim.x) {
        const u64 part = item % parts, strip = item / parts % strips, o = item / parts / strips;
        const u64 column = strip * columns, first = part * x.places;
        // The last tile of a row, or of a column, may be smaller.
        const u32 wide = u32(x.inner - column < columns ? x.inner - column : columns);
        const u32 high = u32(x.extent - first < x.places ? x.extent - first : x.places);
        const u32 cells = wide * high, elements = u32(x.count) * wide;
        const i64* const index = x.index + o * x.index_strides[0] + column * x.index_strides[2];
        const Element* const source = x.source + o * x.source_strides[0] + column * x.source_strides[2];
        const u64 begin = (o * x.extent + first) * x.inner + column;
        const bool is_replace = x.combine == 0;
        for (u32 cell = thread; cell < cells; cell += 512) {
            const u32 place = wide == 1 ? cell : cell / wide;
            tile[cell] = x.from_zeros ? Sum(0) : LOAD(x.target[begin + place * x.inner + (cell - place * wide)]);
            claims[cell] = is_replace ? 0 : none;
        }
        __syncthreads();
        // Four windows of 512 elements are read at once.
        for (u32 start = 0; start < elements; start += 2048) {
            u32 named[4];
            Sum values[4];
            #pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const u32 e = start + i * 512 + thread;
                named[i] = none;
                values[i] = Sum(0);
                if (e < elements) {
                    const u32 k = wide == 1 ? e : e / wide, c = e - k * wide;
                    const u64 place = u64(index[k * x.index_strides[1] + c * x.index_strides[2]]);
                    if (place >= first && place < first + high) {
                        named[i] = u32(place - first) * wide + c;
                    }
                    if (!is_replace) {
                        values[i] = LOAD(source[k * x.source_strides[1] + c * x.source_strides[2]]);
                    }
                }
            }
            #pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                if (is_replace) {
                    if (named[i] != none) {
                        atomicMax(&claims[named[i]], start + i * 512 + thread + 1);
                    }
                    continue;
                }
                if (start + i * 512 >= elements) {
                    break;
                }
                brought[thread] = values[i];
                const u32 lanes = __match_any_sync(none, named[i]);
                // The first lane of each position does the work of all lanes with that position, possibly later, in its warp's turn.
                bool waits = named[i] != none && __ffs(i32(lanes)) - 1 == thread % 32;
                if (waits) {
                    atomicMin(&claims[named[i]], warp);
                }
                while (true) {
                    __syncthreads();
                    if (waits && claims[named[i]] == warp) {
                        Sum sum = tile[named[i]];
                        for (u32 rest = lanes; rest != 0; rest &= rest - 1) {
                            sum = combine_or_replace<Sum>(x.combine, sum, brought[warp * 32 + __ffs(i32(rest)) - 1]);
                        }
                        tile[named[i]] = sum;
                        claims[named[i]] = none;
                        waits = false;
                    }
                    if (!__syncthreads_or(waits)) {
                        break;
                    }
                    if (waits) {
                        atomicMin(&claims[named[i]], warp);
                    }
                }
            }
        }
        __syncthreads();
        if (is_replace) {
            for (u32 cell = thread; cell < cells; cell += 512) {
                const u32 last = claims[cell];
                if (last > 0) {
                    const u32 k = wide == 1 ? last - 1 : (last - 1) / wide;
                    tile[cell] = LOAD(source[k * x.source_strides[1] + (last - 1 - k * wide) * x.source_strides[2]]);
                }
            }
        }
        for (u32 cell = thread; cell < cells; cell += 512) {
            const u32 place = wide == 1 ? cell : cell / wide;
            x.result[begin + place * x.inner + (cell - place * wide)] = STORE(tile[cell]);
        }
        __syncthreads();
    }
}
