// A matrix (rows, terms), or a norm's scale, with its bias.
struct affine { const ELEMENT *weight, *bias; };
// A layer: its norms, its four products in their order, and the caches (heads, context, width).
struct layer { affine norms[2]; affine products[4]; ELEMENT *keys, *values; };

struct NAME_arguments {
    const ELEMENT* x;
    ELEMENT* result;
    const i64* position;
    u32* exchange;
    // Where they are given, the row is that of the token in `x`, plus that of the position in `added`.
    const i64* token;
    const ELEMENT* added;
    u64 layers, context, scale, eps, vocabulary;
    layer layer_of[LAYERS];
    // The sizes, as the host function gets them.
    u64 sizes;
};

#define WARPS (THREADS / 32)
// The keys of a head from which on another block shares them, and the keys of a team in a slot.
#define LEAST_KEYS 48
#define TILES 1
// Pieces of weights that a block asks for at once, and the fewest cycles between two such requests, per piece.
#define GROUP 4
#define LEAST_CYCLES 150

[[maybe_unused]] static __device__ __forceinline__ f32 low(const u32 x) {
    return LOAD(ELEMENT{u16(x)});
}

[[maybe_unused]] static __device__ __forceinline__ f32 high(const u32 x) {
    return LOAD(ELEMENT{u16(x >> 16)});
}

[[maybe_unused]] static __device__ __forceinline__ u32 pair_of(const f32 a, const f32 b) {
    u32 y;
    asm("cvt.rn.MMAx2.f32 %0, %2, %1;" : "=r"(y) : "f"(a), "f"(b));
    return y;
}

#if __CUDA_ARCH__ >= 900
// Two values of 32 bits, each with the tag of the layer that wrote it: a reader that finds the tag has the value.
struct tagged { u32 a, a_tag, b, b_tag; };

static __device__ __forceinline__ tagged peek(const u32* at) {
    tagged x;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.a), "=r"(x.a_tag), "=r"(x.b), "=r"(x.b_tag) : "l"(at) : "memory");
    return x;
}

static __device__ __forceinline__ void put(u32* at, const u32 value, const u32 tag) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" :: "l"(at), "r"(value), "r"(tag) : "memory");
}

static __device__ __forceinline__ void put(u32* at, const u32 a, const u32 b, const u32 tag) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %3, %2, %3};" :: "l"(at), "r"(a), "r"(b), "r"(tag) : "memory");
}

// Waits until the first of some values, `count` of them, have the tag.
template <u32 N> static __device__ __forceinline__ void await(tagged (&values)[N], const u32* (&at)[N], const u32 tag, const u32 count = N) {
    bool is_there;
    do {
        is_there = true;
        #pragma unroll
        for (u32 i = 0; i < N; ++i) {
            if (i < count) {
                values[i] = peek(at[i]);
            }
        }
        #pragma unroll
        for (u32 i = 0; i < N; ++i) {
            is_there = is_there && (i >= count || (values[i].a_tag == tag && values[i].b_tag == tag));
        }
    } while (!is_there);
}

static __device__ __forceinline__ void unpack(f32 (&to)[8], const uint4 x) {
    to[0] = low(x.x), to[1] = high(x.x), to[2] = low(x.y), to[3] = high(x.y);
    to[4] = low(x.z), to[5] = high(x.z), to[6] = low(x.w), to[7] = high(x.w);
}

static __device__ __forceinline__ f32 dot(const uint4 a, const f32 (&b)[8]) {
    f32 even = low(a.x) * b[0], odd = high(a.x) * b[1];
    even = fmaf(low(a.y), b[2], even), odd = fmaf(high(a.y), b[3], odd);
    even = fmaf(low(a.z), b[4], even), odd = fmaf(high(a.z), b[5], odd);
    even = fmaf(low(a.w), b[6], even), odd = fmaf(high(a.w), b[7], odd);
    return even + odd;
}

// Two to a power of at most zero.
static __device__ __forceinline__ f32 power(const f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// A greatest exponent to subtract: zero where there is none.
static __device__ __forceinline__ f32 base_of(const f32 greatest) {
    return greatest == -__int_as_float(0x7f800000) ? 0.0f : greatest;
}

// How a block has its share of a product (rows, terms): in rows side by side, of which the last blocks have fewer.
template <u32 ROWS, u32 TERMS> struct product {
    static constexpr u32 share = (ROWS / 2 + BLOCKS - 1) / BLOCKS * 2, octets = (share + 7) / 8;
    // From one row in shared memory to the next: a quarter warp that reads two rows meets all banks.
    static constexpr u32 stride = TERMS * 2 / 128 * 128 + (TERMS * 2 % 128 == 0 ? 64 : 192);
    static constexpr u32 bytes = octets * 8 * stride, steps = (TERMS / 32 + WARPS - 1) / WARPS;
    static __device__ __forceinline__ u32 first() { return min(ROWS, blockIdx.x * share); }
    static __device__ __forceinline__ u32 rows() { return min(ROWS, first() + share) - first(); }
};
typedef product<3 * FEATURES, FEATURES> packing;
typedef product<FEATURES, FEATURES> mixing;
typedef product<HIDDEN, FEATURES> expanding;
typedef product<FEATURES, HIDDEN> contracting;

static __device__ constexpr u32 most(const u32 a, const u32 b) { return a > b ? a : b; }

MULTIPLY_EIGHT
// Barriers in shared memory, by their address there.
static __device__ __forceinline__ void init_barrier(const u32 barrier, const u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(barrier), "r"(count) : "memory");
}

static __device__ __forceinline__ void expect(const u32 barrier, const u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void arrive(const u32 barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(barrier) : "memory");
}

static __device__ __forceinline__ void wait_phase(const u32 barrier, const u32 parity) {
    asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra AGAIN;\n}"
                 :: "r"(barrier), "r"(parity) : "memory");
}

// Begins to copy weights or keys, which the L2 need not keep (the policy is that they are evicted first).
static __device__ __forceinline__ void copy(const u32 to, const void* from, const u32 bytes, const u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 :: "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier), "l"(0x12f0000000000000ull) : "memory");
}

// Begins to copy two values, which this thread alone reads.
static __device__ __forceinline__ void copy_pair(u32* to, const ELEMENT* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                 :: "r"(u32(__cvta_generic_to_shared(to))), "l"(__cvta_generic_to_global(from)) : "memory");
}

// Waits for the threads that compute.
static __device__ __forceinline__ void meet() {
    asm volatile("bar.sync 1, %0;" :: "n"(THREADS) : "memory");
}

constexpr u32 MOST_ROWS = most(most(packing::share, mixing::share), most(expanding::share, contracting::share));
constexpr u32 PAIRS = (FEATURES / 2 + THREADS - 1) / THREADS;
constexpr u32 PARTIAL = 2 * WIDTH + 4;
constexpr u32 TEAMS = THREADS * 8 / WIDTH;

// What a block keeps in shared memory.
struct state {
    alignas(128) u8 packed[packing::bytes];
    alignas(128) u8 mixed_in[mixing::bytes];
    alignas(128) u8 expanded[expanding::bytes];
    alignas(128) u8 contracted[contracting::bytes];
    // Keys and values of some tiles, a key for each team.
    uint4 tiles[SLOTS][2][TILES][THREADS];
    // The row that a product takes.
    alignas(16) u32 row[most(FEATURES, HIDDEN) / 2];
    alignas(16) f32 parts[MOST_ROWS][WARPS];
    alignas(16) f32 mixed[WARPS][WIDTH];
    f32 greatest[WARPS], totals[WARPS];
    alignas(16) float2 moments[WARPS];
    f32 residual[mixing::share];
    u32 scales[2][2][FEATURES / 2], biases[4][MOST_ROWS / 2];
    u64 full[4 + SLOTS], empty[4 + SLOTS];
    layer layers[LAYERS];
};

// What a block has of attention.
struct piece { u32 head, begin, end, fresh; bool attends; };

// Begins to copy the block's rows of a matrix, as soon as the place is empty.
template <u32 ROWS, u32 TERMS>
static __device__ __forceinline__ void bring(const ELEMENT* weight, u8* to, const u32 full, const u32 empty, const u32 phase, u32& last) {
    typedef product<ROWS, TERMS> own;
    const u32 lane = threadIdx.x % 32, rows = own::rows(), first = own::first();
    wait_phase(empty, phase ^ 1);
    if (lane == 0) {
        expect(full, rows * TERMS * 2);
    }
    __syncwarp();
    // Some pieces at a time: a burst of all blocks at once would fill the queues of the L2, in which the results that blocks wait for would stand.
    constexpr u32 PIECE = TERMS % FEATURES == 0 ? FEATURES : TERMS, EACH = TERMS / PIECE;
    #pragma unroll 1
    for (u32 piece = lane; piece - lane < rows * EACH; piece += GROUP) {
        if (lane < GROUP && piece < rows * EACH) {
            const u32 row = piece / EACH, term = piece % EACH * PIECE;
            copy(u32(__cvta_generic_to_shared(to + row * own::stride + 2 * term)), weight + u64(first + row) * TERMS + term, PIECE * 2, full);
        }
        while (u32(clock()) - last < LEAST_CYCLES * GROUP) { }
        last = clock();
        __syncwarp();
    }
}

// Multiplies the block's rows by the row in shared memory; each warp leaves its part of the sums.
template <u32 ROWS, u32 TERMS>
static __device__ __forceinline__ void multiply_rows(state& own, const u8* weights, const u32 full, const u32 empty, const u32 phase) {
    typedef product<ROWS, TERMS> p;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, at = warp * 32 + lane % 4 * 8;
    // Products of one octet are summed in several chains, since each waits for the one before.
    constexpr u32 CHAINS = p::octets == 1 ? 4 : 1;
    f32 sums[p::octets * CHAINS][4] = {};
    const u8* const lines = weights + lane / 4 * p::stride + 2 * at;
    const u32* const values = own.row + at / 2;
    wait_phase(full, phase);
    #pragma unroll
    for (u32 step = 0; step < p::steps; ++step) {
        if ((step + 1) * WARPS <= TERMS / 32 || warp + step * WARPS < TERMS / 32) {
            const uint4 value = *(const uint4*)(values + step * (WARPS * 16));
            #pragma unroll
            for (u32 octet = 0; octet < p::octets; ++octet) {
                multiply(sums[octet + step % CHAINS], *(const uint4*)(lines + octet * 8 * p::stride + step * (WARPS * 64)), value, value);
            }
        }
    }
    __syncwarp();
    if (lane == 0) {
        arrive(empty);
    }
    #pragma unroll
    for (u32 chain = 1; chain < CHAINS; ++chain) {
        sums[0][0] = sums[0][0] + sums[chain][0];
        sums[0][1] = sums[0][1] + sums[chain][1];
    }
    #pragma unroll
    for (u32 octet = 0; octet < p::octets; ++octet) {
        if (lane < 4 && octet * 8 + 2 * lane < p::share) {
            own.parts[octet * 8 + 2 * lane][warp] = sums[octet][0];
            own.parts[octet * 8 + 2 * lane + 1][warp] = sums[octet][1];
        }
    }
    meet();
}

// The sums of two rows with their biases.
static __device__ __forceinline__ float2 finished(const state& own, const u32 which) {
    const u32 thread = threadIdx.x, bias = own.biases[which][thread];
    float2 sum = make_float2(low(bias), high(bias));
    #pragma unroll
    for (u32 i = 0; i < WARPS; i += 4) {
        const float4 a = *(const float4*)&own.parts[2 * thread][i], b = *(const float4*)&own.parts[2 * thread + 1][i];
        sum.x = sum.x + ((a.x + a.y) + (a.z + a.w));
        sum.y = sum.y + ((b.x + b.y) + (b.z + b.w));
    }
    return sum;
}

// Normalizes pairs of the row, one or more for each thread, into shared memory. The pivot is near the mean: the one of the row before.
static __device__ __forceinline__ void normalize(state& own, const float2 (&pairs)[PAIRS], const u32 which, const f32 eps, f32& pivot) {
    const u32 thread = threadIdx.x;
    f32 sum = 0.0f, square = 0.0f;
    #pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        if ((i + 1) * THREADS <= FEATURES / 2 || thread + i * THREADS < FEATURES / 2) {
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
    sum = 0.0f, square = 0.0f;
    #pragma unroll
    for (u32 i = 0; i < WARPS; i += 2) {
        const float4 two = *(const float4*)&own.moments[i];
        sum = sum + (two.x + two.z);
        square = square + (two.y + two.w);
    }
    sum = sum * (1.0f / FEATURES);
    const f32 factor = rsqrtf(fmaxf(fmaf(square, 1.0f / FEATURES, -sum * sum), 0.0f) + eps);
    pivot = pivot + sum;
    #pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        const u32 at = thread + i * THREADS;
        if ((i + 1) * THREADS <= FEATURES / 2 || at < FEATURES / 2) {
            const u32 by = own.scales[which][0][at], plus = own.scales[which][1][at];
            own.row[at] = pair_of(fmaf((pairs[i].x - pivot) * factor, low(by), low(plus)), fmaf((pairs[i].y - pivot) * factor, high(by), high(plus)));
        }
    }
    meet();
}

// Two features of the row that goes in; NaN of a token that there is not, and of a position.
static __device__ __forceinline__ float2 given(const NAME_arguments& x, const i64 token, const i64 position, const u32 at) {
    if (x.token == nullptr) {
        const u32 both = ((const u32*)x.x)[at];
        return make_float2(low(both), high(both));
    }
    if (u64(token) >= x.vocabulary || u64(position) >= x.context) {
        return make_float2(__int_as_float(0x7fc00000), __int_as_float(0x7fc00000));
    }
    const u32 both = ((const u32*)x.x)[token * (FEATURES / 2) + at], plus = ((const u32*)x.added)[position * (FEATURES / 2) + at];
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
        at[i] = from + 4 * min(threadIdx.x + i * THREADS, FEATURES / 2 - 1);
    }
    await(given, at, tag);
    #pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        pairs[i] = make_float2(__uint_as_float(given[i].a), __uint_as_float(given[i].b));
    }
}

// The block's piece of attention: of a head's query over some of its keys, of which a team of neighbouring lanes has one at a time.
static __device__ __forceinline__ void attend(state& own, const piece& p, const layer& of, const u32* projected, u32* partials, const u32 tag, const u32 context,
                                              const f32 scale, const u32 full, const u32 empty, u32& slot, u32& turn) {
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const u32 team = thread * 8 / WIDTH, feature = thread * 8 % WIDTH;
    const u32* const query_at = projected + p.head * WIDTH + feature;
    // The team that has the new key takes it and its value from where they are handed over.
    const bool has_fresh = p.fresh - p.begin < p.end - p.begin && (p.fresh - p.begin) % TEAMS == team;
    const u32 beyond = has_fresh ? FEATURES : 0;
    tagged given[6];
    const u32* from[6];
    #pragma unroll
    for (u32 i = 0; i < 3; ++i) {
        from[2 * i] = query_at + i * beyond;
        from[2 * i + 1] = query_at + i * beyond + 4;
    }
    await(given, from, tag);
    f32 query[8];
    unpack(query, make_uint4(given[0].a, given[0].b, given[1].a, given[1].b));
    const uint4 fresh_key = make_uint4(given[2].a, given[2].b, given[3].a, given[3].b);
    const uint4 fresh_value = make_uint4(given[4].a, given[4].b, given[5].a, given[5].b);
    if (has_fresh) {
        const u64 at = (u64(p.head) * context + p.fresh) * WIDTH + feature;
        *(uint4*)(of.keys + at) = fresh_key;
        *(uint4*)(of.values + at) = fresh_value;
    }
    f32 most = -__int_as_float(0x7f800000), total = 0.0f, sums[8] = {};
    #pragma unroll 1
    for (u32 start = p.begin; start < p.end; start += TILES * TEAMS) {
        wait_phase(full + 32 + 8 * slot, turn);
        uint4 key[TILES], value[TILES];
        #pragma unroll
        for (u32 i = 0; i < TILES; ++i) {
            key[i] = own.tiles[slot][0][i][thread];
            value[i] = own.tiles[slot][1][i][thread];
        }
        __syncwarp();
        if (lane == 0) {
            arrive(empty + 32 + 8 * slot);
        }
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        turn ^= u32(slot == 0);
        f32 scores[TILES], top = most;
        #pragma unroll
        for (u32 i = 0; i < TILES; ++i) {
            const u32 place = start + team + i * TEAMS;
            if (has_fresh && place == p.fresh) {
                key[i] = fresh_key;
                value[i] = fresh_value;
            }
            scores[i] = dot(key[i], query) * scale;
        }
        #pragma unroll
        for (u32 apart = WIDTH / 16; apart > 0; apart /= 2) {
            #pragma unroll
            for (u32 i = 0; i < TILES; ++i) {
                scores[i] = scores[i] + __shfl_xor_sync(0xffffffffu, scores[i], apart);
            }
        }
        #pragma unroll
        for (u32 i = 0; i < TILES; ++i) {
            scores[i] = start + team + i * TEAMS < p.end ? scores[i] : -__int_as_float(0x7f800000);
            top = fmaxf(top, scores[i]);
        }
        const f32 base = base_of(top), before = power(most - base);
        most = top;
        total = total * before;
        #pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            sums[j] = sums[j] * before;
        }
        #pragma unroll
        for (u32 i = 0; i < TILES; ++i) {
            if (start + i * TEAMS < p.end) {
                const bool counts = start + team + i * TEAMS < p.end;
                const f32 weight = power(scores[i] - base);
                f32 values[8];
                unpack(values, counts ? value[i] : make_uint4(0, 0, 0, 0));
                total = total + weight;
                #pragma unroll
                for (u32 j = 0; j < 8; ++j) {
                    sums[j] = fmaf(weight, values[j], sums[j]);
                }
            }
        }
    }
    f32 top = most;
    #pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, apart));
    }
    const f32 factor = power(most - base_of(top));
    total = total * factor;
    #pragma unroll
    for (u32 j = 0; j < 8; ++j) {
        sums[j] = sums[j] * factor;
    }
    #pragma unroll
    for (u32 apart = WIDTH / 8; apart < 32; apart *= 2) {
        total = total + __shfl_xor_sync(0xffffffffu, total, apart);
        #pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            sums[j] = sums[j] + __shfl_xor_sync(0xffffffffu, sums[j], apart);
        }
    }
    if (lane < WIDTH / 8) {
        *(float4*)&own.mixed[warp][feature] = make_float4(sums[0], sums[1], sums[2], sums[3]);
        *(float4*)&own.mixed[warp][feature + 4] = make_float4(sums[4], sums[5], sums[6], sums[7]);
    }
    if (lane == 0) {
        own.greatest[warp] = top;
        own.totals[warp] = total;
    }
    meet();
    if (thread < WIDTH) {
        f32 top = own.greatest[0], sum = 0.0f, all = 0.0f;
        #pragma unroll
        for (u32 i = 1; i < WARPS; ++i) {
            top = fmaxf(top, own.greatest[i]);
        }
        const f32 base = base_of(top);
        #pragma unroll
        for (u32 i = 0; i < WARPS; ++i) {
            const f32 factor = power(own.greatest[i] - base);
            all = fmaf(own.totals[i], factor, all);
            sum = fmaf(own.mixed[i][thread], factor, sum);
        }
        u32* const to = partials + blockIdx.x * PARTIAL;
        put(to + 2 * thread, __float_as_uint(sum), tag);
        if (thread == 0) {
            put(to + 2 * WIDTH, __float_as_uint(top), __float_as_uint(all), tag);
        }
    }
}

static_assert(sizeof(state) <= SHARED_BYTES, "the host knows how much a block needs");

extern "C" __global__ void __launch_bounds__(THREADS + 32, 1) NAME(const __grid_constant__ NAME_arguments x) {
    extern __shared__ __align__(128) u8 dynamic[];
    state& own = *(state*)dynamic;
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const i64 position = *x.position, token = x.token == nullptr ? 0 : *x.token;
    piece p;
    p.fresh = position >= 0 && position < i64(x.context) ? u32(position) : 0xffffffffu;
    const u32 context = u32(x.context), layers = u32(x.layers);
    const u32 keys = position < 0 ? 0 : p.fresh < context ? p.fresh + 1 : context;
    const u32 pieces = min(max((keys + LEAST_KEYS - 1) / LEAST_KEYS, 1u), min(u32(PARTS), BLOCKS / HEADS));
    const u32 piece_keys = (keys + pieces - 1) / pieces;
    p.attends = blockIdx.x < HEADS * pieces;
    p.head = blockIdx.x / pieces;
    p.begin = min(keys, blockIdx.x % pieces * piece_keys);
    p.end = min(keys, p.begin + piece_keys);
    for (u32 i = thread; i < layers * u32(sizeof(layer) / 8); i += THREADS + 32) {
        ((u64*)own.layers)[i] = ((const u64*)x.layer_of)[i];
    }
    const u32 full = u32(__cvta_generic_to_shared(own.full)), empty = u32(__cvta_generic_to_shared(own.empty));
    if (thread == 32) {
        #pragma unroll
        for (u32 i = 0; i < 4 + SLOTS; ++i) {
            init_barrier(full + 8 * i, 1);
            init_barrier(empty + 8 * i, WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp == WARPS) {
        // Weights, keys and values are brought in the order in which they are used, each as soon as the layer before is done with its place.
        u32 slot = 0, turn = 0, last = clock();
        #pragma unroll 1
        for (u32 number = 0; number < layers; ++number) {
            const layer& of = own.layers[number];
            bring<3 * FEATURES, FEATURES>(of.products[0].weight, own.packed, full, empty, number & 1, last);
            if (p.attends) {
                #pragma unroll 1
                for (u32 start = p.begin; start < p.end; start += TILES * TEAMS) {
                    const u32 bytes = min(TILES * TEAMS, p.end - start) * WIDTH * 2;
                    wait_phase(empty + 32 + 8 * slot, turn ^ 1);
                    if (lane == 0) {
                        const u64 from = (u64(p.head) * context + start) * WIDTH;
                        const u32 to = u32(__cvta_generic_to_shared(own.tiles[slot]));
                        expect(full + 32 + 8 * slot, 2 * bytes);
                        copy(to, of.keys + from, bytes, full + 32 + 8 * slot);
                        copy(to + TILES * THREADS * 16, of.values + from, bytes, full + 32 + 8 * slot);
                    }
                    __syncwarp();
                    slot = slot + 1 == SLOTS ? 0 : slot + 1;
                    turn ^= u32(slot == 0);
                }
            }
            bring<FEATURES, FEATURES>(of.products[1].weight, own.mixed_in, full + 8, empty + 8, number & 1, last);
            bring<HIDDEN, FEATURES>(of.products[2].weight, own.expanded, full + 16, empty + 16, number & 1, last);
            bring<FEATURES, HIDDEN>(of.products[3].weight, own.contracted, full + 24, empty + 24, number & 1, last);
        }
        return;
    }
    const f32 scale = __uint_as_float(u32(x.scale)) * 1.4426950408889634f, eps = __uint_as_float(u32(x.eps));
    f32 pivot = 0.0f;
    // Begins to copy what this thread alone reads for a product: its pairs of the norm and of the bias.
    const auto fetch_bias = [&](const u32 number, const u32 which, const u32 first, const u32 rows) {
        if (number < layers && 2 * thread < rows) {
            copy_pair(&own.biases[which][thread], own.layers[number].products[which].bias + first + 2 * thread);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    const auto fetch_norm = [&](const u32 number, const u32 which) {
        if (number < layers) {
            #pragma unroll
            for (u32 i = 0; i < PAIRS; ++i) {
                const u32 at = thread + i * THREADS;
                if ((i + 1) * THREADS <= FEATURES / 2 || at < FEATURES / 2) {
                    copy_pair(&own.scales[which][0][at], own.layers[number].norms[which].weight + 2 * at);
                    copy_pair(&own.scales[which][1][at], own.layers[number].norms[which].bias + 2 * at);
                }
            }
        }
    };
    fetch_norm(0, 0);
    fetch_bias(0, 0, packing::first(), packing::rows());
    fetch_bias(0, 1, mixing::first(), mixing::rows());
    fetch_norm(0, 1);
    fetch_bias(0, 2, expanding::first(), expanding::rows());
    fetch_bias(0, 3, contracting::first(), contracting::rows());
    u32 slot = 0, turn = 0;
    float2 pairs[PAIRS];
    #pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        pairs[i] = given(x, token, position, min(thread + i * THREADS, FEATURES / 2 - 1));
    }
    if (2 * thread < mixing::rows()) {
        const float2 both = given(x, token, position, mixing::first() / 2 + thread);
        own.residual[2 * thread] = both.x;
        own.residual[2 * thread + 1] = both.y;
    }

    #pragma unroll 1
    for (u32 number = 0; number < layers; ++number) {
        const u32 tag = number + 1, phase = number & 1;
        u32* const exchange = x.exchange;
        if (tag == layers) {
            // The kernel behind this one may get ready.
            launch_dependents();
        }
        u32* const projected = exchange + 4 * FEATURES;
        u32* const partials = projected + 3 * FEATURES;
        u32* const hidden = partials + HEADS * PARTS * PARTIAL;
        if (number > 0) {
            await_pairs(pairs, exchange + 2 * FEATURES, number);
        }
        asm volatile("cp.async.wait_group 3;" ::: "memory");
        normalize(own, pairs, 0, eps, pivot);
        multiply_rows<3 * FEATURES, FEATURES>(own, own.packed, full, empty, phase);
        if (2 * thread < packing::rows()) {
            const float2 sum = finished(own, 0);
            put(projected + packing::first() + 2 * thread, pair_of(sum.x, sum.y), tag);
        }
        fetch_norm(number + 1, 0);
        fetch_bias(number + 1, 0, packing::first(), packing::rows());
        if (p.attends) {
            attend(own, p, own.layers[number], projected, partials, tag, context, scale, full, empty, slot, turn);
        }
        {
            // The pieces of attention, put together.
            #pragma unroll
            for (u32 i = 0; i < PAIRS; ++i) {
                const u32 at = min(thread + i * THREADS, FEATURES / 2 - 1);
                const u32* const of = partials + 2 * at / WIDTH * pieces * PARTIAL;
                tagged given[2 * PARTS];
                const u32* from[2 * PARTS];
                #pragma unroll
                for (u32 j = 0; j < PARTS; ++j) {
                    given[2 * j] = given[2 * j + 1] = {};
                    from[2 * j] = of + j * PARTIAL + 4 * at % (2 * WIDTH);
                    from[2 * j + 1] = of + j * PARTIAL + 2 * WIDTH;
                }
                await(given, from, tag, 2 * pieces);
                f32 top = __uint_as_float(given[1].a);
                #pragma unroll
                for (u32 j = 1; j < PARTS; ++j) {
                    top = j < pieces ? fmaxf(top, __uint_as_float(given[2 * j + 1].a)) : top;
                }
                const f32 base = base_of(top);
                f32 all = 0.0f, a = 0.0f, b = 0.0f;
                #pragma unroll
                for (u32 j = 0; j < PARTS; ++j) {
                    const f32 weight = j < pieces ? power(__uint_as_float(given[2 * j + 1].a) - base) : 0.0f;
                    all = fmaf(__uint_as_float(given[2 * j + 1].b), weight, all);
                    a = fmaf(__uint_as_float(given[2 * j].a), weight, a);
                    b = fmaf(__uint_as_float(given[2 * j].b), weight, b);
                }
                const f32 share = all == 0.0f ? 0.0f : __fdividef(1.0f, all);
                own.row[at] = pair_of(a * share, b * share);
            }
        }
        asm volatile("cp.async.wait_group 3;" ::: "memory");
        meet();
        multiply_rows<FEATURES, FEATURES>(own, own.mixed_in, full + 8, empty + 8, phase);
        if (2 * thread < mixing::rows()) {
            float2 sum = finished(own, 1), *const residual = (float2*)&own.residual[2 * thread];
            sum = make_float2(sum.x + residual->x, sum.y + residual->y);
            *residual = sum;
            put(exchange + 2 * (mixing::first() + 2 * thread), __float_as_uint(sum.x), __float_as_uint(sum.y), tag);
        }
        fetch_bias(number + 1, 1, mixing::first(), mixing::rows());
        await_pairs(pairs, exchange, tag);
        asm volatile("cp.async.wait_group 3;" ::: "memory");
        normalize(own, pairs, 1, eps, pivot);
        multiply_rows<HIDDEN, FEATURES>(own, own.expanded, full + 16, empty + 16, phase);
        if (2 * thread < expanding::rows()) {
            // GELU by its tanh.
            float2 sum = finished(own, 2);
            sum.x = __fdividef(sum.x, 1.0f + power(-2.302208198f * fmaf(0.044715f * sum.x * sum.x, sum.x, sum.x)));
            sum.y = __fdividef(sum.y, 1.0f + power(-2.302208198f * fmaf(0.044715f * sum.y * sum.y, sum.y, sum.y)));
            put(hidden + expanding::first() + 2 * thread, pair_of(sum.x, sum.y), tag);
        }
        fetch_norm(number + 1, 1);
        fetch_bias(number + 1, 2, expanding::first(), expanding::rows());
        {
            constexpr u32 EACH = (HIDDEN / 4 + THREADS - 1) / THREADS;
            tagged given[EACH];
            const u32* from[EACH];
            #pragma unroll
            for (u32 i = 0; i < EACH; ++i) {
                from[i] = hidden + 4 * min(thread + i * THREADS, HIDDEN / 4 - 1);
            }
            await(given, from, tag);
            #pragma unroll
            for (u32 i = 0; i < EACH; ++i) {
                *(uint2*)(own.row + 2 * min(thread + i * THREADS, HIDDEN / 4 - 1)) = make_uint2(given[i].a, given[i].b);
            }
        }
        asm volatile("cp.async.wait_group 3;" ::: "memory");
        meet();
        multiply_rows<FEATURES, HIDDEN>(own, own.contracted, full + 24, empty + 24, phase);
        if (2 * thread < contracting::rows()) {
            float2 sum = finished(own, 3), *const residual = (float2*)&own.residual[2 * thread];
            sum = make_float2(sum.x + residual->x, sum.y + residual->y);
            *residual = sum;
            if (tag == layers) {
                *(u32*)(x.result + contracting::first() + 2 * thread) = pair_of(sum.x, sum.y);
            } else {
                put(exchange + 2 * FEATURES + 2 * (contracting::first() + 2 * thread), __float_as_uint(sum.x), __float_as_uint(sum.y), tag);
            }
        }
        fetch_bias(number + 1, 3, contracting::first(), contracting::rows());
    }
}
#else
// The host launches nothing here.
extern "C" __global__ void NAME(const __grid_constant__ NAME_arguments x) {
    launch_dependents();
}
#endif
