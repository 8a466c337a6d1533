#include "mlx/backend/metal/device.h"

#include <stdexcept>

namespace mlx::core::metal {

MTL::Library* Device::get_library(const std::string& name,
                                  const std::function<std::string()>& builder) {
    auto found = libraries_.find(name);
    if (found == libraries_.end()) {
        if (emulator.compile == nullptr) {
            throw std::runtime_error("Metal is not available on this machine");
        }
        found = libraries_.emplace(name, emulator.compile(name, builder())).first;
    }
    return &found->second;
}

MTL::ComputePipelineState* Device::get_kernel(const std::string& name, MTL::Library* library) {
    const auto found = library->kernels.find(name);
    if (found == library->kernels.end()) {
        throw std::runtime_error("[metal::Device] Unable to load kernel " + name);
    }
    return &found->second;
}

Device& device(mlx::core::Device) {
    // Never destroyed: it holds Python functions, and the interpreter may exit first.
    static auto* instance = new Device();
    return *instance;
}

CommandEncoder& get_command_encoder(Stream) {
    static auto* instance = new CommandEncoder();
    return *instance;
}

}  // namespace mlx::core::metal
