// cache_write on the CPU: memory copies without arithmetic.
#include <cstring>

#include "common/rows.h"
#include "common/tasks.h"
#include "src/cache_write/cache_write.h"

namespace tiny_llm_ext {

namespace {

// Strided array of B sequences × H heads × L positions × D elements.
struct Tokens {
    char* data;
    int64_t B, H, L, D;
    int64_t item;        // bytes per element
    int64_t strides[4];  // in bytes
};

Tokens tokens_of(const mx::array& x) {
    const int64_t item = x.itemsize();
    Tokens tokens = {const_cast<char*>(x.data<char>()),
                     x.shape(0),
                     x.shape(1),
                     x.shape(2),
                     x.shape(3),
                     item,
                     {}};
    for (int i = 0; i < 4; i++) {
        tokens.strides[i] = x.strides(i) * item;
    }
    return tokens;
}

// Copies the tokens of `from` to positions offset … offset + L − 1 of head (b, h) of `to`.
void copy_head(const Tokens& from, const Tokens& to, int64_t b, int64_t h, int64_t offset) {
    const char* in = from.data + b * from.strides[0] + h * from.strides[1];
    char* out = to.data + b * to.strides[0] + h * to.strides[1] + offset * to.strides[2];
    for (int64_t l = 0; l < from.L; l++, in += from.strides[2], out += to.strides[2]) {
        if (from.strides[3] == from.item) {
            std::memcpy(out, in, from.D * from.item);
            continue;
        }
        for (int64_t d = 0; d < from.D; d++) {
            std::memcpy(out + d * from.item, in + d * from.strides[3], from.item);
        }
    }
}

// Copies all heads of the sequences whose offset leaves space for all their tokens.
void copy(const Tokens& from, const Tokens& to, const int32_t* offsets) {
    for_rows(from.B * from.H, from.L * from.D, [&](int64_t first, int64_t last) {
        for (int64_t head = first; head < last; head++) {
            const int64_t b = head / from.H;
            if (offsets[b] >= 0 && offsets[b] + from.L <= to.L) {
                copy_head(from, to, b, head % from.H, offsets[b]);
            }
        }
    });
}

}  // namespace

void CacheWrite::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    const auto& buffer = inputs[0];
    const auto& tokens = inputs[1];
    const mx::array offsets = row_contiguous(inputs[2], stream());
    out.copy_shared_buffer(can_overwrite(buffer) ? buffer : copy_of(buffer, stream()));
    if (out.size() > 0) {
        add_task(stream(), [from = tokens_of(tokens), to = tokens_of(out),
                            offsets = offsets.data<int32_t>()] { copy(from, to, offsets); });
    }
}

}  // namespace tiny_llm_ext
