// quantized_matmul: a · wᵀ with w of 4 or 8 bits, on AVX2, AVX-512, AMX, NEON
//
//     w[o, i] = q[o, i] · scale[o, g] + bias[o, g],   g = i / group_size
//
// q has 4 or 8 bits and is packed into 32-bit words, lowest bits first: MLX's affine format.
// The weights of a group share a scale and a bias, so both factor out of the sum:
//
//     out[m, o] = Σ_g ( scale[o, g] · Σ_i q[o, i] · a[m, i]  +  bias[o, g] · Σ_i a[m, i] )
//
// No weight is rounded: the result is more precise than a matrix multiplication with weights
// dequantized to bfloat16.
//
// 4-bit weights without biases are floating-point, as in MLX's mode mxfp4: q encodes one of
// ±{0, 0.5, 1, 1.5, 2, 3, 4, 6} with the sign in the highest bit, and w = value(q) · scale.
//
// Batch invariance: on the CPU, the summation order depends only on the length of a row, so a row
// has the same bits for any number of rows and threads. On a GPU, it changes above 8 rows
// (MATVEC_ROWS).
#pragma once

#include <optional>
#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// a · bᵀ with quantized b: value = q · scale + bias.
///
/// scales, biases: O×(I/group_size), float16 or bfloat16. On the CPU, biases may be None with 4
/// bits: then b holds 4-bit floating-point numbers (e2m1), and value = number · scale.
/// group_size: 32, 64 or 128. bits: 4 or 8.
/// a: N..×I, float16 or bfloat16.
/// b: O×(I·bits/32), uint32, packed from the lowest bits up.
/// transpose_b: must be true, because b has a row per output.
/// activation_bits: 16 is exact to 2⁻¹⁵ of the largest magnitude in a group of a row of a. 8 rounds
/// each group, on the CPU only, to integers from −127 to 127 with a common float32 step, which is
/// the largest magnitude / 127.
/// On the CPU, b, scales and biases may be prepacked (common/prepacked.h): (O/R)×W×R instead of
/// O×W, with R = prepack_rows(), unless that is 0. Prepacked biases may be empty, (O/R)×0×R: then
/// each is −2^(bits − 1) · scale.
/// Returns N..×O in the dtype of a. Throws std::invalid_argument for any other arguments.
mx::array quantized_matmul(const mx::array& scales, const std::optional<mx::array>& biases,
                           int group_size, int bits, const mx::array& a, const mx::array& b,
                           bool transpose_b, int activation_bits = 16, mx::StreamOrDevice s = {});

/// Rows per pack (common/prepacked.h) of the selected CPU kernels; 0 if they read row-major weights
/// only.
int prepack_rows();

/// Output shape, N..×O. Throws std::invalid_argument, with `operation` as the message's prefix, for
/// invalid arguments.
mx::Shape quantized_matmul_shape(const char* operation, const mx::array& scales,
                                 const std::optional<mx::array>& biases, int group_size, int bits,
                                 const mx::array& a, const mx::array& b);

/// Throws std::invalid_argument, with `operation` as the message's prefix, if biases are missing on
/// a GPU, whose kernels require them.
void check_biases_on(mx::Stream stream, const char* operation, bool has_biases);

/// Throws std::invalid_argument, with `operation` as the message's prefix, unless activation_bits
/// is 16, or is 8 and the stream's kernels support 8.
void check_activation_bits(mx::Stream stream, const char* operation, int activation_bits);

/// The graph node. Validated inputs, any strides: scales, biases (scales again if None), a, b.
class QuantizedMatmul : public mx::UnaryPrimitive, public Capturable {
   public:
    QuantizedMatmul(mx::Stream stream, int group_size, int bits, int activation_bits,
                    bool has_biases)
        : mx::UnaryPrimitive(stream),
          group_size_(group_size),
          bits_(bits),
          activation_bits_(activation_bits),
          has_biases_(has_biases) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmQuantizedMatmul"; }
    bool is_equivalent(const mx::Primitive& other) const override;
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    int group_size_;
    int bits_;
    int activation_bits_;
    bool has_biases_;
};

}  // namespace tiny_llm_ext
