// topk_softmax: the kernel, argument checks and the operation's constants. A token has at most a
// few hundred router logits, too few to need a vector kernel.
#include "src/topk_softmax/topk_softmax.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "common/checks.h"
#include "common/gpu.h"
#include "common/row_operation.h"

namespace tiny_llm_ext {

namespace {

mx::Shape chosen_shape(const mx::array& logits, int k) {
    auto shape = logits.shape();
    shape.back() = k;
    return shape;
}

// Integer keys whose ascending order ranks the experts: NaN first, then descending logits; ties are
// ordered by index.
mx::array sort_keys(const mx::array& scores, mx::Stream stream) {
    // Interpreted as a sign and an integer magnitude, the bits of float32 values have the order of
    // the values.
    const mx::array bits = mx::view(scores, mx::int32, stream), most = mx::array(0x7fffffff);
    const mx::array magnitude = mx::bitwise_and(bits, most, stream);
    mx::array order = mx::where(mx::less(bits, mx::array(0), stream),
                                mx::negative(magnitude, stream), magnitude, stream);
    order = mx::where(mx::isnan(scores, stream), most, order, stream);
    const int X = scores.shape(-1);
    return mx::subtract(mx::arange(X, stream),
                        mx::multiply(mx::astype(order, mx::int64, stream), mx::array(X), stream),
                        stream);
}

// Fallback for a GPU, composed of MLX operations: sorts all experts.
std::pair<mx::array, mx::array> sorted(const mx::array& logits, int k, bool normalize,
                                       const std::optional<mx::array>& expert_scales,
                                       mx::Stream stream) {
    const mx::array scores = mx::astype(logits, mx::float32, stream);
    mx::array experts = mx::argsort(sort_keys(scores, stream), -1, stream);
    mx::Shape begin(experts.ndim(), 0);
    experts = mx::slice(experts, begin, chosen_shape(logits, k), stream);
    const mx::array all = mx::softmax(scores, -1, true, stream);
    mx::array weights = mx::take_along_axis(all, experts, -1, stream);
    if (normalize) {
        weights = mx::divide(weights, mx::sum(weights, -1, true, stream), stream);
    }
    if (expert_scales) {
        weights = mx::multiply(weights, mx::take(*expert_scales, experts, stream), stream);
    }
    return {experts, weights};
}

// Ranks the experts of rows first … last − 1.
void route(const RowJob& job, int64_t first, int64_t last) {
    const int64_t X = job.D, K = job.options.k;
    std::vector<float> logits(X);
    std::vector<uint32_t> order(X);
    for (int64_t n = first; n < last; n++) {
        for (int64_t x = 0; x < X; x++) {
            logits[x] = load_element(input_row(job, 0, n), x, job.inputs[0].format);
        }
        std::iota(order.begin(), order.end(), 0);
        std::partial_sort(
            order.begin(), order.begin() + K, order.end(), [&](uint32_t a, uint32_t b) {
                if (std::isnan(logits[a]) != std::isnan(logits[b])) {
                    return std::isnan(logits[a]);
                }
                return logits[a] != logits[b] && !std::isnan(logits[a]) ? logits[a] > logits[b]
                                                                        : a < b;
            });
        std::copy_n(order.begin(), K, static_cast<uint32_t*>(job.outputs[0].data) + n * K);

        // If the selected weights are normalized, the sum over all experts cancels, so only the
        // selected ones are summed.
        const bool normalize = job.options.normalize;
        const float largest = logits[order[0]];
        float sum = 0;
        for (int64_t x = 0; x < (normalize ? K : X); x++) {
            sum += std::exp(logits[normalize ? order[x] : x] - largest);
        }
        const auto* scales = static_cast<const float*>(job.inputs[1].data);  // or null
        for (int64_t k = 0; k < K; k++) {
            const float weight = std::exp(logits[order[k]] - largest) / sum;
            static_cast<float*>(job.outputs[1].data)[n * K + k] =
                scales == nullptr ? weight : weight * scales[order[k]];
        }
    }
}

}  // namespace

std::pair<mx::array, mx::array> topk_softmax(const mx::array& logits, int k, bool normalize,
                                             const std::optional<mx::array>& expert_scales,
                                             mx::StreamOrDevice s) {
    static constexpr RowOperation OPERATION = {
        .name = "topk_softmax",
        .node = "TinyLlmTopkSoftmax",
        .kernel = []() -> RowKernel { return route; },
        .outputs = 2,
        .first_donated = -1,
        .cost = 4,  // sorting a logit costs more than reading it
        .shape = [](const auto& inputs,
                    const RowOptions& options) { return chosen_shape(inputs[0], options.k); },
    };
    constexpr const char* NAME = OPERATION.name;
    check_float(NAME, "logits", logits);
    check(logits.ndim() >= 1, NAME, "expected logits N..×X, got a scalar");
    check(k >= 1 && k <= logits.shape(-1), NAME, "expected k from 1 to ", logits.shape(-1),
          ", the number of experts, got ", k);
    std::vector<mx::array> inputs = {logits};
    if (expert_scales) {
        const mx::Shape expected = {logits.shape(-1)};
        check(expert_scales->dtype() == mx::float32 && expert_scales->shape() == expected, NAME,
              "expected expert_scales in float32, of shape ", expected, ", got ",
              expert_scales->dtype(), " and ", expert_scales->shape());
        inputs.push_back(*expert_scales);
    }
    const mx::Stream stream = mx::to_stream(s);
    if (is_gpu(stream)) {
        return sorted(logits, k, normalize, expert_scales, stream);
    }
    const auto outputs = row_operation(OPERATION, inputs, {mx::uint32, mx::float32}, stream,
                                       {.k = k, .normalize = normalize});
    return {outputs[0], outputs[1]};
}

}  // namespace tiny_llm_ext
