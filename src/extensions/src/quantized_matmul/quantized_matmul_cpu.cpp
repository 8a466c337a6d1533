// quantized_matmul on the CPU: which kernel runs, and on which outputs.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/interleaved.h"
#include "common/rows.h"
#include "common/tasks.h"
#include "mlx/backend/cpu/encoder.h"
#include "src/quantized_matmul/quantized_matmul.h"
#include "src/quantized_matmul/quantized_matmul_each.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext {

namespace {

// Products of one input and one or more matrices.
using Jobs = std::vector<QuantizedMatmulJob>;

// Runs body(job, first, last) for ranges that make up all outputs of all jobs, each beginning at a
// multiple of `step`.
template <typename Body>
void for_outputs(const Jobs& jobs, int64_t step, const Body& body) {
    const auto chunks_of = [step](const QuantizedMatmulJob& job) {
        return (job.O + step - 1) / step;
    };
    int64_t chunks = 0;
    for (const auto& job : jobs) {
        chunks += chunks_of(job);
    }
    parallel_for(chunks, [&](int64_t chunk) {
        const QuantizedMatmulJob* job = jobs.data();
        for (; chunk >= chunks_of(*job); job++) {
            chunk -= chunks_of(*job);
        }
        body(*job, chunk * step, std::min(job->O, (chunk + 1) * step));
    });
}

// [solution only]
void run_kernel(const Jobs& jobs, const QuantizedMatmulKernel& kernel) {
    const QuantizedMatmulJob& input = jobs[0];  // preparing looks at no weights
    auto scratch = std::make_unique_for_overwrite<char[]>(kernel.scratch(input) + 64);
    void* aligned =
        reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.get()) + 63) & ~63);
    constexpr int64_t ROWS = 4;
    parallel_for((input.M + ROWS - 1) / ROWS, [&](int64_t chunk) {
        kernel.prepare(input, aligned, chunk * ROWS, std::min(input.M, (chunk + 1) * ROWS));
    });
    // Threads wait for each other's last chunk, so chunks are small: about 24 a thread, or a panel.
    constexpr int64_t CHUNKS = 24;
    int64_t outputs = 0;
    for (const auto& job : jobs) {
        outputs += job.O;
    }
    const int64_t panels = (outputs + QUANTIZED_MATMUL_PANEL - 1) / QUANTIZED_MATMUL_PANEL;
    const int64_t panels_per_chunk = std::max<int64_t>(1, panels / (CHUNKS * num_threads()));
    for_outputs(jobs, panels_per_chunk * QUANTIZED_MATMUL_PANEL,
                [&](const QuantizedMatmulJob& job, int64_t first, int64_t last) {
                    kernel.run(job, aligned, first, last);
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

void run(const Jobs& jobs, InstructionSet set) {
    // [solution only]
    if (const QuantizedMatmulKernel* kernel = kernel_of(set)) {
        run_kernel(jobs, *kernel);
        return;
    }
    // [/solution only]
    for_outputs(jobs, 1, quantized_matmul_reference);
}

// One of the products that a node computes, as its inputs and its output lie in memory.
QuantizedMatmulJob job_of(const mx::array& scales, const mx::array& biases, int group_size,
                          int bits, const mx::array& a, const mx::array& b, mx::array& out,
                          mx::Stream stream) {
    auto& encoder = mx::cpu::get_command_encoder(stream);
    const auto laid_out = [&](const mx::array& x) {
        const mx::array rows = row_contiguous(x, stream);
        encoder.set_input_array(rows);
        return rows;
    };
    encoder.set_output_array(out);
    const int64_t I = a.shape(-1);
    return {
        .M = static_cast<int64_t>(a.size()) / I,
        .O = matrix_rows(b),
        .I = I,
        .group_size = group_size,
        .bits = bits,
        .b = laid_out(b).data<uint32_t>(),
        .scales = laid_out(scales).data<uint16_t>(),
        .biases = laid_out(biases).data<uint16_t>(),
        .a = laid_out(a).data<uint16_t>(),
        .out = static_cast<uint16_t*>(allocate(out)),
        .scale_format = format_of(scales.dtype()),
        .format = format_of(a.dtype()),
        .interleaved = is_interleaved(b),
    };
}

void dispatch(Jobs jobs, mx::Stream stream) {
    // [task 2.2.2 dispatch]
    add_task(stream, [jobs = std::move(jobs), set = instruction_set()] { run(jobs, set); });
    // [/task 2.2.2 dispatch]
}

}  // namespace

int interleaved_rows() {
    int rows = 0;
    // [solution only]
    if (const QuantizedMatmulKernel* kernel = kernel_of(instruction_set())) {
        rows = kernel->interleaved_rows;
    }
    // [/solution only]
    return rows;
}

void QuantizedMatmul::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    const auto job =
        job_of(inputs[0], inputs[1], group_size_, bits_, inputs[2], inputs[3], out, stream());
    if (out.size() > 0) {
        dispatch({job}, stream());
    }
}

void QuantizedMatmulEach::eval_cpu(const std::vector<mx::array>& inputs,
                                   std::vector<mx::array>& outputs) {
    const mx::array a = row_contiguous(inputs[0], stream());
    Jobs jobs;
    for (size_t n = 0; n < outputs.size(); n++) {
        const mx::array* matrix = &inputs[1 + 3 * n];  // scales, biases, b
        jobs.push_back(
            job_of(matrix[0], matrix[1], group_size_, bits_, a, matrix[2], outputs[n], stream()));
    }
    if (a.size() > 0) {
        dispatch(std::move(jobs), stream());
    }
}

}  // namespace tiny_llm_ext
