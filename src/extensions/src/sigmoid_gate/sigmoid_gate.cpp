// sigmoid_gate: validation and graph.
#include "src/sigmoid_gate/sigmoid_gate.h"

#include "common/checks.h"
#include "common/gpu.h"

namespace tiny_llm_ext {

mx::array sigmoid_gate(const mx::array& x, const mx::array& gate, mx::StreamOrDevice s) {
    constexpr const char* NAME = "sigmoid_gate";
    check(is_float(x.dtype()), NAME, "expected x in float32, float16 or bfloat16, got ", x.dtype());
    check(gate.dtype() == x.dtype(), NAME, "expected gate in the dtype of x, ", x.dtype(), ", got ",
          gate.dtype());
    check(x.ndim() >= 1, NAME, "expected x with at least one dimension, got a scalar");
    mx::Shape per_row = x.shape();
    per_row.back() = 1;
    check(gate.shape() == x.shape() || gate.shape() == per_row, NAME,
          "expected gate of the shape of x, ", x.shape(), ", or ", per_row, ", got ", gate.shape());
    return mx::array(
        x.shape(), x.dtype(),
        wrap_if_emulated(std::make_shared<SigmoidGate>(stream_for(NAME, x.dtype(), s))), {x, gate});
}

}  // namespace tiny_llm_ext
