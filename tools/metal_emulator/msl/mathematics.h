// <metal_math>: each function for float, half and their vectors. They are overloads, not templates,
// so that max(half, float) is ambiguous as in Metal. An argument of type bfloat converts to float.
#pragma once

#define MSL_APPROXIMATE_1(DO)                        \
    DO(exp, __builtin_expf(x))                       \
    DO(exp2, __builtin_exp2f(x))                     \
    DO(exp10, __builtin_exp10f(x))                   \
    DO(log, __builtin_logf(x))                       \
    DO(log2, __builtin_log2f(x))                     \
    DO(log10, __builtin_log10f(x))                   \
    DO(rsqrt, 1.0f / __builtin_sqrtf(x))             \
    DO(sin, __builtin_sinf(x))                       \
    DO(cos, __builtin_cosf(x))                       \
    DO(tan, __builtin_tanf(x))                       \
    DO(asin, __builtin_asinf(x))                     \
    DO(acos, __builtin_acosf(x))                     \
    DO(atan, __builtin_atanf(x))                     \
    DO(sinh, __builtin_sinhf(x))                     \
    DO(cosh, __builtin_coshf(x))                     \
    DO(tanh, __builtin_tanhf(x))                     \
    DO(asinh, __builtin_asinhf(x))                   \
    DO(acosh, __builtin_acoshf(x))                   \
    DO(atanh, __builtin_atanhf(x))                   \
    DO(sinpi, __builtin_sinf(x * 3.14159265358979f)) \
    DO(cospi, __builtin_cosf(x * 3.14159265358979f)) \
    DO(tanpi, __builtin_tanf(x * 3.14159265358979f))
#define MSL_EXACT_1(DO)                          \
    DO(sqrt, __builtin_sqrtf(x))                 \
    DO(floor, __builtin_floorf(x))               \
    DO(ceil, __builtin_ceilf(x))                 \
    DO(trunc, __builtin_truncf(x))               \
    DO(rint, __builtin_rintf(x))                 \
    DO(round, __builtin_roundf(x))               \
    DO(fabs, __builtin_fabsf(x))                 \
    DO(fract, x - __builtin_floorf(x))           \
    DO(sign, x > 0 ? 1.0f : (x < 0 ? -1.0f : x)) \
    DO(saturate, x < 0 ? 0.0f : (x > 1 ? 1.0f : x))
#define MSL_APPROXIMATE_2(DO)      \
    DO(pow, __builtin_powf(x, y))  \
    DO(powr, __builtin_powf(x, y)) \
    DO(atan2, __builtin_atan2f(x, y))
#define MSL_EXACT_2(DO)                       \
    DO(fmod, __builtin_fmodf(x, y))           \
    DO(fmin, __builtin_fminf(x, y))           \
    DO(fmax, __builtin_fmaxf(x, y))           \
    DO(copysign, __builtin_copysignf(x, y))   \
    DO(fdim, __builtin_fdimf(x, y))           \
    DO(nextafter, __builtin_nextafterf(x, y)) \
    DO(divide, x / y)                         \
    DO(step, y < x ? 0.0f : 1.0f)
#define MSL_FUNCTIONS_1(DO) MSL_APPROXIMATE_1(DO) MSL_EXACT_1(DO)
#define MSL_FUNCTIONS_2(DO) MSL_APPROXIMATE_2(DO) MSL_EXACT_2(DO)
#define MSL_FUNCTIONS_3(DO)                              \
    DO(fma, __builtin_fmaf(x, y, z))                     \
    DO(mix, x + (y - x) * z)                             \
    DO(smoothstep, msl::smooth((z - x) / (y - x)))       \
    DO(fmin3, __builtin_fminf(x, __builtin_fminf(y, z))) \
    DO(fmax3, __builtin_fmaxf(x, __builtin_fmaxf(y, z))) \
    DO(fmedian3, msl::median(x, y, z))

namespace msl {
// Result of a function that Metal computes only to a few ulps; perturbed in mode "loose".
constexpr float approximate(float x) {
#ifdef MSL_LOOSE
    if !consteval {
        return msl_approximate(x);
    }
#endif
    return x;
}
constexpr float smooth(float t) {
    t = t < 0 ? 0 : (t > 1 ? 1 : t);
    return t * t * (3 - 2 * t);
}
constexpr float median(float x, float y, float z) {
    float low = __builtin_fminf(x, y), high = __builtin_fmaxf(x, y);
    return __builtin_fmaxf(low, __builtin_fminf(high, z));
}
}  // namespace msl

#define MSL_DEFINE_1(NAME, VALUE)                              \
    MSL_INLINE constexpr float NAME(float x) { return VALUE; } \
    MSL_INLINE constexpr half NAME(half x_) {                  \
        float x = x_;                                          \
        return (half)(VALUE);                                  \
    }                                                          \
    template <msl::floating_vector V>                          \
    MSL_INLINE V NAME(V x) {                                   \
        return msl::each([](auto a) { return NAME(a); }, x);   \
    }
#define MSL_DEFINE_2(NAME, VALUE)                                          \
    MSL_INLINE constexpr float NAME(float x, float y) { return VALUE; }    \
    MSL_INLINE constexpr half NAME(half x_, half y_) {                     \
        float x = x_, y = y_;                                              \
        return (half)(VALUE);                                              \
    }                                                                      \
    template <msl::floating_vector V>                                      \
    MSL_INLINE V NAME(V x, V y) {                                          \
        return msl::each([](auto a, auto b) { return NAME(a, b); }, x, y); \
    }
#define MSL_DEFINE_3(NAME, VALUE)                                                        \
    MSL_INLINE constexpr float NAME(float x, float y, float z) { return VALUE; }         \
    MSL_INLINE constexpr half NAME(half x_, half y_, half z_) {                          \
        float x = x_, y = y_, z = z_;                                                    \
        return (half)(VALUE);                                                            \
    }                                                                                    \
    template <msl::floating_vector V>                                                    \
    MSL_INLINE V NAME(V x, V y, V z) {                                                   \
        return msl::each([](auto a, auto b, auto c) { return NAME(a, b, c); }, x, y, z); \
    }

#define MSL_APPROXIMATED_1(NAME, VALUE) MSL_DEFINE_1(NAME, msl::approximate(VALUE))
#define MSL_APPROXIMATED_2(NAME, VALUE) MSL_DEFINE_2(NAME, msl::approximate(VALUE))

// min, max and clamp of one type; of a number and NaN, they return the number, as in Metal.
#define MSL_DEFINE_ORDER(T, LESS, MORE)                                      \
    MSL_INLINE constexpr T min(T x, T y) { return (T)(LESS); }               \
    MSL_INLINE constexpr T max(T x, T y) { return (T)(MORE); }               \
    MSL_INLINE constexpr T min3(T x, T y, T z) { return min(x, min(y, z)); } \
    MSL_INLINE constexpr T max3(T x, T y, T z) { return max(x, max(y, z)); } \
    MSL_INLINE constexpr T clamp(T x, T low, T high) { return min(max(x, low), high); }
#define MSL_DEFINE_FLOAT_ORDER(T) MSL_DEFINE_ORDER(T, __builtin_fminf(x, y), __builtin_fmaxf(x, y))

#define MSL_DEFINE_ALL                    \
    MSL_APPROXIMATE_1(MSL_APPROXIMATED_1) \
    MSL_APPROXIMATE_2(MSL_APPROXIMATED_2) \
    MSL_EXACT_1(MSL_DEFINE_1)             \
    MSL_EXACT_2(MSL_DEFINE_2)             \
    MSL_FUNCTIONS_3(MSL_DEFINE_3)         \
    MSL_DEFINE_1(abs, __builtin_fabsf(x)) \
    MSL_DEFINE_FLOAT_ORDER(float)         \
    MSL_DEFINE_FLOAT_ORDER(half)

namespace metal {
MSL_DEFINE_ALL
namespace fast {
MSL_DEFINE_ALL
}
namespace precise {
MSL_DEFINE_ALL
}

#define MSL_CLASSIFY(T)                                                              \
    MSL_INLINE constexpr bool isnan(T x) { return __builtin_isnan((float)x); }       \
    MSL_INLINE constexpr bool isinf(T x) { return __builtin_isinf((float)x); }       \
    MSL_INLINE constexpr bool isfinite(T x) { return __builtin_isfinite((float)x); } \
    MSL_INLINE constexpr bool isnormal(T x) { return __builtin_isnormal((float)x); } \
    MSL_INLINE constexpr bool signbit(T x) { return __builtin_signbit((float)x); }
MSL_CLASSIFY(float)
MSL_CLASSIFY(half)
#undef MSL_CLASSIFY

MSL_INLINE float ldexp(float x, int exponent) { return __builtin_ldexpf(x, exponent); }
MSL_INLINE float frexp(float x, int& exponent) { return __builtin_frexpf(x, &exponent); }
MSL_INLINE float modf(float x, float& whole) {
    whole = __builtin_truncf(x);
    return x - whole;
}
MSL_INLINE float sincos(float x, float& cosine) {
    cosine = __builtin_cosf(x);
    return __builtin_sinf(x);
}
}  // namespace metal
