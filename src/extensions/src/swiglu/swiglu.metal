// swiglu on the GPU: four adjacent elements per thread. Contract: swiglu.h.
#include "common/metal_map_rows.h"
#include "common/metal_sigmoid.h"

// x · sigmoid(x), rounded to T after each step. With z = e^−|x|, which never overflows, sigmoid(x)
// is 1/(1 + z) for x ≥ 0 and z/(1 + z) for x < 0; 1 − 1/(1 + z) would lose precision.
template <typename T>
float silu(float x) {
    const float z = float(T(metal::exp(-metal::abs(x))));
    const float sigmoid = float(T((x < 0.0f ? z : 1.0f) / float(T(1.0f + z))));
    return float(T(x * sigmoid));
}

struct Swiglu {
    template <typename T>
    static float apply(float gate, float up) {
        return silu<T>(gate) * up;
    }
};

struct Geglu {
    template <typename T>
    static float apply(float gate, float up) {
        return float(T(tiny_llm_ext::gelu_tanh(gate))) * up;
    }
};

// gpt-oss's function. A NaN is not clamped.
struct ClampedSwiglu {
    template <typename T>
    static float apply(float gate, float up) {
        const float limit = 7.0f;
        gate = gate > limit ? limit : gate;
        up = up > limit ? limit : up < -limit ? -limit : up;
        return gate * tiny_llm_ext::sigmoid(1.702f * gate) * (up + 1.0f);
    }
};

INSTANTIATE_MAP_ROWS(float32, float, swiglu, Swiglu)
INSTANTIATE_MAP_ROWS(float16, half, swiglu, Swiglu)
INSTANTIATE_MAP_ROWS(bfloat16, bfloat, swiglu, Swiglu)
INSTANTIATE_MAP_ROWS(float32, float, swiglu_gelu, Geglu)
INSTANTIATE_MAP_ROWS(float16, half, swiglu_gelu, Geglu)
INSTANTIATE_MAP_ROWS(bfloat16, bfloat, swiglu_gelu, Geglu)
INSTANTIATE_MAP_ROWS(float32, float, swiglu_oai, ClampedSwiglu)
INSTANTIATE_MAP_ROWS(float16, half, swiglu_oai, ClampedSwiglu)
INSTANTIATE_MAP_ROWS(bfloat16, bfloat, swiglu_oai, ClampedSwiglu)
