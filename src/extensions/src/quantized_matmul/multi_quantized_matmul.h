// multi_quantized_matmul: Multiplies one input by several quantized matrices.
//
//     out[n] = quantized_matmul(a, b[n])     for every n, bit for bit
//
// Used for a layer's query, key and value projections, and for its gate and up projections. On the
// CPU, all matrices are one graph node: the input is prepared once, and threads share the outputs
// of all matrices, with as many barriers as for one matrix. A GPU queues kernels without waiting,
// so there each matrix is a quantized_matmul node.
#pragma once

#include <optional>
#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// a · bᵀ for several quantized matrices b; each result has the bits of quantized_matmul.
///
/// scales, biases, b: one per matrix, at least one matrix; shapes, dtypes, group_size, bits, a and
/// activation_bits as for quantized_matmul. Matrices may differ in O. Either all have biases or
/// none. Returns one N..×O per matrix, in the dtype of a. Throws std::invalid_argument for any
/// other arguments.
std::vector<mx::array> multi_quantized_matmul(const std::vector<mx::array>& scales,
                                              const std::vector<std::optional<mx::array>>& biases,
                                              int group_size, int bits, const mx::array& a,
                                              const std::vector<mx::array>& b,
                                              int activation_bits = 16, mx::StreamOrDevice s = {});

/// Graph node of multi_quantized_matmul on the CPU. Inputs: a, then scales, biases (scales again if
/// None) and b of each matrix.
class MultiQuantizedMatmul : public mx::Primitive, public Capturable {
   public:
    MultiQuantizedMatmul(mx::Stream stream, int group_size, int bits, int activation_bits,
                         bool has_biases)
        : mx::Primitive(stream),
          group_size_(group_size),
          bits_(bits),
          activation_bits_(activation_bits),
          has_biases_(has_biases) {}

    void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
    void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;

    const char* name() const override { return "TinyLlmQuantizedMatmulEach"; }
    bool is_equivalent(const mx::Primitive& other) const override;
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    int group_size_;
    int bits_;
    int activation_bits_;
    bool has_biases_;
};

}  // namespace tiny_llm_ext
