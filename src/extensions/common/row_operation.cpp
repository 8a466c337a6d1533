#include "common/row_operation.h"

#include <memory>
#include <utility>

#include "common/checks.h"
#include "common/gpu.h"
#include "common/rows.h"
#include "common/tasks.h"

namespace tiny_llm_ext {

void run_rows(const RowJob& job, RowKernel kernel) {
    for_rows(job.M, job.cost, [&](int64_t first, int64_t last) { kernel(job, first, last); });
}

mx::Shape first_shape(const std::vector<mx::array>& inputs, const RowOptions&) {
    return inputs[0].shape();
}

std::vector<mx::array> row_operation(const RowOperation& operation, std::vector<mx::array> inputs,
                                     std::vector<mx::Dtype> dtypes, mx::StreamOrDevice s,
                                     RowOptions options) {
    const mx::Stream stream = operation.metal_kernel == nullptr
                                  ? mx::to_stream(s)
                                  : stream_for(operation.name, dtypes[0], s);
    const auto node = std::make_shared<RowNode>(stream, operation, options);
    mx::Shape shape = operation.shape(inputs, options);
    if (operation.outputs == 1) {  // cheaper than make_arrays
        return {mx::array(std::move(shape), dtypes[0], wrap_if_emulated(node), std::move(inputs))};
    }
    return mx::array::make_arrays(std::vector<mx::Shape>(operation.outputs, shape), dtypes,
                                  wrap_if_emulated(node), inputs);
}

bool RowNode::is_equivalent(const mx::Primitive& other) const {
    const auto& node = static_cast<const RowNode&>(other);
    return &operation_ == &node.operation_ && options_ == node.options_;
}

std::vector<mx::Shape> RowNode::output_shapes(const std::vector<mx::array>& inputs) {
    return std::vector<mx::Shape>(operation_.outputs, operation_.shape(inputs, options_));
}

void RowNode::allocate_outputs(const std::vector<mx::array>& inputs,
                               std::vector<mx::array>& outputs) const {
    for (int i = 0; i < operation_.outputs; i++) {
        if (operation_.first_donated < 0) {
            allocate(outputs[i]);
        } else {
            allocate_or_reuse(outputs[i], inputs[operation_.first_donated + i]);
        }
    }
}

void RowNode::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
    RowJob job = {};
    for (size_t i = 0; i < inputs.size(); i++) {
        const Rows rows = rows_of(inputs[i], stream());
        job.inputs[i] = {const_cast<void*>(rows.data), inputs[i].ndim() == 1 ? 0 : rows.stride,
                         inputs[i].shape(-1), format_of(inputs[i].dtype())};
    }
    allocate_outputs(inputs, outputs);
    if (outputs[0].size() == 0) {
        return;
    }
    const int64_t width = operation_.has_scalar_rows ? 1 : outputs[0].shape(-1);
    for (int i = 0; i < operation_.outputs; i++) {
        job.outputs[i] = {outputs[i].data<char>(), width, width, format_of(outputs[i].dtype())};
    }
    job.M = static_cast<int64_t>(outputs[0].size()) / width;
    job.D = inputs[0].shape(-1);
    job.cost = operation_.cost * static_cast<int64_t>(inputs[0].size()) / job.M;
    job.format = job.outputs[0].format;
    job.options = options_;
    add_task(stream(),
             [job, run = operation_.run, kernel = operation_.kernel()] { run(job, kernel); });
}

}  // namespace tiny_llm_ext
