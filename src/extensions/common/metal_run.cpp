#include "common/metal_run.h"

#include <stdexcept>

#include "common/gpu.h"

namespace tiny_llm_ext {

std::vector<mx::array> metal_run(const MetalLaunch& launch, std::vector<mx::array> inputs,
                                 const std::vector<mx::array>& outputs, mx::StreamOrDevice s) {
    std::vector<mx::Shape> shapes;
    std::vector<mx::Dtype> dtypes;
    for (const auto& output : outputs) {
        shapes.push_back(output.shape());
        dtypes.push_back(output.dtype());
        inputs.push_back(output);
    }
    return mx::array::make_arrays(
        std::move(shapes), dtypes,
        wrap_if_emulated(std::make_shared<MetalRun>(mx::to_stream(s), launch)), inputs);
}

void MetalRun::eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
    throw std::runtime_error("[run] expected a GPU stream for the Metal kernel " + launch_.kernel +
                             ", got the CPU.");
}

}  // namespace tiny_llm_ext
