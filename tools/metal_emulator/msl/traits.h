// <metal_type_traits>, <metal_limits>, <metal_array>.
#pragma once

namespace metal {

using std::bool_constant, std::integral_constant, std::true_type, std::false_type;
using std::conditional, std::conditional_t, std::enable_if, std::enable_if_t;
using std::decay, std::decay_t, std::is_convertible, std::is_convertible_v;
using std::is_integral, std::is_integral_v, std::is_pointer, std::is_pointer_v;
using std::is_same, std::is_same_v, std::is_signed, std::is_signed_v;
using std::is_unsigned, std::is_unsigned_v, std::is_void, std::is_void_v;
using std::remove_const, std::remove_const_t, std::remove_cv, std::remove_cv_t;
using std::remove_pointer, std::remove_pointer_t, std::remove_reference, std::remove_reference_t;
template <class... T>
using _conjunction = std::conjunction<T...>;
template <class... T>
using _disjunction = std::disjunction<T...>;

template <class T>
struct remove_addrspace : msl::plain<T> {};
template <class T>
using remove_addrspace_t = msl::plain_t<T>;

template <class T>
struct is_floating_point : bool_constant<msl::floating<T>> {};
template <class T>
constexpr bool is_floating_point_v = msl::floating<T>;
template <class T>
struct is_arithmetic : bool_constant<msl::floating<T> || std::is_integral_v<T>> {};
template <class T>
constexpr bool is_arithmetic_v = is_arithmetic<T>::value;

template <class T>
struct numeric_limits : std::numeric_limits<T> {};
#define MSL_LIMITS(T, MAX, MIN, EPSILON, DIGITS)                         \
    template <>                                                          \
    struct numeric_limits<T> {                                           \
        static constexpr bool is_specialized = true, is_signed = true;   \
        static constexpr bool is_integer = false, has_infinity = true;   \
        static constexpr int digits = DIGITS;                            \
        static constexpr T max() { return (T)MAX; }                      \
        static constexpr T lowest() { return (T) - MAX; }                \
        static constexpr T min() { return (T)MIN; }                      \
        static constexpr T epsilon() { return (T)EPSILON; }              \
        static constexpr T infinity() { return (T)__builtin_inff(); }    \
        static constexpr T quiet_NaN() { return (T)__builtin_nanf(""); } \
    };
MSL_LIMITS(half, 65504.0f, 0x1p-14f, 0x1p-10f, 11)
MSL_LIMITS(bfloat, 0x1.fep127f, 0x1p-126f, 0x1p-7f, 8)
#undef MSL_LIMITS

template <class T, int N>
struct array {
    T elements[N];
    constexpr T& operator[](int i) { return elements[i]; }
    constexpr const T& operator[](int i) const { return elements[i]; }
    static constexpr int size() { return N; }
};

}  // namespace metal
