// Weights for quantized_matmul_fixed_point_simd.cpp: packs of outputs, and their unpacking.
//
// A kernel computes one pack of outputs at a time.
#pragma once

#include "src/quantized_matmul/fast/fixed_point_activations.h"
#include "src/quantized_matmul/fast/symmetric_weights.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int PACK_VECTORS = LANES == 16 ? 4 : 2;   // vectors of outputs per pack
constexpr int PACK_OUTPUTS = PACK_VECTORS * LANES;  // outputs computed together
#if defined(__AMX_INT8__)
// The vectors of a pack are packs of their own in memory, read as so many streams.
constexpr int STREAMS = PACK_VECTORS;
#else
constexpr int STREAMS = 1;
#endif
constexpr int STREAM_OUTPUTS = PACK_OUTPUTS / STREAMS;
constexpr int64_t PREFETCH_DISTANCE = STREAMS == 1 ? 4096 : 2048;  // bytes

// --- packs --------------------------------------------------------------------------------------

// Index of vector v of outputs and of a column in a matrix of packs with `columns` columns.
inline int64_t packed_index(int64_t column, int v, int64_t columns) {
    return STREAMS == 1 ? column * PACK_OUTPUTS + v * LANES : (v * columns + column) * LANES;
}

template <typename WeightFormat>
struct PackedGroup;

// Weights of PACK_OUTPUTS outputs in the layout of common/prepacked.h.
struct Pack {
    const QuantizedMatmulJob* job;
    const uint16_t* scales;  // groups × PACK_OUTPUTS
    const uint16_t* biases;  // groups × PACK_OUTPUTS; nullptr for symmetric and e2m1 weights
    int64_t groups;
    const uint32_t* words;  // columns × PACK_OUTPUTS
    int64_t columns;        // words per row
    int vectors;            // of outputs; past the last, it is read again

    int vector(int v) const { return STREAMS == 1 || v < vectors ? v : vectors - 1; }
    template <typename WeightFormat>
    PackedGroup<WeightFormat> group(int64_t g) const {
        const int64_t column = g * job->group_size * job->bits / 32;
        PackedGroup<WeightFormat> group{{}, PREFETCH_DISTANCE};
        const int64_t stream_bytes = columns * STREAM_OUTPUTS * 4;
        if (STREAMS > 1 && column * STREAM_OUTPUTS * 4 + group.ahead >= stream_bytes) {
            group.ahead +=
                (vectors - 1) * stream_bytes;  // the next pack's instead of the next stream's
        }
        for (int v = 0; v < STREAMS; v++) {
            group.words[v] = words + packed_index(column, vector(v), columns);
        }
        return group;
    }
    Floats factor(const uint16_t* of, int64_t g, int v) const {
        return load(of, packed_index(g, vector(v), groups), job->scale_format);
    }
};

// Pack of the `outputs` outputs from `first` on.
inline Pack pack_of(const QuantizedMatmulJob& job, int64_t first, int outputs) {
    const int64_t groups = job.I / job.group_size, columns = job.I * job.bits / 32;
    return {&job,
            job.scales + first * groups,
            job.biases == nullptr ? nullptr : job.biases + first * groups,
            groups,
            job.b + first * columns,
            columns,
            (outputs + LANES - 1) / LANES};
}

// --- unpacking ----------------------------------------------------------------------------------

// Unpacks part p, a pair of weights, of one word of each of LANES outputs.
template <int BITS>
struct Integers {
    using Part = Shorts;
    using Sums = PairSums;
    static constexpr int PARTS = 16 / BITS;  // per word
    static constexpr int STEP = 4;           // parts per step: one or two words
    static UnsignedShorts unpack(const uint32_t* words, int p) {
        const UnsignedShorts x = load_bits<UnsignedShorts>(words) >> (BITS * p);
        return p == PARTS - 1 ? x : x & static_cast<uint16_t>((1 << BITS) - 1);
    }
    static Part part(const uint32_t* words, int p) { return (Part)unpack(words, p); }
};
struct FloatingPoint : Integers<4> {
    static Part part(const uint32_t* words, int p) {
        return look_up(E2M1_INTEGERS, unpack(words, p));
    }
};

// Unpacks weights for 8-bit activations. A part is four weights.
template <int BITS>
struct ByteIntegers {
    using Part = Quads;
    using Sums = QuadSums;
    static constexpr int PARTS = 8 / BITS;
    static constexpr int STEP = 8;  // 16-bit sums: 8 · 2 · 127 · 15 < 2¹⁵
    static Part part(const uint32_t* words, int p) {
        const Ints x = load_bits<Ints>(words) >> (BITS * p);
        return (Part)(BITS == 8 ? x : x & 0x0f0f0f0f);
    }
};
struct ByteFloatingPoint : ByteIntegers<4> {
    static constexpr int STEP = 4;  // 4 · 2 · 127 · 24 < 2¹⁵
    static Part part(const uint32_t* words, int p) {
        return look_up(E2M1_INTEGERS, ByteIntegers<4>::part(words, p));
    }
};

// Unpacks weights for 16-bit activations in two bytes.
template <typename Bytes>
struct HighLow : Bytes {
    using Sums = HighLowSums;
};

#if defined(__ARM_FEATURE_DOTPROD)
// Unpacks 4-bit weights for activations in bytes. A part is eight weights, one word.
template <typename SumsOfBytes>
struct NibbleIntegers {
    using Part = Nibbles;
    using Sums = SumsOfBytes;
    static constexpr int PARTS = 1;
    static constexpr int STEP = 4;
    static Part part(const uint32_t* words, int) {
        return {ByteIntegers<4>::part(words, 0), ByteIntegers<4>::part(words, 1)};
    }
};
template <typename SumsOfBytes>
struct NibbleFloatingPoint : NibbleIntegers<SumsOfBytes> {
    static Nibbles part(const uint32_t* words, int) {
        return {ByteFloatingPoint::part(words, 0), ByteFloatingPoint::part(words, 1)};
    }
};
#endif

// Calls f.operator()<WeightFormat>() for the formats of b and of the activations.
template <typename Function>
inline void with_weight_format(const QuantizedMatmulJob& job, const Function& f) {
#if defined(__ARM_FEATURE_DOTPROD)
    const auto call_nibbles = [&]<typename Sums>() {
        job.is_e2m1 ? f.template operator()<NibbleFloatingPoint<Sums>>()
                    : f.template operator()<NibbleIntegers<Sums>>();
    };
    if (job.bits == 8) {
        f.template operator()<Integers<8>>();
    } else if (multiplies_high_low_bytes(job)) {
        call_nibbles.template operator()<HighLowSums>();
    } else {
        call_nibbles.template operator()<QuadSums>();
    }
#else
    const auto call = [&]<typename OfShorts, typename OfBytes>() {
#if defined(__AVX2__)
        if (multiplies_bytes(job)) {
            f.template operator()<OfBytes>();
            return;
        }
        if constexpr (USES_VNNI) {
            if (multiplies_high_low_bytes(job)) {
                f.template operator()<HighLow<OfBytes>>();
                return;
            }
        }
#endif
        f.template operator()<OfShorts>();
    };
    if (job.is_e2m1) {
        call.template operator()<FloatingPoint, ByteFloatingPoint>();
    } else if (job.bits == 4) {
        call.template operator()<Integers<4>, ByteIntegers<4>>();
    } else {
        call.template operator()<Integers<8>, ByteIntegers<8>>();
    }
#endif
}

// A group's weights, unpacked on each use.
template <typename WeightFormat>
struct PackedGroup {
    using Format = WeightFormat;
    static constexpr int WORDS = Format::STEP / Format::PARTS;  // per step
    const uint32_t* words[STREAMS];
    int64_t ahead;

    // Word `word` of vector v of outputs.
    const uint32_t* word_of(int64_t word, int v) const {
        return STREAMS == 1 ? words[0] + word * PACK_OUTPUTS + v * LANES
                            : words[v % STREAMS] + word * LANES;
    }
    // Part i of a step, for vector v of outputs.
    typename Format::Part part(int64_t step, int i, int v) const {
        const int64_t word = step * WORDS + i / Format::PARTS;
        return Format::part(word_of(word, v), i % Format::PARTS);
    }
    // Prefetches a word of all outputs before its first part is unpacked. All words of a step in
    // one burst would be slower. The hardware prefetcher stops at the end of a page.
    __attribute__((always_inline)) void prefetch(int64_t step, int i) const {
        if (i % Format::PARTS == 0) {
            const int64_t word = step * WORDS + i / Format::PARTS;
#pragma GCC unroll 4
            for (int line = 0; line < PACK_OUTPUTS * 4 / 64; line++) {
                const uint32_t* at = word_of(word, line * 16 / LANES);
                __builtin_prefetch(reinterpret_cast<const char*>(at) + ahead);
            }
        }
    }
};

// A group's weights, unpacked in advance.
template <typename WeightFormat>
struct UnpackedGroup {
    using Format = WeightFormat;
    const typename Format::Part (*parts)[PACK_VECTORS];

    typename Format::Part part(int64_t step, int i, int v) const {
        return parts[step * Format::STEP + i][v];
    }
    void prefetch(int64_t, int) const {}
};

template <typename WeightFormat>
void unpack_group(const PackedGroup<WeightFormat>& group, int64_t parts,
                  typename WeightFormat::Part (*out)[PACK_VECTORS]) {
    constexpr int STEP = WeightFormat::STEP;
    for (int64_t step = 0; step < parts / STEP; step++) {
#pragma GCC unroll 8
        for (int i = 0; i < STEP; i++) {
            group.prefetch(step, i);
#pragma GCC unroll 4
            for (int v = 0; v < PACK_VECTORS; v++) {
                out[step * STEP + i][v] = group.part(step, i, v);
            }
        }
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
