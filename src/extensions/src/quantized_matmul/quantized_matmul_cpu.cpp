// quantized_matmul on the CPU: which kernel runs, and who does which part of it.
#include <algorithm>
#include <memory>

#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/rows.h"
#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "src/quantized_matmul/quantized_matmul.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext {

namespace {

// [solution only]
void run_kernel(const QuantizedMatmulJob& job, const QuantizedMatmulKernel& kernel) {
    auto scratch = std::make_unique_for_overwrite<char[]>(kernel.scratch(job) + 64);
    void* aligned =
        reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.get()) + 63) & ~63);
    constexpr int64_t ROWS = 16;
    parallel_for((job.M + ROWS - 1) / ROWS, [&](int64_t chunk) {
        kernel.prepare(job, aligned, chunk * ROWS, std::min(job.M, (chunk + 1) * ROWS));
    });
    // About 8 chunks a thread: few enough to cost nothing, enough to share out evenly.
    const int64_t panels = (job.O + QUANTIZED_MATMUL_PANEL - 1) / QUANTIZED_MATMUL_PANEL;
    const int64_t panels_per_chunk = std::max<int64_t>(1, panels / (8 * num_threads()));
    const int64_t outputs = panels_per_chunk * QUANTIZED_MATMUL_PANEL;
    parallel_for((job.O + outputs - 1) / outputs, [&](int64_t chunk) {
        kernel.run(job, aligned, chunk * outputs, std::min(job.O, (chunk + 1) * outputs));
    });
}

// The kernel of an instruction set, or nullptr: the reference.
const QuantizedMatmulKernel* kernel_of(InstructionSet set) {
#if defined(__x86_64__)
    if (set == InstructionSet::amx) {
        return &amx::quantized_matmul_tiles;
    }
    if (set == InstructionSet::avx512) {
        return &quantized_matmul_avx512;
    }
    if (set == InstructionSet::avx2) {
        return &avx2::quantized_matmul_fixed_point;
    }
#elif defined(__aarch64__)
    if (set == InstructionSet::neon) {
        return &neon::quantized_matmul_fixed_point;
    }
#endif
    return nullptr;
}
// [/solution only]

void run(const QuantizedMatmulJob& job, InstructionSet set) {
    // [solution only]
    if (const QuantizedMatmulKernel* kernel = kernel_of(set)) {
        run_kernel(job, *kernel);
        return;
    }
    // [/solution only]
    parallel_for(job.O, [&](int64_t o) { quantized_matmul_portable(job, o, o + 1); });
}

}  // namespace

void QuantizedMatmul::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    if (out.size() == 0) {
        return;
    }
    const mx::array scales = row_contiguous(inputs[0], stream());
    const mx::array biases = row_contiguous(inputs[1], stream());
    const mx::array a = row_contiguous(inputs[2], stream());
    const mx::array b = row_contiguous(inputs[3], stream());
    const int64_t I = a.shape(-1);
    const QuantizedMatmulJob job = {
        .M = static_cast<int64_t>(a.size()) / I,
        .O = b.shape(0),
        .I = I,
        .group_size = group_size_,
        .bits = bits_,
        .b = b.data<uint32_t>(),
        .scales = scales.data<uint16_t>(),
        .biases = biases.data<uint16_t>(),
        .a = a.data<uint16_t>(),
        .out = out.data<uint16_t>(),
        .scale_format = format_of(scales.dtype()),
        .format = format_of(a.dtype()),
    };
    auto& encoder = mx::cpu::get_command_encoder(stream());
    for (const auto& input : {scales, biases, a, b}) {
        encoder.set_input_array(input);
    }
    encoder.set_output_array(out);
    // [task 2.2.2 dispatch]
    encoder.dispatch([job, set = instruction_set()] { run(job, set); });
    // [/task 2.2.2 dispatch]
}

}  // namespace tiny_llm_ext
