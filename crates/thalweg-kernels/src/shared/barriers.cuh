#pragma once
#ifndef NAME
#include "../defaults.cuh"
#endif

// Barriers in shared memory (`mbarrier`), by their address there.

static __device__ __forceinline__ void barrier_make(const u32 at, const u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at), "r"(count) : "memory"); }
static __device__ __forceinline__ void barrier_expect(const u32 at, const u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory"); }
static __device__ __forceinline__ void barrier_arrive(const u32 at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory"); }
static __device__ __forceinline__ void barrier_wait(const u32 at, const u32 phase) {
    asm volatile("{\n.reg .pred done;\nwaits:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra.uni ready;\nbra.uni waits;\nready:\n}"
        :: "r"(at), "r"(phase) : "memory");
}
