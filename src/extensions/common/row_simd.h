// Helpers of vectorized row kernels.
#pragma once

#include "common/row_job.h"
#include "common/simd.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

/// Calls body, a lambda `[&]<Format F>() { … }`, with the format as a compile-time constant.
template <typename Body>
inline void with_format(Format format, const Body& body) {
    switch (format) {
        case Format::float32:
            return body.template operator()<Format::float32>();
        case Format::float16:
            return body.template operator()<Format::float16>();
        default:
            return body.template operator()<Format::bfloat16>();
    }
}

/// Vectorized `map_elements` (common/row_job.h).
template <typename Function>
inline void map_vectors(const RowJob& job, int64_t first, int64_t last, const Function& function) {
    with_format(job.format, [&]<Format F>() {
        const bool shares_b = job.inputs[1].width == 1;  // one element per row
        for (int64_t m = first; m < last; m++) {
            const void *a = input_row(job, 0, m), *b = input_row(job, 1, m);
            void* const out = output_row(job, 0, m);
            for_vectors(job.D, [&](int64_t i, int count) {
                const Floats y =
                    shares_b ? splat(load_element(b, 0, F)) : load_up_to(b, i, F, count);
                store(out, i, F, function(load_up_to(a, i, F, count), y), count);
            });
        }
    });
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
