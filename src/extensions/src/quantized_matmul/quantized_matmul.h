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
// Every out[m, o] is summed in one order that depends on i alone: the result of a row is the same
// to the last bit however many rows are computed with it, and however many threads compute them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// a · bᵀ with a quantized b.
///
/// scales, biases: O×(I/group_size), float16 or bfloat16.
/// group_size: 32, 64 or 128. bits: 4 or 8.
/// a: N..×I, float16 or bfloat16. b: O×(I·bits/32), uint32.
/// transpose_b: must be true; b is stored output-major.
/// Returns N..×O in the dtype of a. Throws std::invalid_argument for anything else.
mx::array quantized_matmul(const mx::array& scales, const mx::array& biases, int group_size,
                           int bits, const mx::array& a, const mx::array& b, bool transpose_b,
                           mx::StreamOrDevice s = {});

/// The graph node. Inputs: scales, biases, a, b, row-contiguous and checked.
class QuantizedMatmul : public mx::UnaryPrimitive {
   public:
    QuantizedMatmul(mx::Stream stream, int group_size, int bits)
        : mx::UnaryPrimitive(stream), group_size_(group_size), bits_(bits) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmQuantizedMatmul"; }
    bool is_equivalent(const mx::Primitive& other) const override;
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    int group_size_;
    int bits_;
};

/// 16-bit floating formats, as kernels compiled without MLX's headers see them.
enum class Half { float16, bfloat16 };

/// Everything a CPU kernel needs to know.
struct QuantizedMatmulJob {
    int64_t M, O, I;
    int group_size, bits;
    const uint32_t* b;       // O × (I·bits/32)
    const uint16_t* scales;  // O × (I/group_size)
    const uint16_t* biases;  // O × (I/group_size)
    const uint16_t* a;       // M × I
    uint16_t* out;           // M × O
    Half scale_format;       // of scales and biases
    Half format;             // of a and out
};

/// The reference: three loops. Computes outputs first_output … last_output − 1 of every row.
void quantized_matmul_portable(const QuantizedMatmulJob& job, int64_t first_output,
                               int64_t last_output);

/// The AVX-512 kernel works on activations that were laid out anew once, before the threads start.
/// quantized_matmul_avx512_scratch says how many bytes that takes, ..._prepare does rows
/// first_row … last_row − 1 of it, and ..._run computes outputs, given a first that is a multiple
/// of QUANTIZED_MATMUL_PANEL.
constexpr int64_t QUANTIZED_MATMUL_PANEL = 64;
int64_t quantized_matmul_avx512_scratch(const QuantizedMatmulJob& job);
void quantized_matmul_avx512_prepare(const QuantizedMatmulJob& job, void* scratch,
                                     int64_t first_row, int64_t last_row);
void quantized_matmul_avx512_run(const QuantizedMatmulJob& job, const void* scratch,
                                 int64_t first_output, int64_t last_output);

}  // namespace tiny_llm_ext
