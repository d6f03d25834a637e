// Products of 16-bit floats by groups of warps: D = alpha · op(A) · op(B) + bias, for each matrix of a batch.
//
// A block has one thread that copies tiles by the copy engine, and two groups of four warps that multiply them. Blocks stay, and take one tile of D
// after another. CLUSTER blocks share the columns of their tiles: each copies its part of B to all of them.
//
// With TOGETHER both groups have half of the rows of one tile; else each has a tile of its own, so that one stores while the other multiplies.

#ifndef NAME
#define HALF
#include "../defaults.cuh"
#define M_TILE 128
#define N_TILE 128
#define CLUSTER 2
#define STAGES 4
#define TOGETHER 0
#define A_TURNED 0
#define B_TURNED 0
#define IS_BF16 0
#define HOST_WORDS 32
#endif
#include "../shared/barriers.cuh"
#include "../shared/warp_groups.cuh"

constexpr u32 K_TILE = 64, PANEL = 64 * 128;
constexpr u32 A_BYTES = M_TILE * 128, B_BYTES = N_TILE * 128, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr u32 B_PART = N_TILE / CLUSTER;
// The number of 64-row tiles of a group, and the number of groups that read a stage.
constexpr u32 BLOCKS = M_TILE / 64 / (TOGETHER ? 2 : 1), READERS = TOGETHER ? 2 : 1;
// The part that a warp stores at a time: 16 rows of 64 columns, twice.
constexpr u32 OUT_BYTES = 16 * 128;

struct alignas(64) tensor_map { u64 opaque[16]; };

struct arguments {
    tensor_map a, b, d;
    const u16* bias;
    i64 m, n, k, batch;
    // 0 if all products of the batch use the same matrix, else 1.
    i64 a_batch, b_batch;
    f64 alpha;
    // Values that only the host function reads.
    u64 host[HOST_WORDS];
};

// The number of tiles of CLUSTER · M_TILE rows that are processed per column of tiles before the next column begins, so that their
// operands stay in the L2 cache.
constexpr u32 BAND = 4;

DEVICE u32 shared_address(const void* at) { return u32(__cvta_generic_to_shared(at)); }
// Arrives at the barrier of a block of the cluster.
DEVICE void barrier_arrive(const u32 at, const u32 block) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}" :: "r"(at), "r"(block) : "memory");
}
DEVICE void copy(const u32 to, const tensor_map* map, const u32 barrier, const i32 inner, const i32 row, const i32 matrix) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
        :: "r"(to), "l"(map), "r"(barrier), "r"(inner), "r"(row), "r"(matrix) : "memory");
}
DEVICE void copy_to_all(const u32 to, const tensor_map* map, const u32 barrier, const i32 inner, const i32 row, const i32 matrix) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;"
        :: "r"(to), "l"(map), "r"(barrier), "r"(inner), "r"(row), "r"(matrix), "h"(u16((1 << CLUSTER) - 1)) : "memory");
}
DEVICE void store(const tensor_map* map, const u32 from, const i32 inner, const i32 row, const i32 matrix) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" :: "l"(map), "r"(from), "r"(inner), "r"(row), "r"(matrix) : "memory");
}
DEVICE void cluster_wait() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The descriptor of rows of 128 bytes, swizzled within eight rows; panels of 64 columns are PANEL bytes apart.
DEVICE u64 rows(const u32 at) { return u64(at >> 4 & 0x3fff) | u64(PANEL >> 4) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62; }

DEVICE u32 pair(const f32 low, const f32 high) {
    u32 bits;
    asm("cvt.rn." ELEMENT_NAME "x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
#if IS_BF16
DEVICE f32 value_of(const u16 x) { return __uint_as_float(u32(x) << 16); }
#else
DEVICE f32 value_of(const u16 x) { f32 y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
#endif

// The position of a tile.
struct place { i32 row, column, matrix; };

DEVICE place place_of(const arguments& x, const u32 rank, const i64 item, const u32 row_tiles, const u32 column_tiles) {
    const u32 each = row_tiles * column_tiles;
    const u32 matrix = u32(item / each), within = u32(item % each);
    const u32 per_band = BAND * column_tiles, band = within / per_band, rest = within % per_band;
    const u32 left = row_tiles - band * BAND, height = left < BAND ? left : BAND;
    const u32 row = band * BAND + rest % height, column = rest / height;
    return {i32((row * CLUSTER + rank) * M_TILE), i32(column * N_TILE), i32(matrix)};
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(384, 1) NAME(const __grid_constant__ arguments x) {
    extern __shared__ __align__(1024) u8 memory[];
    const u32 base = (shared_address(memory) + 1023) / 1024 * 1024;
    const u32 out = base + STAGES * STAGE_BYTES, there = out + 8 * 2 * OUT_BYTES, is_free = there + 8 * STAGES;
    const u32 thread = threadIdx.x, group = thread / 128;
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (thread == 0) {
        for (u32 i = 0; i < STAGES; ++i) {
            barrier_make(there + 8 * i, 1);
            barrier_make(is_free + 8 * i, READERS * CLUSTER);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_wait();
    const u32 row_tiles = u32((x.m + M_TILE * CLUSTER - 1) / (M_TILE * CLUSTER)), column_tiles = u32((x.n + N_TILE - 1) / N_TILE);
    const i64 items = i64(row_tiles) * column_tiles * x.batch;
    const u32 steps = u32((x.k + K_TILE - 1) / K_TILE);
    const i64 cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (thread == 0) {
            u32 stage = 0, phase = 1;
            for (i64 item = cluster; item < items; item += clusters) {
                const place at = place_of(x, rank, item, row_tiles, column_tiles);
                const i32 a_matrix = at.matrix * i32(x.a_batch), b_matrix = at.matrix * i32(x.b_batch);
                for (u32 step = 0; step < steps; ++step) {
                    const u32 to = base + stage * STAGE_BYTES, barrier = there + 8 * stage;
                    const i32 k = step * K_TILE;
                    barrier_wait(is_free + 8 * stage, phase);
                    barrier_expect(barrier, STAGE_BYTES);
#if A_TURNED
                    #pragma unroll
                    for (u32 i = 0; i < M_TILE / 64; ++i) { copy(to + i * PANEL, &x.a, barrier, at.row + i * 64, k, a_matrix); }
#else
                    copy(to, &x.a, barrier, k, at.row, a_matrix);
#endif
                    const u32 b = to + A_BYTES + rank * B_PART * 128;
                    const i32 column = at.column + rank * B_PART;
#if B_TURNED
                    if (CLUSTER == 1) { copy(b, &x.b, barrier, k, column, b_matrix); } else { copy_to_all(b, &x.b, barrier, k, column, b_matrix); }
#else
                    #pragma unroll
                    for (u32 i = 0; i < B_PART / 64; ++i) {
                        if (CLUSTER == 1) { copy(b + i * PANEL, &x.b, barrier, column + i * 64, k, b_matrix); }
                        else { copy_to_all(b + i * PANEL, &x.b, barrier, column + i * 64, k, b_matrix); }
                    }
#endif
                    if (++stage == STAGES) { stage = 0; phase ^= 1; }
                }
            }
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const u32 warp = thread / 32 - 4, lane = thread % 32;
        const u32 own_out = out + warp * 2 * OUT_BYTES;
        const f32 alpha = f32(x.alpha);
        if (!TOGETHER && group == 2) { asm volatile("bar.arrive 1, 256;" ::: "memory"); }
        u32 count = TOGETHER ? 0 : (group - 1) * steps, turn = 0;
        for (i64 item = cluster + (TOGETHER ? 0 : group - 1) * clusters; item < items; item += clusters * (TOGETHER ? 1 : 2)) {
            const place at = place_of(x, rank, item, row_tiles, column_tiles);
            f32 sums[BLOCKS][N_TILE / 2];
            u32 stage = count % STAGES, phase = count / STAGES % 2, last = 0;
            // The phase of a barrier is the awaited one or the one before it, because the other group has waited for all stages
            // before this tile's.
            if (!TOGETHER) { asm volatile("bar.sync %0, 256;" :: "r"(group) : "memory"); }
            for (u32 step = 0; step < steps; ++step) {
                barrier_wait(there + 8 * stage, phase);
                const u32 a = base + stage * STAGE_BYTES + (TOGETHER ? (group - 1) * BLOCKS * PANEL : 0), b = base + stage * STAGE_BYTES + A_BYTES;
                products_begin();
                #pragma unroll
                for (u32 k = 0; k < 4; ++k) {
                    #pragma unroll
                    for (u32 i = 0; i < BLOCKS; ++i) {
                        group_rows(sums[i], rows(a + i * PANEL + k * (A_TURNED ? 2048 : 32)), rows(b + k * (B_TURNED ? 32 : 2048)), step != 0 || k != 0);
                    }
                }
                products_commit();
                if (step > 0) {
                    products_wait<1>();
                    if (thread % 128 < CLUSTER) { barrier_arrive(is_free + 8 * last, thread % 128); }
                }
                last = stage;
                if (++stage == STAGES) { stage = 0; phase ^= 1; }
            }
            if (!TOGETHER) { asm volatile("bar.arrive %0, 256;" :: "r"(3 - group) : "memory"); }
            products_wait<0>();
            #pragma unroll
            for (u32 i = 0; i < BLOCKS; ++i) { keep(sums[i]); }
            if (thread % 128 < CLUSTER) { barrier_arrive(is_free + 8 * last, thread % 128); }
            count += steps * (TOGETHER ? 1 : 2);
            #pragma unroll
            for (u32 i = 0; i < BLOCKS; ++i) {
                const i32 row = at.row + (TOGETHER ? (group - 1) * BLOCKS * 64 : 0) + i * 64 + warp % 4 * 16;
                #pragma unroll
                for (u32 panel = 0; panel < N_TILE / 64; ++panel, ++turn) {
                    const u32 to = own_out + turn % 2 * OUT_BYTES;
                    const i32 column = at.column + panel * 64;
                    // The copy engine has read the data that was here two panels ago.
                    if (lane == 0) { asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory"); }
                    __syncwarp();
                    #pragma unroll
                    for (u32 j = 0; j < 8; j += 2) {
                        u32 bits[4];
                        #pragma unroll
                        for (u32 h = 0; h < 4; ++h) {
                            const f32* const s = &sums[i][(panel * 8 + j + h / 2) * 4 + h % 2 * 2];
                            f32 low = s[0] * alpha, high = s[1] * alpha;
                            if (x.bias) {
                                const i32 from = column + (j + h / 2) * 8 + lane % 4 * 2;
                                if (from < x.n) {
                                    const u32 both = *(const u32*)(x.bias + from);
                                    low += value_of(u16(both));
                                    high += value_of(u16(both >> 16));
                                }
                            }
                            bits[h] = pair(low, high);
                        }
                        const u32 line = lane % 16, chunk = j + lane / 16;
                        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                            :: "r"(to + line * 128 + ((chunk ^ line) % 8) * 16), "r"(bits[0]), "r"(bits[1]), "r"(bits[2]), "r"(bits[3]) : "memory");
                    }
                    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                    __syncwarp();
                    if (lane == 0) {
                        if (row < x.m && column < x.n) { store(&x.d, to, column, row, at.matrix); }
                        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
                    }
                }
            }
        }
        if (lane == 0) { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
        __syncwarp();
    }
    cluster_wait();
}
#else
extern "C" __global__ void NAME(const __grid_constant__ arguments) {}
#endif
