// Vectorized flash_attention: locates tiles in strided arrays for attention_block.h.
#include "src/flash_attention/fast/attention_block.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

// Keys and values of a head, in strided arrays.
struct HeadInBuffer {
    const FlashAttentionJob& job;
    int64_t b, h;

    void find_rows(int64_t first, Tile& tile) const {
        find_rows(job.key, job.key_strides, first, tile.count, tile.keys);
        find_rows(job.value, job.value_strides, first, tile.count, tile.values);
    }

   private:
    void find_rows(const void* array, const Strides& strides, int64_t first, int count,
                   const void** rows) const {
        write_addresses(element(array, row_offset(strides, b, h, first), job.format),
                        strides.token * item_bytes(job.format), count, rows);
    }
};

// Tile of the next head, likely to be needed next: a prefetch hint. Empty after the last head.
void find_tile_of_next_head(const FlashAttentionJob& job, int64_t b, int64_t h, int64_t l,
                            int64_t first, Tile& tile) {
    const int64_t next = b * job.H + h + 1;
    if (next == job.B * job.H) {
        tile.count = 0;
        return;
    }
    find_tile(HeadInBuffer{job, next / job.H, next % job.H}, first,
              visible_keys(job, next / job.H, l), tile);
}

// Mask terms of LANES consecutive scores, from element i of the mask on.
Floats mask_vector(const FlashAttentionJob& job, int64_t i) {
    if (job.mask_kind == MaskKind::additive) {
        return load(job.mask, i, job.mask_format);
    }
    const Bytes visible = load_bits<Bytes>(static_cast<const uint8_t*>(job.mask) + i);
    return __builtin_convertvector(visible, Ints) != 0 ? Floats{} : splat(-__builtin_inff());
}

// mask = mask terms of the block's scores for `count` keys, rows × KEYS. Returns whether any of
// these keys is visible to any row.
__attribute__((noinline)) bool load_mask(const AttentionBlock& block, const FlashAttentionJob& job,
                                         int64_t b, int64_t h, int64_t first_row, int64_t first_key,
                                         int count, float* mask) {
    const int64_t group = job.H_q / job.H;
    const Floats hidden = splat(-__builtin_inff());
    Ints seen = {};
    for (int i = 0; i < block.rows; i++) {
        const int64_t l = (first_row + i) / group, head = h * group + (first_row + i) % group;
        const int64_t from =
            row_offset(job.mask_strides, b, head, l) + first_key * job.mask_key_stride;
        for (int key = 0; key < KEYS; key += LANES) {
            Floats added = hidden;
            if (job.mask_key_stride == 1 && key + LANES <= count) {
                added = mask_vector(job, from + key);
            } else {
                for (int lane = 0; lane < LANES && key + lane < count; lane++) {
                    added[lane] = mask_element(job, b, head, l, first_key + key + lane);
                }
            }
            seen |= added != hidden;
            store(mask + i * KEYS, key, Format::float32, added);
        }
    }
    return max(as_floats(seen & as_ints(splat(1.0f)))) > 0;
}

}  // namespace

int64_t flash_attention_scratch(const FlashAttentionJob& job, int rows) {
    const int64_t mask_size = job.mask_kind == MaskKind::none ? 0 : rows * KEYS;
    return block_scratch(rows, job.D) + mask_size;
}

void flash_attention(const FlashAttentionJob& job, int64_t b, int64_t h, int64_t first_row,
                     int rows, float* scratch) {
    const int64_t group = job.H_q / job.H;
    float* mask = job.mask_kind == MaskKind::none ? nullptr : scratch;
    const AttentionBlock block = make_block(rows, job.D, job.scale, job.format, job.format,
                                            mask == nullptr ? scratch : scratch + rows * KEYS);
    for (int i = 0; i < rows; i++) {
        const int64_t row = first_row + i;
        const int64_t from = row_offset(job.query_strides, b, h * group + row % group, row / group);
        load_query_row(block, i, job.query, from);
        if (job.sinks != nullptr) {
            set_sink(block, i, job.sinks[h * group + row % group]);
        }
    }
    const auto visible = [&](int row) { return visible_keys(job, b, (first_row + row) / group); };
    const int64_t end = visible(rows - 1);  // the last row sees the most keys
    const auto tile_at = [&](int64_t first, Tile& tile) {
        if (first < end) {
            find_tile(HeadInBuffer{job, b, h}, first, end, tile);
        } else {
            find_tile_of_next_head(job, b, h, (first_row + rows - 1) / group, first - end, tile);
        }
    };
    const auto fill_mask = [&](int64_t first, int count) {
        return load_mask(block, job, b, h, first_row, first, count, mask);
    };
    const auto no_window = [](int) { return int64_t{0}; };
    attend_to_all(block, end, visible, no_window, tile_at, mask, fill_mask);
    for (int i = 0; i < rows; i++) {
        const int64_t row = first_row + i;
        finish_row(block, i, job.out, out_offset(job, b, h * group + row % group, row / group));
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
