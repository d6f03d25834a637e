// All layers of a decoder of any size for one token, in one launch.
#ifndef NAME
#define HALF
#include "../defaults.cuh"
#define FEATURES 1024
#define HIDDEN 2816
#define HEADS 16
#define KEY_HEADS 4
#define WIDTH 64
#define GATED 1
#define CENTRED 0
#define TURNED 1
#define BLOCKS 132
#define WARPS 16
#define PARTS 8
#define DEPTH 20
#define LAYERS 32
#define SHARED_BYTES 200000
#endif
#include "../shared/multiply_eight.cuh"
#include "../shared/over_block.cuh"
#include "../shared/tagged.cuh"
#include "layers.cuh"

#define THREADS (WARPS * 32)
#define ATTENDED (HEADS * WIDTH)
#define PACKED ((HEADS + 2 * KEY_HEADS) * WIDTH)
// The number of pieces whose copies are awaited together.
#define BATCH 4
// The number of keys from which on several blocks share a head.
#define PART_KEYS 128

#if __CUDA_ARCH__ >= 800
// Begins to copy a piece of weights that only this thread reads.
static __device__ __forceinline__ void copy_piece(uint4* to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" :: "r"(u32(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}

// Ends a batch of copies.
static __device__ __forceinline__ void end_batch() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for the oldest batch.
static __device__ __forceinline__ void await_batch() {
    asm volatile("cp.async.wait_group %0;" :: "n"(DEPTH / BATCH - 1) : "memory");
}

// The products of a layer: to queries, keys and values; from heads; to hidden features; back.
enum { PACKING, MIXING, EXPANDING, CONTRACTING, PRODUCTS };

static __device__ __forceinline__ constexpr u32 terms_of(const u32 product) {
    return product == MIXING ? ATTENDED : product == CONTRACTING ? HIDDEN : FEATURES;
}

// A block processes eight rows of a matrix at a time; of a gated layer, four rows of the gate and the four rows that it gates.
static __device__ __forceinline__ constexpr u32 groups_of(const u32 product) {
    return product == PACKING ? PACKED / 8 : product == EXPANDING ? (1 + GATED) * HIDDEN / 8 : FEATURES / 8;
}

// The most groups of rows that a block has.
static __device__ constexpr u32 rounds_of(const u32 product) {
    return (groups_of(product) + BLOCKS - 1) / BLOCKS;
}

// The block's first group; its further groups are the number of blocks apart. Blocks without a group in the products to features come
// first in the other products.
static __device__ __forceinline__ u32 first_of(const u32 product) {
    return product % 2 == 1 ? blockIdx.x : (blockIdx.x + BLOCKS - FEATURES / 8 % BLOCKS) % BLOCKS;
}

static __device__ constexpr u32 most(const u32 a, const u32 b) { return a > b ? a : b; }

constexpr u32 ROUNDS = most(most(rounds_of(PACKING), rounds_of(MIXING)), rounds_of(EXPANDING));
// Pairs of features of a thread, and the lanes that share a key.
constexpr u32 PAIRS = (FEATURES / 2 + THREADS - 1) / THREADS;
constexpr u32 TEAM = WIDTH <= 16 ? 2 : WIDTH <= 32 ? 4 : WIDTH <= 64 ? 8 : WIDTH <= 128 ? 16 : 32;

// The contents of a block's shared memory.
struct state {
    // Pieces of weights whose copies are in progress; each thread has its own.
    uint4 pieces[DEPTH][THREADS];
    // The row that a product reads.
    alignas(16) u32 row[most(most(FEATURES, ATTENDED), HIDDEN) / 2];
    // Partial sums of each warp, eight numbers apart, so that rounds use different memory banks.
    alignas(16) f32 parts[ROUNDS][WARPS * 8 + 8];
    // The head's query, new key and new value.
    alignas(16) u32 projected[3][WIDTH / 2];
    // The partial result of each warp, or of each part of a head, for its keys: sums of values, the greatest score and the sum of
    // weights.
    alignas(16) f32 gathered[most(WARPS, PARTS)][WIDTH];
    float2 tops[most(WARPS, PARTS)];
    alignas(16) f32 moments[2][WARPS];
    layer layers[LAYERS];
};
static_assert(sizeof(state) <= SHARED_BYTES, "the host knows how much a block needs");

// The weights of a warp in the order in which it multiplies them, over all products and layers. A lane has eight terms of one of eight rows.
struct stream {
    const Element* at;
    // The number of pieces of this group that are left, and the position in shared memory that is read next.
    u32 left, group, product, number, layers, slot;

    // Finds the next group of which the warp has terms.
    __device__ __forceinline__ void find(const state& own) {
        const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, line = lane / 4;
        while (number < layers) {
            const u32 terms = terms_of(product), steps = terms / 32;
            if (group < groups_of(product) && warp < steps) {
                left = (steps - warp + WARPS - 1) / WARPS;
                const u32 row = GATED && product == EXPANDING ? group * 4 + line % 4 + line / 4 * HIDDEN : group * 8 + line;
                at = own.layers[number].products[product].weight + u64(row) * terms + warp * 32 + lane % 4 * 8;
                return;
            }
            product = product + 1;
            if (product == PRODUCTS) {
                product = 0;
                number = number + 1;
            }
            group = first_of(product);
        }
    }

    // Begins to copy the next batch to the positions beginning at `to`.
    __device__ __forceinline__ void bring(state& own, const u32 to) {
        #pragma unroll 1
        for (u32 i = 0; i < BATCH && number < layers; ++i) {
            copy_piece(&own.pieces[to + i][threadIdx.x], at);
            at = at + WARPS * 32;
            left = left - 1;
            if (left == 0) {
                group = group + BLOCKS;
                find(own);
            }
        }
        end_batch();
    }

    __device__ __forceinline__ void start(state& own, const u32 count) {
        layers = count;
        number = product = slot = 0;
        group = first_of(0);
        find(own);
        #pragma unroll 1
        for (u32 to = 0; to < DEPTH; to += BATCH) {
            bring(own, to);
        }
    }

    // Returns the next piece; after the last piece of a batch, another batch is loaded.
    __device__ __forceinline__ uint4 take(state& own) {
        if (slot % BATCH == 0) {
            await_batch();
        }
        const uint4 piece = own.pieces[slot][threadIdx.x];
        slot = slot + 1;
        if (slot % BATCH == 0) {
            bring(own, slot - BATCH);
            slot = slot == DEPTH ? 0 : slot;
        }
        return piece;
    }
};

// Multiplies the block's rows by the row in shared memory; each warp writes its parts of the sums.
template <u32 PRODUCT> static __device__ __forceinline__ void multiply_rows(state& own, stream& weights) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr u32 STEPS = terms_of(PRODUCT) / 32;
    const u32* const values = own.row + lane % 4 * 4;
    u32 round = 0;
    #pragma unroll 1
    for (u32 group = first_of(PRODUCT); group < groups_of(PRODUCT); group += BLOCKS) {
        f32 sums[4] = {};
        #pragma unroll 1
        for (u32 step = warp; step < STEPS; step += WARPS) {
            const uint4 piece = weights.take(own), value = *(const uint4*)(values + step * 16);
            multiply(sums, piece, value, value);
        }
        if (lane < 4) {
            *(float2*)&own.parts[round][warp * 8 + lane * 2] = make_float2(sums[0], sums[1]);
        }
        round = round + 1;
    }
    __syncthreads();
}

// The sums of two rows of a round, beginning with the given one.
static __device__ __forceinline__ float2 finished(const state& own, const u32 round, const u32 row) {
    float2 sum = make_float2(0.0f, 0.0f);
    #pragma unroll
    for (u32 warp = 0; warp < WARPS; ++warp) {
        const float2 part = *(const float2*)&own.parts[round][warp * 8 + row];
        sum = make_float2(sum.x + part.x, sum.y + part.y);
    }
    return sum;
}

// A norm's pairs of scales and biases of a thread.
struct scales { u32 by[PAIRS], plus[PAIRS]; };

static __device__ __forceinline__ scales scales_of(const affine& norm) {
    scales found = {};
    #pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        const u32 at = threadIdx.x + i * THREADS;
        if (at < FEATURES / 2) {
            found.by[i] = ((const u32*)norm.weight)[at];
            if (CENTRED) {
                found.plus[i] = ((const u32*)norm.bias)[at];
            }
        }
    }
    return found;
}

// Normalizes the thread's pairs of the row, and writes them to shared memory.
static __device__ __forceinline__ void normalize(state& own, const float2 (&pairs)[PAIRS], const scales& norm, const f32 eps) {
    f32 mean = 0.0f, square = 0.0f;
    if (CENTRED) {
        #pragma unroll
        for (u32 i = 0; i < PAIRS; ++i) {
            mean = mean + (pairs[i].x + pairs[i].y);
        }
        mean = over_block<WARPS, false>(mean, own.moments[0]) * (1.0f / FEATURES);
    }
    #pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        if (threadIdx.x + i * THREADS < FEATURES / 2) {
            const f32 a = pairs[i].x - mean, b = pairs[i].y - mean;
            square = fmaf(a, a, fmaf(b, b, square));
        }
    }
    const f32 factor = rsqrtf(over_block<WARPS, false>(square, own.moments[1]) * (1.0f / FEATURES) + eps);
    #pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        const u32 at = threadIdx.x + i * THREADS;
        if (at < FEATURES / 2) {
            const f32 a = (pairs[i].x - mean) * factor, b = (pairs[i].y - mean) * factor;
            own.row[at] = pair_of(fmaf(a, low(norm.by[i]), low(norm.plus[i])), fmaf(b, high(norm.by[i]), high(norm.plus[i])));
        }
    }
    __syncthreads();
}

// Two features of the input row; NaN if the token or the position does not exist.
static __device__ __forceinline__ float2 given(const arguments& x, const i64 token, const i64 position, const u32 at) {
    if (x.token == nullptr) {
        const u32 both = ((const u32*)x.x)[at];
        return make_float2(low(both), high(both));
    }
    if (u64(token) >= x.vocabulary || u64(position) >= x.context) {
        return make_float2(__int_as_float(0x7fc00000), __int_as_float(0x7fc00000));
    }
    const u32 both = ((const u32*)x.x)[token * (FEATURES / 2) + at];
    if (x.added == nullptr) {
        return make_float2(low(both), high(both));
    }
    const u32 plus = ((const u32*)x.added)[position * (FEATURES / 2) + at];
    // The sum is rounded as a row is.
    const u32 sum = pair_of(low(both) + low(plus), high(both) + high(plus));
    return make_float2(low(sum), high(sum));
}

// Waits for the thread's pairs of a row of f32.
static __device__ __forceinline__ void await_pairs(float2 (&pairs)[PAIRS], const u32* from, const u32 tag) {
    tagged found[PAIRS];
    const u32* at[PAIRS];
    #pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        // A thread without a pair waits for the last one.
        at[i] = from + 4 * min(threadIdx.x + i * THREADS, u32(FEATURES / 2 - 1));
    }
    await(found, at, tag);
    #pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        const bool has = threadIdx.x + i * THREADS < FEATURES / 2;
        pairs[i] = has ? make_float2(__uint_as_float(found[i].a), __uint_as_float(found[i].b)) : make_float2(0.0f, 0.0f);
    }
}

// Waits for a row of pairs of elements, and writes it to shared memory.
template <u32 TERMS> static __device__ __forceinline__ void await_row(state& own, const u32* from, const u32 tag) {
    constexpr u32 COUNT = (TERMS / 4 + THREADS - 1) / THREADS;
    tagged found[COUNT];
    const u32* at[COUNT];
    #pragma unroll
    for (u32 i = 0; i < COUNT; ++i) {
        at[i] = from + 4 * min(threadIdx.x + i * THREADS, u32(TERMS / 4 - 1));
    }
    await(found, at, tag);
    #pragma unroll
    for (u32 i = 0; i < COUNT; ++i) {
        const u32 four = threadIdx.x + i * THREADS;
        if (four < TERMS / 4) {
            *(uint2*)(own.row + 2 * four) = make_uint2(found[i].a, found[i].b);
        }
    }
    __syncthreads();
}

// Sums of eight weighted values; the exponents of the weights are relative to the greatest one.
struct weighted { f32 greatest, total, sums[8]; };

// The greatest exponent, which is subtracted from all; zero if there is none.
static __device__ __forceinline__ f32 base_of(const f32 greatest) {
    return greatest == -__int_as_float(0x7f800000) ? 0.0f : greatest;
}

// Rotates a pair of features of a query or a key (one feature, and the one half a head later) by the position's angles.
static __device__ __forceinline__ void turn(u32* row, const u32 at, const float2 cosine, const float2 sine) {
    const u32 near = row[at], far = row[at + WIDTH / 4];
    row[at] = pair_of(low(near) * cosine.x - low(far) * sine.x, high(near) * cosine.y - high(far) * sine.y);
    row[at + WIDTH / 4] = pair_of(low(far) * cosine.x + low(near) * sine.x, high(far) * cosine.y + high(near) * sine.y);
}

// The parameters of a call of attention: the position, if it is in range, and the number of keys.
struct attention { u32 fresh, keys, parts, context; f32 scale; };

// Waits for a head's query, new key and new value, and rotates them.
static __device__ __forceinline__ void await_projected(state& own, const arguments& x, const u32* packed, const u32 head, const u32 shared, const u32 tag, const attention& a) {
    const u32 thread = threadIdx.x;
    const u32 angle = (a.fresh < a.context ? a.fresh : 0) * (WIDTH / 2) + thread % (WIDTH / 4) * 2;
    float2 cosine = {}, sine = {};
    if (TURNED && thread < WIDTH / 2) {
        cosine = *(const float2*)(x.cosines + angle);
        sine = *(const float2*)(x.sines + angle);
    }
    #pragma unroll 1
    for (u32 i = thread; i < 3 * (WIDTH / 4); i += THREADS) {
        const u32 which = i / (WIDTH / 4), four = i % (WIDTH / 4);
        const u32 row = which == 0 ? head : HEADS + (which - 1) * KEY_HEADS + shared;
        tagged found[1];
        const u32* at[1] = {packed + row * WIDTH + 4 * four};
        await(found, at, tag);
        *(uint2*)&own.projected[which][2 * four] = make_uint2(found[0].a, found[0].b);
    }
    __syncthreads();
    if (TURNED) {
        if (thread < WIDTH / 2) {
            turn(own.projected[thread / (WIDTH / 4)], thread % (WIDTH / 4), cosine, sine);
        }
        __syncthreads();
    }
}

// Adds a key and its value.
static __device__ __forceinline__ void add_key(weighted& sum, const f32 (&query)[8], const uint4 key, const uint4 value, const bool counts) {
    const u32 keys[4] = {key.x, key.y, key.z, key.w}, values[4] = {value.x, value.y, value.z, value.w};
    f32 score = 0.0f;
    #pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        score = fmaf(query[2 * i], low(keys[i]), score);
        score = fmaf(query[2 * i + 1], high(keys[i]), score);
    }
    #pragma unroll
    for (u32 apart = TEAM / 2; apart > 0; apart /= 2) {
        score = score + __shfl_xor_sync(0xffffffffu, score, apart);
    }
    if (counts) {
        const f32 next = fmaxf(sum.greatest, score), base = base_of(next);
        const f32 before = power(sum.greatest - base), weight = power(score - base);
        sum.greatest = next;
        sum.total = fmaf(sum.total, before, weight);
        #pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            sum.sums[2 * i] = fmaf(sum.sums[2 * i], before, weight * low(values[i]));
            sum.sums[2 * i + 1] = fmaf(sum.sums[2 * i + 1], before, weight * high(values[i]));
        }
    }
}

// Adds the partial results of a warp's teams, and writes the sum to shared memory.
static __device__ __forceinline__ void leave(state& own, weighted& sum, const u32 feature) {
    #pragma unroll
    for (u32 apart = TEAM; apart < 32; apart *= 2) {
        const f32 other = __shfl_xor_sync(0xffffffffu, sum.greatest, apart);
        const f32 next = fmaxf(sum.greatest, other), base = base_of(next);
        const f32 mine = power(sum.greatest - base), theirs = power(other - base);
        sum.greatest = next;
        sum.total = sum.total * mine + __shfl_xor_sync(0xffffffffu, sum.total, apart) * theirs;
        #pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            sum.sums[i] = sum.sums[i] * mine + __shfl_xor_sync(0xffffffffu, sum.sums[i], apart) * theirs;
        }
    }
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane < TEAM && feature < WIDTH) {
        *(float4*)&own.gathered[warp][feature] = make_float4(sum.sums[0], sum.sums[1], sum.sums[2], sum.sums[3]);
        *(float4*)&own.gathered[warp][feature + 4] = make_float4(sum.sums[4], sum.sums[5], sum.sums[6], sum.sums[7]);
    }
    if (lane == 0) {
        own.tops[warp] = make_float2(sum.greatest, sum.total);
    }
    __syncthreads();
}

// Combines the results of `count` warps or parts for a pair of features: the greatest score, the sum of weights and the sums.
static __device__ __forceinline__ float4 together(const state& own, const u32 count, const u32 pair) {
    f32 greatest = -__int_as_float(0x7f800000), total = 0.0f, a = 0.0f, b = 0.0f;
    for (u32 i = 0; i < count; ++i) {
        greatest = fmaxf(greatest, own.tops[i].x);
    }
    const f32 base = base_of(greatest);
    for (u32 i = 0; i < count; ++i) {
        const f32 weight = power(own.tops[i].x - base);
        const float2 values = *(const float2*)&own.gathered[i][2 * pair];
        total = fmaf(own.tops[i].y, weight, total);
        a = fmaf(values.x, weight, a);
        b = fmaf(values.y, weight, b);
    }
    return make_float4(greatest, total, a, b);
}

static __device__ __forceinline__ void put_mixed(u32* mixed, const u32 head, const u32 pair, const float4 sum, const u32 tag) {
    const f32 share = sum.y == 0.0f ? 0.0f : 1.0f / sum.y;
    put(mixed + head * WIDTH + 2 * pair, pair_of(sum.z * share, sum.w * share), tag);
}

// Attention of a head's query over a part of its keys. If there are several parts, the block of the first part combines them.
static __device__ __forceinline__ void attend(state& own, const arguments& x, const layer& of, const u32 unit, const u32* packed, u32* partial, u32* mixed, const u32 tag,
                                              const attention& a) {
    constexpr u32 AHEAD = 2, TEAMS = THREADS / TEAM;
    const u32 thread = threadIdx.x, feature = thread % TEAM * 8;
    const u32 head = unit / a.parts, part = unit % a.parts, shared = head / (HEADS / KEY_HEADS);
    const u32 share = (a.keys + a.parts - 1) / a.parts, begin = min(a.keys, part * share), end = min(a.keys, begin + share);
    Element* const keys = of.keys + u64(shared) * a.context * WIDTH;
    Element* const values = of.values + u64(shared) * a.context * WIDTH;
    uint4 key[AHEAD] = {}, value[AHEAD] = {};
    const auto read = [&](const u32 start) {
        #pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) {
            const u32 place = start + i * TEAMS;
            if (place < end && place != a.fresh && feature < WIDTH) {
                key[i] = *(const uint4*)(keys + u64(place) * WIDTH + feature);
                value[i] = *(const uint4*)(values + u64(place) * WIDTH + feature);
            }
        }
    };
    // The first keys are loaded while the query is awaited.
    read(begin + thread / TEAM);
    await_projected(own, x, packed, head, shared, tag, a);
    if (head % (HEADS / KEY_HEADS) == 0 && a.fresh >= begin && a.fresh < end && thread < WIDTH / 4) {
        const u32 which = thread / (WIDTH / 8), eight = thread % (WIDTH / 8);
        *(uint4*)((which == 0 ? keys : values) + u64(a.fresh) * WIDTH + eight * 8) = *(const uint4*)&own.projected[1 + which][eight * 4];
    }
    f32 query[8] = {};
    if (feature < WIDTH) {
        #pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 both = own.projected[0][feature / 2 + i];
            query[2 * i] = low(both) * a.scale;
            query[2 * i + 1] = high(both) * a.scale;
        }
    }
    weighted sum = {};
    sum.greatest = -__int_as_float(0x7f800000);
    // The bound is the same for the block, so that all lanes of a warp take part.
    #pragma unroll 1
    for (u32 start = begin; start < end; start += AHEAD * TEAMS) {
        const u32 first = start + thread / TEAM;
        #pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) {
            const u32 place = first + i * TEAMS;
            if (place == a.fresh && feature < WIDTH) {
                key[i] = *(const uint4*)&own.projected[1][feature / 2];
                value[i] = *(const uint4*)&own.projected[2][feature / 2];
            }
            add_key(sum, query, key[i], value[i], place < end);
        }
        read(first + AHEAD * TEAMS);
    }
    leave(own, sum, feature);
    float4 all = {};
    if (thread < WIDTH / 2) {
        all = together(own, WARPS, thread);
    }
    if (a.parts == 1) {
        if (thread < WIDTH / 2) {
            put_mixed(mixed, head, thread, all, tag);
        }
        // The next head's numbers are stored at the same positions.
        __syncthreads();
        return;
    }
    constexpr u32 EACH = WIDTH / 2 + 1;
    if (thread < WIDTH / 2) {
        u32* const to = partial + 4 * (head * PARTS + part) * EACH;
        put(to + 4 * thread, __float_as_uint(all.z), __float_as_uint(all.w), tag);
        if (thread == 0) {
            put(to + 4 * (EACH - 1), __float_as_uint(all.x), __float_as_uint(all.y), tag);
        }
    }
    if (part != 0) {
        return;
    }
    __syncthreads();
    #pragma unroll 1
    for (u32 i = thread; i < a.parts * EACH; i += THREADS) {
        tagged found[1];
        const u32* at[1] = {partial + 4 * (head * PARTS * EACH + i)};
        await(found, at, tag);
        const float2 both = make_float2(__uint_as_float(found[0].a), __uint_as_float(found[0].b));
        if (i % EACH == EACH - 1) {
            own.tops[i / EACH] = both;
        } else {
            *(float2*)&own.gathered[i / EACH][i % EACH * 2] = both;
        }
    }
    __syncthreads();
    if (thread < WIDTH / 2) {
        put_mixed(mixed, head, thread, together(own, a.parts, thread), tag);
    }
}

// Prefetches the block's keys and values of a layer to the L2 cache.
static __device__ __forceinline__ void ask_for_keys(const layer& of, const u32 unit, const attention& a) {
    const u32 shared = unit / a.parts / (HEADS / KEY_HEADS), part = unit % a.parts;
    const u32 share = (a.keys + a.parts - 1) / a.parts, begin = min(a.keys, part * share), end = min(a.keys, begin + share);
    for (u32 at = begin * WIDTH + threadIdx.x * 64; at < end * WIDTH; at += THREADS * 64) {
        prefetch(of.keys + u64(shared) * a.context * WIDTH + at);
        prefetch(of.values + u64(shared) * a.context * WIDTH + at);
    }
}

// The activation of hidden features: a gate by SiLU, or GELU by its tanh.
static __device__ __forceinline__ f32 activated(const f32 x) {
    return GATED ? __fdividef(x, 1.0f + power(fminf(x * -1.4426950408889634f, 126.0f)))
                 : __fdividef(x, 1.0f + power(fminf(-2.302208198f * fmaf(0.044715f * x * x, x, x), 126.0f)));
}

// Two elements of a bias; zeros where there is none.
static __device__ __forceinline__ float2 bias_of(const affine& product, const u32 row) {
    if (product.bias == nullptr) {
        return make_float2(0.0f, 0.0f);
    }
    const u32 both = *(const u32*)(product.bias + row);
    return make_float2(low(both), high(both));
}

static __device__ __forceinline__ float2 sum_of(const float2 a, const float2 b) {
    return make_float2(a.x + b.x, a.y + b.y);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const __grid_constant__ arguments x) {
    extern __shared__ __align__(128) u8 dynamic[];
    state& own = *(state*)dynamic;
    const u32 thread = threadIdx.x;
    const i64 position = *x.position, token = x.token == nullptr ? 0 : *x.token;
    const u32 layers = u32(x.layers);
    // The tags of earlier launches are at most this number.
    const u32 before = *(volatile u32*)x.exchange;
    attention a;
    a.context = u32(x.context);
    a.fresh = position >= 0 && position < i64(x.context) ? u32(position) : 0xffffffffu;
    a.keys = position < 0 ? 0 : a.fresh < a.context ? a.fresh + 1 : a.context;
    a.parts = min(u32(PARTS), max((a.keys + PART_KEYS - 1) / PART_KEYS, 1u));
    a.scale = __uint_as_float(u32(x.scale)) * 1.4426950408889634f;
    const u32 units = HEADS * a.parts;
    const f32 eps = __uint_as_float(u32(x.eps));
    for (u32 i = thread; i < layers * u32(sizeof(layer) / 8); i += THREADS) {
        ((u64*)own.layers)[i] = ((const u64*)x.layer_of)[i];
    }
    __syncthreads();
    stream weights;
    weights.start(own, layers);
    // The rows after attention and after the layer; queries, keys and values; the results of attention, complete and in parts; hidden
    // features.
    u32* const middle = x.exchange + 4;
    u32* const rows = middle + 2 * FEATURES;
    u32* const packed = rows + 2 * FEATURES;
    u32* const mixed = packed + PACKED;
    u32* const hidden = mixed + ATTENDED;
    u32* const partial = hidden + HIDDEN;
    // The thread's pair of rows of a round: for products to features, and for products that may be gated.
    const u32 round = thread / 4, pair = thread % 4 * 2;
    const u32 own_row = (first_of(MIXING) + round * BLOCKS) * 8 + pair, packed_row = (first_of(PACKING) + round * BLOCKS) * 8 + pair;
    const bool has_row = own_row < FEATURES, has_packed = packed_row < PACKED;
    constexpr u32 LEFT = GATED ? 2 : 4;
    const u32 hidden_round = thread / LEFT, hidden_pair = thread % LEFT * 2;
    const u32 hidden_row = (first_of(EXPANDING) + hidden_round * BLOCKS) * (2 * LEFT) + hidden_pair;
    const bool has_hidden = hidden_row < HIDDEN;
    float2 residual = {};
    if (has_row) {
        residual = given(x, token, position, own_row / 2);
    }
    #pragma unroll 1
    for (u32 number = 0; number < layers; ++number) {
        const layer& of = own.layers[number];
        const u32 tag = before + number + 1;
        if (number + 1 == layers) {
            launch_dependents();
        }
        for (u32 unit = blockIdx.x; unit < units; unit += BLOCKS) {
            ask_for_keys(of, unit, a);
        }
        if (first_of(PACKING) < groups_of(PACKING)) {
            const scales norm = scales_of(of.norms[0]);
            const float2 bias = has_packed ? bias_of(of.products[PACKING], packed_row) : float2{};
            float2 pairs[PAIRS];
            if (number == 0) {
                #pragma unroll
                for (u32 i = 0; i < PAIRS; ++i) {
                    const u32 at = thread + i * THREADS;
                    pairs[i] = at < FEATURES / 2 ? given(x, token, position, at) : float2{};
                }
            } else {
                await_pairs(pairs, rows, tag - 1);
            }
            normalize(own, pairs, norm, eps);
            multiply_rows<PACKING>(own, weights);
            if (has_packed) {
                const float2 sum = sum_of(finished(own, round, pair), bias);
                put(packed + packed_row, pair_of(sum.x, sum.y), tag);
            }
        }
        for (u32 unit = blockIdx.x; unit < units; unit += BLOCKS) {
            attend(own, x, of, unit, packed, partial, mixed, tag, a);
        }
        if (first_of(MIXING) < groups_of(MIXING)) {
            const float2 bias = has_row ? bias_of(of.products[MIXING], own_row) : float2{};
            await_row<ATTENDED>(own, mixed, tag);
            multiply_rows<MIXING>(own, weights);
            if (has_row) {
                residual = sum_of(residual, sum_of(finished(own, round, pair), bias));
                put(middle + 2 * own_row, __float_as_uint(residual.x), __float_as_uint(residual.y), tag);
            }
        }
        if (first_of(EXPANDING) < groups_of(EXPANDING)) {
            const scales norm = scales_of(of.norms[1]);
            float2 bias = {}, gate_bias = {}, pairs[PAIRS];
            if (has_hidden) {
                gate_bias = bias_of(of.products[EXPANDING], hidden_row);
                bias = GATED ? bias_of(of.products[EXPANDING], HIDDEN + hidden_row) : bias;
            }
            await_pairs(pairs, middle, tag);
            normalize(own, pairs, norm, eps);
            multiply_rows<EXPANDING>(own, weights);
            if (has_hidden) {
                const float2 gate = sum_of(finished(own, hidden_round, hidden_pair), gate_bias);
                float2 value = make_float2(activated(gate.x), activated(gate.y));
                if (GATED) {
                    const float2 by = sum_of(finished(own, hidden_round, 4 + hidden_pair), bias);
                    value = make_float2(value.x * by.x, value.y * by.y);
                }
                put(hidden + hidden_row, pair_of(value.x, value.y), tag);
            }
        }
        if (first_of(CONTRACTING) < groups_of(CONTRACTING)) {
            const float2 bias = has_row ? bias_of(of.products[CONTRACTING], own_row) : float2{};
            await_row<HIDDEN>(own, hidden, tag);
            multiply_rows<CONTRACTING>(own, weights);
            if (has_row) {
                residual = sum_of(residual, sum_of(finished(own, round, pair), bias));
                if (number + 1 == layers) {
                    *(u32*)(x.result + own_row) = pair_of(residual.x, residual.y);
                } else {
                    put(rows + 2 * own_row, __float_as_uint(residual.x), __float_as_uint(residual.y), tag);
                }
            }
        }
    }
    // This block has a hidden row, so every block has read the number.
    if (blockIdx.x == 0 && thread == 0) {
        *x.exchange = before + layers;
    }
}
#else
// Nothing to launch when the host compiles this file.
extern "C" __global__ void NAME(const __grid_constant__ arguments x) {
    launch_dependents();
}
#endif
