// <metal_integer>.
#pragma once

namespace metal {

#define MSL_INTEGERS(DO) DO(char) DO(uchar) DO(short) DO(ushort) DO(int) DO(uint) DO(long) DO(ulong)

#define MSL_DEFINE_INTEGER(T)                                                                   \
    MSL_DEFINE_ORDER(T, y < x ? y : x, x < y ? y : x)                                           \
    MSL_INLINE constexpr T abs(T x) { return x < 0 ? (T) - x : x; }                             \
    MSL_INLINE constexpr std::make_unsigned_t<T> absdiff(T x, T y) {                            \
        typedef std::make_unsigned_t<T> U;                                                      \
        return x < y ? (U)y - (U)x : (U)x - (U)y;                                               \
    }                                                                                           \
    MSL_INLINE constexpr T popcount(T x) {                                                      \
        return (T)__builtin_popcountll((std::make_unsigned_t<T>)x);                             \
    }                                                                                           \
    MSL_INLINE constexpr T clz(T x) {                                                           \
        return (T)__builtin_clzg((std::make_unsigned_t<T>)x, 8 * (int)sizeof(T));               \
    }                                                                                           \
    MSL_INLINE constexpr T ctz(T x) {                                                           \
        return (T)__builtin_ctzg((std::make_unsigned_t<T>)x, 8 * (int)sizeof(T));               \
    }                                                                                           \
    MSL_INLINE constexpr T rotate(T x, T by) {                                                  \
        typedef std::make_unsigned_t<T> U;                                                      \
        const int bits = 8 * sizeof(T), shift = (int)by & (bits - 1);                           \
        return shift == 0 ? x : (T)(((U)x << shift) | ((U)x >> (bits - shift)));                \
    }                                                                                           \
    MSL_INLINE constexpr T extract_bits(T x, uint offset, uint count) {                         \
        typedef std::make_unsigned_t<T> U;                                                      \
        const uint bits = 8 * sizeof(T);                                                        \
        return count == 0 ? (T)0 : (T)((T)((U)x << (bits - count - offset)) >> (bits - count)); \
    }                                                                                           \
    MSL_INLINE constexpr T insert_bits(T base, T insert, uint offset, uint count) {             \
        typedef std::make_unsigned_t<T> U;                                                      \
        const uint bits = 8 * sizeof(T);                                                        \
        U mask = count == 0 ? (U)0 : (U)((U)((U) ~(U)0 >> (bits - count)) << offset);           \
        return (T)(((U)base & (U)~mask) | (((U)insert << offset) & mask));                      \
    }                                                                                           \
    MSL_INLINE constexpr T mulhi(T x, T y) {                                                    \
        return (T)(((__int128)x * (__int128)y) >> (8 * sizeof(T)));                             \
    }                                                                                           \
    MSL_INLINE constexpr T madhi(T x, T y, T z) { return (T)(mulhi(x, y) + z); }                \
    MSL_INLINE constexpr T addsat(T x, T y) {                                                   \
        T sum{};                                                                                \
        if (!__builtin_add_overflow(x, y, &sum)) {                                              \
            return sum;                                                                         \
        }                                                                                       \
        return y < 0 ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();           \
    }                                                                                           \
    MSL_INLINE constexpr T subsat(T x, T y) {                                                   \
        T difference{};                                                                         \
        if (!__builtin_sub_overflow(x, y, &difference)) {                                       \
            return difference;                                                                  \
        }                                                                                       \
        return x < y ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();           \
    }
MSL_INTEGERS(MSL_DEFINE_INTEGER)
#undef MSL_DEFINE_INTEGER

MSL_INLINE constexpr int mul24(int x, int y) { return (int)((uint)x * (uint)y); }
MSL_INLINE constexpr uint mul24(uint x, uint y) { return x * y; }

}  // namespace metal
