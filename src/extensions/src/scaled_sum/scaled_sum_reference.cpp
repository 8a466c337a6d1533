// scaled_sum: scalar reference kernel.
#include "common/row_job.h"

namespace tiny_llm_ext {

void scaled_sum_reference(const RowJob& job, int64_t first, int64_t last) {
    map_elements(job, first, last,
                 [&](float x, float y) { return round_to(x + y, job.format) * job.options.scale; });
}

}  // namespace tiny_llm_ext
