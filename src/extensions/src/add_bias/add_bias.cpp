// add_bias: argument checks and the operation's constants.
#include "src/add_bias/add_bias.h"

#include "common/checks.h"
#include "common/row_operation.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_ROW_KERNELS(add_bias)

mx::array add_bias(const mx::array& x, const mx::array& bias, mx::StreamOrDevice s) {
    static constexpr RowOperation OPERATION = {
        .name = "add_bias",
        .node = "TinyLlmAddBias",
        .kernel = TINY_LLM_ROW_KERNEL(add_bias),
        .metal_kernel = "add_bias_elements",
    };
    check_float(OPERATION.name, "x", x);
    check_not_scalar(OPERATION.name, "x", x);
    check_same_dtype(OPERATION.name, "bias", bias, "x", x);
    check(bias.shape() == mx::Shape{x.shape(-1)}, OPERATION.name, "expected bias of shape (",
          x.shape(-1), "), the last dimension of x, got ", bias.shape());
    return row_operation(OPERATION, {x, bias}, {x.dtype()}, s)[0];
}

}  // namespace tiny_llm_ext
