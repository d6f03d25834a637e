// All layers of a decoder for one token, in one launch.
#ifndef NAME
#define HALF
#include "../defaults.cuh"
#define FEATURES 768
#define HIDDEN 3072
#define HEADS 12
#define WIDTH 64
#define BLOCKS 96
#define CLUSTER 8
#define LAYERS 32
#define SHARED_BYTES 225984
#define THREADS 384
#define SLOTS 2
#endif
#include "../shared/barriers.cuh"
#include "../shared/multiply_eight.cuh"
#include "../shared/tagged.cuh"
#include "layers.cuh"

#define WARPS (THREADS / 32)
// The features of a head that a block of its cluster has, and the keys in a slot: eight for each warp.
#define EACH (WIDTH / CLUSTER)
#define TILE (8 * WARPS)

#if __CUDA_ARCH__ >= 900
// The greatest exponent, which is subtracted from all; zero if there is none.
static __device__ __forceinline__ f32 base_of(const f32 greatest) {
    return greatest == -__int_as_float(0x7f800000) ? 0.0f : greatest;
}

// The layout of a block's rows of a matrix, side by side in shared memory.
template <u32 SHARE, u32 TERMS> struct rows_of {
    static constexpr u32 share = SHARE, octets = (SHARE + 7) / 8, terms = TERMS, all_steps = TERMS / 32;
    // The distance from one row in shared memory to the next, so that a quarter warp that reads two rows uses all banks.
    static constexpr u32 stride = TERMS * 2 / 128 * 128 + (TERMS * 2 % 128 == 0 ? 64 : 192);
    static constexpr u32 bytes = octets * 8 * stride;
    // The terms of a warp, in steps of 32.
    static constexpr u32 steps = (all_steps + WARPS - 1) / WARPS;
};

// Rows side by side; the last blocks have fewer of them.
template <u32 ROWS, u32 TERMS> struct product : rows_of<(ROWS / 2 + BLOCKS - 1) / BLOCKS * 2, TERMS> {
    typedef rows_of<(ROWS / 2 + BLOCKS - 1) / BLOCKS * 2, TERMS> own;
    static __device__ __forceinline__ u32 first() { return min(ROWS, blockIdx.x * own::share); }
    static __device__ __forceinline__ u32 rows() { return min(ROWS, first() + own::share) - first(); }
    static __device__ __forceinline__ u32 source(const u32 row) { return first() + row; }
};

// The same features of a head's queries, keys and values.
struct packing : rows_of<3 * EACH, FEATURES> {
    static __device__ __forceinline__ u32 rows() { return blockIdx.x < HEADS * CLUSTER ? share : 0; }
    static __device__ __forceinline__ u32 source(const u32 row) { return row / EACH * FEATURES + blockIdx.x * EACH + row % EACH; }
};
typedef product<FEATURES, FEATURES> mixing;
typedef product<HIDDEN, FEATURES> expanding;
typedef product<FEATURES, HIDDEN> contracting;

static __device__ constexpr u32 most(const u32 a, const u32 b) { return a > b ? a : b; }

// `barrier_wait` with a single branch, which was measured to be faster here.
static __device__ __forceinline__ void wait_phase(const u32 barrier, const u32 parity) {
    asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra AGAIN;\n}"
                 :: "r"(barrier), "r"(parity) : "memory");
}

// Begins to copy weights or keys, which need not stay in the L2 cache (their policy is to be evicted first).
static __device__ __forceinline__ void copy(const u32 to, const void* from, const u32 bytes, const u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 :: "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier), "l"(0x12f0000000000000ull) : "memory");
}

// Begins to copy two values that only this thread reads.
static __device__ __forceinline__ void copy_pair(u32* to, const Element* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                 :: "r"(u32(__cvta_generic_to_shared(to))), "l"(__cvta_generic_to_global(from)) : "memory");
}

// Ends a group of asynchronous copies.
static __device__ __forceinline__ void end_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for the oldest of four groups.
static __device__ __forceinline__ void await_group() {
    asm volatile("cp.async.wait_group 3;" ::: "memory");
}

// Waits for the threads that compute.
static __device__ __forceinline__ void meet() {
    asm volatile("bar.sync 1, %0;" :: "n"(THREADS) : "memory");
}

// The address, in another block of the cluster, that corresponds to an address in this block's shared memory.
static __device__ __forceinline__ u32 at_block(const u32 place, const u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place), "r"(rank));
    return there;
}

// Stores into another block of the cluster, whose barrier counts the bytes.
static __device__ __forceinline__ void send(const u32 to, const u32 barrier, const u32 value) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" :: "r"(to), "r"(value), "r"(barrier) : "memory");
}

static __device__ __forceinline__ void send(const u32 to, const u32 barrier, const f32 a, const f32 b) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];"
                 :: "r"(to), "r"(__float_as_uint(a)), "r"(__float_as_uint(b)), "r"(barrier) : "memory");
}

static __device__ __forceinline__ u32 address_of(const void* at) {
    return u32(__cvta_generic_to_shared(at));
}

constexpr u32 MOST_ROWS = most(most(packing::share, mixing::share), most(expanding::share, contracting::share));
// Pairs of features of a lane's warp, and pairs of a head's features that a lane has.
constexpr u32 PAIRS = (mixing::steps + 1) / 2;
constexpr u32 HEAD_PAIRS = most(WIDTH / 64, 1);

// The contents of a block's shared memory.
struct state {
    alignas(128) u8 packed[packing::bytes];
    alignas(128) u8 mixed_in[mixing::bytes];
    alignas(128) u8 expanded[expanding::bytes];
    alignas(128) u8 contracted[contracting::bytes];
    // Keys and values of some tiles.
    alignas(128) u8 tiles[SLOTS][2][TILE * WIDTH * 2];
    // The row that a product reads, one part per warp.
    alignas(16) u32 row[most(FEATURES, HIDDEN) / 2];
    alignas(16) f32 parts[2][MOST_ROWS][WARPS];
    // The head's query, new key and new value.
    alignas(16) u32 projected[3][WIDTH / 2];
    // The partial result of each warp of the cluster for its keys: the features of this block, the greatest score, and the sum of
    // weights.
    alignas(16) f32 gathered[CLUSTER * WARPS][EACH];
    alignas(16) float2 tops[CLUSTER * WARPS];
    alignas(16) float2 moments[WARPS];
    // The norms' scales and biases, and the products' biases; those of the first product once for each block that gets the sums.
    u32 scales[2][2][FEATURES / 2], packed_biases[packing::share / 2 * CLUSTER], biases[3][MOST_ROWS / 2];
    u64 full[4 + SLOTS], empty[4 + SLOTS], handed, gathering;
    layer layers[LAYERS];
};

// The part of attention that a block computes.
struct piece { u32 head, rank, begin, end, fresh, warps; };

// Begins to copy the block's rows of a matrix, as soon as their memory is free.
template <class P> static __device__ __forceinline__ void bring(const Element* weight, u8* to, const u32 full, const u32 empty, const u32 phase) {
    const u32 lane = threadIdx.x % 32, rows = P::rows();
    wait_phase(empty, phase ^ 1);
    if (lane == 0) {
        barrier_expect(full, rows * P::terms * 2);
    }
    __syncwarp();
    constexpr u32 PIECE = P::terms % FEATURES == 0 ? FEATURES : P::terms, PIECES = P::terms / PIECE;
    // Four lanes copy, not all: copying an entire matrix in one burst would delay the results that blocks wait for.
    for (u32 piece = lane; lane < 4 && piece < rows * PIECES; piece += 4) {
        const u32 row = piece / PIECES, term = piece % PIECES * PIECE;
        copy(address_of(to + row * P::stride + 2 * term), weight + u64(P::source(row)) * P::terms + term, PIECE * 2, full);
    }
    __syncwarp();
}

// Loads the block's rows of weights into registers while the row that they are multiplied by has not arrived yet: each warp has some
// terms of all rows.
template <class P> static __device__ __forceinline__ void take(uint4 (&weights)[P::steps * P::octets], const u8* from, const u32 full, const u32 empty, const u32 phase) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u8* const lines = from + lane / 4 * P::stride + warp * (P::steps * 64) + lane % 4 * 16;
    wait_phase(full, phase);
    #pragma unroll
    for (u32 step = 0; step < P::steps; ++step) {
        #pragma unroll
        for (u32 octet = 0; octet < P::octets; ++octet) {
            if (P::steps * WARPS == P::all_steps || warp * P::steps + step < P::all_steps) {
                weights[step * P::octets + octet] = *(const uint4*)(lines + octet * 8 * P::stride + step * 64);
            }
        }
    }
    __syncwarp();
    if (lane == 0) {
        barrier_arrive(empty);
    }
}

// Multiplies the block's rows by the row in shared memory; each warp writes its part of the sums.
template <class P> static __device__ __forceinline__ void multiply_rows(state& own, const uint4 (&weights)[P::steps * P::octets], const u32 which) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr u32 tiles = (P::octets + 1) / 2, wanted = tiles == 1 ? 4 : tiles == 2 ? 2 : 1, chains = wanted < P::steps ? wanted : P::steps;
    f32 sums[tiles * chains][4] = {};
    __syncwarp();
    const u32* const values = own.row + warp * (P::steps * 16) + lane % 4 * 4;
    #pragma unroll
    for (u32 step = 0; step < P::steps; ++step) {
        if (P::steps * WARPS == P::all_steps || warp * P::steps + step < P::all_steps) {
            const uint4 value = *(const uint4*)(values + step * 16);
            #pragma unroll
            for (u32 tile = 0; tile < tiles; ++tile) {
                // Sixteen rows of weights are the left factor; all columns of the right factor are copies of the row.
                const uint4 upper = weights[step * P::octets + 2 * tile];
                const uint4 lower = 2 * tile + 1 < P::octets ? weights[step * P::octets + (2 * tile + 1) % P::octets] : make_uint4(0, 0, 0, 0);
                multiply(sums[tile * chains + step % chains], value, upper, lower);
            }
        }
    }
    #pragma unroll
    for (u32 tile = 0; tile < tiles; ++tile) {
        f32 upper = sums[tile * chains][0], lower = sums[tile * chains][2];
        #pragma unroll
        for (u32 chain = 1; chain < chains; ++chain) {
            upper = upper + sums[tile * chains + chain][0];
            lower = lower + sums[tile * chains + chain][2];
        }
        const u32 row = tile * 16 + lane / 4;
        if (lane % 4 == 0 && row < P::share) {
            own.parts[which & 1][row][warp] = upper;
        }
        if (lane % 4 == 0 && row + 8 < P::share) {
            own.parts[which & 1][row + 8][warp] = lower;
        }
    }
    meet();
}

// The sums of two rows, with their biases.
static __device__ __forceinline__ float2 finished(const state& own, const u32 which, const u32 pair, const u32 bias) {
    float2 sum = make_float2(low(bias), high(bias));
    #pragma unroll
    for (u32 i = 0; i < WARPS; i += 4) {
        const float4 a = *(const float4*)&own.parts[which & 1][2 * pair][i], b = *(const float4*)&own.parts[which & 1][2 * pair + 1][i];
        sum.x = sum.x + ((a.x + a.y) + (a.z + a.w));
        sum.y = sum.y + ((b.x + b.y) + (b.z + b.w));
    }
    return sum;
}

// The position of a lane's pair of features, and whether the lane has one.
static __device__ __forceinline__ u32 pair_at(const u32 i) {
    return threadIdx.x / 32 * (mixing::steps * 16) + threadIdx.x % 32 + i * 32;
}

static __device__ __forceinline__ bool has_pair(const u32 i) {
    return (mixing::steps * 16 == PAIRS * 32 || threadIdx.x % 32 + i * 32 < mixing::steps * 16)
        && (mixing::steps * WARPS == mixing::all_steps || pair_at(i) < FEATURES / 2);
}

// Normalizes pairs of elements of the row, one or more per thread, into shared memory, where the same warp reads them. The pivot is
// near the mean: it is the mean of the previous row.
static __device__ __forceinline__ void normalize(state& own, const float2 (&pairs)[PAIRS], const u32 which, const f32 eps, f32& pivot) {
    const u32 thread = threadIdx.x;
    f32 sum = 0.0f, square = 0.0f;
    #pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        if (has_pair(i)) {
            const f32 a = pairs[i].x - pivot, b = pairs[i].y - pivot;
            sum = sum + (a + b);
            square = fmaf(a, a, fmaf(b, b, square));
        }
    }
    #pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2) {
        sum = sum + __shfl_xor_sync(0xffffffffu, sum, apart);
        square = square + __shfl_xor_sync(0xffffffffu, square, apart);
    }
    if (thread % 32 == 0) {
        own.moments[thread / 32] = make_float2(sum, square);
    }
    meet();
    f32 more = 0.0f, squares = 0.0f;
    sum = 0.0f, square = 0.0f;
    #pragma unroll
    for (u32 i = 0; i < WARPS; i += 2) {
        const float4 two = *(const float4*)&own.moments[i];
        sum = sum + two.x, more = more + two.z;
        square = square + two.y, squares = squares + two.w;
    }
    sum = (sum + more) * (1.0f / FEATURES);
    const f32 factor = rsqrtf(fmaxf(fmaf(square + squares, 1.0f / FEATURES, -sum * sum), 0.0f) + eps);
    pivot = pivot + sum;
    #pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        if (has_pair(i)) {
            const u32 by = own.scales[which][0][pair_at(i)], plus = own.scales[which][1][pair_at(i)];
            own.row[pair_at(i)] = pair_of(fmaf((pairs[i].x - pivot) * factor, low(by), low(plus)), fmaf((pairs[i].y - pivot) * factor, high(by), high(plus)));
        }
    }
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

// Waits for pairs of a row of f32.
static __device__ __forceinline__ void await_pairs(float2 (&pairs)[PAIRS], const u32* from, const u32 tag) {
    tagged given[PAIRS];
    const u32* at[PAIRS];
    #pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        // A lane without a pair waits for the first pair of its warp, or of the row.
        at[i] = from + 4 * (has_pair(i) ? pair_at(i) : 0);
    }
    await(given, at, tag);
    #pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        pairs[i] = make_float2(__uint_as_float(given[i].a), __uint_as_float(given[i].b));
    }
}

// Waits for the features that this thread's warp multiplies, and stores them in shared memory.
template <class P> static __device__ __forceinline__ void await_row(state& own, const u32* from, const u32 tag) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Four features, in two pairs, for each lane.
    constexpr u32 LINES = P::steps * 8, COUNT = (LINES + 31) / 32;
    tagged given[COUNT];
    const u32* at[COUNT];
    u32 lines[COUNT];
    #pragma unroll
    for (u32 i = 0; i < COUNT; ++i) {
        lines[i] = min(warp * LINES + min(lane + i * 32, LINES - 1), P::terms / 4 - 1);
        at[i] = from + 4 * lines[i];
    }
    await(given, at, tag);
    #pragma unroll
    for (u32 i = 0; i < COUNT; ++i) {
        // A row that several lanes share belongs to this warp, or is not used by its product.
        if (warp * LINES + lane + i * 32 == lines[i]) {
            *(uint2*)(own.row + 2 * lines[i]) = make_uint2(given[i].a, given[i].b);
        }
    }
}

// Eight features out of 32, or four out of 16 and zeros.
static __device__ __forceinline__ uint4 quarter(const void* row, const u32 step) {
    const u32 part = threadIdx.x % 4;
    if (WIDTH == 16) {
        const uint2 four = *(const uint2*)((const u8*)row + part * 8);
        return make_uint4(four.x, four.y, 0, 0);
    }
    return *(const uint4*)((const u8*)row + step * 64 + part * 16);
}

// The block's part of attention: one head's query over some of its keys, eight keys per warp at a time. Each warp sends its partial
// results to the blocks of the cluster, each of which gets its own features.
static __device__ __forceinline__ void attend(state& own, const piece& p, const layer& of, const u32 context, const f32 scale, const u32 phase,
                                              const u32 full, const u32 empty, u32& slot, u32& turn) {
    constexpr u32 STEPS = most(WIDTH / 32, 1), FEW = HEAD_PAIRS;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // The lane's pairs of features of values.
    const u32 feature = min(lane * 2 * FEW, WIDTH - 2 * FEW);
    const u32 handed = address_of(&own.handed);
    f32 greatest = -__int_as_float(0x7f800000), total = 0.0f, sums[2 * FEW] = {};
    #pragma unroll 1
    for (u32 start = p.begin; start < p.end; start += TILE) {
        const u32 first = start + warp * 8;
        wait_phase(full + 32 + 8 * slot, turn);
        uint4 key[STEPS];
        u32 value[8][FEW];
        #pragma unroll
        for (u32 step = 0; step < STEPS; ++step) {
            key[step] = quarter(own.tiles[slot][0] + (warp * 8 + lane / 4) * (WIDTH * 2), step);
        }
        #pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            #pragma unroll
            for (u32 i = 0; i < FEW; ++i) {
                value[j][i] = first + j < p.end ? *(const u32*)(own.tiles[slot][1] + ((warp * 8 + j) * WIDTH + feature + 2 * i) * 2) : 0;
            }
        }
        __syncwarp();
        if (lane == 0) {
            barrier_arrive(empty + 32 + 8 * slot);
        }
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        turn ^= u32(slot == 0);
        if (first >= p.end) {
            continue;
        }
        wait_phase(handed, phase);
        const u32 fresh = p.fresh - first;
        if (fresh < 8) {
            // The new key and its value.
            #pragma unroll
            for (u32 step = 0; step < STEPS; ++step) {
                key[step] = lane / 4 == fresh ? quarter(own.projected[1], step) : key[step];
            }
            #pragma unroll
            for (u32 i = 0; i < FEW; ++i) {
                const u32 own_value = own.projected[2][feature / 2 + i];
                #pragma unroll
                for (u32 j = 0; j < 8; ++j) {
                    value[j][i] = j == fresh ? own_value : value[j][i];
                }
            }
            if (lane < WIDTH / 4) {
                const u32 which = lane / (WIDTH / 8), part = lane % (WIDTH / 8);
                Element* const cache = which == 0 ? of.keys : of.values;
                *(uint4*)(cache + (u64(p.head) * context + p.fresh) * WIDTH + part * 8) = *(const uint4*)&own.projected[1 + which][part * 4];
            }
        }
        f32 both[2][4] = {};
        #pragma unroll
        for (u32 step = 0; step < STEPS; ++step) {
            const uint4 query = quarter(own.projected[0], step);
            multiply(both[step & 1], key[step], query, query);
        }
        // Every lane has the scores of two keys, which seven other lanes have, too.
        const u32 place = first + lane % 4 * 2;
        const f32 none = -__int_as_float(0x7f800000);
        const f32 a = place < p.end ? (both[0][0] + both[1][0]) * scale : none, b = place + 1 < p.end ? (both[0][1] + both[1][1]) * scale : none;
        f32 top = fmaxf(greatest, fmaxf(a, b));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const f32 base = base_of(top), before = power(greatest - base), of_a = power(a - base), of_b = power(b - base);
        greatest = top;
        total = fmaf(total, before, of_a + of_b);
        #pragma unroll
        for (u32 i = 0; i < 2 * FEW; ++i) {
            sums[i] = sums[i] * before;
        }
        #pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            const f32 weight = __shfl_sync(0xffffffffu, j % 2 == 0 ? of_a : of_b, j / 2);
            #pragma unroll
            for (u32 i = 0; i < FEW; ++i) {
                sums[2 * i] = fmaf(weight, low(value[j][i]), sums[2 * i]);
                sums[2 * i + 1] = fmaf(weight, high(value[j][i]), sums[2 * i + 1]);
            }
        }
    }
    if (warp >= p.warps) {
        return;
    }
    wait_phase(handed, phase);
    if (threadIdx.x == 0) {
        barrier_expect(handed, 3 * WIDTH * 2);
    }
    total = total + __shfl_xor_sync(0xffffffffu, total, 1);
    total = total + __shfl_xor_sync(0xffffffffu, total, 2);
    const u32 source = p.rank * p.warps + warp, gathering = address_of(&own.gathering);
    #pragma unroll
    for (u32 i = 0; i < FEW; ++i) {
        const u32 mine = feature + 2 * i, rank = mine / EACH;
        if (lane * 2 * FEW < WIDTH) {
            send(at_block(address_of(&own.gathered[source][mine % EACH]), rank), at_block(gathering, rank), sums[2 * i], sums[2 * i + 1]);
        }
    }
    if (lane < CLUSTER) {
        send(at_block(address_of(&own.tops[source]), lane), at_block(gathering, lane), greatest, total);
    }
}

// Combines the partial results of the cluster's warps, and publishes the block's features. One warp does this.
static __device__ __forceinline__ void combine(state& own, const piece& p, u32* mixed, const u32 tag, const u32 phase) {
    constexpr u32 COUNT = EACH / 2, APART = 32 / COUNT;
    const u32 lane = threadIdx.x % 32, pair = lane % COUNT, gathering = address_of(&own.gathering);
    const u32 sources = CLUSTER * p.warps;
    wait_phase(gathering, phase);
    if (lane == 0) {
        barrier_expect(gathering, sources * (EACH * 4 + 8));
    }
    const f32 none = -__int_as_float(0x7f800000);
    f32 greatest = none, all = 0.0f, a = 0.0f, b = 0.0f;
    // Processes four at a time.
    #pragma unroll 1
    for (u32 start = lane / COUNT; start < sources; start += 4 * APART) {
        float2 tops[4], sums[4];
        f32 top = greatest;
        #pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 source = start + i * APART;
            tops[i] = source < sources ? own.tops[source] : make_float2(none, 0.0f);
            sums[i] = source < sources ? *(const float2*)&own.gathered[source][2 * pair] : make_float2(0.0f, 0.0f);
            top = fmaxf(top, tops[i].x);
        }
        const f32 base = base_of(top), before = power(greatest - base);
        greatest = top;
        all = all * before, a = a * before, b = b * before;
        #pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const f32 weight = power(tops[i].x - base);
            all = fmaf(tops[i].y, weight, all);
            a = fmaf(sums[i].x, weight, a);
            b = fmaf(sums[i].y, weight, b);
        }
    }
    f32 top = greatest;
    #pragma unroll
    for (u32 apart = COUNT; apart < 32; apart *= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, apart));
    }
    const f32 weight = power(greatest - base_of(top));
    all = all * weight, a = a * weight, b = b * weight;
    #pragma unroll
    for (u32 apart = COUNT; apart < 32; apart *= 2) {
        all = all + __shfl_xor_sync(0xffffffffu, all, apart);
        a = a + __shfl_xor_sync(0xffffffffu, a, apart);
        b = b + __shfl_xor_sync(0xffffffffu, b, apart);
    }
    const f32 share = all == 0.0f ? 0.0f : __fdividef(1.0f, all);
    if (lane < COUNT) {
        put(mixed + 2 * (blockIdx.x * COUNT + pair), pair_of(a * share, b * share), tag);
    }
}

static_assert(sizeof(state) <= SHARED_BYTES, "the host knows how much a block needs");

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS + 32, 1) NAME(const __grid_constant__ arguments x) {
    extern __shared__ __align__(128) u8 dynamic[];
    state& own = *(state*)dynamic;
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const i64 position = *x.position, token = x.token == nullptr ? 0 : *x.token;
    const u32 context = u32(x.context), layers = u32(x.layers);
    const bool attends = blockIdx.x < HEADS * CLUSTER;
    piece p;
    p.fresh = position >= 0 && position < i64(x.context) ? u32(position) : 0xffffffffu;
    const u32 keys = position < 0 ? 0 : p.fresh < context ? p.fresh + 1 : context;
    const u32 piece_keys = (keys + CLUSTER - 1) / CLUSTER;
    p.head = blockIdx.x / CLUSTER;
    p.rank = blockIdx.x % CLUSTER;
    p.begin = min(keys, p.rank * piece_keys);
    p.end = min(keys, p.begin + piece_keys);
    p.warps = min(max((piece_keys + 7) / 8, 1u), u32(WARPS));
    for (u32 i = thread; i < layers * u32(sizeof(layer) / 8); i += THREADS + 32) {
        ((u64*)own.layers)[i] = ((const u64*)x.layer_of)[i];
    }
    const u32 full = address_of(own.full), empty = address_of(own.empty);
    if (thread == 32) {
        #pragma unroll
        for (u32 i = 0; i < 4 + SLOTS; ++i) {
            barrier_make(full + 8 * i, 1);
            barrier_make(empty + 8 * i, WARPS);
        }
        barrier_make(address_of(&own.handed), 1);
        barrier_make(address_of(&own.gathering), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        barrier_expect(address_of(&own.handed), 3 * WIDTH * 2);
        barrier_expect(address_of(&own.gathering), CLUSTER * p.warps * (EACH * 4 + 8));
    }
    __syncwarp();
    // From here on, the blocks of the cluster write into each other's shared memory.
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    if (warp == WARPS) {
        // Weights, keys and values are loaded in the order in which they are used, each as soon as the previous layer no longer needs
        // the memory.
        u32 slot = 0, turn = 0;
        #pragma unroll 1
        for (u32 number = 0; number < layers; ++number) {
            const layer& of = own.layers[number];
            if (attends) {
                bring<packing>(of.products[0].weight, own.packed, full, empty, number & 1);
                #pragma unroll 1
                for (u32 start = p.begin; start < p.end; start += TILE) {
                    const u32 bytes = min(u32(TILE), p.end - start) * WIDTH * 2;
                    wait_phase(empty + 32 + 8 * slot, turn ^ 1);
                    if (lane == 0) {
                        const u64 from = (u64(p.head) * context + start) * WIDTH;
                        barrier_expect(full + 32 + 8 * slot, 2 * bytes);
                        copy(address_of(own.tiles[slot][0]), of.keys + from, bytes, full + 32 + 8 * slot);
                        copy(address_of(own.tiles[slot][1]), of.values + from, bytes, full + 32 + 8 * slot);
                    }
                    __syncwarp();
                    slot = slot + 1 == SLOTS ? 0 : slot + 1;
                    turn ^= u32(slot == 0);
                }
            }
            bring<mixing>(of.products[1].weight, own.mixed_in, full + 8, empty + 8, number & 1);
            bring<expanding>(of.products[2].weight, own.expanded, full + 16, empty + 16, number & 1);
            bring<contracting>(of.products[3].weight, own.contracted, full + 24, empty + 24, number & 1);
        }
        return;
    }
    const f32 scale = __uint_as_float(u32(x.scale)) * 1.4426950408889634f, eps = __uint_as_float(u32(x.eps));
    f32 pivot = 0.0f;
    // Begins to copy the values that only this thread reads in a product of a layer: its pairs of the norm, and of the bias.
    const auto fetch_norm = [&](const u32 number, const u32 which) {
        #pragma unroll
        for (u32 i = 0; i < PAIRS; ++i) {
            if (number < layers && has_pair(i)) {
                copy_pair(&own.scales[which][0][pair_at(i)], own.layers[number].norms[which].weight + 2 * pair_at(i));
                copy_pair(&own.scales[which][1][pair_at(i)], own.layers[number].norms[which].bias + 2 * pair_at(i));
            }
        }
    };
    const auto fetch_bias = [&](const u32 number, const u32 which, u32* to, const u32 row, const bool has) {
        if (number < layers && has) {
            copy_pair(to, own.layers[number].products[which].bias + row);
        }
        end_group();
    };
    constexpr u32 PACKED = packing::share / 2;
    const bool has_packed = attends && thread < PACKED * CLUSTER, has_mixed = 2 * thread < mixing::rows();
    const bool has_hidden = 2 * thread < expanding::rows(), has_result = 2 * thread < contracting::rows();
    const u32 packed_pair = thread % PACKED, packed_rank = thread / PACKED;
    const u32 packed_row = packing::source(2 * packed_pair), mixed_row = mixing::source(2 * thread);
    const u32 hidden_row = expanding::source(2 * thread), result_row = contracting::source(2 * thread);
    u32 *const packed_bias = own.packed_biases + thread, *const mixed_bias = own.biases[0] + thread;
    u32 *const hidden_bias = own.biases[1] + thread, *const result_bias = own.biases[2] + thread;
    fetch_norm(0, 0);
    fetch_bias(0, 0, packed_bias, packed_row, has_packed);
    fetch_bias(0, 1, mixed_bias, mixed_row, has_mixed);
    fetch_norm(0, 1);
    fetch_bias(0, 2, hidden_bias, hidden_row, has_hidden);
    fetch_bias(0, 3, result_bias, result_row, has_result);
    u32 slot = 0, turn = 0;
    float2 pairs[PAIRS], residual = {};
    #pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        pairs[i] = given(x, token, position, has_pair(i) ? pair_at(i) : 0);
    }
    if (has_mixed) {
        residual = given(x, token, position, mixed_row / 2);
    }

    #pragma unroll 1
    for (u32 number = 0; number < layers; ++number) {
        const u32 tag = number + 1, phase = number & 1;
        u32* const exchange = x.exchange;
        if (tag == layers) {
            // Lets the next kernel start early.
            launch_dependents();
        }
        // The rows after attention and after the layer, the results of attention, and the hidden features.
        u32* const rows = exchange + 2 * FEATURES;
        u32* const mixed = rows + 2 * FEATURES;
        u32* const hidden = mixed + FEATURES;
        if (attends) {
            uint4 weights[packing::steps * packing::octets];
            take<packing>(weights, own.packed, full, empty, phase);
            if (number > 0) {
                await_pairs(pairs, rows, number);
            }
            await_group();
            normalize(own, pairs, 0, eps, pivot);
            multiply_rows<packing>(own, weights, 0);
            if (has_packed) {
                const float2 sum = finished(own, 0, packed_pair, *packed_bias);
                u32* const to = &own.projected[packed_pair / (EACH / 2)][p.rank * (EACH / 2) + packed_pair % (EACH / 2)];
                send(at_block(address_of(to), packed_rank), at_block(address_of(&own.handed), packed_rank), pair_of(sum.x, sum.y));
            }
            fetch_norm(number + 1, 0);
            fetch_bias(number + 1, 0, packed_bias, packed_row, has_packed);
            attend(own, p, own.layers[number], context, scale, phase, full, empty, slot, turn);
            if (warp == 0) {
                combine(own, p, mixed, tag, phase);
            }
        } else {
            await_group();
            end_group();
        }
        {
            uint4 weights[mixing::steps * mixing::octets];
            take<mixing>(weights, own.mixed_in, full + 8, empty + 8, phase);
            await_row<mixing>(own, mixed, tag);
            await_group();
            multiply_rows<mixing>(own, weights, 1);
        }
        if (has_mixed) {
            const float2 sum = finished(own, 1, thread, *mixed_bias);
            residual = make_float2(sum.x + residual.x, sum.y + residual.y);
            put(exchange + 2 * mixed_row, __float_as_uint(residual.x), __float_as_uint(residual.y), tag);
        }
        fetch_bias(number + 1, 1, mixed_bias, mixed_row, has_mixed);
        {
            uint4 weights[expanding::steps * expanding::octets];
            take<expanding>(weights, own.expanded, full + 16, empty + 16, phase);
            await_pairs(pairs, exchange, tag);
            await_group();
            normalize(own, pairs, 1, eps, pivot);
            multiply_rows<expanding>(own, weights, 2);
        }
        if (has_hidden) {
            // GELU by its tanh approximation.
            float2 sum = finished(own, 2, thread, *hidden_bias);
            sum.x = __fdividef(sum.x, 1.0f + power(-2.302208198f * fmaf(0.044715f * sum.x * sum.x, sum.x, sum.x)));
            sum.y = __fdividef(sum.y, 1.0f + power(-2.302208198f * fmaf(0.044715f * sum.y * sum.y, sum.y, sum.y)));
            put(hidden + hidden_row, pair_of(sum.x, sum.y), tag);
        }
        fetch_norm(number + 1, 1);
        fetch_bias(number + 1, 2, hidden_bias, hidden_row, has_hidden);
        {
            uint4 weights[contracting::steps * contracting::octets];
            take<contracting>(weights, own.contracted, full + 24, empty + 24, phase);
            await_row<contracting>(own, hidden, tag);
            await_group();
            multiply_rows<contracting>(own, weights, 3);
        }
        if (has_result) {
            const float2 sum = finished(own, 3, thread, *result_bias);
            residual = make_float2(sum.x + residual.x, sum.y + residual.y);
            if (tag == layers) {
                *(u32*)(x.result + result_row) = pair_of(residual.x, residual.y);
            } else {
                put(rows + 2 * result_row, __float_as_uint(residual.x), __float_as_uint(residual.y), tag);
            }
        }
        fetch_bias(number + 1, 3, result_bias, result_row, has_result);
    }
}
#else
// Nothing to launch when the host compiles this file.
extern "C" __global__ void NAME(const __grid_constant__ arguments x) {
    launch_dependents();
}
#endif
