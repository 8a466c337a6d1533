// sigmoid_gate: argument checks and the operation's constants.
#include "src/sigmoid_gate/sigmoid_gate.h"

#include "common/checks.h"
#include "common/row_operation.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_ROW_KERNELS(sigmoid_gate)

mx::array sigmoid_gate(const mx::array& x, const mx::array& gate, mx::StreamOrDevice s) {
    static constexpr RowOperation OPERATION = {
        .name = "sigmoid_gate",
        .node = "TinyLlmSigmoidGate",
        .kernel = TINY_LLM_ROW_KERNEL(sigmoid_gate),
        .metal_kernel = "sigmoid_gate_elements",
    };
    check_float(OPERATION.name, "x", x);
    check_same_dtype(OPERATION.name, "gate", gate, "x", x);
    check_not_scalar(OPERATION.name, "x", x);
    mx::Shape per_row = x.shape();
    per_row.back() = 1;
    check(gate.shape() == x.shape() || gate.shape() == per_row, OPERATION.name,
          "expected gate of the shape of x, ", x.shape(), ", or ", per_row, ", got ", gate.shape());
    return row_operation(OPERATION, {x, gate}, {x.dtype()}, s)[0];
}

}  // namespace tiny_llm_ext
