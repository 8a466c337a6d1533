// Structs in address spaces. C++ has no assignment operator for an object in device or threadgroup
// memory, so rewrite.py adds MSL_STRUCT(S), one operator per pair of spaces, to every struct S.
#pragma once

namespace msl {
template <class D, class S>
MSL_INLINE constexpr D& copy(D& destination, S& source) {
    __builtin_memcpy((void*)&destination, (const void*)&source, sizeof(D));
    return destination;
}
}  // namespace msl

#define MSL_COPY(S, TO, FROM) \
    constexpr TO S& operator=(this TO S& to, const FROM S& from) { return msl::copy(to, from); }
// clang-format off
#define MSL_STRUCT(S)                   \
    MSL_COPY(S, device, thread)         \
    MSL_COPY(S, device, device)         \
    MSL_COPY(S, device, threadgroup)    \
    MSL_COPY(S, device, constant)       \
    MSL_COPY(S, threadgroup, thread)    \
    MSL_COPY(S, threadgroup, device)    \
    MSL_COPY(S, threadgroup, threadgroup) \
    MSL_COPY(S, threadgroup, constant)  \
    MSL_COPY(S, thread, device)         \
    MSL_COPY(S, thread, threadgroup)    \
    MSL_COPY(S, thread, constant)
// clang-format on
// A struct with constructors is not an aggregate, so it also gets copy constructors from each
// space.
#define MSL_CONSTRUCT(S)                                      \
    S(const device S& from) { msl::copy(*this, from); }       \
    S(const threadgroup S& from) { msl::copy(*this, from); }  \
    constexpr S(constant S& from) { msl::copy(*this, from); } \
    S(const S&) = default;                                    \
    S& operator=(const S&) = default;

namespace msl {
// Three elements without padding, as in packed_float3.
template <class T>
struct Packed3 {
    typedef vec<T, 3> V;
    T x, y, z;
    Packed3() = default;
    constexpr Packed3(V v) : x(v.x), y(v.y), z(v.z) {}
    constexpr Packed3(T x_, T y_, T z_) : x(x_), y(y_), z(z_) {}
    template <class Self>
    constexpr operator V(this Self& self) {
        return V{self.x, self.y, self.z};
    }
    template <class Self>
    constexpr auto& operator[](this Self& self, int i) {
        return (&self.x)[i];
    }
    MSL_STRUCT(Packed3)
    MSL_CONSTRUCT(Packed3)
};
}  // namespace msl
#define MSL_PACKED(T) typedef msl::Packed3<T> packed_##T##3;
MSL_SCALARS(MSL_PACKED)
#undef MSL_PACKED
