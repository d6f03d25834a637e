#pragma once
#ifndef NAME
#include "../defaults.cuh"
#endif

// The number of pieces of a lane whose copies are in progress.
#define DEPTH 8

// Rows of weights, eight at a time, in pieces of 16 bytes per lane: a lane has one of the row `lane / 4` at each step. The next DEPTH pieces are under way into
// the lane's slots in shared memory, which no other lane reads.
template <class WEIGHT> struct pieces {
    const WEIGHT* weights;
    u64 leading_dimension;
    u32 rows, terms;
    // Groups of eight rows: the one that is copied next, and the distance to the one after it.
    u32 group, apart;
    // The lane's first term, how far its terms of the next step are, and how many steps a row has.
    u32 begin, step, steps;
    u32 ahead;
    const WEIGHT* row;
    uint4* slots;

    // After the last row, the last row is used again.
    __device__ __forceinline__ void find_row() {
        const u32 line = group * 8 + threadIdx.x % 32 / 4;
        row = weights + u64(line < rows ? line : rows - 1) * leading_dimension;
    }

    // Begins to copy the next piece, or zeros if it is beyond the end.
    __device__ __forceinline__ void copy_next(const u32 slot) {
        const u32 at = begin + ahead * step;
        const bool is_in = at < terms && group * 8 < rows;
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n\tcp.async.commit_group;"
                     :: "r"(u32(__cvta_generic_to_shared(slots + slot * 256))), "l"(is_in ? row + at : weights), "r"(is_in ? 16 : 0) : "memory");
        if (++ahead == steps) {
            ahead = 0;
            group = group + apart;
            find_row();
        }
    }

    // Begins to copy the first pieces.
    __device__ __forceinline__ void start() {
        #pragma unroll
        for (u32 slot = 0; slot < DEPTH; ++slot) {
            copy_next(slot);
        }
    }

    // Returns the oldest piece, which is in this slot, and begins to copy another piece there.
    __device__ __forceinline__ uint4 take(const u32 slot) {
        asm volatile("cp.async.wait_group %0;" :: "n"(DEPTH - 1) : "memory");
        const uint4 piece = slots[slot * 256];
        copy_next(slot);
        return piece;
    }
};
