// Row operations on the GPU: eval_gpu, which launches the Metal kernel.
#include <stdexcept>
#include <string>

#include "common/checks.h"
#include "common/metal_device.h"
#include "common/metal_row_params.h"
#include "common/row_operation.h"

namespace tiny_llm_ext {

namespace {

MetalLaunch launch_of(const std::string& kernel, RowGrid grid, const RowParams& params,
                      int max_threads) {
    if (grid == RowGrid::simdgroup_per_row) {
        return simdgroup_launch(kernel, params.M, max_threads, params);
    }
    const int64_t loads = ceil_div(params.D, ROW_READS);
    if (grid == RowGrid::elements) {
        return row_launch(kernel, params.M, loads, 256, max_threads, params);
    }
    return {.kernel = kernel,
            .groups = Extent{.x = params.M},
            .threads = {.x = threads_for(loads, MAX_THREADS, max_threads)},
            .params = bytes_of(params)};
}

}  // namespace

void RowNode::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
    if (operation_.metal_kernel == nullptr) {
        throw std::logic_error(std::string("[") + operation_.name +
                               "] this node has no GPU kernel");
    }
    allocate_outputs(inputs, outputs);
    if (outputs[0].size() == 0) {
        return;
    }
    RowParams params{};
    params.D = outputs[0].shape(-1);
    params.eps = options_.eps;
    params.scale = options_.scale;
    params.M = static_cast<long>(outputs[0].size()) / params.D;
    std::vector<mx::array> rows;
    for (size_t i = 0; i < inputs.size(); i++) {
        const auto [array, stride] = metal::rows_of(inputs[i], stream());
        params.strides[i] = inputs[i].ndim() == 1 ? 0 : static_cast<long>(stride);
        params.widths[i] = inputs[i].shape(-1);
        rows.push_back(array);
    }
    const std::string kernel = kernel_name(operation_.metal_kernel, format_of(outputs[0].dtype()),
                                           format_of(inputs.back().dtype()));
    const auto launch = [&](int max_threads) {
        return launch_of(kernel, operation_.grid, params, max_threads);
    };
    metal::encode(stream(), launch, rows, outputs);
}

}  // namespace tiny_llm_ext
