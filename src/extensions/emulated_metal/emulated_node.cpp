#include "emulated_metal/emulated_node.h"

#include "common/gpu.h"
#include "mlx/backend/metal/device.h"

namespace tiny_llm_ext::emulated {

mx::Stream gpu_stream() {
    static const mx::Stream stream = mx::new_stream(mx::Device::cpu);
    return stream;
}

void EmulatedNode::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
    mx::synchronize(stream());  // what MLX computes for the inputs
    mx::synchronize();
    auto& encoder = mx::metal::get_command_encoder(stream());
    try {
        encoder.begin(name(), inputs);
        operation_->eval_gpu(inputs, outputs);
        encoder.end(inputs, outputs);
    } catch (...) {
        encoder.forget();
        throw;
    }
}

void EmulatedNode::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
    operation_->eval_gpu(inputs, outputs);
}

std::vector<mx::array> EmulatedNode::jvp(const std::vector<mx::array>& primals,
                                         const std::vector<mx::array>& tangents,
                                         const std::vector<int>& argnums) {
    return placed(operation_->jvp(primals, tangents, argnums));
}

std::vector<mx::array> EmulatedNode::vjp(const std::vector<mx::array>& primals,
                                         const std::vector<mx::array>& cotangents,
                                         const std::vector<int>& argnums,
                                         const std::vector<mx::array>& outputs) {
    return operation_->vjp(primals, cotangents, argnums, outputs);
}

std::pair<std::vector<mx::array>, std::vector<int>> EmulatedNode::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
    auto [outputs, output_axes] = operation_->vmap(inputs, axes);
    return {placed(outputs), output_axes};
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

namespace {

// The same arrays, of a node that stands for theirs.
std::vector<mx::array> replaced(const std::vector<mx::array>& outputs) {
    std::vector<mx::Shape> shapes;
    std::vector<mx::Dtype> dtypes;
    for (const auto& output : outputs) {
        shapes.push_back(output.shape());
        dtypes.push_back(output.dtype());
    }
    auto node = std::make_shared<emulated::EmulatedNode>(outputs[0].primitive_ptr());
    return mx::array::make_arrays(std::move(shapes), dtypes, node, outputs[0].inputs());
}

}  // namespace

// A GPU of MLX's that has no Metal counts as one: its compiler refuses everything, so operations
// run on the CPU.
bool is_gpu(mx::Stream stream) {
    const bool is_emulated = mx::metal::device().emulator.run != nullptr;
    return stream.device == mx::Device::gpu || (is_emulated && stream == emulated::gpu_stream());
}

std::vector<mx::array> placed(const std::vector<mx::array>& outputs) {
    const auto is_operation = [](const mx::array& output) {
        return output.has_primitive() && is_gpu(output.primitive().stream()) &&
               output.primitive().stream().device == mx::Device::cpu &&
               dynamic_cast<const emulated::EmulatedNode*>(&output.primitive()) == nullptr;
    };
    if (outputs.empty() || !is_operation(outputs[0])) {
        return outputs;
    }
    if (outputs.size() == outputs[0].siblings().size() + 1) {
        return replaced(outputs);
    }
    std::vector<mx::array> each;  // several nodes
    for (const auto& output : outputs) {
        each.push_back(replaced({output})[0]);
    }
    return each;
}

mx::array placed(mx::array x) { return placed(std::vector<mx::array>{std::move(x)})[0]; }

std::pair<mx::array, mx::array> placed(const std::pair<mx::array, mx::array>& outputs) {
    const auto both = placed(std::vector<mx::array>{outputs.first, outputs.second});
    return {both[0], both[1]};
}

}  // namespace tiny_llm_ext
