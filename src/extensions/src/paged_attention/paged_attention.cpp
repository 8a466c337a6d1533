// paged_attention and paged_attention_varlen: argument checks and construction of the graph node.
#include "src/paged_attention/paged_attention.h"

#include <cmath>
#include <utility>

#include "common/checks.h"
#include "common/gpu.h"
#include "common/int8_rows.h"
#include "src/flash_attention/flash_attention_kernels.h"

namespace tiny_llm_ext {

namespace {

constexpr const char* BATCH = "paged_attention";
constexpr const char* RAGGED = "paged_attention_varlen";

// Checks common to both operations; `query` is B×H_q×L×D or T×H_q×D.
void check_query_and_pages(const char* name, const mx::array& query, const mx::array& key_pages,
                           const mx::array& value_pages) {
    check_float(name, "query", query);
    const bool is_int8 = key_pages.dtype() == mx::int8;
    check(
        (is_int8 || key_pages.dtype() == query.dtype()) && value_pages.dtype() == key_pages.dtype(),
        name, "expected pages in the dtype of query, ", query.dtype(), ", or in int8, got ",
        key_pages.dtype(), " and ", value_pages.dtype());
    check(key_pages.ndim() == 4, name, "expected key_pages P×H×page_size×D, got shape ",
          key_pages.shape());
    check_same_shape(name, "value_pages", value_pages, "key_pages", key_pages);
    const int D = query.shape(-1), H_q = query.shape(1), H = key_pages.shape(1);
    check(D >= 1 && D <= MAX_HEAD_SIZE, name, "expected a head size from 1 to ", MAX_HEAD_SIZE,
          ", got ", D);
    check(is_int8 ? key_pages.shape(3) >= D + INT8_SCALE_BYTES : key_pages.shape(3) == D, name,
          "expected pages of head size ", D, is_int8 ? " and a scale of 4 bytes" : "",
          ", like query, got shape ", key_pages.shape());
    check(H > 0 && H_q % H == 0, name,
          "expected the key/value heads to divide the query heads, got ", H, " and ", H_q);
    check(key_pages.shape(2) > 0, name, "expected a page_size of at least 1, got shape ",
          key_pages.shape());
}

void check_lengths(const char* name, const char* argument, const mx::array& lengths, int count) {
    check(lengths.dtype() == mx::int32, name, "expected ", argument, " in int32, got ",
          lengths.dtype());
    const mx::Shape expected = {count};
    check(lengths.shape() == expected, name, "expected ", argument, " of shape ", expected,
          ", got ", lengths.shape());
}

void check_block_table(const char* name, const mx::array& block_table) {
    check(block_table.dtype() == mx::int32, name, "expected block_table in int32, got ",
          block_table.dtype());
    check(block_table.ndim() == 2, name, "expected block_table B×max_pages, got shape ",
          block_table.shape());
}

void check_window(const char* name, int window, bool causal) {
    check(window >= 0, name, "expected a window of at least 1, or 0 for none, got ", window);
    check(window == 0 || causal, name, "expected a causal mask with a window of ", window);
}

mx::array attention(const char* name, const mx::array& query, std::optional<float> scale,
                    bool causal, int window, bool ragged, const std::optional<mx::array>& sinks,
                    std::vector<mx::array> inputs, mx::StreamOrDevice s) {
    if (sinks) {
        check_sinks(name, *sinks, query.shape(1));
        inputs.push_back(*sinks);
    }
    const float factor = scale ? *scale : 1 / std::sqrt(static_cast<float>(query.shape(-1)));
    return mx::array(query.shape(), query.dtype(),
                     wrap_if_emulated(std::make_shared<PagedAttention>(
                         stream_for("paged_attention", query.dtype(), s), factor, causal, window,
                         ragged, sinks.has_value())),
                     std::move(inputs));
}

}  // namespace

mx::array paged_attention(const mx::array& query, const mx::array& key_pages,
                          const mx::array& value_pages, const mx::array& block_table,
                          const mx::array& context_lens, std::optional<float> scale, bool causal,
                          int window, const std::optional<mx::array>& sinks, mx::StreamOrDevice s) {
    check(query.ndim() == 4, BATCH, "expected query B×H_q×L×D, got shape ", query.shape());
    check_query_and_pages(BATCH, query, key_pages, value_pages);
    check_block_table(BATCH, block_table);
    check(block_table.shape(0) == query.shape(0), BATCH, "expected block_table of ", query.shape(0),
          " rows, one for each sequence of query, got shape ", block_table.shape());
    check_lengths(BATCH, "context_lens", context_lens, query.shape(0));
    check_window(BATCH, window, causal);
    return attention(BATCH, query, scale, causal, window, /*ragged=*/false, sinks,
                     {query, key_pages, value_pages, block_table, context_lens}, s);
}

mx::array paged_attention_varlen(const mx::array& query, const mx::array& key_pages,
                                 const mx::array& value_pages, const mx::array& cu_seqlens_q,
                                 const mx::array& context_lens, const mx::array& block_table,
                                 std::optional<float> scale, int window,
                                 const std::optional<mx::array>& sinks, mx::StreamOrDevice s) {
    check(query.ndim() == 3, RAGGED, "expected query T×H_q×D, got shape ", query.shape());
    check_query_and_pages(RAGGED, query, key_pages, value_pages);
    check_block_table(RAGGED, block_table);
    check_lengths(RAGGED, "context_lens", context_lens, block_table.shape(0));
    check_lengths(RAGGED, "cu_seqlens_q", cu_seqlens_q, block_table.shape(0) + 1);
    check_window(RAGGED, window, /*causal=*/true);
    return attention(RAGGED, query, scale, /*causal=*/true, window, /*ragged=*/true, sinks,
                     {query, key_pages, value_pages, block_table, context_lens, cu_seqlens_q}, s);
}

bool PagedAttention::is_equivalent(const mx::Primitive& other) const {
    const auto& attention = static_cast<const PagedAttention&>(other);
    return scale_ == attention.scale_ && causal_ == attention.causal_ &&
           window_ == attention.window_ && ragged_ == attention.ragged_ &&
           has_sinks_ == attention.has_sinks_;
}

std::vector<mx::Shape> PagedAttention::output_shapes(const std::vector<mx::array>& inputs) {
    return {inputs[0].shape()};
}

}  // namespace tiny_llm_ext
