#pragma once
#ifndef NAME
#include "../defaults.cuh"
#endif

// Which weights of a head are kept. The lanes of a warp draw pieces of 16 queries × 16 keys: a lane's four words are those of the subsequence with the number
// of the piece and the lane, and a weight is kept if its half of a word is below a limit. Of the queries and keys of a piece, both by their place among eight
// and by which eight they are: lane 4 · query + key / 2, word 2 · (eight of the key) + (eight of the query), half key % 2. So a lane draws for its own scores.
struct draws {
    u64 seed, counter;
    u32 limit;
    // The number of the head's first piece, how many pieces have the same queries, and how many a head has.
    u64 first, across, all;
};

template <class A> DEVICE draws draws_of(const A& x, const i64 head) {
    const u64 across = u64(x.keys + 15) / 16, down = u64(x.queries + 15) / 16;
    return {u64(x.state[0]), u64(x.state[1]) / 4, x.kept << 16, u64(head) * down * across, across, down * across};
}

// The words of a lane for a piece, by Philox4x32 of seven rounds.
DEVICE void words_of(u32 (&words)[4], const draws& d, const u64 piece) {
    philox_block<7>(words, d.seed, piece * 32 + threadIdx.x % 32, d.counter);
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
