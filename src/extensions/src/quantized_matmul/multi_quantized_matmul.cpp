// multi_quantized_matmul: argument checks and construction of the graph node.
#include "src/quantized_matmul/multi_quantized_matmul.h"

#include <stdexcept>

#include "common/checks.h"
#include "common/gpu.h"
#include "common/prepacked.h"
#include "src/quantized_matmul/quantized_matmul.h"

namespace tiny_llm_ext {

std::vector<mx::array> multi_quantized_matmul(const std::vector<mx::array>& scales,
                                              const std::vector<std::optional<mx::array>>& biases,
                                              int group_size, int bits, const mx::array& a,
                                              const std::vector<mx::array>& b, int activation_bits,
                                              mx::StreamOrDevice s) {
    constexpr const char* NAME = "multi_quantized_matmul";
    check(!b.empty(), NAME, "expected at least one matrix, got none");
    check(scales.size() == b.size() && biases.size() == b.size(), NAME,
          "expected as many scales and biases as matrices, ", b.size(), ", got ", scales.size(),
          " and ", biases.size());
    const bool has_biases = biases[0].has_value();
    for (const auto& others : biases) {
        check(others.has_value() == has_biases, NAME,
              "expected biases for either all matrices or none");
    }
    const mx::Stream stream = mx::to_stream(s);
    if (is_gpu(stream) || b.size() == 1) {
        std::vector<mx::array> products;
        for (size_t n = 0; n < b.size(); n++) {
            products.push_back(quantized_matmul(scales[n], biases[n], group_size, bits, a, b[n],
                                                true, activation_bits, stream));
        }
        return products;
    }
    check_activation_bits(stream, NAME, activation_bits);
    std::vector<mx::array> inputs = {a};
    std::vector<mx::Shape> shapes;
    for (size_t n = 0; n < b.size(); n++) {
        inputs.insert(inputs.end(), {scales[n], biases[n].value_or(scales[n]), b[n]});
        shapes.push_back(
            quantized_matmul_shape(NAME, scales[n], biases[n], group_size, bits, a, b[n]));
    }
    return mx::array::make_arrays(std::move(shapes), std::vector<mx::Dtype>(b.size(), a.dtype()),
                                  std::make_shared<MultiQuantizedMatmul>(
                                      stream, group_size, bits, activation_bits, has_biases),
                                  inputs);
}

void MultiQuantizedMatmul::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
    throw std::logic_error("[multi_quantized_matmul] this node has no GPU kernel");
}

bool MultiQuantizedMatmul::is_equivalent(const mx::Primitive& other) const {
    const auto& matmul = static_cast<const MultiQuantizedMatmul&>(other);
    return group_size_ == matmul.group_size_ && bits_ == matmul.bits_ &&
           activation_bits_ == matmul.activation_bits_ && has_biases_ == matmul.has_biases_;
}

std::vector<mx::Shape> MultiQuantizedMatmul::output_shapes(const std::vector<mx::array>& inputs) {
    std::vector<mx::Shape> shapes;
    for (size_t b = 3; b < inputs.size(); b += 3) {
        shapes.push_back(inputs[0].shape());
        shapes.back().back() = matrix_rows(inputs[b]);
    }
    return shapes;
}

}  // namespace tiny_llm_ext
