// rms_norm and add_rms_norm: scalar reference kernel.
#include <cmath>

#include "common/row_job.h"

namespace tiny_llm_ext {

void rms_norm_reference(const RowJob& job, int64_t first, int64_t last) {
    const Format format = job.format;
    const bool adds = job.outputs[1].data != nullptr;
    const RowArray& weight = job.inputs[adds ? 2 : 1];
    for (int64_t m = first; m < last; m++) {
        const void* row = input_row(job, 0, m);
        if (adds) {
            for (int64_t i = 0; i < job.D; i++) {
                const float y = load_element(input_row(job, 1, m), i, format);
                store_element(output_row(job, 0, m), i, format, load_element(row, i, format) + y);
            }
            row = output_row(job, 0, m);
        }
        float squares = 0;
        for (int64_t i = 0; i < job.D; i++) {
            const float x = load_element(row, i, format);
            squares += x * x;
        }
        const float factor = 1 / std::sqrt(squares / static_cast<float>(job.D) + job.options.eps);
        for (int64_t i = 0; i < job.D; i++) {
            const float x = round_to(load_element(row, i, format) * factor, weight.format);
            const float norm = x * load_element(weight.data, i, weight.format);
            store_element(output_row(job, adds, m), i, format, norm);
        }
    }
}

}  // namespace tiny_llm_ext
