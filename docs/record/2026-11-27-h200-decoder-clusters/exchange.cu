// Rounds in which each block hands its share to all. MODE: 8 = values of 4 bytes with a tag each; 16 = three values and a tag; 1 = all-to-all in the cluster alone.
// VALUES of 4 bytes per round, REP replicas, CL blocks of a cluster that share polls (1: each for itself).
typedef unsigned int u32; typedef unsigned long long u64; typedef unsigned char u8;
#define THREADS 384
#define TAGGED (MODE == 8 ? VALUES / 2 : VALUES / 3)
static __device__ __forceinline__ void put8(u32* at, u32 v, u32 tag) { asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" :: "l"(at), "r"(v), "r"(tag) : "memory"); }
static __device__ __forceinline__ void put16(u32* at, uint4 v) {
    asm volatile("{.reg .b128 x; .reg .b64 l, h; mov.b64 l, {%1, %2}; mov.b64 h, {%3, %4}; mov.b128 x, {l, h}; st.relaxed.gpu.global.b128 [%0], x;}" :: "l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
static __device__ __forceinline__ void put16v(u32* at, uint4 v) { asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" :: "l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory"); }
static __device__ __forceinline__ uint4 peek16(const u32* at) {
    uint4 v;
#ifdef VECTOR
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
#else
    asm volatile("{.reg .b128 x; .reg .b64 l, h; ld.relaxed.gpu.global.b128 x, [%4]; mov.b128 {l, h}, x; mov.b64 {%0, %1}, l; mov.b64 {%2, %3}, h;}" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
#endif
    return v;
}
static __device__ __forceinline__ uint4 peekv(const u32* at) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    return v;
}
static __device__ __forceinline__ void remote(u32 at, u32 barrier, uint4 v) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" :: "r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(barrier) : "memory");
}
static __device__ __forceinline__ void remote4(u32 at, u32 barrier, u32 v) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" :: "r"(at), "r"(v), "r"(barrier) : "memory");
}
static __device__ __forceinline__ u32 mapa(u32 at, u32 rank) { u32 r; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at), "r"(rank)); return r; }
static __device__ __forceinline__ void arm(u32 barrier, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory"); }
static __device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra AGAIN;\n}" :: "r"(barrier), "r"(parity) : "memory");
}
static __device__ __forceinline__ void meet() { asm volatile("bar.sync 1, %0;" :: "n"(THREADS) : "memory"); }

struct arguments { u32 *exchange, *result; u64 count; const u8* weights; u64 mask; };
extern "C" __global__ void __launch_bounds__(THREADS + 32, 1) rounds(const __grid_constant__ arguments a) {
    u32* const exchange = a.exchange; u32* const result = a.result; const u64 count = a.count;
    extern __shared__ __align__(128) u8 dynamic[];
    __shared__ __align__(16) uint4 got[2][VALUES / 2];
    __shared__ __align__(8) u64 barriers[2];
    const u32 thread = threadIdx.x, block = blockIdx.x;
    u32 rank = 0;
    if (CL > 1) {
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        if (thread == 0) {
            const u32 b = u32(__cvta_generic_to_shared(barriers));
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(b));
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(b + 8));
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            arm(b, MODE == 1 ? 48 * CL : TAGGED * 16); arm(b + 8, MODE == 1 ? 48 * CL : TAGGED * 16);
        }
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    }
    const u32 barrier = u32(__cvta_generic_to_shared(barriers)), to = u32(__cvta_generic_to_shared(got));
    __shared__ volatile u32 over;
    __shared__ __align__(8) u64 filled;
    const u32 filling = u32(__cvta_generic_to_shared(&filled));
    if (thread == 0) {
        over = 0;
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(filling));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (thread >= THREADS) {
#if PACE > 0
        if (thread == THREADS) {
            u64 at = u64(block) * 6144; u32 phase = 0, last = clock();
            while (!over) {
                arm(filling, 6144);
                #pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                        :: "r"(u32(__cvta_generic_to_shared(dynamic)) + i * 1536), "l"(__cvta_generic_to_global(a.weights + (at & a.mask) + i * 1536)), "r"(1536), "r"(filling), "l"(0x12f0000000000000ull) : "memory");
                }
                at += 6144 * BLOCKS;
                while (u32(clock()) - last < PACE) { }
                last = clock();
                wait(filling, phase);
                phase ^= 1;
            }
        }
#endif
        if (CL > 1) { __syncwarp(); asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory"); }
        return;
    }
    u32 acc = 0;
    constexpr u32 SIZE = TAGGED * 4;
    for (u32 round = 0; round < u32(count); ++round) {
        const u32 tag = round + 1, side = round & 1;
        u32* const at = exchange + side * (SIZE * REP);
        if (MODE == 1) {
            // Twelve words to each block of the cluster.
            if (thread < 12 * CL) {
                remote4(mapa(to + side * (VALUES / 2 * 16) + (rank * 12 + thread % 12) * 4, thread / 12), mapa(barrier + 8 * side, thread / 12), acc + thread);
            }
            wait(barrier + 8 * side, (round >> 1) & 1);
            acc += ((u32*)got[side])[thread % (12 * CL)];
            meet();
            if (thread == 0) arm(barrier + 8 * side, 48 * CL);
            continue;
        }
        if (MODE == 8) {
            constexpr u32 EACH = VALUES / BLOCKS;
            if (thread < EACH * REP) {
                put8(at + thread / EACH * SIZE + (block * EACH + thread % EACH) * 2, acc, tag);
            }
        } else {
            constexpr u32 EACH = VALUES / 3 / BLOCKS;
            if (thread < EACH * REP) {
                put16(at + thread / EACH * SIZE + (block * EACH + thread % EACH) * 4, make_uint4(acc, acc + 1, acc + 2, tag));
            }
        }
        if (CL == 1) {
            const u32* from = at + block % REP * SIZE;
            constexpr u32 EACH = (TAGGED + THREADS - 1) / THREADS;
            uint4 v[EACH];
            bool there;
            if (TAGGED >= THREADS || thread < TAGGED) {
            do {
                there = true;
                #pragma unroll
                for (u32 i = 0; i < EACH; ++i) {
                    const u32 j = min(thread + i * THREADS, TAGGED - 1);
                    v[i] = MODE == 8 ? peekv(from + 4 * j) : peek16(from + 4 * j);
                }
                #pragma unroll
                for (u32 i = 0; i < EACH; ++i) there = there && v[i].w == tag && (MODE != 8 || v[i].y == tag);
            } while (!there);
            #pragma unroll
            for (u32 i = 0; i < EACH; ++i) acc += v[i].x;
            }
            meet();
        } else {
            const u32* from = at + block / CL % REP * SIZE;
            constexpr u32 EACH = (TAGGED + CL - 1) / CL;
            if (thread < EACH * SPLIT) {
                const u32 line = min(rank * EACH + thread / SPLIT, TAGGED - 1);
                if (rank * EACH + thread / SPLIT < TAGGED) {
                uint4 v;
                do { v = MODE == 8 ? peekv(from + 4 * line) : peek16(from + 4 * line); } while (v.w != tag || (MODE == 8 && v.y != tag));
                #pragma unroll
                for (u32 i = 0; i < CL / SPLIT; ++i) {
                    const u32 peer = thread % SPLIT + i * SPLIT;
                    remote(mapa(to + (side * (VALUES / 2) + line) * 16, peer), mapa(barrier + 8 * side, peer), v);
                }
                }
            }
            wait(barrier + 8 * side, (round >> 1) & 1);
            acc += got[side][thread % TAGGED].x;
            meet();
            if (thread == 0) arm(barrier + 8 * side, TAGGED * 16);
        }
    }
    if (thread == 0) over = 1;
    if (CL > 1) { asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory"); }
    result[block * THREADS + thread] = acc;
}
