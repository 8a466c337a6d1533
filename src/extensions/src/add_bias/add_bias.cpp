// add_bias: argument checks and the operation's constants.
#include "src/add_bias/add_bias.h"

#include <algorithm>

#include "common/checks.h"
#include "common/gpu.h"
#include "common/row_operation.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_ROW_KERNELS(add_bias)

namespace {

mx::array add_expert_bias(const mx::array& x, const mx::array& bias, const mx::array& experts,
                          mx::StreamOrDevice s) {
    static constexpr RowOperation OPERATION = {
        .name = "add_bias",
        .node = "TinyLlmAddExpertBias",
        .kernel = TINY_LLM_ROW_KERNEL(add_bias),
    };
    check(bias.ndim() == 2 && bias.shape(0) > 0 && bias.shape(1) == x.shape(-1), OPERATION.name,
          "expected bias of shape (X,", x.shape(-1), ") with experts, got ", bias.shape());
    check(experts.dtype() == mx::uint32 && experts.ndim() + 1 == x.ndim() && experts.ndim() > 0 &&
              std::equal(experts.shape().begin(), experts.shape().end(), x.shape().begin()),
          OPERATION.name, "expected experts in uint32, one for each row of x of shape ", x.shape(),
          ", got ", experts.dtype(), " of shape ", experts.shape());
    const mx::Stream stream = mx::to_stream(s);
    if (is_gpu(stream)) {
        return mx::add(x, mx::take(bias, experts, 0, stream), stream);
    }
    const RowOptions options = {.k = bias.shape(0)};
    return row_operation(OPERATION, {x, bias, experts}, {x.dtype()}, stream, options)[0];
}

}  // namespace

mx::array add_bias(const mx::array& x, const mx::array& bias,
                   const std::optional<mx::array>& experts, mx::StreamOrDevice s) {
    static constexpr RowOperation OPERATION = {
        .name = "add_bias",
        .node = "TinyLlmAddBias",
        .kernel = TINY_LLM_ROW_KERNEL(add_bias),
        .metal_kernel = "add_bias_elements",
    };
    check_float(OPERATION.name, "x", x);
    check_not_scalar(OPERATION.name, "x", x);
    check_same_dtype(OPERATION.name, "bias", bias, "x", x);
    if (experts) {
        return add_expert_bias(x, bias, *experts, s);
    }
    check(bias.shape() == mx::Shape{x.shape(-1)}, OPERATION.name, "expected bias of shape (",
          x.shape(-1), "), the last dimension of x, got ", bias.shape());
    return row_operation(OPERATION, {x, bias}, {x.dtype()}, s)[0];
}

}  // namespace tiny_llm_ext
