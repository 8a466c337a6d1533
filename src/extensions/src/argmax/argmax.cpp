// argmax: argument checks, the operation's constants, and the reduction of a row's parts.
#include "src/argmax/argmax.h"

#include <algorithm>
#include <vector>

#include "common/checks.h"
#include "common/gpu.h"
#include "common/row_operation.h"
#include "common/threads.h"
#include "src/argmax/argmax_kernels.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_ROW_KERNELS(argmax)

namespace {

// Splits every row into parts of 16,384 elements, so that even a single row uses several threads.
void run_parts(const RowJob& job, RowKernel kernel) {
    constexpr int64_t PART = 16384;
    const int64_t parts = (job.D + PART - 1) / PART;
    std::vector<ArgmaxResult> largest(job.M * parts);
    parallel_for(job.M * parts, [&](int64_t chunk) {
        RowJob part = job;
        part.outputs[0].data = &largest[chunk];
        const int64_t row = chunk / parts, first = chunk % parts * PART;
        kernel(part, row * job.D + first, row * job.D + std::min(job.D, first + PART));
    });
    for (int64_t row = 0; row < job.M; row++) {
        const auto part = largest.begin() + row * parts;
        const auto best = std::max_element(
            part, part + parts, [](ArgmaxResult a, ArgmaxResult b) { return beats(b, a); });
        static_cast<uint32_t*>(job.outputs[0].data)[row] = static_cast<uint32_t>(best->index);
    }
}

}  // namespace

mx::array argmax(const mx::array& x, mx::StreamOrDevice s) {
    static constexpr RowOperation OPERATION = {
        .name = "argmax",
        .node = "TinyLlmArgmax",
        .kernel = TINY_LLM_ROW_KERNEL(argmax),
        .first_donated = -1,
        .has_scalar_rows = true,
        .shape =
            [](const auto& inputs, const RowOptions&) {
                const auto& shape = inputs[0].shape();
                return mx::Shape(shape.begin(), shape.end() - 1);
            },
        .run = run_parts,
    };
    check_float(OPERATION.name, "x", x);
    check(x.ndim() >= 1 && x.shape(-1) >= 1, OPERATION.name,
          "expected x with at least one element in its last dimension, got shape ", x.shape());
    const mx::Stream stream = mx::to_stream(s);
    if (is_gpu(stream)) {
        return mx::argmax(x, -1, false, stream);
    }
    return row_operation(OPERATION, {x}, {mx::uint32}, stream)[0];
}

}  // namespace tiny_llm_ext
