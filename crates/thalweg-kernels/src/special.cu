// The functions of `Function`, statement by statement as on the host. STEP is the distance between neighbours of Element in the bits of
// float32, and 0 for float64, which has a library function.
#ifndef NAME
#include "defaults.cuh"
#define IS_INTEGER 0
#define STEP 1
#endif

struct arguments {
    const Element* first;
    const Element* second;
    Element* output;
    u64 elements;
    u64 strides[2];
    u64 function;
    u64 dtype;
};

#if IS_INTEGER
typedef i64 Value;

// Euclid's algorithm.
static __device__ i64 compute(u64, i64 first, i64 second) {
    u64 a = first < 0 ? 0 - u64(first) : u64(first), b = second < 0 ? 0 - u64(second) : u64(second);
    while (b != 0) {
        const u64 rest = a % b;
        a = b;
        b = rest;
    }
    return i64(a);
}
#else
typedef double Value;

#define NOT_A_NUMBER __longlong_as_double(0x7ff8000000000000LL)
#define INFINITE __longlong_as_double(0x7ff0000000000000LL)

// The next number of Element.
static __device__ double next_after(double a, double b) {
#if STEP == 0
    return nextafter(a, b);
#else
    if (a != a || b != b) { return NOT_A_NUMBER; }
    if (a == b) { return b; }
#if STEP == 8192
    // The numbers of float16 below 2⁻¹⁴ are 2⁻²⁴ apart.
    const double least = 1.0 / 16777216.0, size = fabs(a);
    if (a == 0.0) { return copysign(least, b); }
    if (size > 65504.0) { return copysign(65504.0, a); }
    const bool grows = (a < b) == (a > 0.0);
    if (size <= 1.0 / 16384.0) { return copysign(grows ? size + least : size - least, a); }
#else
    if (a == 0.0) { return copysign(double(__int_as_float(STEP)), b); }
    const bool grows = (a < b) == (a > 0.0);
#endif
    const int bits = __float_as_int(float(a));
    return double(__int_as_float(grows ? bits + STEP : bits - STEP));
#endif
}

static __device__ double zeta(double s, double q) {
    const double bernoulli[8] = {1.0 / 12.0, -1.0 / 720.0, 1.0 / 30240.0, -1.0 / 1209600.0, 1.0 / 47900160.0,
        -691.0 / 1307674368000.0, 1.0 / 74724249600.0, -3617.0 / 10670622842880000.0};
    if (s == 1.0) { return INFINITE; }
    if (!(s > 1.0) || q != q) { return NOT_A_NUMBER; }
    if (q <= 0.0) {
        if (q == floor(q)) { return INFINITE; }
        if (s != floor(s)) { return NOT_A_NUMBER; }
    }
    if (q < -1048576.0) { return NOT_A_NUMBER; }
    double sum = 0.0, a = q;
    while (a < 10.0) {
        sum += pow(a, -s);
        a += 1.0;
    }
    double power = pow(a, -s);
    sum += power * a / (s - 1.0) + power / 2.0;
    power *= s / a;
    for (int k = 0; k < 8; ++k) {
        sum += bernoulli[k] * power;
        const double next = s + 2.0 * k + 1.0;
        power *= next * (next + 1.0) / (a * a);
    }
    return sum;
}

static __device__ double incomplete_gamma(double a, double x, bool is_lower) {
    const double none = is_lower ? 0.0 : 1.0, all = is_lower ? 1.0 : 0.0;
    if (a != a || x != x || a < 0.0 || x < 0.0) { return NOT_A_NUMBER; }
    if (a == 0.0) { return x > 0.0 ? all : NOT_A_NUMBER; }
    if (x == 0.0) { return none; }
    if (a == INFINITE) { return x == INFINITE ? NOT_A_NUMBER : none; }
    if (x == INFINITE) { return all; }
    const double factor = exp(a * log(x) - x - lgamma(a));
    if (x < a + 1.0) {
        double term = 1.0 / a, sum = term, n = a;
        for (int step = 0; step < 1048576; ++step) {
            n += 1.0;
            term *= x / n;
            sum += term;
            if (term < sum * 1e-17) { break; }
        }
        return is_lower ? sum * factor : 1.0 - sum * factor;
    }
    const double tiny = 1e-300;
    double b = x + 1.0 - a, c = 1.0 / tiny, d = 1.0 / b, fraction = d;
    for (int step = 1; step < 1048576; ++step) {
        const double n = step, numerator = -n * (n - a);
        b += 2.0;
        d = numerator * d + b;
        d = 1.0 / (fabs(d) < tiny ? tiny : d);
        c = b + numerator / c;
        c = fabs(c) < tiny ? tiny : c;
        fraction *= c * d;
        if (fabs(c * d - 1.0) < 1e-16) { break; }
    }
    return is_lower ? 1.0 - fraction * factor : fraction * factor;
}

static __device__ double polynomial(u64 function, double x, double degree, double limit) {
    const double n = trunc(degree);
    if (x != x || n != n) { return NOT_A_NUMBER; }
    if (n < 0.0) { return 0.0; }
    if (function <= 8 && n > 8.0 && fabs(x) < 1.0) {
        const double angle = acos(x);
        switch (function) {
            case 5: return cos(n * angle);
            case 6: return sin((n + 1.0) * angle) / sin(angle);
            case 7: return cos((n + 0.5) * angle) / cos(angle / 2.0);
            default: return sin((n + 0.5) * angle) / sin(angle / 2.0);
        }
    }
    if (((function == 9 || function == 10) && n > limit) || n > 1048576.0) { return NOT_A_NUMBER; }
    double former = 1.0, current = x;
    switch (function) {
        case 6: case 9: current = 2.0 * x; break;
        case 7: current = 2.0 * x - 1.0; break;
        case 8: current = 2.0 * x + 1.0; break;
        case 11: current = 1.0 - x; break;
    }
    if (n == 0.0) { return former; }
    for (int step = 1; step < int(n); ++step) {
        const double k = step;
        double next = 2.0 * x * current - former;
        switch (function) {
            case 9: next = 2.0 * x * current - 2.0 * k * former; break;
            case 10: next = x * current - k * former; break;
            case 11: next = ((2.0 * k + 1.0 - x) * current - k * former) / (k + 1.0); break;
            case 12: next = ((2.0 * k + 1.0) * x * current - k * former) / (k + 1.0); break;
        }
        former = current;
        current = next;
        if (current != current) { break; }
    }
    return current;
}

static __device__ double compute(u64 function, double a, double b) {
    switch (function) {
        case 1: return next_after(a, b);
        case 2: return zeta(a, b);
        case 3: return incomplete_gamma(a, b, true);
        case 4: return incomplete_gamma(a, b, false);
        default: return polynomial(function, a, b, sizeof(Element) == 8 ? 512.0 : 128.0);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ arguments x) {
    for (u64 at = u64(blockIdx.x) * 256 + threadIdx.x; at < x.elements; at += u64(gridDim.x) * 256) {
        const Value a = Value(LOAD(x.first[at * x.strides[0]])),
            b = Value(LOAD(x.second[at * x.strides[1]]));
        x.output[at] = STORE(Sum(compute(x.function, a, b)));
    }
}
