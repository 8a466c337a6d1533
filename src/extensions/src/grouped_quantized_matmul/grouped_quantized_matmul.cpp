// grouped_quantized_matmul: argument checks and construction of the graph node.
#include "src/grouped_quantized_matmul/grouped_quantized_matmul.h"

#include <cmath>
#include <stdexcept>

#include "common/checks.h"
#include "common/gpu.h"
#include "common/prepacked.h"
#include "src/quantized_matmul/quantized_matmul.h"

namespace tiny_llm_ext {

namespace {

constexpr const char* NAME = "grouped_quantized_matmul";

// Shape and dtype of one expert's matrix, as an array without data, for the checks.
mx::array first_of(const char* name, const mx::array& stack) {
    check(stack.ndim() == 3 || stack.ndim() == 4, NAME, "expected ", name,
          " with 3 dimensions, or 4 if it is prepacked, got shape ", stack.shape());
    const mx::Shape shape(stack.shape().begin() + 1, stack.shape().end());
    return mx::array(shape, stack.dtype(), nullptr, std::vector<mx::array>{});
}

// Whether each of a token's experts has a separate row of `a`.
bool has_row_per_expert(const mx::array& a, const mx::array& experts) {
    return a.ndim() == experts.ndim() + 1;
}

mx::Shape output_shape(const mx::array& experts, const mx::array& first_matrix) {
    auto shape = experts.shape();
    shape.push_back(matrix_rows(first_matrix));
    return shape;
}

// Multiplies with mx.gather_qmm, which takes rows as 1×I matrices and does not check indices.
// mx::remainder maps every index to an existing expert; rows with an invalid index are set to NaN
// afterwards.
mx::array multiply_with_gather_qmm(const mx::array& scales, const mx::array& biases, int group_size,
                                   int bits, const mx::array& a, const mx::array& b,
                                   const mx::array& experts, mx::Stream stream) {
    const mx::array num_experts(b.shape(0), experts.dtype());
    const mx::array existing = mx::remainder(experts, num_experts, stream);
    mx::array is_known = mx::less(experts, num_experts, stream);
    if (experts.dtype() == mx::int32) {
        const mx::array first = mx::negative(num_experts, stream);
        is_known = mx::logical_and(is_known, mx::greater_equal(experts, first, stream), stream);
    }
    const mx::array rows = has_row_per_expert(a, experts) ? mx::expand_dims(a, -2, stream)
                                                          : mx::expand_dims(a, {-2, -3}, stream);
    const mx::array products =
        mx::gather_qmm(rows, b, scales, biases, std::nullopt, existing, true, group_size, bits,
                       "affine", std::nullopt, false, stream);
    return mx::where(mx::expand_dims(is_known, -1, stream),
                     mx::astype(mx::squeeze(products, -2, stream), a.dtype(), stream),
                     mx::array(NAN, a.dtype()), stream);
}

}  // namespace

mx::array grouped_quantized_matmul(const mx::array& scales, const std::optional<mx::array>& biases,
                                   int group_size, int bits, const mx::array& a, const mx::array& b,
                                   const mx::array& experts, int activation_bits,
                                   mx::StreamOrDevice s) {
    const mx::array matrix = first_of("b", b);
    check(b.shape(0) > 0, NAME, "expected b for at least one expert, got shape ", b.shape());
    std::optional<mx::array> first_biases;
    if (biases) {
        first_biases = first_of("biases", *biases);
    }
    quantized_matmul_shape(NAME, first_of("scales", scales), first_biases, group_size, bits, a,
                           matrix);
    for (const auto& [name, stack] :
         {std::pair{"scales", scales}, std::pair{"biases", biases.value_or(scales)}}) {
        check(stack.shape(0) == b.shape(0), NAME, "expected ", name, " for ", b.shape(0),
              " experts, like b, got shape ", stack.shape());
    }
    check(experts.dtype() == mx::int32 || experts.dtype() == mx::uint32, NAME,
          "expected experts in int32 or uint32, got ", experts.dtype());
    check(experts.ndim() >= 1, NAME, "expected experts N..×K, got a scalar");
    const size_t leading = has_row_per_expert(a, experts) ? experts.ndim() : experts.ndim() - 1;
    check(a.ndim() == leading + 1 &&
              std::equal(a.shape().begin(), a.shape().end() - 1, experts.shape().begin()),
          NAME, "expected a N..×I or N..×K×I for experts N..×K of shape ", experts.shape(),
          ", got shape ", a.shape());
    const mx::Stream stream = mx::to_stream(s);
    check_activation_bits(stream, NAME, activation_bits);
    if (is_gpu(stream)) {
        check(!is_prepacked(matrix), NAME, "expected b with 3 dimensions, got shape ", b.shape(),
              "; GPU kernels read row-major weights");
        check_biases_on(stream, NAME, biases.has_value());
        const mx::Shape shape = output_shape(experts, matrix);
        const bool is_empty = a.size() == 0 || b.size() == 0 || experts.size() == 0;
        return is_empty ? mx::zeros(shape, a.dtype(), stream)  // gather_qmm would divide by zero
                        : multiply_with_gather_qmm(scales, *biases, group_size, bits, a, b, experts,
                                                   stream);
    }
    return mx::array(output_shape(experts, matrix), a.dtype(),
                     std::make_shared<GroupedQuantizedMatmul>(stream, group_size, bits,
                                                              activation_bits, biases.has_value()),
                     {scales, biases.value_or(scales), a, b, experts});
}

void GroupedQuantizedMatmul::eval_gpu(const std::vector<mx::array>&, mx::array&) {
    throw std::logic_error("[grouped_quantized_matmul] this node has no GPU kernel");
}

bool GroupedQuantizedMatmul::is_equivalent(const mx::Primitive& other) const {
    const auto& matmul = static_cast<const GroupedQuantizedMatmul&>(other);
    return group_size_ == matmul.group_size_ && bits_ == matmul.bits_ &&
           activation_bits_ == matmul.activation_bits_ && has_biases_ == matmul.has_biases_;
}

std::vector<mx::Shape> GroupedQuantizedMatmul::output_shapes(const std::vector<mx::array>& inputs) {
    return {output_shape(inputs[4], first_of("b", inputs[3]))};
}

}  // namespace tiny_llm_ext
