// Parameters of the kernels in paged_attention*.metal.
#pragma once

namespace tiny_llm_ext {

struct PagedAttentionParams {
    int H_q, H, D;
    int B, max_pages, P, page_size;
    int row_width;  // elements per page row: D, or at least D + 4 for 8-bit rows
    int T;          // tokens with queries, over all sequences
    int L;          // queries per sequence; 0 in the varlen form
    float scale;
    int causal;
    int window;   // number of newest keys visible to a query; 0: all
    int splits;   // splits of the keys in the decode kernel; 1: no merge
    int aligned;  // whether offsets and sizes of page rows are multiples of 4 elements
    int int8;     // whether pages have 8-bit rows (common/int8_rows.h)
    int has_sinks;
    long query_strides[3];  // strides of sequence, head and token, in elements
};

}  // namespace tiny_llm_ext
