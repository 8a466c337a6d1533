// Activations as 16-bit or 8-bit integers, in the order in which
// quantized_matmul_fixed_point_simd.cpp unpacks weights.
#pragma once

#include "src/quantized_matmul/fast/fixed_point_rounding.h"
#include "src/quantized_matmul/fast/fixed_point_vectors.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

typedef int32_t Word __attribute__((may_alias));  // two 16-bit or four 8-bit integers

// Whether 8-bit activations are multiplied as bytes. They are multiplied as 16-bit integers on NEON
// without DotProd, and for 8-bit weights without VNNI, because these exceed the signed bytes of
// sdot, and their products the 16-bit sums of vpmaddubsw.
inline bool multiplies_bytes([[maybe_unused]] const QuantizedMatmulJob& job) {
#if defined(TINY_LLM_SUMS_IN_SHORTS) || defined(__ARM_FEATURE_DOTPROD)
    return job.activation_bits == 8 && job.bits == 4;
#elif defined(__AVX2__)
    return job.activation_bits == 8;
#else
    return false;
#endif
}

// Whether 16-bit activations are multiplied as two signed bytes, 256 · high + low. With VNNI, that
// takes as many multiplications as pairs of 16 bits and fewer instructions to unpack weights, but
// twice the registers for sums, and two instructions more per sum.
constexpr int HIGH_LOW_ROWS = 2;
inline bool multiplies_high_low_bytes([[maybe_unused]] const QuantizedMatmulJob& job) {
#if defined(__ARM_FEATURE_DOTPROD)
    return job.activation_bits == 16 && job.bits == 4;
#elif defined(__AVX2__)
    return USES_VNNI && job.activation_bits == 16 && job.M <= HIGH_LOW_ROWS;
#else
    return false;
#endif
}

// Activations as integers, ordered by group, then by row.
struct Activations {
    int64_t M, group_size;
    int64_t row_words;  // words per group of a row
    Word* integers;     // groups × M × row_words, in the order of the store_… functions below
    Factors* factors;   // groups × M

    Activations(const QuantizedMatmulJob& job, void* scratch)
        : M(job.M),
          group_size(job.group_size),
          row_words(group_size / (multiplies_bytes(job) ? 4 : 2)),
          integers(static_cast<Word*>(scratch)),
          factors(reinterpret_cast<Factors*>(integers + job.I / group_size * M * row_words)) {}

    Word* words(int64_t g, int64_t row) const { return integers + (g * M + row) * row_words; }
};

typedef int32_t FourInts __attribute__((vector_size(16)));
typedef int64_t TwoPairs __attribute__((vector_size(16)));

// Writes 8 integers as 4 pairs of 16 bits. A uint32 of n weights is unpacked in pairs of one weight
// from each half, elements p and n/2 + p, so activations are paired in the same way. 8 integers
// match one word of 4-bit weights, or two words of 8-bit weights.
inline void store_pairs(const int32_t* integers, int bits, int16_t* out) {
    auto lower = load_bits<TwoPairs>(integers), upper = load_bits<TwoPairs>(integers + 4);
    if (bits == 8) {
        const TwoPairs first = lower, second = upper;
        lower = TwoPairs{first[0], second[0]};
        upper = TwoPairs{first[1], second[1]};
    }
    const FourInts pairs = ((FourInts)lower & 0xffff) | ((FourInts)upper << 16);
    memcpy(out, &pairs, sizeof pairs);
}

// Stores a group's integers as bytes. A uint32 of 4-bit weights is unpacked to its even elements,
// then its odd ones, so every eight bytes are put in that order.
inline void store_bytes(const RoundedGroup& rounded, int group_size, int bits, void* out) {
    alignas(64) uint64_t words[MAX_GROUP / 8];
    for (int v = 0; v < group_size / LANES; v++) {
        const Bytes bytes = __builtin_convertvector(rounded.integers[v], Bytes);
        memcpy(reinterpret_cast<char*>(words) + v * LANES, &bytes, LANES);
    }
    if (bits == 4) {
        const auto compress = [](uint64_t x) {  // bytes 0, 2, 4, 6 of x
            x &= 0x00ff00ff00ff00ff;
            x = (x | x >> 8) & 0x0000ffff0000ffff;
            return (x | x >> 16) & 0xffffffff;
        };
        for (int i = 0; i < group_size / 8; i++) {
            words[i] = compress(words[i]) | compress(words[i] >> 8) << 32;
        }
    }
    memcpy(out, words, group_size);
}

// Stores a group's integers as 16-bit pairs.
inline void store_shorts(const RoundedGroup& rounded, int group_size, int bits, int16_t* out) {
    const auto integers = reinterpret_cast<const int32_t*>(rounded.integers);
    for (int i = 0; i < group_size; i += 8) {
        store_pairs(integers + i, bits, out + i);
    }
}

// Stores a group's integers as words of four high bytes, each followed by the word of their low
// bytes. |A| < 2¹⁵ − 128, so the high bytes are at most 127.
inline void store_high_low_bytes(const RoundedGroup& rounded, int group_size, int bits, Word* out) {
    RoundedGroup upper;
    for (int v = 0; v < group_size / LANES; v++) {
        upper.integers[v] = (rounded.integers[v] + 128) >> 8;
    }
    alignas(64) Word high[MAX_GROUP / 4], low[MAX_GROUP / 4];
    store_bytes(upper, group_size, bits, high);
    store_bytes(rounded, group_size, bits, low);
    for (int i = 0; i < group_size / 4; i++) {
        out[2 * i] = high[i];
        out[2 * i + 1] = low[i];
    }
}

void prepare_group(const QuantizedMatmulJob& job, const Activations& to, int64_t m, int64_t g) {
    RoundedGroup rounded;
    round_group(job, m, g, rounded);
    to.factors[g * to.M + m] = rounded.factors;
    Word* out = to.words(g, m);
    if (multiplies_bytes(job)) {
        store_bytes(rounded, job.group_size, job.bits, out);
    } else if (multiplies_high_low_bytes(job)) {
        store_high_low_bytes(rounded, job.group_size, job.bits, out);
    } else {
        store_shorts(rounded, job.group_size, job.bits, reinterpret_cast<int16_t*>(out));
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
