// Parameters of the kernels in sigmoid_gate.metal.
#pragma once

namespace tiny_llm_ext {

struct SigmoidGateParams {
    int D;
    long x_stride, gate_stride;  // row strides in elements
    long gate_step;              // element stride within a row of gate; 0: a gate per row
};

}  // namespace tiny_llm_ext
