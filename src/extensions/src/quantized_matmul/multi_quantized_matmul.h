// multi_quantized_matmul: one input multiplied by several quantized matrices, as a layer's query,
// key and value projections are, or its gate and up projections.
//
//     out[n] = quantized_matmul(a, b[n])     for every n, to the last bit
//
// On the CPU it is one node of the graph: the input is prepared once, and the threads share the
// outputs of all matrices, so that they meet once at the end and not once a matrix. A GPU launches
// kernels one after another without waiting: there it is nothing but the single multiplications.
#pragma once

#include <optional>
#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// a · bᵀ for each of several quantized matrices b: the same bits as one quantized_matmul each.
///
/// scales, biases, b: as many of each as there are matrices, at least one; their shapes and dtypes,
/// group_size, bits and a: as for quantized_matmul. Matrices may differ in O. All of them have
/// biases, or none.
/// Returns N..×O in the dtype of a for each of them.
/// Throws std::invalid_argument for anything else.
std::vector<mx::array> multi_quantized_matmul(const std::vector<mx::array>& scales,
                                              const std::vector<std::optional<mx::array>>& biases,
                                              int group_size, int bits, const mx::array& a,
                                              const std::vector<mx::array>& b,
                                              mx::StreamOrDevice s = {});

/// The graph node on the CPU. Inputs: a, then scales, biases (or scales again) and b of each
/// matrix.
class MultiQuantizedMatmul : public mx::Primitive, public Capturable {
   public:
    MultiQuantizedMatmul(mx::Stream stream, int group_size, int bits, bool has_biases)
        : mx::Primitive(stream), group_size_(group_size), bits_(bits), has_biases_(has_biases) {}

    void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
    void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;

    const char* name() const override { return "TinyLlmQuantizedMatmulEach"; }
    bool is_equivalent(const mx::Primitive& other) const override;
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    int group_size_;
    int bits_;
    bool has_biases_;
};

}  // namespace tiny_llm_ext
