// argmax: argument checks and construction of the graph node.
#include "src/argmax/argmax.h"

#include <stdexcept>

#include "common/checks.h"
#include "common/gpu.h"

namespace tiny_llm_ext {

mx::array argmax(const mx::array& x, mx::StreamOrDevice s) {
    constexpr const char* NAME = "argmax";
    check_float(NAME, "x", x);
    check(x.ndim() >= 1 && x.shape(-1) >= 1, NAME,
          "expected x with at least one element in its last dimension, got shape ", x.shape());
    const mx::Stream stream = mx::to_stream(s);
    if (is_gpu(stream)) {
        return mx::argmax(x, -1, false, stream);
    }
    const mx::Shape shape(x.shape().begin(), x.shape().end() - 1);
    return mx::array(shape, mx::uint32, std::make_shared<Argmax>(stream), {x});
}

void Argmax::eval_gpu(const std::vector<mx::array>&, mx::array&) {
    throw std::logic_error("[argmax] this node has no GPU kernel");
}

std::vector<mx::Shape> Argmax::output_shapes(const std::vector<mx::array>& inputs) {
    const auto& shape = inputs[0].shape();
    return {mx::Shape(shape.begin(), shape.end() - 1)};
}

}  // namespace tiny_llm_ext
