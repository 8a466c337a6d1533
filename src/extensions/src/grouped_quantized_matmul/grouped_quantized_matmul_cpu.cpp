// grouped_quantized_matmul on the CPU: sorts rows by expert and runs one quantized_matmul job for
// each expert that has rows.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/prepacked.h"
#include "common/rows.h"
#include "common/tasks.h"
#include "src/grouped_quantized_matmul/grouped_quantized_matmul.h"
#include "src/quantized_matmul/quantized_matmul_jobs.h"
#include "src/quantized_matmul/quantized_matmul_week4.h"

namespace tiny_llm_ext {

namespace {

// Arguments of the operation: all rows, and the matrices of all experts.
struct GroupedJob {
    QuantizedMatmulJob all;  // M rows of out; b, scales and biases of the first expert
    int64_t num_experts;
    int64_t rows_per_input;  // consecutive rows of out that share a row of a
    const uint32_t* experts;
    bool is_signed;  // whether the indices are int32

    // Expert of a row of out, or −1 if its index is out of range.
    int64_t expert_of(int64_t row) const {
        int64_t expert = experts[row];
        if (is_signed) {
            expert = static_cast<int32_t>(experts[row]);
            expert = expert < 0 ? expert + num_experts : expert;
        }
        return expert >= 0 && expert < num_experts ? expert : -1;
    }

    const uint16_t* input_of(int64_t row) const { return all.a + row / rows_per_input * all.I; }
    uint16_t* output_of(int64_t row) const { return all.out + row * all.O; }

    // Job that multiplies `rows` rows of `a` by an expert's matrix.
    QuantizedMatmulJob job_of(int64_t expert, int64_t rows, const uint16_t* a,
                              uint16_t* out) const {
        QuantizedMatmulJob job = all;
        job.M = rows;
        job.a = a;
        job.out = out;
        job.b += expert * (all.O * all.I * all.bits / 32);
        job.scales += expert * (all.O * all.I / all.group_size);
        if (job.biases != nullptr) {
            job.biases += expert * (all.O * all.I / all.group_size);
        }
        return job;
    }
};

// Rows of out, sorted by expert in a stable order. Rows with an invalid index come first.
struct SortedRows {
    std::vector<int64_t> rows;
    std::vector<int64_t> begins;  // each expert's first index in `rows`; last: rows.size()

    explicit SortedRows(const GroupedJob& grouped)
        : rows(grouped.all.M), begins(grouped.num_experts + 1) {
        std::vector<int64_t> next(grouped.num_experts + 2);  // counting sort
        for (int64_t row = 0; row < grouped.all.M; row++) {
            next[grouped.expert_of(row) + 2]++;
        }
        std::partial_sum(next.begin(), next.end(), next.begin());
        std::copy(next.begin() + 1, next.end(), begins.begin());
        for (int64_t row = 0; row < grouped.all.M; row++) {
            rows[next[grouped.expert_of(row) + 1]++] = row;
        }
    }
};

void store_nan(const GroupedJob& grouped, int64_t row) {
    for (int64_t o = 0; o < grouped.all.O; o++) {
        store_element(grouped.output_of(row), o, grouped.all.format, NAN);
    }
}

void run(const GroupedJob& grouped, InstructionSet set) {
    const SortedRows sorted(grouped);
    const int64_t I = grouped.all.I, O = grouped.all.O;
    for (int64_t n = 0; n < sorted.begins[0]; n++) {
        store_nan(grouped, sorted.rows[n]);
    }

    // An expert with a single row reads and writes it in place, so decoding a single token copies
    // nothing. The rows of an expert with several rows are first copied next to each other.
    std::vector<int64_t> gathered_indices;  // into sorted.rows
    for (int64_t expert = 0; expert < grouped.num_experts; expert++) {
        if (sorted.begins[expert + 1] - sorted.begins[expert] > 1) {
            for (int64_t n = sorted.begins[expert]; n < sorted.begins[expert + 1]; n++) {
                gathered_indices.push_back(n);
            }
        }
    }
    const auto count = static_cast<int64_t>(gathered_indices.size());
    const auto a = std::make_unique_for_overwrite<uint16_t[]>(count * I);
    const auto out = std::make_unique_for_overwrite<uint16_t[]>(count * O);
    for_rows(count, I, [&](int64_t first, int64_t last) {
        for (int64_t n = first; n < last; n++) {
            std::copy_n(grouped.input_of(sorted.rows[gathered_indices[n]]), I, a.get() + n * I);
        }
    });

    QuantizedMatmulJobs jobs;
    int64_t num_gathered = 0;
    for (int64_t expert = 0; expert < grouped.num_experts; expert++) {
        const int64_t first = sorted.begins[expert], rows = sorted.begins[expert + 1] - first;
        if (rows == 1) {
            const int64_t row = sorted.rows[first];
            jobs.push_back(
                grouped.job_of(expert, 1, grouped.input_of(row), grouped.output_of(row)));
        } else if (rows > 1) {
            jobs.push_back(grouped.job_of(expert, rows, a.get() + num_gathered * I,
                                          out.get() + num_gathered * O));
            num_gathered += rows;
        }
    }
    run(jobs, set);

    for_rows(count, O, [&](int64_t first, int64_t last) {
        for (int64_t n = first; n < last; n++) {
            std::copy_n(out.get() + n * O, O, grouped.output_of(sorted.rows[gathered_indices[n]]));
        }
    });
}

}  // namespace

void GroupedQuantizedMatmul::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    const auto contiguous = [&](const mx::array& x) { return row_contiguous(x, stream()); };
    const auto &scales = inputs[0], &a = inputs[2], &b = inputs[3], &experts = inputs[4];
    const int64_t num_rows = experts.size(), I = a.shape(-1);
    const int64_t num_inputs = a.size() / I;
    GroupedJob grouped = {
        .all = {.M = num_rows,
                .O = out.shape(-1),
                .I = I,
                .group_size = group_size_,
                .bits = bits_,
                .b = contiguous(b).data<uint32_t>(),
                .scales = contiguous(scales).data<uint16_t>(),
                .biases = has_biases_ && inputs[1].size() > 0
                              ? contiguous(inputs[1]).data<uint16_t>()
                              : nullptr,
                .a = contiguous(a).data<uint16_t>(),
                .out = static_cast<uint16_t*>(allocate(out)),
                .scale_format = format_of(scales.dtype()),
                .format = format_of(a.dtype()),
                .is_e2m1 = !has_biases_,
                .prepacked = b.ndim() == 4,
                .activation_bits = activation_bits_,
                .week4_kernel = week4_matmul(),
                .prefetch_distance = prefetch_distance()},
        .num_experts = b.shape(0),
        .rows_per_input = num_inputs == 0 ? 1 : num_rows / num_inputs,
        .experts = contiguous(experts).data<uint32_t>(),
        .is_signed = experts.dtype() == mx::int32,
    };
    if (out.size() > 0) {
        add_task(stream(), [grouped, set = instruction_set()] { run(grouped, set); });
    }
}

}  // namespace tiny_llm_ext
