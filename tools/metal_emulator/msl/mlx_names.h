// Internal Metal names that MLX's headers use (bf16_math.h, logging.h).
#pragma once

#define MSL_PRIMITIVE_1(NAME, VALUE) \
    MSL_INLINE float __metal_##NAME(float x, bool = true) { return VALUE; }
#define MSL_PRIMITIVE_2(NAME, VALUE) \
    MSL_INLINE float __metal_##NAME(float x, float y, bool = true) { return VALUE; }
#define MSL_PRIMITIVE_3(NAME, VALUE) \
    MSL_INLINE float __metal_##NAME(float x, float y, float z, bool = true) { return VALUE; }
MSL_FUNCTIONS_1(MSL_PRIMITIVE_1)
MSL_FUNCTIONS_2(MSL_PRIMITIVE_2)
MSL_FUNCTIONS_3(MSL_PRIMITIVE_3)
MSL_INLINE float __metal_ldexp(float x, int exponent, bool = true) {
    return __builtin_ldexpf(x, exponent);
}
MSL_INLINE float __metal_frexp(float x, int* exponent) { return __builtin_frexpf(x, exponent); }
MSL_INLINE ushort __metal_get_simdgroup_size(ushort) { return msl::LANES; }
MSL_INLINE ushort __metal_get_thread_index_in_simdgroup(ushort) { return (ushort)msl_lane(); }

#define MSL_PRIMITIVE_REDUCTION(NAME)                                          \
    template <class T>                                                         \
    MSL_INLINE T __metal_##NAME(T value, msl::Site site = msl::Site::here()) { \
        return metal::NAME(value, site);                                       \
    }
MSL_PRIMITIVE_REDUCTION(simd_sum)
MSL_PRIMITIVE_REDUCTION(simd_product)
MSL_PRIMITIVE_REDUCTION(simd_max)
MSL_PRIMITIVE_REDUCTION(simd_min)
MSL_PRIMITIVE_REDUCTION(simd_prefix_inclusive_sum)
MSL_PRIMITIVE_REDUCTION(simd_prefix_exclusive_sum)
MSL_PRIMITIVE_REDUCTION(simd_prefix_inclusive_product)
MSL_PRIMITIVE_REDUCTION(simd_prefix_exclusive_product)
template <class T>
    requires std::integral<T>
MSL_INLINE T __metal_simd_xor(T value, msl::Site site = msl::Site::here()) {
    return metal::simd_xor(value, site);
}
// MLX defines simd_xor of bfloat through float, which Metal lacks; it is never called.
MSL_INLINE float __metal_simd_xor(float) { __builtin_trap(); }

#define MSL_PRIMITIVE_SHUFFLE(NAME)                                                       \
    template <class T>                                                                    \
    MSL_INLINE T __metal_##NAME(T value, ushort by, msl::Site site = msl::Site::here()) { \
        return metal::NAME(value, by, site);                                              \
    }
MSL_PRIMITIVE_SHUFFLE(simd_broadcast)
MSL_PRIMITIVE_SHUFFLE(simd_shuffle)
MSL_PRIMITIVE_SHUFFLE(simd_shuffle_down)
MSL_PRIMITIVE_SHUFFLE(simd_shuffle_up)
MSL_PRIMITIVE_SHUFFLE(simd_shuffle_xor)
MSL_PRIMITIVE_SHUFFLE(simd_shuffle_rotate_down)
MSL_PRIMITIVE_SHUFFLE(simd_shuffle_rotate_up)
#define MSL_PRIMITIVE_FILL(NAME)                                         \
    template <class T>                                                   \
    MSL_INLINE T __metal_##NAME(T value, T fill, ushort by, ushort = 32, \
                                msl::Site site = msl::Site::here()) {    \
        return metal::NAME(value, fill, by, site);                       \
    }
MSL_PRIMITIVE_FILL(simd_shuffle_and_fill_down)
MSL_PRIMITIVE_FILL(simd_shuffle_and_fill_up)

namespace metal {
template <class T>
using uniform = T;
template <class T>
constexpr MSL_INLINE T make_uniform(T value) {
    return value;
}
struct os_log {
    template <class... A>
    constexpr os_log(A...) {}
    template <class... A>
    void log_debug(A...) const {}
};
}  // namespace metal
