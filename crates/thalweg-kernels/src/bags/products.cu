// Products of rows of a table with the gradients of their bags.
#ifndef NAME
#include "../defaults.cuh"
#define CALL products<f32, 4>(x)
#endif
#include "../shared/elements.cuh"

struct arguments {
    const void* gradient;
    const void* table;
    const i64* indices;
    const i64* bags_of;
    void* result;
    u64 count;
    u64 bags;
    u64 rows;
    u64 features;
    u64 gradient_stride;
    i64 padding;
    u64 dtype;
    u64 lanes;
    volatile i64* report;
};

constexpr u32 THREADS = 256;

// `lanes` neighbouring threads multiply and add the features of one row; their sums are added in pairs.
template <class T, u32 WIDTH> static __device__ __forceinline__ void products(const arguments& x) {
    typedef typename combined<T>::type SUM_TYPE;
    const u32 lanes = u32(x.lanes), lane = threadIdx.x % lanes, groups = THREADS / lanes;
    for (u64 first = u64(blockIdx.x) * groups; first < x.count; first += u64(gridDim.x) * groups) {
        const u64 place = first + threadIdx.x / lanes;
        SUM_TYPE sum = SUM_TYPE(0);
        if (place < x.count) {
            const i64 named = x.indices[place], bag = x.bags_of[place];
            if (u64(named) >= x.rows) {
                x.report[0] = named;
                x.report[1] = i64(x.rows) + 1;
            } else if (named != x.padding && u64(bag) < x.bags) {
                const T* const gradient = (const T*)x.gradient + u64(bag) * x.gradient_stride;
                const T* const row = (const T*)x.table + u64(named) * x.features;
                for (u64 column = lane * WIDTH; column < x.features; column += lanes * WIDTH) {
                    const vector<T, WIDTH> a = *(const vector<T, WIDTH>*)(gradient + column);
                    const vector<T, WIDTH> b = *(const vector<T, WIDTH>*)(row + column);
                    #pragma unroll
                    for (u32 j = 0; j < WIDTH; ++j) {
                        sum = sum + widened(a.at[j]) * widened(b.at[j]);
                    }
                }
            }
        }
        for (u32 step = lanes / 2; step > 0; step /= 2) {
            sum = sum + __shfl_down_sync(0xffffffffu, sum, step, lanes);
        }
        if (place < x.count && lane == 0) {
            ((T*)x.result)[place] = narrowing<T>::of(sum);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ arguments x) {
    CALL;
}
