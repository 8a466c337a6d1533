// paged_cache_write on the CPU: copies rows, or quantizes them to int8.
#include <cstring>

#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/int8_rows.h"
#include "common/rows.h"
#include "common/tasks.h"
#include "common/threads.h"
#include "src/paged_cache_write/paged_cache_write.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(void quantize_row(const void* x, Format format, int64_t D, void* row);)

namespace {

// Arguments of a write; strides in bytes.
struct Write {
    const char* tokens;  // B×H×L×D
    int64_t B, H, L, D;
    int64_t strides[4];    // of tokens
    const int32_t* slots;  // B×L
    char* pages;           // P×H×page_size×D
    int64_t num_slots;     // P · page_size
    int64_t page_size;
    int64_t row_bytes;  // of a row of the pages, with padding
    int64_t item;       // bytes per element of tokens
    bool is_int8;       // whether the pages are int8
    Format format;      // format of tokens; used if the pages are int8
    decltype(&quantize_row_reference) quantize;
};

void write_token(const Write& write, int64_t b, int64_t l) {
    const int64_t slot = write.slots[b * write.L + l];
    if (slot < 0 || slot >= write.num_slots) {
        return;
    }
    const int64_t head_bytes = write.page_size * write.row_bytes;
    const char* from = write.tokens + b * write.strides[0] + l * write.strides[2];
    char* to = write.pages + slot / write.page_size * write.H * head_bytes +
               slot % write.page_size * write.row_bytes;
    for (int64_t h = 0; h < write.H; h++, from += write.strides[1], to += head_bytes) {
        if (write.is_int8) {
            write.quantize(from, write.format, write.D, to);
            continue;
        }
        if (write.strides[3] == write.item) {
            std::memcpy(to, from, write.row_bytes);
            continue;
        }
        for (int64_t d = 0; d < write.D; d++) {
            std::memcpy(to + d * write.item, from + d * write.strides[3], write.item);
        }
    }
}

void run(const Write& write) {
    for_rows(write.B * write.L, write.H * write.D, [&](int64_t first, int64_t last) {
        for (int64_t token = first; token < last; token++) {
            write_token(write, token / write.L, token % write.L);
        }
    });
}

}  // namespace

void PagedCacheWrite::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    const bool is_int8 = inputs[0].dtype() == mx::int8;
    const bool has_rows = inputs[1].strides(-1) == 1 || inputs[1].shape(-1) == 1;
    const mx::array tokens = is_int8 && !has_rows ? row_contiguous(inputs[1], stream()) : inputs[1];
    const mx::array slots = row_contiguous(inputs[2], stream());
    const auto& pages = inputs[0];
    out.copy_shared_buffer(can_overwrite(pages, overwrite_) ? pages : copy_of(pages, stream()));
    if (out.size() == 0) {
        return;
    }
    const int64_t item = tokens.itemsize();
    Write write = {
        .tokens = tokens.data<char>(),
        .B = tokens.shape(0),
        .H = tokens.shape(1),
        .L = tokens.shape(2),
        .D = tokens.shape(3),
        .strides = {},
        .slots = slots.data<int32_t>(),
        .pages = out.data<char>(),
        .num_slots = static_cast<int64_t>(out.shape(0)) * out.shape(2),
        .page_size = out.shape(2),
        .row_bytes = static_cast<int64_t>(out.shape(3) * out.itemsize()),
        .item = item,
        .is_int8 = is_int8,
        .format = is_int8 ? format_of(tokens.dtype()) : Format::float32,
        .quantize = TINY_LLM_CHOOSE_SIMD(instruction_set(), quantize_row, quantize_row_reference),
    };
    for (int i = 0; i < 4; i++) {
        write.strides[i] = tokens.strides(i) * item;
    }
    add_task(stream(), [write] { run(write); });
}

}  // namespace tiny_llm_ext
