// The parameters of the kernels in paged_attention*.metal.
#pragma once

namespace tiny_llm_ext {

struct PagedAttentionParams {
    int H_q, H, D;
    int B, max_pages, P, page_size;
    int T;  // tokens with queries, of all sequences
    int L;  // of each sequence; 0 in the ragged form
    float scale;
    int causal;
    int splits;             // of the keys, for the decode kernel; 1 if nothing is merged
    int aligned;            // rows of the pages begin at, and have, multiples of four elements
    long query_strides[3];  // from one sequence, head and token to the next, in elements
};

}  // namespace tiny_llm_ext
