// <metal_relational>, <metal_geometric> and componentwise operations on vectors.
#pragma once

namespace metal {

#define MSL_EACH_2(NAME)                                                   \
    template <msl::vector V>                                               \
    MSL_INLINE V NAME(V x, V y) {                                          \
        return msl::each([](auto a, auto b) { return NAME(a, b); }, x, y); \
    }
MSL_EACH_2(min)
MSL_EACH_2(max)
#undef MSL_EACH_2

template <msl::vector V>
MSL_INLINE V clamp(V x, V low, V high) {
    return min(max(x, low), high);
}
template <msl::vector V>
MSL_INLINE V clamp(V x, msl::element_t<V> low, msl::element_t<V> high) {
    return clamp(x, msl::make<V>(low), msl::make<V>(high));
}
template <msl::vector V>
    requires(!msl::floating_vector<V>)
MSL_INLINE V abs(V x) {
    return msl::each([](auto a) { return abs(a); }, x);
}
template <msl::floating_vector V>
MSL_INLINE V mix(V x, V y, msl::element_t<V> a) {
    return mix(x, y, msl::make<V>(a));
}

MSL_INLINE bool any(bool x) { return x; }
MSL_INLINE bool all(bool x) { return x; }
template <msl::vector V>
MSL_INLINE bool any(V x) {
    bool result = false;
    for (int i = 0; i < msl::shape<V>::size; ++i) {
        result = result || x[i];
    }
    return result;
}
template <msl::vector V>
MSL_INLINE bool all(V x) {
    bool result = true;
    for (int i = 0; i < msl::shape<V>::size; ++i) {
        result = result && x[i];
    }
    return result;
}
template <class T>
MSL_INLINE T select(T otherwise, T value, bool condition) {
    return condition ? value : otherwise;
}
template <msl::vector V, msl::vector C>
MSL_INLINE V select(V otherwise, V value, C condition) {
    return msl::each([](auto a, auto b, auto c) { return c ? b : a; }, otherwise, value, condition);
}

template <msl::floating_vector V>
MSL_INLINE msl::element_t<V> dot(V x, V y) {
    msl::element_t<V> sum = 0;
    for (int i = 0; i < msl::shape<V>::size; ++i) {
        sum += x[i] * y[i];
    }
    return sum;
}
template <msl::floating_vector V>
MSL_INLINE msl::element_t<V> length_squared(V x) {
    return dot(x, x);
}
template <msl::floating_vector V>
MSL_INLINE msl::element_t<V> length(V x) {
    return sqrt(dot(x, x));
}
template <msl::floating_vector V>
MSL_INLINE msl::element_t<V> distance(V x, V y) {
    return length(x - y);
}
template <msl::floating_vector V>
MSL_INLINE V normalize(V x) {
    return x * rsqrt(dot(x, x));
}
MSL_INLINE float3 cross(float3 x, float3 y) { return x.yzx * y.zxy - x.zxy * y.yzx; }

}  // namespace metal
