// argmax on the CPU: kernel selection, and division of each row into parts for several threads.
#include <algorithm>
#include <vector>

#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/rows.h"
#include "mlx/backend/cpu/encoder.h"
#include "src/argmax/argmax.h"
#include "src/argmax/argmax_kernels.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(ArgmaxResult argmax(const ArgmaxJob& job, int64_t row, int64_t first,
                                          int64_t last);)

namespace {

using Kernel = ArgmaxResult (*)(const ArgmaxJob&, int64_t, int64_t, int64_t);

// Splits every row into parts of 16,384 elements, so that even a single row uses several threads.
void run(const ArgmaxJob& job, Kernel kernel) {
    constexpr int64_t PART = 16384;
    const int64_t parts = (job.V + PART - 1) / PART;
    std::vector<ArgmaxResult> largest(job.M * parts);
    parallel_for(job.M * parts, [&](int64_t chunk) {
        const int64_t row = chunk / parts, first = chunk % parts * PART;
        largest[chunk] = kernel(job, row, first, std::min(job.V, first + PART));
    });
    for (int64_t row = 0; row < job.M; row++) {
        const auto part = largest.begin() + row * parts;
        const auto best = std::max_element(
            part, part + parts, [](ArgmaxResult a, ArgmaxResult b) { return b.beats(a); });
        job.out[row] = static_cast<uint32_t>(best->index);
    }
}

}  // namespace

void Argmax::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    const auto& x = inputs[0];
    void* const memory = allocate(out);
    if (out.size() == 0) {
        return;
    }
    const Rows rows = rows_of(x, stream());
    const ArgmaxJob job = {
        .M = static_cast<int64_t>(out.size()),
        .V = x.shape(-1),
        .format = format_of(x.dtype()),
        .x = rows.data,
        .stride = rows.stride,
        .out = static_cast<uint32_t*>(memory),
    };
    const auto kernel = TINY_LLM_CHOOSE_SIMD(instruction_set(), argmax, argmax_reference);
    mx::cpu::get_command_encoder(stream()).dispatch([job, kernel] { run(job, kernel); });
}

}  // namespace tiny_llm_ext
