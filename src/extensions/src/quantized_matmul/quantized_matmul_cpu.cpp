// quantized_matmul on the CPU: the readable reference, and who runs which kernel.
#include <algorithm>
#include <memory>
#include <tuple>

#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/threads.h"
#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "src/quantized_matmul/quantized_matmul.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext {

namespace {

// Sums one output of one row, group by group, in the order of i.
float dot(const QuantizedMatmulJob& job, int64_t m, int64_t o) {
    const int64_t groups = job.I / job.group_size;
    const int per_word = 32 / job.bits;
    const uint32_t mask = (1u << job.bits) - 1;
    const uint32_t* words = job.b + o * (job.I / per_word);
    const uint16_t* a = job.a + m * job.I;
    float total = 0;
    for (int64_t g = 0; g < groups; g++) {
        float products = 0;  // Σ q·a
        float sum = 0;       // Σ a
        for (int64_t i = g * job.group_size; i < (g + 1) * job.group_size; i++) {
            const uint32_t q = words[i / per_word] >> (i % per_word * job.bits) & mask;
            const float x = load_element(a, i, job.format);
            products += static_cast<float>(q) * x;
            sum += x;
        }
        total += load_element(job.scales, o * groups + g, job.scale_format) * products;
        total += load_element(job.biases, o * groups + g, job.scale_format) * sum;
    }
    return total;
}

void run_portable(const QuantizedMatmulJob& job) {
    parallel_for(job.O, [&](int64_t o) { quantized_matmul_portable(job, o, o + 1); });
}

// A kernel that works on activations laid out anew, as its three steps.
struct PanelKernel {
    int64_t (*scratch)(const QuantizedMatmulJob& job);
    void (*prepare)(const QuantizedMatmulJob& job, void* scratch, int64_t first, int64_t last);
    void (*run)(const QuantizedMatmulJob& job, const void* scratch, int64_t first, int64_t last);
};

constexpr PanelKernel AVX512 = {quantized_matmul_avx512_scratch, quantized_matmul_avx512_prepare,
                                quantized_matmul_avx512_run};
constexpr PanelKernel AMX = {quantized_matmul_amx_scratch, quantized_matmul_amx_prepare,
                             quantized_matmul_amx_run};

template <const PanelKernel& KERNEL>
void run_panels(const QuantizedMatmulJob& job) {
    auto scratch = std::make_unique_for_overwrite<char[]>(KERNEL.scratch(job) + 64);
    void* aligned =
        reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.get()) + 63) & ~63);
    constexpr int64_t ROWS = 16;
    parallel_for((job.M + ROWS - 1) / ROWS, [&](int64_t chunk) {
        KERNEL.prepare(job, aligned, chunk * ROWS, std::min(job.M, (chunk + 1) * ROWS));
    });
    // About 8 chunks a thread: few enough to cost nothing, enough to share out evenly.
    const int64_t panels = (job.O + QUANTIZED_MATMUL_PANEL - 1) / QUANTIZED_MATMUL_PANEL;
    const int64_t panels_per_chunk = std::max<int64_t>(1, panels / (8 * num_threads()));
    const int64_t outputs = panels_per_chunk * QUANTIZED_MATMUL_PANEL;
    parallel_for((job.O + outputs - 1) / outputs, [&](int64_t chunk) {
        KERNEL.run(job, aligned, chunk * outputs, std::min(job.O, (chunk + 1) * outputs));
    });
}

auto kernel_for(InstructionSet set) {
    switch (set) {
        case InstructionSet::amx:
            return run_panels<AMX>;
        case InstructionSet::avx512:
            return run_panels<AVX512>;
        default:
            return run_portable;
    }
}

}  // namespace

void quantized_matmul_portable(const QuantizedMatmulJob& job, int64_t first_output,
                               int64_t last_output) {
    for (int64_t o = first_output; o < last_output; o++) {
        for (int64_t m = 0; m < job.M; m++) {
            store_element(job.out, m * job.O + o, job.format, dot(job, m, o));
        }
    }
}

void QuantizedMatmul::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    const auto& [scales, biases, a, b] = std::tie(inputs[0], inputs[1], inputs[2], inputs[3]);
    out.set_data(mx::allocator::malloc(out.nbytes()));
    if (out.size() == 0) {
        return;
    }
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
    const auto run = kernel_for(instruction_set());
    auto& encoder = mx::cpu::get_command_encoder(stream());
    for (const auto& input : inputs) {
        encoder.set_input_array(input);
    }
    encoder.set_output_array(out);
    encoder.dispatch([job, run] { run(job); });
}

}  // namespace tiny_llm_ext
