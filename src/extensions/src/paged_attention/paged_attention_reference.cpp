// paged_attention: scalar reference kernel. As in flash_attention, but keys and values are located
// through the block table.
#include <vector>

#include "common/int8_rows.h"
#include "src/flash_attention/attention_reference.h"
#include "src/paged_attention/paged_attention_kernels.h"

namespace tiny_llm_ext {

namespace {

// Keys or values `from` … S − 1 of head h of a sequence, as float32: (S − from)×D. Rows before
// `begin` are zero; their pages are not read.
std::vector<float> gather_rows(const void* pages, const PagedAttentionJob& job,
                               const PagedSequence& sequence, int64_t h, int64_t from,
                               int64_t begin) {
    std::vector<float> rows((begin - from) * job.D);
    for (int64_t j = begin; j < sequence.S; j++) {
        const int64_t index = key_offset(job, sequence, h, j) / job.D;
        const char* row = static_cast<const char*>(pages) + index * job.row_bytes;
        const float scale = job.kv_format == Format::int8 ? int8_scale(row, job.D) : 1;
        for (int64_t d = 0; d < job.D; d++) {
            rows.push_back(load_element(row, d, job.kv_format) * scale);
        }
    }
    return rows;
}

const float* sink_of(const PagedAttentionJob& job, int64_t head) {
    return job.sinks == nullptr ? nullptr : job.sinks + head;
}

// Reference for int8 pages and for sliding windows: gathers keys and values as float32 first.
void attend_gathered(const PagedAttentionJob& job, const PagedSequence& sequence, int64_t h,
                     int64_t first_row, int rows) {
    const int64_t group = job.H_q / job.H;
    const int64_t begin = hidden_keys(job, sequence, first_row / group);
    const int64_t from = begin / ATTENTION_TILE * ATTENTION_TILE;
    const std::vector<float> keys = gather_rows(job.key_pages, job, sequence, h, from, begin);
    const std::vector<float> values = gather_rows(job.value_pages, job, sequence, h, from, begin);
    const auto offset = [&](int64_t j) { return j * job.D; };
    for (int64_t row = first_row; row < first_row + rows; row++) {
        const int64_t head = h * group + row % group, l = row / group;
        float query[MAX_HEAD_SIZE], out[MAX_HEAD_SIZE];
        for (int64_t d = 0; d < job.D; d++) {
            query[d] =
                load_element(job.query, query_offset(job, sequence, head, l) + d, job.format);
        }
        const int64_t hidden = hidden_keys(job, sequence, l) - from;
        const auto score = [&](int64_t j) {
            return j < hidden
                       ? -std::numeric_limits<float>::infinity()
                       : dot(query, 0, keys.data(), offset(j), job.D, Format::float32) * job.scale;
        };
        attend_row(visible_keys(job, sequence, l) - from, job.D, Format::float32, score,
                   values.data(), offset, sink_of(job, head), out, 0);
        for (int64_t d = 0; d < job.D; d++) {
            store_element(job.out, out_offset(job, sequence, head, l) + d, job.format, out[d]);
        }
    }
}

}  // namespace

void paged_attention_reference(const PagedAttentionJob& job, const PagedSequence& sequence,
                               int64_t h, int64_t first_row, int rows, const PagedSequence*,
                               float*) {
    if (job.kv_format == Format::int8 || job.window > 0) {
        return attend_gathered(job, sequence, h, first_row, rows);
    }
    // [task 3.2.2 rows]
    const int64_t group = job.H_q / job.H;
    for (int64_t row = first_row; row < first_row + rows; row++) {
        const int64_t head = h * group + row % group, l = row / group;
        const int64_t query = query_offset(job, sequence, head, l);
        const auto key_or_value = [&](int64_t j) { return key_offset(job, sequence, h, j); };
        const auto score = [&](int64_t j) {
            return dot(job.query, query, job.key_pages, key_or_value(j), job.D, job.format) *
                   job.scale;
        };
        attend_row(visible_keys(job, sequence, l), job.D, job.format, score, job.value_pages,
                   key_or_value, sink_of(job, head), job.out, out_offset(job, sequence, head, l));
    }
    // [/task 3.2.2 rows]
}

}  // namespace tiny_llm_ext
