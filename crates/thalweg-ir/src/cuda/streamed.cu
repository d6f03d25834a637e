// Rows that stream through the shared memory of a cluster of BLOCKS blocks. Each block has every BLOCKS-th piece of a row, where a
// piece is one vector per thread of a group.

// The state that the groups of a block share: barriers of the rows in progress, and the combined values of the warps of all blocks.
template <u32 BLOCKS, u32 GROUPS, u32 STAGES, u32 THREADS, u32 VALUES> struct streamed_rows {
    u64 full[GROUPS][STAGES], exchanged[GROUPS][2], columns;
    u64 values[GROUPS][2][VALUES][BLOCKS * THREADS / 32];
};

static __device__ __forceinline__ u32 in_shared(const void* const at) { return u32(__cvta_generic_to_shared(at)); }

// Waits until all blocks of the cluster have reached this point.
static __device__ __forceinline__ void meet_cluster() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

template <u32 BLOCKS, u32 GROUPS, u32 STAGES, u32 THREADS, u32 VALUES>
static __device__ __forceinline__ void begin_streaming(streamed_rows<BLOCKS, GROUPS, STAGES, THREADS, VALUES>& shared) {
    constexpr u32 BARRIERS = GROUPS * STAGES + GROUPS * 2 + 1;
    if (threadIdx.x < BARRIERS) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(in_shared(&shared.full[0][0] + threadIdx.x)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    meet_cluster();
}

// Sets the number of bytes that a barrier expects.
static __device__ __forceinline__ void expect_bytes(u64& barrier, const u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(in_shared(&barrier)), "r"(bytes) : "memory");
}

// Waits for data from this block or another block of the cluster at a barrier.
static __device__ __forceinline__ void await_bytes(u64& barrier, const u32 parity) {
    asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@!done bra AGAIN;\n}"
                 :: "r"(in_shared(&barrier)), "r"(parity) : "memory");
}

// Waits for the threads of a group.
template <u32 THREADS> static __device__ __forceinline__ void meet_group(const u32 group) {
    asm volatile("bar.sync %0, %1;" :: "r"(1 + group), "n"(THREADS) : "memory");
}

// The number of elements of a row that a block has, if a piece has PIECE elements.
template <u32 BLOCKS, u32 PIECE, class I> static __device__ __forceinline__ u32 elements_of_block(const I points, const u32 rank) {
    const I whole = points / (BLOCKS * PIECE), rest = points - whole * (BLOCKS * PIECE), before = I(rank) * PIECE;
    return u32(whole) * PIECE + (rest > before ? u32(rest - before < PIECE ? rest - before : PIECE) : 0);
}

// Begins to copy a block's pieces of a row: each lane of a warp one at a time.
template <u32 BLOCKS, u32 PIECE, class T, class I>
static __device__ __forceinline__ void copy_pieces(T* const to, const T* const from, const I points, const u32 rank, u64& barrier) {
    u32 piece = threadIdx.x % 32;
    for (I first = (I(piece) * BLOCKS + rank) * PIECE; first < points; first += 32 * BLOCKS * PIECE, piece += 32) {
        const u32 bytes = u32(points - first < PIECE ? points - first : PIECE) * u32(sizeof(T));
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :: "r"(in_shared(to + piece * PIECE)), "l"(__cvta_generic_to_global(from + first)), "r"(bytes), "r"(in_shared(&barrier)) : "memory");
    }
}

// Sends the combined value of a warp to all blocks of the cluster: each of the warp's first lanes sends it to one block.
template <u32 BLOCKS, class T> static __device__ __forceinline__ void send(const T value, u64& to, u64& barrier) {
    const u32 block = threadIdx.x % 32;
    if (block < BLOCKS) {
        u32 at, arrives;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(in_shared(&to)), "r"(block));
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(arrives) : "r"(in_shared(&barrier)), "r"(block));
        if constexpr (sizeof(T) == 8) {
            asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" :: "r"(at), "l"(*(const u64*)&value), "r"(arrives) : "memory");
        } else {
            u32 bits = 0;
            *(T*)&bits = value;
            asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" :: "r"(at), "r"(bits), "r"(arrives) : "memory");
        }
    }
}

// Combines the values that the warps of all blocks have sent; all threads get the result.
template <class T, u32 N, class Combine> static __device__ __forceinline__ T combine_sent(const u64 (&values)[N], const Combine combine) {
    constexpr u32 LANES = N < 32 ? N : 32, EACH = N / LANES;
    T own[EACH];
    #pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
        own[i] = *(const T*)&values[threadIdx.x % LANES * EACH + i];
    }
    return combine_warp<LANES>(combine_vector(own, combine), combine);
}

// Stores values that this kernel does not read again.
template <class P> static __device__ __forceinline__ void store_once(P* const to, const P& from) {
    if constexpr (sizeof(P) == 16) {
        __stcs((float4*)to, *(const float4*)&from);
    } else {
        *to = from;
    }
}
