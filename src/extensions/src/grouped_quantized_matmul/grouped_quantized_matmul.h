// grouped_quantized_matmul: Multiplies each row by its expert's quantized matrix.
//
//     out[n, k] = a[n] · w[experts[n, k]]ᵀ        or   a[n, k] · w[experts[n, k]]ᵀ
//
// A mixture-of-experts layer has X matrices, and its router selects K of them per token n. Only
// selected matrices are read, and rows with the same expert are multiplied together: decoding a
// token reads K matrices; a prompt reads each matrix at most once.
//
// On the CPU, the summation order is that of quantized_matmul. A row therefore has the bits of
// quantized_matmul with its expert's matrix, whichever experts the other rows use.
//
// Expert indices are known only at evaluation, too late for an exception: a negative index counts
// from the end, as everywhere in MLX, and the output row of an out-of-range index is NaN.
#pragma once

#include <optional>
#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// a · bᵀ with one of several quantized matrices b per row: value = q · scale + bias.
///
/// scales, biases: X×O×(I/group_size) for X experts, float16 or bfloat16. On the CPU, biases may be
/// None with 4 bits, as for quantized_matmul.
/// group_size: 32, 64 or 128. bits: 4 or 8.
/// a: N..×I, one row per token, or N..×K×I, one row per token and expert; float16 or bfloat16.
/// b: X×O×(I·bits/32), uint32, packed from the lowest bits up.
/// experts: N..×K, int32 or uint32. A negative index counts from the end; an out-of-range index
/// makes the output row NaN.
/// On the CPU, b, scales and biases may be prepacked (common/prepacked.h): X×(O/R)×W×R instead of
/// X×O×W, for W columns and R = prepack_rows(), unless that is 0.
/// activation_bits: 16, or on the CPU 8, as for quantized_matmul.
/// On a GPU, calls mx.gather_qmm.
/// Returns N..×K×O in the dtype of a. Throws std::invalid_argument for any other arguments.
mx::array grouped_quantized_matmul(const mx::array& scales, const std::optional<mx::array>& biases,
                                   int group_size, int bits, const mx::array& a, const mx::array& b,
                                   const mx::array& experts, int activation_bits = 16,
                                   mx::StreamOrDevice s = {});

/// Graph node of grouped_quantized_matmul. Validated inputs, any strides: scales, biases (scales
/// again if None), a, b, experts.
class GroupedQuantizedMatmul : public mx::UnaryPrimitive, public Capturable {
   public:
    GroupedQuantizedMatmul(mx::Stream stream, int group_size, int bits, int activation_bits,
                           bool has_biases)
        : mx::UnaryPrimitive(stream),
          group_size_(group_size),
          bits_(bits),
          activation_bits_(activation_bits),
          has_biases_(has_biases) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmGroupedQuantizedMatmul"; }
    bool is_equivalent(const mx::Primitive& other) const override;
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    int group_size_;
    int bits_;
    int activation_bits_;
    bool has_biases_;
};

}  // namespace tiny_llm_ext
