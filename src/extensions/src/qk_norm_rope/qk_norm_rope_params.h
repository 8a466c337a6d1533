// Parameters of the kernels in qk_norm_rope.metal, also part of the CPU kernels' job.
#pragma once

namespace tiny_llm_ext {

struct QkNormRopeParams {
    int B, L, H, D;
    int W;  // rotated pairs, up to D/2
    float eps;
    long x_strides[3];  // of B, L and H, in elements
    long angle_stride;  // stride of B in cos and sin; 0 if shared by all sequences
    int normalizes;     // 0: no norm, and weight is not read
};

}  // namespace tiny_llm_ext
