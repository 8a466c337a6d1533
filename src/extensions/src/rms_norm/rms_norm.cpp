// rms_norm and add_rms_norm: argument checks and the operations' constants.
#include "src/rms_norm/rms_norm.h"

#include "common/checks.h"
#include "common/fused.h"
#include "common/row_operation.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_ROW_KERNELS(rms_norm)

namespace {

RowKernel rms_norm_simd_kernel([[maybe_unused]] InstructionSet set) {
    // [task 4.5.2 choose]
    return TINY_LLM_CHOOSE_SIMD(set, rms_norm, rms_norm_reference);
    // [/task 4.5.2 choose]
}

RowKernel rms_norm_kernel() {
    return fused_kernel<RowKernel>(rms_norm_simd_kernel, rms_norm_reference);
}

void check_inputs(const char* name, const mx::array& x, const mx::array& weight) {
    check_float(name, "x", x);
    check_not_scalar(name, "x", x);
    check(weight.shape() == mx::Shape{x.shape(-1)}, name, "expected weight of shape (", x.shape(-1),
          "), the last dimension of x, got ", weight.shape());
    check_weight_dtype(name, weight, "x", x);
}

}  // namespace

mx::array rms_norm(const mx::array& x, const mx::array& weight, float eps, mx::StreamOrDevice s) {
    static constexpr RowOperation OPERATION = {
        .name = "rms_norm",
        .node = "TinyLlmRmsNorm",
        .kernel = rms_norm_kernel,
        .metal_kernel = "rms_norm_row",
        .grid = RowGrid::threadgroup_per_row,
    };
    check_inputs("rms_norm", x, weight);
    return row_operation(OPERATION, {x, weight}, {x.dtype()}, s, {.eps = eps})[0];
}

std::pair<mx::array, mx::array> add_rms_norm(const mx::array& x, const mx::array& y,
                                             const mx::array& weight, float eps,
                                             mx::StreamOrDevice s) {
    static constexpr RowOperation OPERATION = {
        .name = "rms_norm",
        .node = "TinyLlmRmsNorm",
        .kernel = rms_norm_kernel,
        .outputs = 2,  // the norm may overwrite y, whose row is read before the norm is written
        .metal_kernel = "rms_norm_add_row",
        .grid = RowGrid::threadgroup_per_row,
    };
    constexpr const char* NAME = "add_rms_norm";
    check_inputs(NAME, x, weight);
    check_same_shape(NAME, "y", y, "x", x);
    check_same_dtype(NAME, "y", y, "x", x);
    const auto outputs =
        row_operation(OPERATION, {x, y, weight}, {x.dtype(), x.dtype()}, s, {.eps = eps});
    return {outputs[0], outputs[1]};
}

}  // namespace tiny_llm_ext
