// scaled_sum: argument checks and the operation's constants.
#include "src/scaled_sum/scaled_sum.h"

#include "common/checks.h"
#include "common/row_operation.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_ROW_KERNELS(scaled_sum)

mx::array scaled_sum(const mx::array& x, const mx::array& y, float scale, mx::StreamOrDevice s) {
    static constexpr RowOperation OPERATION = {
        .name = "scaled_sum",
        .node = "TinyLlmScaledSum",
        .kernel = TINY_LLM_ROW_KERNEL(scaled_sum),
        .metal_kernel = "scaled_sum_elements",
    };
    check_float(OPERATION.name, "x", x);
    check_not_scalar(OPERATION.name, "x", x);
    check_same_dtype(OPERATION.name, "y", y, "x", x);
    check_same_shape(OPERATION.name, "y", y, "x", x);
    return row_operation(OPERATION, {x, y}, {x.dtype()}, s, {.scale = scale})[0];
}

}  // namespace tiny_llm_ext
