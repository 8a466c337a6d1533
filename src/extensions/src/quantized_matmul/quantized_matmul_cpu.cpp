// quantized_matmul on the CPU: conversion of arrays to jobs.
#include <utility>

#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/prepacked.h"
#include "common/rows.h"
#include "common/tasks.h"
#include "mlx/backend/cpu/encoder.h"
#include "src/quantized_matmul/multi_quantized_matmul.h"
#include "src/quantized_matmul/quantized_matmul.h"
#include "src/quantized_matmul/quantized_matmul_jobs.h"
#include "src/quantized_matmul/quantized_matmul_week4.h"

namespace tiny_llm_ext {

namespace {

// Job for one of a node's matrices, with contiguous inputs. Allocates `out`.
QuantizedMatmulJob job_of(const mx::array& scales, const mx::array& biases, bool has_biases,
                          int group_size, int bits, int activation_bits, const mx::array& a,
                          const mx::array& b, mx::array& out, mx::Stream stream) {
    auto& encoder = mx::cpu::get_command_encoder(stream);
    const auto contiguous = [&](const mx::array& x) {
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
        .b = contiguous(b).data<uint32_t>(),
        .scales = contiguous(scales).data<uint16_t>(),
        .biases = has_biases && biases.size() > 0 ? contiguous(biases).data<uint16_t>() : nullptr,
        .a = contiguous(a).data<uint16_t>(),
        .out = static_cast<uint16_t*>(allocate(out)),
        .scale_format = format_of(scales.dtype()),
        .format = format_of(a.dtype()),
        .is_e2m1 = !has_biases,
        .prepacked = is_prepacked(b),
        .activation_bits = activation_bits,
        .week4_kernel = week4_matmul(),
        .prefetch_distance = prefetch_distance(),
    };
}

void dispatch(QuantizedMatmulJobs jobs, mx::Stream stream) {
    // [task 2.2.2 dispatch]
    add_task(stream, [jobs = std::move(jobs), set = instruction_set()] { run(jobs, set); });
    // [/task 2.2.2 dispatch]
}

}  // namespace

void QuantizedMatmul::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    const auto job = job_of(inputs[0], inputs[1], has_biases_, group_size_, bits_, activation_bits_,
                            inputs[2], inputs[3], out, stream());
    if (out.size() > 0) {
        dispatch({job}, stream());
    }
}

void MultiQuantizedMatmul::eval_cpu(const std::vector<mx::array>& inputs,
                                    std::vector<mx::array>& outputs) {
    const mx::array a = row_contiguous(inputs[0], stream());
    QuantizedMatmulJobs jobs;
    for (size_t n = 0; n < outputs.size(); n++) {
        const mx::array* matrix = &inputs[1 + 3 * n];  // scales, biases, b
        jobs.push_back(job_of(matrix[0], matrix[1], has_biases_, group_size_, bits_,
                              activation_bits_, a, matrix[2], outputs[n], stream()));
    }
    if (a.size() > 0) {
        dispatch(std::move(jobs), stream());
    }
}

}  // namespace tiny_llm_ext
