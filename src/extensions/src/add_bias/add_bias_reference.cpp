// add_bias: scalar reference kernel.
#include "common/row_job.h"

namespace tiny_llm_ext {

void add_bias_reference(const RowJob& job, int64_t first, int64_t last) {
    map_elements(job, first, last, [](float x, float bias) { return x + bias; });
}

}  // namespace tiny_llm_ext
