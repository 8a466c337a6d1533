// swiglu: argument checks and the operation's constants.
#include "src/swiglu/swiglu.h"

#include <algorithm>
#include <iterator>

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

struct Variant {
    std::string_view name;
    Activation activation;
    RowOperation operation;
};

static constexpr Variant VARIANTS[] = {
    {"silu", Activation::silu, swiglu_operation("swiglu_elements")},
    {"gelu_tanh", Activation::gelu_tanh, swiglu_operation("swiglu_gelu_elements")},
    {"swigluoai", Activation::swigluoai, swiglu_operation("swiglu_oai_elements")},
};

mx::array swiglu(const mx::array& gate, const mx::array& up, const std::string& activation,
                 mx::StreamOrDevice s) {
    constexpr const char* NAME = VARIANTS[0].operation.name;
    check_float(NAME, "gate", gate);
    check_same_dtype(NAME, "up", up, "gate", gate);
    check_not_scalar(NAME, "gate", gate);
    check_same_shape(NAME, "up", up, "gate", gate);
    const auto* variant = std::find_if(std::begin(VARIANTS), std::end(VARIANTS),
                                       [&](const Variant& v) { return v.name == activation; });
    check(variant != std::end(VARIANTS), NAME,
          "expected activation \"silu\", \"gelu_tanh\" or \"swigluoai\", got \"", activation, "\"");
    const RowOptions options = {.activation = variant->activation};
    return row_operation(variant->operation, {gate, up}, {gate.dtype()}, s, options)[0];
}

}  // namespace tiny_llm_ext
