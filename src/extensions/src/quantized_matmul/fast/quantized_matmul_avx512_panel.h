// Weight panels of 64 outputs: unpacking to bfloat16 vectors in registers.
//
// The 32-bit lanes of a vector are 16 *outputs*: a sum is never split over lanes, and its order
// does not depend on the number of rows.
//
// Packed weights are a vector of 32 16-bit lanes with four 4-bit weights each. vpermw looks up a
// weight's bfloat16 value for all lanes, in a table of 32 by the lowest five bits of the lane. The
// fifth bit belongs to the next weight; both halves of the table are equal, so that it need not be
// masked.
#pragma once

#include "common/avx512.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext {

namespace {

constexpr int LANES = 16;         // outputs per vector
constexpr int PANEL_VECTORS = 4;  // vectors of outputs per panel
constexpr int PANEL_OUTPUTS = PANEL_VECTORS * LANES;
constexpr int WORD_WEIGHTS = 8;  // weights per word
constexpr int LOOKUPS = 4;       // table lookups per word: each unpacks a pair of weights per lane
constexpr int TILE_WORDS = 4;    // words whose weights match a vector of 16 pairs of activations

static_assert(QUANTIZED_MATMUL_PANEL % PANEL_OUTPUTS == 0, "ranges of outputs begin at panels");

// Layout of a call's activations in scratch memory: vectors of 16 pairs, in the order in which the
// weights are unpacked, and group sums. A tile is the activations that match TILE_WORDS words of b.
// The vectors of all rows for one tile are adjacent, so that the distances between a few rows are
// compile-time constants.
struct Avx512Layout {
    int64_t words;  // words per row of b
    int64_t groups;
    int words_per_group;
    int64_t tile_vectors;  // stride of a tile: M, rounded up to an odd number
    int64_t sums_offset;   // in floats from the start of scratch: M × groups sums
    int64_t bytes;         // scratch size
};

inline Avx512Layout layout_of(const QuantizedMatmulJob& job) {
    Avx512Layout layout;
    layout.words = job.I / WORD_WEIGHTS;
    layout.groups = job.I / job.group_size;
    layout.words_per_group = job.group_size / WORD_WEIGHTS;
    layout.tile_vectors = job.M | 1;  // odd: spreads tiles over cache sets
    layout.sums_offset = layout.words / TILE_WORDS * layout.tile_vectors * LANES;
    layout.bytes = 4 * (layout.sums_offset + job.M * layout.groups);
    return layout;
}

// Order of a tile's activations: the order in which a word's elements are unpacked. Table lookup p
// yields elements p and 4 + p, one from each 16-bit half.
inline __m512i order_of_pairs() {
    alignas(64) uint16_t order[32];
    for (int i = 0; i < 32; i++) {
        const int word = i / 8, p = i / 2 % 4, half = i % 2;
        order[i] = static_cast<uint16_t>(word * 8 + p + 4 * half);
    }
    return _mm512_load_si512(order);
}

// Stores one row's activations in the order `order`, and the sums of its groups.
inline void prepare_row(const QuantizedMatmulJob& job, const Avx512Layout& layout, __m512i order,
                        int64_t row, void* scratch) {
    const uint16_t* a = job.a + row * job.I;
    __m512i* out = static_cast<__m512i*>(scratch) + row;
    for (int64_t tile = 0; tile < layout.words / TILE_WORDS; tile++) {
        *out = _mm512_permutexvar_epi16(order, _mm512_loadu_si512(a));
        a += TILE_WORDS * WORD_WEIGHTS;
        out += layout.tile_vectors;
    }
    float* sums = static_cast<float*>(scratch) + layout.sums_offset + row * layout.groups;
    a = job.a + row * job.I;
    for (int64_t g = 0; g < layout.groups; g++) {
        __m512 sum = _mm512_setzero_ps();
        for (int i = 0; i < job.group_size; i += LANES, a += LANES) {
            sum = _mm512_add_ps(sum, widen(_mm256_loadu_si256((const __m256i*)a), job.format));
        }
        sums[g] = _mm512_reduce_add_ps(sum);
    }
}

// Table of the bfloat16 values of the sixteen weights, stored twice, so that the fifth index bit
// has no effect.
inline __m512i make_table(const QuantizedMatmulJob& job) {
    __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    if (job.is_e2m1) {
        const __m128i twice = _mm_loadu_si128((const __m128i*)TWICE_E2M1);
        values =
            _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(twice)), _mm512_set1_ps(0.5f));
    }
    const __m512i bits = _mm512_castps_si512(values);
    return _mm512_broadcast_i64x4(_mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}

// Unpacks 32 weights of a vector of words with table lookup p.
inline __m512i unpack(__m512i words, int p, __m512i table) {
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4 * p), table);
}

// State of one call on one panel: 64 outputs, starting at `first`.
struct Avx512Panel {
    const QuantizedMatmulJob* job;
    Avx512Layout layout;
    const __m512i* activations;  // prepared: see Avx512Layout
    const float* sums;           // M × groups
    int64_t first;               // first output
    int outputs;                 // 64, or fewer at the end
    __m512i table;               // of the weights' values
};

// Prefetch-only functions must be inlined: GCC considers them free of side effects and drops calls
// to them.

// Weights of a panel, in place: its words are contiguous, and so are its scales and its biases.
// Each is read sequentially, followed by the next panel's, which the hardware prefetcher
// recognizes; software prefetching helps where it is late.
class PrepackedWeights {
   public:
    explicit PrepackedWeights(const Avx512Panel& panel)
        : groups_(panel.layout.groups),
          format_(panel.job->scale_format),
          bias_per_scale_(panel.job->is_e2m1 ? 0 : -8),
          words_((const char*)(panel.job->b + panel.first * panel.layout.words)),
          scales_(panel.job->scales + panel.first * groups_),
          biases_(panel.job->biases) {
        if (biases_ != nullptr) {
            biases_ += panel.first * groups_;
        }
    }

    // Word w of the rows in vector c; `scale` and `bias` load the factors of group g.
    __m512i word(int64_t w, int c) const {
        return _mm512_loadu_si512(words_ + (w * PANEL_VECTORS + c) * sizeof(__m512i));
    }
    __m512 scale(int64_t g, int c) const { return factor(scales_, g, c); }
    __m512 bias(int64_t g, int c) const {
        return biases_ == nullptr ? _mm512_mul_ps(_mm512_set1_ps(bias_per_scale_), scale(g, c))
                                  : factor(biases_, g, c);
    }

    // Prefetches one cache line per lookup p: vector p of the words PREFETCH_DISTANCE bytes after
    // word w.
    __attribute__((always_inline)) void prefetch(int64_t w, int p) const {
        static_assert(LOOKUPS == PANEL_VECTORS);
        _mm_prefetch(words_ + (w * PANEL_VECTORS + p) * sizeof(__m512i) + PREFETCH_DISTANCE,
                     _MM_HINT_T0);
    }

    // Prefetches group g's factors of the next panel.
    __attribute__((always_inline)) void prefetch_factors(int64_t g) const {
        const int64_t next = PANEL_OUTPUTS * (groups_ + g);
        const auto prefetch_lines = [next](const uint16_t* factors) __attribute__((always_inline)) {
            _mm_prefetch((const char*)(factors + next), _MM_HINT_T0);
            _mm_prefetch((const char*)(factors + next) + 64, _MM_HINT_T0);
        };
        prefetch_lines(scales_);
        if (biases_ != nullptr) {
            prefetch_lines(biases_);
        }
    }

   private:
    // Prefetch distance in bytes. 8 and 16 KiB are equally fast; with 2 KiB, lines arrive too late
    // for 16 rows.
    static constexpr int64_t PREFETCH_DISTANCE = 4096;

    __m512 factor(const uint16_t* in, int64_t g, int c) const {
        return load_halves(in + (g * PANEL_VECTORS + c) * LANES, format_);
    }

    int64_t groups_;
    Format format_;
    float bias_per_scale_;  // without biases
    const char* words_;
    const uint16_t *scales_, *biases_;
};

// --- outputs of a panel -------------------------------------------------------------------------

// Rounds a row of totals and stores it.
__attribute__((noinline)) void store(const Avx512Panel& panel, int64_t row, const __m512* totals) {
    uint16_t* out = panel.job->out + row * panel.job->O + panel.first;
    for (int c = 0; c < PANEL_VECTORS && c * LANES < panel.outputs; c++) {
        store_halves(out + c * LANES, totals[c], panel.outputs - c * LANES, panel.job->format);
    }
}

}  // namespace

}  // namespace tiny_llm_ext
