// Groups of four warps (`wgmma`, compute capability 9.0): their barriers in shared memory, and products that run beside what issues them.

static __device__ __forceinline__ void barrier_make(const u32 at, const u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at), "r"(count) : "memory"); }
static __device__ __forceinline__ void barrier_wait(const u32 at, const u32 phase) {
    asm volatile("{\n.reg .pred done;\nwaits:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra.uni ready;\nbra.uni waits;\nready:\n}"
        :: "r"(at), "r"(phase) : "memory");
}
static __device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <u32 PENDING> static __device__ __forceinline__ void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory"); }

// What products write is not read before here.
template <u32 COUNT> static __device__ __forceinline__ void keep(f32 (&x)[COUNT]) {
    #pragma unroll
    for (u32 i = 0; i < COUNT; ++i) { asm volatile("" : "+f"(x[i]) :: "memory"); }
}
