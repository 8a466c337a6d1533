// topk_softmax: argument checks and construction of the graph node.
#include "src/topk_softmax/topk_softmax.h"

#include <stdexcept>

#include "common/checks.h"
#include "common/gpu.h"

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
    return {experts, weights};
}

}  // namespace

std::pair<mx::array, mx::array> topk_softmax(const mx::array& logits, int k, bool normalize,
                                             mx::StreamOrDevice s) {
    constexpr const char* NAME = "topk_softmax";
    check_float(NAME, "logits", logits);
    check(logits.ndim() >= 1, NAME, "expected logits N..×X, got a scalar");
    check(k >= 1 && k <= logits.shape(-1), NAME, "expected k from 1 to ", logits.shape(-1),
          ", the number of experts, got ", k);
    const mx::Stream stream = mx::to_stream(s);
    if (is_gpu(stream)) {
        return sorted(logits, k, normalize, stream);
    }
    const mx::Shape shape = chosen_shape(logits, k);
    const auto outputs =
        mx::array::make_arrays({shape, shape}, {mx::uint32, mx::float32},
                               std::make_shared<TopkSoftmax>(stream, k, normalize), {logits});
    return {outputs[0], outputs[1]};
}

void TopkSoftmax::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
    throw std::logic_error("[topk_softmax] this node has no GPU kernel");
}

bool TopkSoftmax::is_equivalent(const mx::Primitive& other) const {
    const auto& router = static_cast<const TopkSoftmax&>(other);
    return k_ == router.k_ && normalize_ == router.normalize_;
}

std::vector<mx::Shape> TopkSoftmax::output_shapes(const std::vector<mx::array>& inputs) {
    const mx::Shape shape = chosen_shape(inputs[0], k_);
    return {shape, shape};
}

}  // namespace tiny_llm_ext
