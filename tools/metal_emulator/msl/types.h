// Scalars, vectors with their swizzles, and constructors such as float4(xy, z, w).
#pragma once

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef __bf16 bfloat;

constexpr half operator""h(long double value) { return (half)value; }
constexpr half operator"" H(long double value) { return (half)value; }
constexpr bfloat operator"" bf(long double value) { return (bfloat)(float)value; }

#define MSL_SCALARS(DO) \
    DO(bool)            \
    DO(char)            \
    DO(uchar) DO(short) DO(ushort) DO(int) DO(uint) DO(long) DO(ulong) DO(half) DO(bfloat) DO(float)

// Packed vectors have the alignment of one element. Packed vectors of three have no padding,
// unlike the compiler's vectors, and are structs: see structs.h.
#define MSL_VECTORS(T)                                                               \
    typedef T T##2 __attribute__((ext_vector_type(2)));                              \
    typedef T T##3 __attribute__((ext_vector_type(3)));                              \
    typedef T T##4 __attribute__((ext_vector_type(4)));                              \
    typedef T packed_##T##2 __attribute__((ext_vector_type(2), aligned(sizeof(T)))); \
    typedef T packed_##T##4 __attribute__((ext_vector_type(4), aligned(sizeof(T))));
MSL_SCALARS(MSL_VECTORS)
#undef MSL_VECTORS

namespace metal {
using ::bfloat;
using ::half;
template <class T, int N>
using vec = T __attribute__((ext_vector_type(N)));
}  // namespace metal

namespace msl {

template <class V>
struct shape {
    static constexpr int size = 1;
    static constexpr bool is_vector = false;
    typedef V element;
};
template <class T, int N>
struct shape<T __attribute__((ext_vector_type(N)))> {
    static constexpr int size = N;
    static constexpr bool is_vector = true;
    typedef T element;
};
template <class V>
using element_t = typename shape<V>::element;

template <class T>
concept floating = std::same_as<T, float> || std::same_as<T, half> || std::same_as<T, bfloat>;
template <class V>
concept vector = shape<V>::is_vector;
template <class V>
concept floating_vector = vector<V> && floating<element_t<V>>;

// Applies `f` to each component.
template <class V, class F, class... Others>
inline __attribute__((always_inline)) V each(F f, V first, Others... others) {
    V result;
    for (int i = 0; i < shape<V>::size; ++i) {
        result[i] = f(first[i], others[i]...);
    }
    return result;
}

template <class V, class A>
constexpr void append(V& result, int& at, const A& argument) {
    if constexpr (shape<A>::is_vector) {
        for (int i = 0; i < shape<A>::size; ++i) {
            result[at++] = (element_t<V>)argument[i];
        }
    } else {
        result[at++] = (element_t<V>)argument;
    }
}

// V(arguments…): one scalar for all components, or scalars and vectors, concatenated.
template <class V, class... A>
constexpr V make(A... arguments) {
    typedef element_t<V> T;
    if constexpr (!shape<V>::is_vector) {
        return V(arguments...);
    } else if constexpr (sizeof...(A) == 0) {
        return V{};
    } else if constexpr (sizeof...(A) == 1 && (!shape<A>::is_vector && ...)) {
        V result{};
        for (int i = 0; i < shape<V>::size; ++i) {
            result[i] = (T)(arguments, ...);
        }
        return result;
    } else {
        static_assert((0 + ... + shape<A>::size) == shape<V>::size,
                      "a vector's constructor takes one value, or one per component");
        V result{};
        int at = 0;
        (append(result, at, arguments), ...);
        return result;
    }
}

}  // namespace msl

namespace metal {
template <class To, class From>
MSL_INLINE constexpr To as_type(From value) {
    static_assert(sizeof(To) == sizeof(From), "as_type requires types of equal size");
    return __builtin_bit_cast(To, value);
}
}  // namespace metal
using metal::as_type;
using metal::vec;
