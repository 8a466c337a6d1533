#include "common/metal_device.h"

#include <stdexcept>

#include "common/metal_copy_launch.h"
#include "common/metal_library.h"
#include "common/metal_run.h"
#include "common/rows.h"
#include "mlx/allocator.h"
#include "mlx/backend/metal/device.h"

namespace tiny_llm_ext::metal {

namespace {

MTL::Size size_of(const Extent& extent) { return MTL::Size(extent.x, extent.y, extent.z); }

void encode(const mx::Stream& stream, MTL::ComputePipelineState* pipeline,
            const MetalLaunch& launch, const std::vector<mx::array>& inputs,
            std::vector<mx::array>& outputs) {
    const auto allowed = static_cast<int64_t>(pipeline->maxTotalThreadsPerThreadgroup());
    if (launch.threads.count() > allowed) {
        throw std::runtime_error("[" + launch.kernel + "] expected at most " +
                                 std::to_string(allowed) + " threads per threadgroup, got " +
                                 std::to_string(launch.threads.count()) + ".");
    }
    auto& encoder = mx::metal::get_command_encoder(stream);
    encoder.set_compute_pipeline_state(pipeline);
    int index = 0;
    for (const auto& input : inputs) {
        encoder.set_input_array(input, index++);
    }
    for (auto& output : outputs) {
        encoder.set_output_array(output, index++);
    }
    encoder.set_bytes(launch.params.data(), static_cast<int>(launch.params.size()), index);
    if (launch.threadgroup_bytes > 0) {
        encoder.set_threadgroup_memory_length(launch.threadgroup_bytes, 0);
    }
    encoder.dispatch_threadgroups(size_of(launch.groups), size_of(launch.threads));
}

}  // namespace

void encode(const mx::Stream& stream, const MetalLaunch& launch,
            const std::vector<mx::array>& inputs, std::vector<mx::array> outputs) {
    encode(stream, pipeline_of(launch.kernel), launch, inputs, outputs);
}

void encode(const mx::Stream& stream, const std::function<MetalLaunch(int)>& launch,
            const std::vector<mx::array>& inputs, std::vector<mx::array> outputs) {
    MetalLaunch chosen = launch(MAX_THREADS);
    auto* pipeline = pipeline_of(chosen.kernel);
    const auto allowed = static_cast<int>(pipeline->maxTotalThreadsPerThreadgroup());
    if (chosen.threads.count() > allowed) {
        chosen = launch(allowed);
    }
    encode(stream, pipeline, chosen, inputs, outputs);
}

void copy(const mx::array& x, const mx::array& out, const mx::Stream& stream) {
    if (x.size() == 0) {
        return;
    }
    const std::vector<int> shape(x.shape().begin(), x.shape().end());
    const std::vector<int64_t> strides(x.strides().begin(), x.strides().end());
    const auto launch = [&](int max_threads) {
        return copy_launch(shape, strides, static_cast<int>(x.itemsize()), max_threads);
    };
    encode(stream, launch, {x}, {out});
}

void update(const mx::array& x, mx::array& out, bool overwrite, const mx::Stream& stream) {
    if ((overwrite || x.is_donatable()) && x.flags().row_contiguous) {
        out.copy_shared_buffer(x);
    } else {
        allocate(out);
        copy(x, out, stream);
    }
}

mx::array row_contiguous(const mx::array& x, const mx::Stream& stream) {
    if (x.flags().row_contiguous || x.size() == 0) {
        return x;
    }
    const mx::array packed = temporary(x.shape(), x.dtype(), stream);
    copy(x, packed, stream);
    return packed;
}

Rows rows_of(const mx::array& x, const mx::Stream& stream) {
    const int64_t stride = x.size() == 0 ? 0 : row_stride(x);
    return stride >= 0 ? Rows{x, stride} : Rows{row_contiguous(x, stream), x.shape(-1)};
}

mx::array temporary(mx::Shape shape, mx::Dtype dtype, const mx::Stream& stream) {
    mx::array x(std::move(shape), dtype, nullptr, {});
    x.set_data(mx::allocator::malloc(x.nbytes()));
    mx::metal::get_command_encoder(stream).add_temporary(x);
    return x;
}

}  // namespace tiny_llm_ext::metal

namespace tiny_llm_ext {

void MetalRun::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
    const auto first_output = inputs.end() - static_cast<int64_t>(outputs.size());
    for (size_t i = 0; i < outputs.size(); i++) {
        allocate(outputs[i]);
        metal::copy(first_output[static_cast<int64_t>(i)], outputs[i], stream());
    }
    metal::encode(stream(), launch_, {inputs.begin(), first_output}, outputs);
}

}  // namespace tiny_llm_ext
