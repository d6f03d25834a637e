// TOGETHER steps of a row from `start` on. With IS_FULL every lane has terms in all of them.
uint4 upper[TOGETHER][EACH], lower[TOGETHER][EACH];
#if !IS_INT8
u32 both[TOGETHER];
#endif
#pragma unroll
for (u32 next = 0; next < TOGETHER; ++next) {
    const u32 at = (start + next) * each_step;
#if !IS_INT8
    both[next] = IS_FULL || first + at < terms ? *(const u32*)(of_line + u64(first + at >> group_bits) * x.n * 2) : 0;
#endif
    #pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
        upper[next][i] = IS_FULL || first + at < terms && has_upper ? *(const uint4*)(upper_row + at + i * 8) : uint4{};
        lower[next][i] = ROWS > 8 && (IS_FULL || first + at < terms && has_lower) ? *(const uint4*)(lower_row + at + i * 8) : uint4{};
    }
}
#pragma unroll
for (u32 next = 0; next < TOGETHER; ++next) {
    const uint4 piece = weights.take(slot + next);
    const u32 word[4] = {piece.x, piece.y, piece.z, piece.w};
    #pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
#if IS_INT8
        const uint4 numbers = converted(word[i * 2], word[i * 2 + 1]);
        multiply(sums[i % 2], numbers, upper[next][i], lower[next][i]);
#else
        const uint4 numbers = converted(word[i], __byte_perm(both[next], 0, 0x1010), __byte_perm(both[next], 0, 0x3232));
        multiply(sums[i % 2], numbers, paired(upper[next][i]), paired(lower[next][i]));
#endif
    }
}
slot = (slot + TOGETHER) % DEPTH;
