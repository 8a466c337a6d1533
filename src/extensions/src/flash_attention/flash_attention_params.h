// Parameters of the kernels in flash_attention*.metal, and sizes shared by host and kernels.
#pragma once

namespace tiny_llm_ext {

// An enum, because Metal requires the constant address space for variables at namespace scope.
enum {
    // Readable kernel: keys per tile, and query rows per threadgroup.
    ATTENTION_READABLE_TILE = 32,
    // Tile kernel: query rows per simdgroup, and maximum simdgroups per threadgroup.
    ATTENTION_MATRIX_ROWS = 8,
    ATTENTION_MATRIX_SIMDGROUPS = 8,
    // Decode kernel: keys per split, simdgroups per split, and maximum queries per sequence.
    ATTENTION_SPLIT = 256,
    ATTENTION_SPLIT_SIMDGROUPS = 8,
    ATTENTION_SPLIT_RUN = 16,  // consecutive keys per simdgroup
    ATTENTION_FEW_QUERIES = 8,
};

/// Kind of the mask array: its dtype, or none.
enum {
    ATTENTION_MASK_NONE,
    ATTENTION_MASK_BOOL,
    ATTENTION_MASK_FLOAT32,
    ATTENTION_MASK_FLOAT16,
    ATTENTION_MASK_BFLOAT16,
};

struct FlashAttentionParams {
    int B, H_q, H, L, S, D;  // sizes: see flash_attention.h; B sequences
    float scale;
    int causal;
    int mask_kind;
    int has_context_lens;
    int has_sinks;
    int splits;   // number of splits of the keys; 1 if there is no merge
    int aligned;  // whether offsets and sizes of key and value rows are multiples of 4 elements
    // Strides of sequence, head and token, in elements; rows of D are contiguous.
    long query_strides[3], key_strides[3], value_strides[3];
    long mask_strides[4];  // of B, H_q, L and S; 0 for broadcast dimensions
};

}  // namespace tiny_llm_ext
