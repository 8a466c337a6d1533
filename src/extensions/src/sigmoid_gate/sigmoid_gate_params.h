// Parameters of the kernels in sigmoid_gate.metal.
#pragma once

namespace tiny_llm_ext {

struct SigmoidGateParams {
    int D;
    long x_stride, gate_stride;  // row strides in elements
    long gate_step;              // from one element of a row's gate to the next: 1 or 0
};

}  // namespace tiny_llm_ext
