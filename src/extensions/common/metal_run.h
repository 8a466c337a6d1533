// Any launch on the GPU, as an operation: what the tests of single kernels run where there is one.
#pragma once

#include <utility>
#include <vector>

#include "common/metal_launch.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Runs a kernel. `outputs` are what its output buffers hold before; returns what they hold after.
/// An input is bound as it lies in memory, whatever its strides.
std::vector<mx::array> metal_run(const MetalLaunch& launch, std::vector<mx::array> inputs,
                                 const std::vector<mx::array>& outputs, mx::StreamOrDevice s = {});

/// The graph node. Inputs: those of the kernel, then its outputs as they were.
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
