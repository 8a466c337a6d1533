// sigmoid_gate: argument checks and construction of the graph node.
#include "src/sigmoid_gate/sigmoid_gate.h"

#include "common/checks.h"
#include "common/gpu.h"

namespace tiny_llm_ext {

mx::array sigmoid_gate(const mx::array& x, const mx::array& gate, mx::StreamOrDevice s) {
    constexpr const char* NAME = "sigmoid_gate";
    check_float(NAME, "x", x);
    check_same_dtype(NAME, "gate", gate, "x", x);
    check_not_scalar(NAME, "x", x);
    mx::Shape per_row = x.shape();
    per_row.back() = 1;
    check(gate.shape() == x.shape() || gate.shape() == per_row, NAME,
          "expected gate of the shape of x, ", x.shape(), ", or ", per_row, ", got ", gate.shape());
    return mx::array(
        x.shape(), x.dtype(),
        wrap_if_emulated(std::make_shared<SigmoidGate>(stream_for(NAME, x.dtype(), s))), {x, gate});
}

}  // namespace tiny_llm_ext
