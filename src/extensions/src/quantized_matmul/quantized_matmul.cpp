// quantized_matmul: argument checks and construction of the graph node.
#include "src/quantized_matmul/quantized_matmul.h"

#include "common/checks.h"
#include "common/gpu.h"
#include "common/instruction_set.h"
#include "common/prepacked.h"
#include "src/quantized_matmul/quantized_matmul_week4.h"

namespace tiny_llm_ext {

mx::Shape quantized_matmul_shape(const char* operation, const mx::array& scales,
                                 const std::optional<mx::array>& biases, int group_size, int bits,
                                 const mx::array& a, const mx::array& b) {
    check(bits == 4 || bits == 8, operation, "expected bits 4 or 8, got ", bits);
    check(group_size == 32 || group_size == 64 || group_size == 128, operation,
          "expected group_size 32, 64 or 128, got ", group_size);
    check(is_half(a.dtype()), operation, "expected a in float16 or bfloat16, got ", a.dtype());
    check(b.dtype() == mx::uint32, operation, "expected b in uint32, got ", b.dtype());
    check(is_half(scales.dtype()), operation, "expected scales in float16 or bfloat16, got ",
          scales.dtype());
    check(biases || bits == 4, operation, "expected biases for ", bits,
          " bits, got None; weights without biases have 4 bits");
    check(!biases || biases->dtype() == scales.dtype(), operation,
          "expected biases in the dtype of scales, ", scales.dtype(), ", got ",
          biases.value_or(scales).dtype());
    check_not_scalar(operation, "a", a);
    check(b.ndim() == 2 || is_prepacked(b), operation,
          "expected b with 2 dimensions, or 3 if it is prepacked, got shape ", b.shape());
    if (is_prepacked(b)) {
        const int rows = prepack_rows();
        check(rows > 0 || week4_matmul() == nullptr, operation,
              "expected b with 2 dimensions, got shape ", b.shape(),
              "; the kernel selected by TINY_LLM_MATMUL reads row-major weights");
        check((biases && biases->size() > 0) || week4_matmul() == nullptr, operation,
              "expected biases, got none; with prepacked weights, the kernel selected by "
              "TINY_LLM_MATMUL requires them (use vectors)");
        check(rows > 0, operation, "expected b with 2 dimensions, got shape ", b.shape(), "; the ",
              name_of(instruction_set()), " kernels read row-major weights");
        check(pack_rows(b) == rows, operation, "expected packs of ", rows, " rows, got b of shape ",
              b.shape());
    }

    const int I = a.shape(-1);
    check(I > 0 && I % group_size == 0, operation, "expected the last dimension of a, ", I,
          ", to be a positive multiple of group_size, ", group_size);
    const mx::Shape packed = shape_like(b, I / 32 * bits);
    check(b.shape() == packed, operation, "expected b of shape ", packed, " for a of shape ",
          a.shape(), " and ", bits, " bits, got ", b.shape());
    const mx::Shape groups = shape_like(b, I / group_size);
    check(scales.shape() == groups, operation, "expected scales of shape ", groups, ", got ",
          scales.shape());
    check(!biases || fits_scales(*biases, scales), operation, "expected biases of shape ", groups,
          ", got ", biases.value_or(scales).shape());

    auto shape = a.shape();
    shape.back() = matrix_rows(b);
    return shape;
}

void check_biases_on(mx::Stream stream, const char* operation, bool has_biases) {
    check(has_biases || !is_gpu(stream), operation,
          "expected biases, got None; GPU kernels do not support floating-point weights");
}

void check_activation_bits(mx::Stream stream, const char* operation, int activation_bits) {
    check(activation_bits == 16 || activation_bits == 8, operation,
          "expected activation_bits 16 or 8, got ", activation_bits);
    check(activation_bits == 16 || !is_gpu(stream), operation,
          "expected activation_bits 16, got 8; GPU kernels do not round activations");
    check(activation_bits == 16 || (prepack_rows() > 0 && week4_matmul() == nullptr), operation,
          "expected activation_bits 16, got 8; the selected kernels do not round activations");
}

mx::array quantized_matmul(const mx::array& scales, const std::optional<mx::array>& biases,
                           int group_size, int bits, const mx::array& a, const mx::array& b,
                           bool transpose_b, int activation_bits, mx::StreamOrDevice s) {
    constexpr const char* NAME = "quantized_matmul";
    check(transpose_b, NAME, "expected transpose_b=True (b is stored O×I), got False");
    const mx::Shape shape = quantized_matmul_shape(NAME, scales, biases, group_size, bits, a, b);
    const mx::Stream stream = stream_for(NAME, a.dtype(), s);
    check_biases_on(stream, NAME, biases.has_value());
    check_activation_bits(stream, NAME, activation_bits);
    return mx::array(shape, a.dtype(),
                     wrap_if_emulated(std::make_shared<QuantizedMatmul>(
                         stream, group_size, bits, activation_bits, biases.has_value())),
                     {scales, biases.value_or(scales), a, b});
}

bool QuantizedMatmul::is_equivalent(const mx::Primitive& other) const {
    const auto& matmul = static_cast<const QuantizedMatmul&>(other);
    return group_size_ == matmul.group_size_ && bits_ == matmul.bits_ &&
           activation_bits_ == matmul.activation_bits_ && has_biases_ == matmul.has_biases_;
}

std::vector<mx::Shape> QuantizedMatmul::output_shapes(const std::vector<mx::array>& inputs) {
    auto shape = inputs[2].shape();
    shape.back() = matrix_rows(inputs[3]);
    return {shape};
}

}  // namespace tiny_llm_ext
