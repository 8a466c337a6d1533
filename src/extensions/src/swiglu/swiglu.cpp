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

static constexpr RowOperation swiglu_operation(const char* metal_kernel) {
    return {
        .name = "swiglu",
        .node = "TinyLlmSwiglu",
        .kernel = [] { return fused_kernel<RowKernel>(swiglu_simd_kernel, swiglu_reference); },
        .metal_kernel = metal_kernel,
    };
}

mx::array swiglu(const mx::array& gate, const mx::array& up, const std::string& activation,
                 mx::StreamOrDevice s) {
    static constexpr RowOperation OPERATION = swiglu_operation("swiglu_elements");
    static constexpr RowOperation GELU = swiglu_operation("swiglu_gelu_elements");
    check_float(OPERATION.name, "gate", gate);
    check_same_dtype(OPERATION.name, "up", up, "gate", gate);
    check_not_scalar(OPERATION.name, "gate", gate);
    check(up.shape() == gate.shape(), OPERATION.name, "expected up of the shape of gate, ",
          gate.shape(), ", got ", up.shape());
    const bool is_gelu = activation == "gelu_tanh";
    check(is_gelu || activation == "silu", OPERATION.name,
          "expected activation \"silu\" or \"gelu_tanh\", got \"", activation, "\"");
    const RowOptions options = {.activation = is_gelu ? Activation::gelu_tanh : Activation::silu};
    return row_operation(is_gelu ? GELU : OPERATION, {gate, up}, {gate.dtype()}, s, options)[0];
}

}  // namespace tiny_llm_ext
