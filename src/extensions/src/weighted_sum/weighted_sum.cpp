// weighted_sum: argument checks and the operation's constants.
#include "src/weighted_sum/weighted_sum.h"

#include "common/checks.h"
#include "common/gpu.h"
#include "common/row_operation.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_ROW_KERNELS(weighted_sum)

namespace {

// Output shape N..×E of x, N..×K×E.
mx::Shape sum_shape(const mx::array& x) {
    auto shape = x.shape();
    shape.erase(shape.end() - 2);
    return shape;
}

}  // namespace

mx::array weighted_sum(const mx::array& x, const mx::array& weights,
                       const std::optional<mx::array>& base, mx::StreamOrDevice s) {
    static constexpr RowOperation OPERATION = {
        .name = "weighted_sum",
        .node = "TinyLlmWeightedSum",
        .kernel = TINY_LLM_ROW_KERNEL(weighted_sum),
        .first_donated = -1,
        .shape = [](const auto& inputs, const RowOptions&) { return sum_shape(inputs[0]); },
    };
    constexpr const char* NAME = OPERATION.name;
    check_float(NAME, "x", x);
    check(x.ndim() >= 2, NAME, "expected x N..×K×E, got shape ", x.shape());
    check(weights.dtype() == mx::float32, NAME, "expected weights in float32, got ",
          weights.dtype());
    const mx::Shape expected(x.shape().begin(), x.shape().end() - 1);
    check(weights.shape() == expected, NAME, "expected weights of shape ", expected, ", got ",
          weights.shape());
    if (base) {
        check(base->dtype() == x.dtype(), NAME, "expected base in the dtype of x, ", x.dtype(),
              ", got ", base->dtype());
        check(base->shape() == sum_shape(x), NAME, "expected base of shape ", sum_shape(x),
              ", got ", base->shape());
    }
    const mx::Stream stream = mx::to_stream(s);
    if (is_gpu(stream)) {
        const mx::array products = mx::multiply(mx::astype(x, mx::float32, stream),
                                                mx::expand_dims(weights, -1, stream), stream);
        mx::array sum = mx::sum(products, -2, false, stream);
        if (base) {
            sum = mx::add(mx::astype(*base, mx::float32, stream), sum, stream);
        }
        return mx::astype(sum, x.dtype(), stream);
    }
    std::vector<mx::array> inputs = {x, weights};
    if (base) {
        inputs.push_back(*base);
    }
    return row_operation(OPERATION, std::move(inputs), {x.dtype()}, s)[0];
}

}  // namespace tiny_llm_ext
