// quantized_embedding: Lookup of dequantized rows in a quantized table.
//
//     out[n, e] = round(round(q[ids[n], e] · scale[ids[n], g]) + bias[ids[n], g]),
//     g = e / group_size
//
// The format is that of quantized_matmul. Rounded twice, to the dtype of the scales, as in
// mx.dequantize: the values are equal bit for bit.
//
// Ids are known only at evaluation, too late for an exception: a negative id counts from the end,
// as everywhere in MLX, and an id past the table gives a row of NaN, which propagates through all
// later layers. Nothing outside the table is read.
#pragma once

#include <optional>
#include <vector>

#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Rows of a quantized table: value = q · scale + bias, with the bits of mx.dequantize.
///
/// ids: N.., int32 or uint32. A negative id counts from the end; an id ≥ V gives NaN.
/// scales, biases: V×(E/group_size), float32, float16 or bfloat16. On the CPU biases may be None
/// for 4 bits: then weights are floating-point (e2m1) times scale, as in quantized_matmul.
/// group_size: 32, 64 or 128. bits: 4 or 8.
/// weight: V×(E·bits/32), uint32, the lowest bits of a word first.
/// On the CPU, weight, scales and biases may be prepacked (common/prepacked.h).
/// Returns N..×E in the dtype of scales. Throws std::invalid_argument for anything else.
mx::array quantized_embedding(const mx::array& ids, const mx::array& scales,
                              const std::optional<mx::array>& biases, int group_size, int bits,
                              const mx::array& weight, mx::StreamOrDevice s = {});

/// The graph node. Inputs: ids, scales, biases (scales again if None), weight.
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
