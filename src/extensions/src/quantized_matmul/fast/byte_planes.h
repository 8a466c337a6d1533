// Activations as byte planes, for kernels that multiply bytes.
//
// Activations are rounded to 16-bit integers 256 · high + low, both bytes signed
// (fixed_point_rounding.h): the high and low bytes form two *planes*. Weights unpack to bytes,
// group by group: 4-bit ones to the even elements of the group, then its odd ones, its two *parts*.
// Activations have the same order, in *vectors* of 64 bytes: two vectors × block of rows × vector ×
// plane × row × byte.
#pragma once

#include "common/avx512.h"
#include "src/quantized_matmul/fast/fixed_point_rounding.h"
#include "src/quantized_matmul/fast/symmetric_weights.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int VECTOR = 64;  // bytes
constexpr int MAX_PARTS = 2;
constexpr int PLANES = 2;  // AMX tiles use only one with 8-bit activations

// Layout of one call's activations in scratch memory.
struct PlanesLayout {
    int64_t row_bytes;  // bytes per row of b
    int64_t groups;     // groups per row of b
    int group_size;     // 32, 64 or 128
    int group_bytes;    // bytes of b per group: 16, 32, 64 or 128
    int parts;          // per group: 2 for 4-bit weights, 1 for 8-bit weights
    int planes;         // the high and low bytes, or only the low bytes
    int64_t rows;       // M
    int block_rows;
    int64_t blocks;  // blocks of rows; the last may be partial
    // Offsets in scratch, in bytes, of Factors::step and Factors::sum: groups × (blocks ·
    // block_rows).
    int64_t steps_offset;
    int64_t sums_offset;
    int64_t bytes;  // scratch size

    PlanesLayout(const QuantizedMatmulJob& job, int block_rows, int planes = PLANES)
        : row_bytes(job.I * job.bits / 8),
          groups(job.I / job.group_size),
          group_size(job.group_size),
          group_bytes(job.group_size * job.bits / 8),
          parts(8 / job.bits),
          planes(planes),
          rows(job.M),
          block_rows(block_rows),
          blocks((rows + block_rows - 1) / block_rows),
          steps_offset((job.I + MAX_GROUP - 1) / MAX_GROUP * blocks * block_stride()),
          sums_offset(steps_offset + groups * blocks * block_rows * 4),
          bytes(sums_offset + groups * blocks * block_rows * 4) {}

    // Byte offset in scratch of the first plane's activations for element i of a block's first row.
    int64_t offset(int64_t i, int64_t block) const {
        return (i / MAX_GROUP * blocks + block) * block_stride() +
               i % MAX_GROUP / VECTOR * vector_stride() + i % VECTOR;
    }
    int64_t plane_stride() const { return block_rows * VECTOR; }
    int64_t vector_stride() const { return planes * plane_stride(); }
    int64_t block_stride() const { return MAX_GROUP / VECTOR * vector_stride(); }
};

// Unpacks 64 bytes of b to one or two vectors of bytes.
struct EightBits {
    static constexpr int PARTS = 1;
    static void unpack(__m512i bytes, __m512i* weights) { weights[0] = bytes; }
};
struct FourBits {
    static constexpr int PARTS = 2;
    static void unpack(__m512i bytes, __m512i* weights) {
        const __m512i four_bits = _mm512_set1_epi8(15);
        weights[0] = _mm512_and_si512(bytes, four_bits);
        weights[1] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), four_bits);
    }
};
struct FloatingPoint : FourBits {
    static void unpack(__m512i bytes, __m512i* weights) {
        const __m128i table =
            _mm_add_epi8(_mm_loadu_si128((const __m128i*)TWICE_E2M1), _mm_set1_epi8(OFFSET));
        FourBits::unpack(bytes, weights);
        weights[0] = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), weights[0]);
        weights[1] = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), weights[1]);
    }
};

// Address to prefetch while the prepacked weights of 16 outputs are read at `b`, `byte` bytes after
// their first: a fixed distance ahead. `count` such streams of `stream_bytes` are read at the same
// time, so past the end of a stream, the one `count` further is prefetched.
inline const char* address_to_prefetch(const char* b, int64_t byte, int64_t stream_bytes,
                                       int count) {
    constexpr int64_t DISTANCE = 32 * VECTOR;
    const bool is_past_end = byte + DISTANCE >= stream_bytes;
    return b + DISTANCE + (is_past_end ? (count - 1) * stream_bytes : 0);
}

// Calls f.operator()<WeightFormat>() for the weight format of b.
template <typename Function>
inline void with_weight_format(const QuantizedMatmulJob& job, const Function& f) {
    if (job.is_e2m1) {
        f.template operator()<FloatingPoint>();
    } else if (job.bits == 4) {
        f.template operator()<FourBits>();
    } else {
        f.template operator()<EightBits>();
    }
}

// High or low bytes of a group's integers, in the order of its weights' bytes: part × vector. They
// are assembled in registers, because a load of several earlier stores would wait for all of them.
inline void plane_bytes(const RoundedGroup& rounded, int group_size, bool high, int parts,
                        __m512i (*out)[MAX_GROUP / VECTOR]) {
    const auto bytes = [&](int v) {
        const Ints integers = v < group_size / LANES ? rounded.integers[v] : Ints{};
        const Ints shifted = high ? (integers + 128) >> 8 : integers;
        return _mm512_cvtepi32_epi8((__m512i)shifted);
    };
    for (int i = 0; i < MAX_GROUP / VECTOR; i++) {
        const int v = i * VECTOR / LANES;
        __m512i x = _mm512_castsi128_si512(bytes(v));
        x = _mm512_inserti32x4(x, bytes(v + 1), 1);
        x = _mm512_inserti32x4(x, bytes(v + 2), 2);
        out[0][i] = _mm512_inserti32x4(x, bytes(v + 3), 3);
    }
    if (parts == 2) {
        static_assert(MAX_GROUP == 2 * VECTOR);
        const __m512i first = out[0][0], second = out[0][1];
        const auto low_bytes = [](__m512i x, __m512i y) {
            return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(x)),
                                      _mm512_cvtepi16_epi8(y), 1);
        };
        out[0][0] = low_bytes(first, second);
        out[1][0] = low_bytes(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8));
    }
}

// Writes one group of a row, and its factors, to scratch.
inline void pack_group(const QuantizedMatmulJob& job, const PlanesLayout& layout,
                       const RoundedGroup& rounded, int64_t row, int64_t g, char* scratch) {
    const int64_t at = g * layout.blocks * layout.block_rows + row;
    ((float*)(scratch + layout.steps_offset))[at] = rounded.factors.step;
    ((float*)(scratch + layout.sums_offset))[at] = rounded.factors.sum;
    for (int plane = 0; plane < layout.planes; plane++) {
        const bool high = plane + 1 < layout.planes;
        __m512i bytes[MAX_PARTS][MAX_GROUP / VECTOR];
        plane_bytes(rounded, job.group_size, high, layout.parts, bytes);
        for (int part = 0; part < layout.parts; part++) {
            for (int b = 0; b < layout.group_bytes; b += VECTOR) {
                const int64_t i = g * layout.group_size + part * layout.group_bytes + b;
                char* to = scratch + layout.offset(i, row / layout.block_rows) +
                           plane * layout.plane_stride() + row % layout.block_rows * VECTOR;
                const int count = layout.group_bytes < VECTOR ? layout.group_bytes : VECTOR;
                _mm512_mask_storeu_epi8(to, ~uint64_t{0} >> (VECTOR - count),
                                        bytes[part][b / VECTOR]);
            }
        }
    }
}

// Prepares rows first_row … last_row − 1 of a; the last row also zero-fills the rest of its block.
inline void prepare_rows(const QuantizedMatmulJob& job, const PlanesLayout& layout, char* scratch,
                         int64_t first_row, int64_t last_row) {
    for (int64_t g = 0; g < layout.groups; g++) {
        for (int64_t m = first_row; m < last_row; m++) {
            RoundedGroup rounded;
            round_group(job, m, g, rounded);
            pack_group(job, layout, rounded, m, g, scratch);
        }
        if (last_row == job.M) {
            const RoundedGroup zeros = {};
            for (int64_t row = layout.rows; row < layout.blocks * layout.block_rows; row++) {
                pack_group(job, layout, zeros, row, g, scratch);
            }
        }
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
