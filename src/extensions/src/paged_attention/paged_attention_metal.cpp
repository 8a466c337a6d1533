// paged_attention on the GPU: eval_gpu, which launches the Metal kernels.
#include <stdexcept>

#include "common/checks.h"
#include "common/metal_device.h"
#include "common/rows.h"
#include "src/paged_attention/paged_attention.h"
#include "src/paged_attention/paged_attention_launch.h"

namespace tiny_llm_ext {

namespace {

// Encodes the readable kernel. inputs: the buffers that precede `out` in paged_attention_launch.h.
void encode_paged_readable(const mx::Stream& stream, const PagedAttentionParams& params,
                           Format format, const std::vector<mx::array>& inputs,
                           const mx::array& out) {
    metal::encode(stream, paged_attention_readable_launch(params, format), inputs, {out});
}

// [solution only]
void encode_paged_decode(const mx::Stream& stream, const PagedAttentionParams& params,
                         Format format, const std::vector<mx::array>& inputs,
                         const mx::array& out) {
    const auto rows = static_cast<int>(paged_attention_partial_rows(params));
    const bool merges = params.splits > 1 && rows > 0;
    const auto partial =
        merges ? metal::temporary({rows, params.splits, params.D}, mx::float32, stream) : out;
    const auto statistics =
        merges ? metal::temporary({rows, params.splits, 2}, mx::float32, stream) : out;
    metal::encode(stream, paged_attention_decode_launch(params, format), inputs,
                  {out, partial, statistics});
    if (merges) {
        const auto& cu_seqlens_q = inputs[5];
        metal::encode(stream, paged_attention_merge_launch(params, format),
                      {partial, statistics, cu_seqlens_q}, {out});
    }
}

void encode_paged_fast(const mx::Stream& stream, const PagedAttentionParams& params, Format format,
                       const std::vector<mx::array>& inputs, const mx::array& out) {
    if (paged_attention_has_decode(params)) {
        encode_paged_decode(stream, params, format, inputs, out);
    }
    if (paged_attention_has_tile(params)) {
        metal::encode(stream, paged_attention_tile_launch(params, format), inputs, {out});
    }
}
// [/solution only]

// Whether the row size and all row offsets of x, a row-contiguous array, are multiples of four
// elements.
bool pages_are_aligned(const mx::array& x) {
    return (x.offset() / x.itemsize()) % 4 == 0 && x.shape(-1) % 4 == 0;
}

}  // namespace

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
    // The lengths stand in for cu_seqlens_q and sinks if absent: the kernels do not read them.
    if (!ragged_) {
        in.insert(in.begin() + 5, in[4]);
    }
    if (!has_sinks_) {
        in.push_back(in[4]);
    }
    const auto& query = in[0];
    const auto& key_pages = in[1];
    const int token_axis = ragged_ ? 0 : 2, H_q = query.shape(1), D = query.shape(-1);
    const PagedAttentionParams params = {
        .H_q = H_q,
        .H = key_pages.shape(1),
        .D = D,
        .B = in[3].shape(0),
        .max_pages = in[3].shape(1),
        .P = key_pages.shape(0),
        .page_size = key_pages.shape(2),
        .row_width = key_pages.shape(3),
        .T = static_cast<int>(out.size() / (static_cast<size_t>(H_q) * D)),
        .L = ragged_ ? 0 : query.shape(2),
        .scale = scale_,
        .causal = causal_,
        .window = window_,
        .splits = paged_attention_splits(in[3].shape(1), key_pages.shape(2)),
        .aligned = pages_are_aligned(key_pages) && pages_are_aligned(in[2]),
        .int8 = key_pages.dtype() == mx::int8,
        .has_sinks = has_sinks_,
        .query_strides = {static_cast<long>(query.strides(0)), static_cast<long>(query.strides(1)),
                          static_cast<long>(query.strides(token_axis))},
    };
    auto encode = params.int8 || window_ > 0 ? nullptr : encode_paged_readable;
    // [solution only]
    encode = encode_paged_fast;
    // [/solution only]
    if (encode == nullptr) {
        throw std::runtime_error(
            "[paged_attention] int8 pages and windows require the fast kernels on the GPU.");
    }
    encode(stream(), params, format_of(query.dtype()), in, out);
}

}  // namespace tiny_llm_ext
