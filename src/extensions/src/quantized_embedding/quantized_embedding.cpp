// quantized_embedding: argument checks and construction of the graph node.
#include "src/quantized_embedding/quantized_embedding.h"

#include "common/checks.h"
#include "common/gpu.h"
#include "common/prepacked.h"
#include "src/quantized_matmul/quantized_matmul.h"

namespace tiny_llm_ext {

mx::array quantized_embedding(const mx::array& ids, const mx::array& scales,
                              const std::optional<mx::array>& biases, int group_size, int bits,
                              const mx::array& weight, mx::StreamOrDevice s) {
    constexpr const char* NAME = "quantized_embedding";
    check(ids.dtype() == mx::int32 || ids.dtype() == mx::uint32, NAME,
          "expected ids in int32 or uint32, got ", ids.dtype());
    check(bits == 4 || bits == 8, NAME, "expected bits 4 or 8, got ", bits);
    check(group_size == 32 || group_size == 64 || group_size == 128, NAME,
          "expected group_size 32, 64 or 128, got ", group_size);
    check(weight.dtype() == mx::uint32, NAME, "expected weight in uint32, got ", weight.dtype());
    check(weight.ndim() == 2 || is_prepacked(weight), NAME,
          "expected weight with 2 dimensions, or 3 if it is prepacked, got shape ", weight.shape());
    check(!is_prepacked(weight) || !is_gpu(mx::to_stream(s)), NAME,
          "expected weight with 2 dimensions, got shape ", weight.shape(),
          "; GPU kernels read row-major weights");
    const int E = weight.shape(1) * (32 / bits);
    check(E > 0 && E % group_size == 0, NAME, "expected rows of weight, of ", E,
          " elements, to be a positive multiple of group_size, ", group_size);
    check_float(NAME, "scales", scales);
    check(biases || bits == 4, NAME, "expected biases for ", bits,
          " bits, got None; weights without biases have 4 bits");
    check(!biases || biases->dtype() == scales.dtype(), NAME,
          "expected biases in the dtype of scales, ", scales.dtype(), ", got ",
          biases.value_or(scales).dtype());
    const mx::Shape groups = shape_like(weight, E / group_size);
    check(scales.shape() == groups, NAME, "expected scales of shape ", groups, ", got ",
          scales.shape());
    check(!biases || fits_scales(*biases, scales), NAME, "expected biases of shape ", groups,
          ", got ", biases.value_or(scales).shape());
    const mx::Stream stream = stream_for(NAME, scales.dtype(), s);
    check_biases_on(stream, NAME, biases.has_value());
    auto shape = ids.shape();
    shape.push_back(E);
    return mx::array(shape, scales.dtype(),
                     wrap_if_emulated(std::make_shared<QuantizedEmbedding>(stream, group_size, bits,
                                                                           biases.has_value())),
                     {ids, scales, biases.value_or(scales), weight});
}

bool QuantizedEmbedding::is_equivalent(const mx::Primitive& other) const {
    const auto& embedding = static_cast<const QuantizedEmbedding&>(other);
    return group_size_ == embedding.group_size_ && bits_ == embedding.bits_ &&
           has_biases_ == embedding.has_biases_;
}

std::vector<mx::Shape> QuantizedEmbedding::output_shapes(const std::vector<mx::array>& inputs) {
    auto shape = inputs[0].shape();
    shape.push_back(inputs[3].shape(1) * (32 / bits_));
    return {shape};
}

}  // namespace tiny_llm_ext
