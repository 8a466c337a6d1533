// quantized_embedding: Lookup of dequantized rows in a quantized table.
//
//     out[n, e] = round(round(q[ids[n], e] · scale[ids[n], g]) + bias[ids[n], g]),
//     g = e / group_size
//
// The weight format is that of quantized_matmul. Products and sums are rounded to the dtype of the
// scales, as in mx.dequantize, so the values are equal bit for bit.
//
// Ids are known only at evaluation, too late for an exception: a negative id counts from the end,
// as everywhere in MLX, and an out-of-range id gives a row of NaN, which propagates through all
// later layers. Nothing outside the table is read.
#pragma once

#include <optional>
#include <vector>

#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Rows of a quantized table, V×E: value = q · scale + bias, bit for bit as in mx.dequantize.
///
/// ids: N.., int32 or uint32. A negative id counts from the end; an out-of-range id gives a row of
/// NaN.
/// scales, biases: V×(E/group_size), float32, float16 or bfloat16. On the CPU, biases may be None
/// with 4 bits: then value = number · scale, where the number is floating-point (e2m1), as in
/// quantized_matmul.
/// group_size: 32, 64 or 128. bits: 4 or 8.
/// weight: V×(E·bits/32), uint32, packed from the lowest bits up.
/// On the CPU, weight, scales and biases may be prepacked (common/prepacked.h), and prepacked
/// biases empty, as for quantized_matmul. Returns N..×E in the dtype of scales. Throws
/// std::invalid_argument for any other arguments.
mx::array quantized_embedding(const mx::array& ids, const mx::array& scales,
                              const std::optional<mx::array>& biases, int group_size, int bits,
                              const mx::array& weight, mx::StreamOrDevice s = {});

/// Graph node of quantized_embedding. Inputs: ids, scales, biases (scales again if None), weight.
class QuantizedEmbedding : public mx::UnaryPrimitive {
   public:
    QuantizedEmbedding(mx::Stream stream, int group_size, int bits, bool has_biases)
        : mx::UnaryPrimitive(stream),
          group_size_(group_size),
          bits_(bits),
          has_biases_(has_biases) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmQuantizedEmbedding"; }
    bool is_equivalent(const mx::Primitive& other) const override;
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    int group_size_;
    int bits_;
    bool has_biases_;
};

}  // namespace tiny_llm_ext
