// Operations on the emulated GPU. Without Metal, MLX evaluates graph nodes only with eval_cpu, so a
// wrapper node calls the wrapped node's eval_gpu.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext::emulated {

namespace mx = mlx::core;

/// Stream that represents the GPU: a CPU stream of MLX reserved for this purpose, created on first
/// use.
mx::Stream gpu_stream();

/// Graph node that evaluates the wrapped operation on the emulated GPU.
class EmulatedNode : public mx::Primitive {
   public:
    explicit EmulatedNode(std::shared_ptr<mx::Primitive> operation)
        : mx::Primitive(operation->stream()), operation_(std::move(operation)) {}

    void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
    void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;

    std::vector<mx::array> jvp(const std::vector<mx::array>& primals,
                               const std::vector<mx::array>& tangents,
                               const std::vector<int>& argnums) override;
    std::vector<mx::array> vjp(const std::vector<mx::array>& primals,
                               const std::vector<mx::array>& cotangents,
                               const std::vector<int>& argnums,
                               const std::vector<mx::array>& outputs) override;
    std::pair<std::vector<mx::array>, std::vector<int>> vmap(const std::vector<mx::array>& inputs,
                                                             const std::vector<int>& axes) override;

    const char* name() const override { return operation_->name(); }
    bool is_equivalent(const mx::Primitive& other) const override;
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    std::shared_ptr<mx::Primitive> operation_;
};

}  // namespace tiny_llm_ext::emulated
