#include "emulated_metal/emulated_node.h"

#include <exception>
#include <mutex>

#include "common/capturable.h"
#include "common/gpu.h"
#include "mlx/backend/metal/device.h"

namespace tiny_llm_ext::emulated {

mx::Stream gpu_stream() {
    static const mx::Stream stream = mx::new_thread_unsafe_stream(mx::Device::cpu);
    return stream;
}

void EmulatedNode::eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>& outputs) {
    // MLX stores the inputs in each output; these references must not count as other readers.
    for (size_t i = 1; i < outputs.size(); i++) {
        outputs[i].inputs().clear();
    }
    const auto& inputs = outputs[0].inputs();
    static std::mutex mutex;  // the emulator runs one operation at a time
    std::lock_guard lock(mutex);
    mx::synchronize(stream());  // the inputs may still be pending
    mx::synchronize();
    auto& encoder = mx::metal::get_command_encoder(stream());
    try {
        const auto* capturable = dynamic_cast<const Capturable*>(operation_.get());
        encoder.begin(name(), inputs,
                      capturable != nullptr && capturable->overwrites_shared_memory());
        operation_->eval_gpu(inputs, outputs);
        encoder.end(inputs, outputs);
    } catch (const std::exception& error) {
        encoder.discard();
        mx::metal::device().emulator.failed(name(), error.what());
        throw;
    }
}

void EmulatedNode::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
    operation_->eval_gpu(inputs, outputs);
}

std::vector<mx::array> EmulatedNode::jvp(const std::vector<mx::array>& primals,
                                         const std::vector<mx::array>& tangents,
                                         const std::vector<int>& argnums) {
    return operation_->jvp(primals, tangents, argnums);
}

std::vector<mx::array> EmulatedNode::vjp(const std::vector<mx::array>& primals,
                                         const std::vector<mx::array>& cotangents,
                                         const std::vector<int>& argnums,
                                         const std::vector<mx::array>& outputs) {
    return operation_->vjp(primals, cotangents, argnums, outputs);
}

std::pair<std::vector<mx::array>, std::vector<int>> EmulatedNode::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
    return operation_->vmap(inputs, axes);
}

bool EmulatedNode::is_equivalent(const mx::Primitive& other) const {
    const auto* node = dynamic_cast<const EmulatedNode*>(&other);
    return node != nullptr && operation_->is_equivalent(*node->operation_);
}

std::vector<mx::Shape> EmulatedNode::output_shapes(const std::vector<mx::array>& inputs) {
    return operation_->output_shapes(inputs);
}

}  // namespace tiny_llm_ext::emulated

namespace tiny_llm_ext {

// MLX's GPUs without Metal (CUDA) count as GPUs, but all kernels fail to compile there, so
// operations run on the CPU.
bool is_gpu(mx::Stream stream) {
    const bool is_emulated = mx::metal::device().emulator.run != nullptr;
    return stream.device == mx::Device::gpu || (is_emulated && stream == emulated::gpu_stream());
}

std::shared_ptr<mx::Primitive> wrap_if_emulated(std::shared_ptr<mx::Primitive> operation) {
    const mx::Stream stream = operation->stream();
    if (stream.device == mx::Device::gpu || !is_gpu(stream)) {
        return operation;
    }
    return std::make_shared<emulated::EmulatedNode>(std::move(operation));
}

}  // namespace tiny_llm_ext
