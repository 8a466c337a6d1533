// Kernel selection for quantized_matmul jobs, and their distribution over threads.
#include "src/quantized_matmul/quantized_matmul_jobs.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "common/prepacked.h"
#include "common/threads.h"
#include "src/quantized_matmul/quantized_matmul.h"
#include "src/quantized_matmul/quantized_matmul_week4.h"

namespace tiny_llm_ext {

namespace {

using Jobs = QuantizedMatmulJobs;

// Runs body(job index, chunk) for every chunk of every job, on all threads. chunks_of(job): number
// of chunks. Uses a single parallel_for, because each call of it ends with a barrier.
template <typename Chunks, typename Body>
void for_chunks(const Jobs& jobs, const Chunks& chunks_of, const Body& body) {
    std::vector<int64_t> ends;  // cumulative number of chunks, per job
    int64_t total = 0;
    for (const auto& job : jobs) {
        ends.push_back(total += chunks_of(job));
    }
    parallel_for(total, [&](int64_t chunk) {
        const size_t job = std::upper_bound(ends.begin(), ends.end(), chunk) - ends.begin();
        body(job, job == 0 ? chunk : chunk - ends[job - 1]);
    });
}

// Runs body(job index, first, last) for ranges that partition the outputs of each job, and begin at
// multiples of `step`.
template <typename Body>
void for_outputs(const Jobs& jobs, int64_t step, const Body& body) {
    for_chunks(
        jobs, [step](const QuantizedMatmulJob& job) { return (job.O + step - 1) / step; },
        [&](size_t job, int64_t chunk) {
            body(job, chunk * step, std::min(jobs[job].O, (chunk + 1) * step));
        });
}

// [solution only]
// Activations of all jobs, prepared by the kernel. Consecutive jobs with the same activations share
// them.
class PreparedActivations {
   public:
    PreparedActivations(const Jobs& jobs, const QuantizedMatmulKernel& kernel) {
        // Preparation does not depend on the weights, so the first of the jobs that share
        // activations represents them all.
        Jobs inputs;
        std::vector<int64_t> offsets;
        int64_t bytes = 0;
        for (const auto& job : jobs) {
            if (inputs.empty() || job.a != inputs.back().a || job.M != inputs.back().M) {
                inputs.push_back(job);
                offsets.push_back(bytes);
                bytes += (kernel.scratch(job) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
            }
            offset_of_job_.push_back(offsets.back());
        }
        memory_ = std::make_unique_for_overwrite<char[]>(bytes + ALIGNMENT);
        const auto address = reinterpret_cast<uintptr_t>(memory_.get());
        aligned_ = memory_.get() + (ALIGNMENT - address % ALIGNMENT) % ALIGNMENT;
        constexpr int64_t ROWS = 4;  // rows of activations prepared per chunk
        for_chunks(
            inputs, [](const QuantizedMatmulJob& input) { return (input.M + ROWS - 1) / ROWS; },
            [&](size_t n, int64_t chunk) {
                kernel.prepare(inputs[n], aligned_ + offsets[n], chunk * ROWS,
                               std::min(inputs[n].M, (chunk + 1) * ROWS));
            });
    }

    const void* for_job(size_t job) const { return aligned_ + offset_of_job_[job]; }

   private:
    static constexpr int64_t ALIGNMENT = 64;

    std::vector<int64_t> offset_of_job_;
    std::unique_ptr<char[]> memory_;
    char* aligned_;
};

// The jobs, split into parts of at most kernel.max_rows rows, in the order of parts and then of
// jobs, so that jobs with the same activations stay adjacent.
Jobs split_by_rows(const Jobs& jobs, const QuantizedMatmulKernel& kernel) {
    Jobs parts;
    bool is_complete = false;
    for (int64_t part = 0; !is_complete; part++) {
        is_complete = true;
        for (QuantizedMatmulJob job : jobs) {
            const int64_t rows = kernel.max_rows(job), first = part * rows;
            if (first >= job.M) {
                continue;
            }
            is_complete = is_complete && first + rows >= job.M;
            job.M = std::min(rows, job.M - first);
            job.a += first * job.I;
            job.out += first * job.O;
            parts.push_back(job);
        }
    }
    return parts;
}

// Interleaves `rows` rows of a row-major matrix as packs, in `memory`.
template <typename T>
const T* prepack(const T* matrix, int64_t columns, int64_t rows, int64_t pack_rows,
                 std::vector<T>& memory) {
    memory.resize((rows + pack_rows - 1) / pack_rows * pack_rows * columns);
    for (int64_t row = 0; row < rows; row += pack_rows) {
        interleave(matrix + row * columns, columns, std::min(pack_rows, rows - row),
                   memory.data() + row * columns, pack_rows);
    }
    return memory.data();
}

// Runs the kernel on outputs first_output … last_output − 1. Row-major weights are prepacked on
// every call, one panel at a time.
void run_outputs(const QuantizedMatmulKernel& kernel, const QuantizedMatmulJob& job,
                 const void* activations, int64_t first_output, int64_t last_output) {
    if (job.prepacked) {
        kernel.run(job, activations, first_output, last_output);
        return;
    }
    const int64_t words = job.I * job.bits / 32, groups = job.I / job.group_size;
    std::vector<uint32_t> b;
    std::vector<uint16_t> scales, biases;
    for (int64_t o = first_output; o < last_output; o += QUANTIZED_MATMUL_PANEL) {
        const int64_t rows = std::min(QUANTIZED_MATMUL_PANEL, last_output - o);
        const auto prepack_factors = [&](const uint16_t* factors, std::vector<uint16_t>& memory) {
            return prepack(factors + o * groups, groups, rows, kernel.prepack_rows, memory);
        };
        QuantizedMatmulJob panel = job;
        panel.b = prepack(job.b + o * words, words, rows, kernel.prepack_rows, b);
        panel.scales = prepack_factors(job.scales, scales);
        if (job.biases != nullptr) {
            panel.biases = prepack_factors(job.biases, biases);
        }
        panel.out += o;
        kernel.run(panel, activations, 0, rows);
    }
}

void run_kernel(const Jobs& jobs, const QuantizedMatmulKernel& kernel) {
    const auto is_too_long = [&](const QuantizedMatmulJob& job) {
        return kernel.max_rows != nullptr && job.M > kernel.max_rows(job);
    };
    if (std::any_of(jobs.begin(), jobs.end(), is_too_long)) {
        run_kernel(split_by_rows(jobs, kernel), kernel);
        return;
    }
    const PreparedActivations prepared(jobs, kernel);
    // All threads wait for the last chunk, so chunks are small: about 24 per thread, but at least
    // one panel each.
    constexpr int64_t CHUNKS = 24;
    int64_t outputs = 0;
    for (const auto& job : jobs) {
        outputs += job.O;
    }
    const int64_t panels = (outputs + QUANTIZED_MATMUL_PANEL - 1) / QUANTIZED_MATMUL_PANEL;
    const int64_t panels_per_chunk = std::max<int64_t>(1, panels / (CHUNKS * num_threads()));
    for_outputs(jobs, panels_per_chunk * QUANTIZED_MATMUL_PANEL,
                [&](size_t job, int64_t first, int64_t last) {
                    run_outputs(kernel, jobs[job], prepared.for_job(job), first, last);
                });
}

// The kernel of an instruction set; nullptr for the reference. exact_bfloat16: for 4-bit weights
// and bfloat16 activations that are not rounded to 8 bits.
const QuantizedMatmulKernel* kernel_of(InstructionSet set, [[maybe_unused]] bool exact_bfloat16) {
#if defined(__x86_64__)
    if (set == InstructionSet::amx) {
        return &amx::quantized_matmul_tiles;
    }
    if (set == InstructionSet::avx512) {
        return exact_bfloat16 ? &quantized_matmul_avx512 : &avx512::quantized_matmul_fixed_point;
    }
    if (set == InstructionSet::avx512vnni) {
        return &avx512vnni::quantized_matmul_fixed_point;
    }
    if (set == InstructionSet::avx2) {
        static const bool vnni = has_dot_products();
        return vnni ? &avxvnni::quantized_matmul_fixed_point : &avx2::quantized_matmul_fixed_point;
    }
#elif defined(__aarch64__)
    if (set == InstructionSet::neon) {
        static const bool dot = has_dot_products();
        return dot ? &neondot::quantized_matmul_fixed_point : &neon::quantized_matmul_fixed_point;
    }
#endif
    return nullptr;
}
// [/solution only]

}  // namespace

void run(const QuantizedMatmulJobs& jobs, InstructionSet set) {
    if (jobs.empty()) {  // grouped_quantized_matmul: every expert index is invalid
        return;
    }
    if (jobs.front().week4_kernel != nullptr && !jobs.front().is_e2m1) {
        for_outputs(jobs, WEEK4_OUTPUTS, [&](size_t job, int64_t first, int64_t last) {
            jobs[job].week4_kernel(jobs[job], first, last);
        });
        return;
    }
    // [solution only]
    const QuantizedMatmulJob& first = jobs.front();
    const bool exact_bfloat16 =
        first.bits == 4 && first.activation_bits == 16 && first.format == Format::bfloat16;
    if (const QuantizedMatmulKernel* kernel = kernel_of(set, exact_bfloat16)) {
        run_kernel(jobs, *kernel);
        return;
    }
    // [/solution only]
    for_outputs(jobs, 1, [&](size_t job, int64_t first, int64_t last) {
        const auto multiply =
            jobs[job].is_e2m1 ? quantized_matmul_e2m1_reference : quantized_matmul_reference;
        multiply(jobs[job], first, last);
    });
}

int prepack_rows() {
    if (week4_matmul() != nullptr) {
        return week4_pack_rows();
    }
    int rows = 0;
    // [solution only]
    // An instruction set's kernels read the same layout.
    if (const QuantizedMatmulKernel* kernel = kernel_of(instruction_set(), true)) {
        rows = kernel->prepack_rows;
    }
    // [/solution only]
    return rows;
}

}  // namespace tiny_llm_ext
