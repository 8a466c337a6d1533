// gated_rms_norm: argument checks and the operation's constants.
#include "src/gated_rms_norm/gated_rms_norm.h"

#include "common/checks.h"
#include "common/row_operation.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_ROW_KERNELS(gated_rms_norm)

mx::array gated_rms_norm(const mx::array& o, const mx::array& z, const mx::array& weight, float eps,
                         mx::StreamOrDevice s) {
    static constexpr RowOperation OPERATION = {
        .name = "gated_rms_norm",
        .node = "TinyLlmGatedRmsNorm",
        .kernel = TINY_LLM_ROW_KERNEL(gated_rms_norm),
        .first_donated = 1,
        .metal_kernel = "gated_rms_norm_row",
        .grid = RowGrid::simdgroup_per_row,
    };
    constexpr const char* NAME = OPERATION.name;
    check(o.dtype() == mx::float32, NAME, "expected o in float32, got ", o.dtype());
    check_float(NAME, "z", z);
    check_not_scalar(NAME, "o", o);
    check_same_shape(NAME, "z", z, "o", o);
    check(weight.shape() == mx::Shape{o.shape(-1)}, NAME, "expected weight of shape (", o.shape(-1),
          "), the last dimension of o, got ", weight.shape());
    check_weight_dtype(NAME, weight, "z", z);
    return row_operation(OPERATION, {o, z, weight}, {z.dtype()}, s, {.eps = eps})[0];
}

}  // namespace tiny_llm_ext
