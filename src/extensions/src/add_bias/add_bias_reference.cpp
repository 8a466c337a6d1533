// add_bias: scalar reference kernel.
#include "common/row_job.h"

namespace tiny_llm_ext {

void add_bias_reference(const RowJob& job, int64_t first, int64_t last) {
    const auto add = [](float x, float bias) { return x + bias; };
    if (job.inputs[2].data == nullptr) {
        return map_elements(job, first, last, add);
    }
    for (int64_t m = first; m < last; m++) {
        map_elements(with_selected_row(job, m), m, m + 1, add);
    }
}

}  // namespace tiny_llm_ext
