// quantized_matmul: out = a · wᵀ, where the rows of w are stored as small integers.
//
//     w[o, i] = q[o, i] · scale[o, g] + bias[o, g],   g = i / group_size
//
// q has 4 or 8 bits and is packed into 32-bit words, lowest bits first: MLX's affine format.
// Because a group shares its scale and bias, they leave the sum:
//
//     out[m, o] = Σ_g ( scale[o, g] · Σ_i q[o, i] · a[m, i]  +  bias[o, g] · Σ_i a[m, i] )
//
// The integers are multiplied as they are, exactly, and no weight is rounded: the result is more
// precise than that of a matrix multiplication with weights dequantized to bfloat16.
//
// Weights of 4 bits without biases are floating-point numbers, as in MLX's mode mxfp4: q stands for
// one of ±{0, 0.5, 1, 1.5, 2, 3, 4, 6}, the highest bit being the sign, and w = number · scale.
//
// Every out[m, o] is summed in one order that depends on i alone: the result of a row is the same
// to the last bit however many rows are computed with it, and however many threads compute them.
#pragma once

#include <optional>
#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// a · bᵀ, where b is quantized: value = q · scale + bias.
///
/// scales, biases: O×(I/group_size), float16 or bfloat16. On the CPU biases may be None for 4 bits:
/// then b has floating-point numbers of 4 bits (e2m1), and value = number · scale.
/// group_size: 32, 64 or 128. bits: 4 or 8.
/// a: N..×I, float16 or bfloat16.
/// b: O×(I·bits/32), uint32, the lowest bits of a word first.
/// transpose_b: must be true; b is stored output-major.
/// b, scales and biases may be prepacked, (O/R)×W×R for O×W (common/prepacked.h), where
/// R = prepack_rows() is not 0.
/// Returns N..×O in the dtype of a. Throws std::invalid_argument for anything else.
mx::array quantized_matmul(const mx::array& scales, const std::optional<mx::array>& biases,
                           int group_size, int bits, const mx::array& a, const mx::array& b,
                           bool transpose_b, mx::StreamOrDevice s = {});

/// How many rows of weights the CPU's kernels, as chosen now, want prepacked
/// (common/prepacked.h); 0 if they only read weights by row.
int prepack_rows();

/// The shape of that, N..×O; throws in the name of `operation` for arguments that are not as above.
mx::Shape quantized_matmul_shape(const char* operation, const mx::array& scales,
                                 const std::optional<mx::array>& biases, int group_size, int bits,
                                 const mx::array& a, const mx::array& b);

/// Throws in the name of `operation` if biases are missing on a GPU, whose kernels want them.
void check_biases_on(mx::Stream stream, const char* operation, bool has_biases);

/// The graph node. Inputs: scales, biases (or scales again, if there are none), a, b, checked, of
/// any strides.
class QuantizedMatmul : public mx::UnaryPrimitive, public Capturable {
   public:
    QuantizedMatmul(mx::Stream stream, int group_size, int bits, bool has_biases)
        : mx::UnaryPrimitive(stream),
          group_size_(group_size),
          bits_(bits),
          has_biases_(has_biases) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmQuantizedMatmul"; }
    bool is_equivalent(const mx::Primitive& other) const override;
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    int group_size_;
    int bits_;
    bool has_biases_;
};

}  // namespace tiny_llm_ext
