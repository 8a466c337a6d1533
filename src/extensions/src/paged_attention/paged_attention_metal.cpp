// paged_attention on the GPU: the encoder.
#include "common/checks.h"
#include "common/metal_device.h"
#include "common/rows.h"
#include "src/paged_attention/paged_attention.h"
#include "src/paged_attention/paged_attention_launch.h"

namespace tiny_llm_ext {

void PagedAttention::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
    ragged_ ? allocate(out) : allocate_by_token(out);
    if (out.size() == 0) {
        return;
    }
    const bool has_rows = inputs[0].strides(-1) == 1 || inputs[0].shape(-1) == 1;
    std::vector<mx::array> in = {has_rows ? inputs[0] : metal::row_contiguous(inputs[0], stream())};
    for (size_t i = 1; i < inputs.size(); i++) {
        in.push_back(metal::row_contiguous(inputs[i], stream()));
    }
    if (!ragged_) {
        in.push_back(in[4]);  // for cu_seqlens_q, which is not read
    }
    const auto& query = in[0];
    const auto& key_pages = in[1];
    const int token_axis = ragged_ ? 0 : 2, H_q = query.shape(1), D = key_pages.shape(3);
    const PagedAttentionParams params = {
        .H_q = H_q,
        .H = key_pages.shape(1),
        .D = D,
        .B = in[3].shape(0),
        .max_pages = in[3].shape(1),
        .P = key_pages.shape(0),
        .page_size = key_pages.shape(2),
        .T = static_cast<int>(out.size() / (static_cast<size_t>(H_q) * D)),
        .L = ragged_ ? 0 : query.shape(2),
        .scale = scale_,
        .causal = causal_,
        .query_strides = {static_cast<long>(query.strides(0)), static_cast<long>(query.strides(1)),
                          static_cast<long>(query.strides(token_axis))},
    };
    metal::encode(stream(), paged_attention_simple_launch(params, format_of(query.dtype())), in,
                  {out});
}

}  // namespace tiny_llm_ext
