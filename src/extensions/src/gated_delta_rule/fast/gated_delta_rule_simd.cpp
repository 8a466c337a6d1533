// Vectorized gated_delta_rule: a tile of a state's columns stays in the L1 cache while the tokens
// of its sequence are processed.
//
// With unnormalized q and k, and the factors f_q and f_k that normalize them,
//
//     p = Sᵀk,   δ = β (v − γ f_k p),   S ← γ S + k (f_k δ)ᵀ,   o = f_q Sᵀq
//
// p of the next token is summed in the pass that updates S: one load and one store of S per token.
// Every sum over D_k runs from the first row to the last.
#include "common/scratch.h"
#include "common/simd.h"
#include "src/gated_delta_rule/gated_delta_rule_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int TILE_VECTORS = DELTA_COLUMNS / LANES;

// One value for each column of a tile.
struct Columns {
    Floats vectors[TILE_VECTORS] = {};
};

// Loads the first `count` columns; the others are zero.
inline Columns load_columns(const float* from, int64_t count) {
    Columns x;
    for (int v = 0; v < TILE_VECTORS; v++) {
        const int64_t rest = count - v * LANES;
        x.vectors[v] = rest >= LANES ? load(from, v * LANES, Format::float32)
                       : rest > 0 ? load(from, v * LANES, Format::float32, static_cast<int>(rest))
                                  : Floats{};
    }
    return x;
}

inline void store_columns(float* to, const Columns& x, int64_t count) {
    for (int v = 0; v < TILE_VECTORS; v++) {
        const int64_t rest = count - v * LANES;
        if (rest > 0) {
            store(to, v * LANES, Format::float32, x.vectors[v],
                  static_cast<int>(rest < LANES ? rest : LANES));
        }
    }
}

void factors(const GatedDeltaRuleJob& job, int64_t first, int64_t last) {
    const int64_t group = job.H_v / job.H_k;
    const float scale = 1 / __builtin_sqrtf(static_cast<float>(job.D_k));
    for (int64_t t = first; t < last; t++) {
        for (int64_t key_head = 0; key_head < job.H_k; key_head++) {
            const float* q = job.qkv + t * job.qkv_stride + key_head * job.D_k;
            const float* k = q + job.H_k * job.D_k;
            DeltaFactors both;
            both.q = 1 / __builtin_sqrtf(sum_of_squares(q, job.D_k) + 1e-6f) * scale;
            both.k = 1 / __builtin_sqrtf(sum_of_squares(k, job.D_k) + 1e-6f);
            for (int64_t h = key_head * group; h < (key_head + 1) * group; h++) {
                set_gates(job, t, h, both);
                job.factors[t * job.H_v + h] = both;
            }
        }
    }
}

// Copies a tile from `slot`, whose rows are `stride` floats apart, or zeros it if `slot` is null.
// Returns Sᵀk.
inline Columns read_tile(float* tile, const float* slot, int64_t stride, const float* k,
                         int64_t D_k, int64_t count) {
    Columns predicted;
    for (int64_t i = 0; i < D_k; i++) {
        const Columns row = slot ? load_columns(slot + i * stride, count) : Columns{};
        store_columns(tile + i * DELTA_COLUMNS, row, DELTA_COLUMNS);
        for (int v = 0; v < TILE_VECTORS; v++) {
            predicted.vectors[v] = fma(splat(k[i]), row.vectors[v], predicted.vectors[v]);
        }
    }
    return predicted;
}

// Updates a tile with one token and copies it to `slot` unless that is null; `streams` selects
// streaming stores of complete rows. Sets `predicted` to Sᵀk for the next token's k. Returns Sᵀq.
inline Columns update_tile(float* tile, float* slot, bool streams, int64_t stride, const float* q,
                           const float* k, const float* next_k, const Columns& delta, float decay,
                           int64_t D_k, int64_t count, Columns& predicted) {
    Columns o, next;
    for (int64_t i = 0; i < D_k; i++) {
        Columns row = load_columns(tile + i * DELTA_COLUMNS, DELTA_COLUMNS);
        for (int v = 0; v < TILE_VECTORS; v++) {
            row.vectors[v] = fma(splat(k[i]), delta.vectors[v], row.vectors[v] * decay);
            o.vectors[v] = fma(splat(q[i]), row.vectors[v], o.vectors[v]);
            next.vectors[v] = fma(splat(next_k[i]), row.vectors[v], next.vectors[v]);
        }
        store_columns(tile + i * DELTA_COLUMNS, row, DELTA_COLUMNS);
        if (slot && streams) {
            for (int v = 0; v < TILE_VECTORS; v++) {
                stream(slot + i * stride + v * LANES, row.vectors[v]);
            }
        } else if (slot) {
            store_columns(slot + i * stride, row, count);
        }
    }
    predicted = next;
    return o;
}

void recurrence(const GatedDeltaRuleJob& job, int64_t sequence, int64_t head, int64_t first,
                int64_t last) {
    const int64_t begin = first_token(job.slots, sequence), end = end_token(job.slots, sequence);
    if (begin == end) {
        return;
    }
    const int64_t keys = job.H_k * job.D_k, count = last - first;
    const float* qkv = job.qkv + head / (job.H_v / job.H_k) * job.D_k;
    const float* values = job.qkv + 2 * keys + head * job.D_v + first;
    const auto key = [&](int64_t t) { return qkv + t * job.qkv_stride + keys; };
    const auto state = [&](int64_t slot) {
        return slot < 0 ? nullptr
                        : job.states + (slot * job.H_v + head) * job.D_k * job.D_v + first;
    };
    const float* const from = state(read_slot(job.slots, sequence));
    float* const tile = thread_scratch(job.D_k * DELTA_COLUMNS);
    Columns predicted = read_tile(tile, from, job.D_v, key(begin), job.D_k, count);
    for (int64_t t = begin; t < end; t++) {
        const DeltaFactors& factors = job.factors[t * job.H_v + head];
        const Columns value = load_columns(values + t * job.qkv_stride, count);
        Columns delta;
        for (int v = 0; v < TILE_VECTORS; v++) {
            const Floats error =
                value.vectors[v] - predicted.vectors[v] * (factors.decay * factors.k);
            delta.vectors[v] = error * (factors.beta * factors.k);
        }
        float* const to = state(write_slot(job.slots, t));
        // Streaming stores avoid reading the slot's cache lines from memory. If the slot is `from`,
        // its lines are already in the cache.
        const bool streams = to != from && count == DELTA_COLUMNS && can_stream(to, job.D_v);
        Columns o = update_tile(tile, to, streams, job.D_v, qkv + t * job.qkv_stride, key(t),
                                key(t + 1 < end ? t + 1 : t), delta, factors.decay, job.D_k, count,
                                predicted);
        for (int v = 0; v < TILE_VECTORS; v++) {
            o.vectors[v] = o.vectors[v] * factors.q;
        }
        store_columns(job.o + (t * job.H_v + head) * job.D_v + first, o, count);
    }
    end_streams();
}

}  // namespace

extern const GatedDeltaRuleKernel gated_delta_rule;
const GatedDeltaRuleKernel gated_delta_rule = {factors, recurrence};

}  // namespace tiny_llm_ext::TINY_LLM_ISA
