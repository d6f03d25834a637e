struct last_arguments {
    const i64* index;
    u32* last;
    u64 count;
    u64 rows;
    u64 stride;
};

// Stores the number of the last index that names each row, plus one.
static __device__ __forceinline__ void find_last(const last_arguments& x) {
    const u32 count = u32(x.count), step = gridDim.x * 1024;
    for (u32 k = blockIdx.x * 1024 + threadIdx.x; k < count; k += step) {
        const i64 row = x.index[k * x.stride];
        if (u64(row) < x.rows) {
            atomicMax(&x.last[row], k + 1);
        }
    }
}
