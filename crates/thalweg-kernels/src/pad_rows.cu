// A copy of a matrix whose rows have another length in bytes, 16 bytes of the result at a time.
#ifndef NAME
#include "defaults.cuh"
#endif

struct arguments {
    const u8* source;
    u8* target;
    u64 rows;
    u64 row_bytes;
    u64 source_distance;
    u64 target_rows;
    u64 target_row_bytes;
};

struct alignas(16) vector {
    u32 words[4];
};

// Copies the part of a row within a 16-byte vector, two bytes at a time.
DEVICE void copy_halves(const arguments& x, const u64 row, const i64 first) {
    for (i64 at = first; at < first + 16; at += 2) {
        if (at >= 0 && at < i64(x.target_row_bytes)) {
            const bool is_there = row < x.rows && at < i64(x.row_bytes);
            const u8* const from = x.source + row * x.source_distance;
            *(u16*)(x.target + row * x.target_row_bytes + at) = is_there ? *(const u16*)(from + at) : u16(0);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    // A row that does not begin at a multiple of 16 bytes has one vector more.
    const u64 width = x.target_row_bytes / 16 + (x.target_row_bytes % 16 ? 2 : (u64(x.target) % 16 ? 1 : 0));
    const u64 vectors = width * x.target_rows;
    for (u64 block = u64(blockIdx.x) * 1024; block < vectors; block += u64(gridDim.x) * 1024) {
        u32 words[4][5];
        u32 shifts[4];
        i64 firsts[4];
        u64 rows[4];
        bool whole[4];
        #pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u64 at = block + i * 256 + threadIdx.x;
            whole[i] = false;
            rows[i] = at / width;
            if (vectors <= 0xffffffffu) {
                rows[i] = u32(at) / u32(width);
            }
            const u64 begin = u64(x.target) + rows[i] * x.target_row_bytes;
            firsts[i] = i64(at - rows[i] * width) * 16 - i64(begin % 16);
            if (at >= vectors || rows[i] >= x.rows || firsts[i] < 0) {
                continue;
            }
            // The words that contain the bytes extend up to two bytes beyond them.
            const u64 end = u64(firsts[i]) + 18;
            whole[i] = end <= x.row_bytes && end <= x.target_row_bytes + 2;
            if (!whole[i]) {
                continue;
            }
            const u64 from = u64(x.source) + rows[i] * x.source_distance + u64(firsts[i]);
            shifts[i] = u32(from % 4) * 8;
            const u32* const source = (const u32*)(from - from % 4);
            #pragma unroll
            for (u32 word = 0; word < 5; ++word) {
                words[i][word] = word < 4 || shifts[i] ? source[word] : 0;
            }
        }
        #pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            if (block + i * 256 + threadIdx.x >= vectors) {
                continue;
            }
            if (!whole[i]) {
                copy_halves(x, rows[i], firsts[i]);
                continue;
            }
            vector result;
            #pragma unroll
            for (u32 word = 0; word < 4; ++word) {
                result.words[word] = __funnelshift_r(words[i][word], words[i][word + 1], shifts[i]);
            }
            *(vector*)(x.target + rows[i] * x.target_row_bytes + firsts[i]) = result;
        }
    }
}
