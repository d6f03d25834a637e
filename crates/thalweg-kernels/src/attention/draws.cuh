#pragma once
#ifndef NAME
#include "../defaults.cuh"
#endif

// Which weights of a head are kept. The lanes of a warp draw pieces of 16 queries × 16 keys: a lane's four words are those of the subsequence with the number
// of the piece and the lane, and a weight is kept if its half of a word is below a limit. Of the queries and keys of a piece, both by their place among eight
// and by which eight they are: lane 4 · query + key / 2, word 2 · (eight of the key) + (eight of the query), half key % 2. So a lane draws for its own scores.
struct draws {
    u32 seed[2], counter[2], limit;
    // The number of the head's first piece, how many pieces have the same queries, and how many a head has.
    u64 first, across, all;
};

template <class A> DEVICE draws draws_of(const A& x, const i64 head) {
    const u64 seed = x.state[0], counter = x.state[1] / 4, across = u64(x.keys + 15) / 16, down = u64(x.queries + 15) / 16;
    return {{u32(seed), u32(seed >> 32)}, {u32(counter), u32(counter >> 32)}, x.kept << 16, u64(head) * down * across, across, down * across};
}

// The words of a lane for a piece, by Philox4x32 of seven rounds.
DEVICE void words_of(u32 (&c)[4], const draws& d, const u64 piece) {
    const u64 subsequence = piece * 32 + threadIdx.x % 32;
    c[0] = d.counter[0], c[1] = d.counter[1], c[2] = u32(subsequence), c[3] = u32(subsequence >> 32);
    u32 low_key = d.seed[0], high_key = d.seed[1];
    #pragma unroll
    for (u32 round = 0; round < 7; ++round) {
        const u64 a = u64(0xd2511f53u) * c[0], b = u64(0xcd9e8d57u) * c[2];
        c[0] = u32(b >> 32) ^ c[1] ^ low_key;
        c[1] = u32(b);
        c[2] = u32(a >> 32) ^ c[3] ^ high_key;
        c[3] = u32(a);
        low_key += 0x9e3779b9u;
        high_key += 0xbb67ae85u;
    }
}

// Whether the weight of each half of a word is kept.
DEVICE bool low_is_kept(const draws& d, const u32 word) { return word << 16 < d.limit; }
DEVICE bool high_is_kept(const draws& d, const u32 word) { return word < d.limit; }

// The bits of a lane's eight weights of a piece.
DEVICE u32 kept_of(const draws& d, const u64 piece) {
    u32 words[4], bits = 0;
    words_of(words, d, piece);
    #pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        bits |= (low_is_kept(d, words[i]) ? 1u : 0u) << i * 2;
        bits |= (high_is_kept(d, words[i]) ? 2u : 0u) << i * 2;
    }
    return bits;
}
