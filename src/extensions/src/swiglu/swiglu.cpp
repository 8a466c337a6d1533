// swiglu: argument checks and the operation's constants.
#include "src/swiglu/swiglu.h"

#include "common/checks.h"
#include "common/fused.h"
#include "common/row_operation.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_ROW_KERNELS(swiglu)

static RowKernel swiglu_simd_kernel([[maybe_unused]] InstructionSet set) {
    // [task 4.5.4 choose]
    return TINY_LLM_CHOOSE_SIMD(set, swiglu, swiglu_reference);
    // [/task 4.5.4 choose]
}

mx::array swiglu(const mx::array& gate, const mx::array& up, mx::StreamOrDevice s) {
    static constexpr RowOperation OPERATION = {
        .name = "swiglu",
        .node = "TinyLlmSwiglu",
        .kernel = [] { return fused_kernel<RowKernel>(swiglu_simd_kernel, swiglu_reference); },
        .metal_kernel = "swiglu_elements",
    };
    check_float(OPERATION.name, "gate", gate);
    check_same_dtype(OPERATION.name, "up", up, "gate", gate);
    check_not_scalar(OPERATION.name, "gate", gate);
    check(up.shape() == gate.shape(), OPERATION.name, "expected up of the shape of gate, ",
          gate.shape(), ", got ", up.shape());
    return row_operation(OPERATION, {gate, up}, {gate.dtype()}, s)[0];
}

}  // namespace tiny_llm_ext
