// sigmoid_gate on the GPU: four adjacent elements per thread. Contract: sigmoid_gate.h.
#include "common/metal_map_rows.h"
#include "common/metal_sigmoid.h"

struct SigmoidGate {
    template <typename T>
    static float apply(float x, float gate) {
        return x * tiny_llm_ext::sigmoid(gate);
    }
};

INSTANTIATE_MAP_ROWS(float32, float, sigmoid_gate, SigmoidGate)
INSTANTIATE_MAP_ROWS(float16, half, sigmoid_gate, SigmoidGate)
INSTANTIATE_MAP_ROWS(bfloat16, bfloat, sigmoid_gate, SigmoidGate)
