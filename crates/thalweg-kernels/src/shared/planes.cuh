// Points of planes: a thread computes the same point in several planes, with the same position and weights.
#pragma once
#ifndef NAME
#include "../defaults.cuh"
#endif

// The work of a thread: a point, in several planes beginning with a first one. Blocks along x share the points of a plane, those
// along y share the planes. A block handles several planes if they are smaller than the block.
struct PlaneShare {
    u32 point;
    u32 first;
    u32 step;
    u32 planes;

    // Takes the number of points of a plane, and that of the planes, which has 30 bits, so that sums of steps have 32.
    __device__ __forceinline__ PlaneShare(const u32 points, const u32 all) {
        const u32 layers = points < blockDim.x ? blockDim.x / points : 1;
        const u32 layer = points < blockDim.x ? threadIdx.x / points : 0;
        point = blockIdx.x * blockDim.x + threadIdx.x - layer * points;
        first = blockIdx.y * layers + layer;
        step = gridDim.y * layers;
        planes = point < points && layer < layers ? all : 0;
    }

    template <u32 COUNT, class Each> __device__ __forceinline__ void by(const Each& each) const {
        for (u32 plane = first; plane < planes; plane += COUNT * step) {
            u32 own[COUNT];
            #pragma unroll
            for (u32 i = 0; i < COUNT; ++i) {
                const u32 next = plane + i * step;
                own[i] = next < planes ? next : plane;
            }
            each(own);
        }
    }

    // Calls a function with the indices of the thread's planes, one at a time or COUNT at a time. The last call may repeat a plane,
    // for which the function computes the same result again.
    template <u32 COUNT, class Each> __device__ __forceinline__ void each(const Each& each) const {
        if (COUNT == 1 || step >= planes) {
            by<1>(each);
        } else {
            by<COUNT>(each);
        }
    }
};
