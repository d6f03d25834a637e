// Sums over the alignments of sequences of labels with time. A block works on one sequence, a thread on some of its states, and the
// states of a step in time follow from those of the step before: from the first step on, or, for the gradient, from the last.
#ifndef NAME
#include "defaults.cuh"
#endif

struct arguments {
    const f64* emitted;
    const u8* skips;
    const i64* lengths;
    f64* sums;
    f64* losses;
    const f64* gradient;
    f64* result;
    u64 times;
    u64 batch;
    u64 states;
    u64 is_gradient;
};

#define IMPOSSIBLE __longlong_as_double(0xfff0000000000000)

DEVICE f64 logarithm_of_sum(const f64 a, const f64 b, const f64 c) {
    f64 most = a > b ? a : b;
    most = c > most ? c : most;
    // Sums of what is impossible are impossible, and those with NaN are NaN.
    if (!(most > IMPOSSIBLE)) { return a + b + c; }
    return most + log(exp(a - most) + exp(b - most) + exp(c - most));
}

// The gradient of an emission: the probability of its state, times the gradient of the loss.
DEVICE f64 gradient_of(const f64 before, const f64 after, const f64 emitted, const f64 loss, const f64 gradient) {
    if (gradient == 0 || (loss < -IMPOSSIBLE && (before == IMPOSSIBLE || after == IMPOSSIBLE))) { return 0; }
    return -gradient * exp(before + after - emitted + loss);
}

extern "C" __global__ void __launch_bounds__(512) NAME(const __grid_constant__ arguments x) {
    const u64 b = blockIdx.x, times = u64(x.lengths[b]), count = 2 * u64(x.lengths[x.batch + b]) + 1;
    const bool back = x.is_gradient;
    f64* const to = (back ? x.result : x.sums) + b * x.states;
    const f64 *const emitted = x.emitted + b * x.states, *const sums = x.sums + b * x.states;
    const u8* const skips = x.skips + b * x.states;
    const u64 row = x.batch * x.states;
    const f64 loss = back ? x.losses[b] : 0, gradient = back ? x.gradient[b] : 0;
    for (u64 step = 0; step < times; ++step) {
        const u64 at = (back ? times - 1 - step : step) * row, before = back ? at + row : at - row;
        for (u64 place = threadIdx.x; place < count; place += blockDim.x) {
            const u64 s = back ? count - 1 - place : place;
            f64 sum = place < 2 ? 0 : IMPOSSIBLE;
            if (step > 0) {
                const f64 one = place > 0 ? to[before + (back ? s + 1 : s - 1)] : IMPOSSIBLE;
                const bool skip = place > 1 && skips[back ? s + 2 : s];
                sum = logarithm_of_sum(to[before + s], one, skip ? to[before + (back ? s + 2 : s - 2)] : IMPOSSIBLE);
            }
            to[at + s] = sum + emitted[at + s];
        }
        __syncthreads();
        // All threads have read the states of the step before.
        for (u64 s = threadIdx.x; back && step > 0 && s < count; s += blockDim.x) {
            to[before + s] = gradient_of(sums[before + s], to[before + s], emitted[before + s], loss, gradient);
        }
    }
    if (back) {
        for (u64 s = threadIdx.x; times > 0 && s < count; s += blockDim.x) {
            to[s] = gradient_of(sums[s], to[s], emitted[s], loss, gradient);
        }
        for (u64 time = 0; time < x.times; ++time) {
            for (u64 s = threadIdx.x + (time < times ? count : 0); s < x.states; s += blockDim.x) { to[time * row + s] = 0; }
        }
    } else if (threadIdx.x == 0) {
        const f64* const last = to + (times - 1) * row + count;
        // A sequence without time has no labels.
        const f64 none = count == 1 ? 0 : IMPOSSIBLE;
        x.losses[b] = times == 0 ? -none : -logarithm_of_sum(last[-1], count > 1 ? last[-2] : IMPOSSIBLE, IMPOSSIBLE);
    }
}
