// An operation that runs one kernel with a given launch configuration on the GPU, for tests.
#pragma once

#include <utility>
#include <vector>

#include "common/metal_launch.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Runs a kernel. outputs: initial contents of its output buffers; returns their final contents.
/// Inputs are bound without a copy, whatever their strides.
std::vector<mx::array> metal_run(const MetalLaunch& launch, std::vector<mx::array> inputs,
                                 const std::vector<mx::array>& outputs, mx::StreamOrDevice s = {});

/// Graph node of metal_run. Inputs: the kernel's inputs, then its outputs' initial contents.
class MetalRun : public mx::Primitive {
   public:
    MetalRun(mx::Stream stream, MetalLaunch launch)
        : mx::Primitive(stream), launch_(std::move(launch)) {}

    void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
    void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;

    const char* name() const override { return "TinyLlmMetalRun"; }

   private:
    MetalLaunch launch_;
};

}  // namespace tiny_llm_ext
