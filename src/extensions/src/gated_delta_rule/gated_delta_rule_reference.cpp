// gated_delta_rule: scalar reference kernel.
#include <algorithm>
#include <cmath>
#include <vector>

#include "common/sigmoid.h"
#include "src/gated_delta_rule/gated_delta_rule_kernels.h"

namespace tiny_llm_ext {

namespace {

// log(1 + eˣ) without overflow.
float softplus(float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(x))); }

float norm_factor(const float* x, int64_t D) {
    float squares = 0;
    for (int64_t d = 0; d < D; d++) {
        squares += x[d] * x[d];
    }
    return 1 / std::sqrt(squares + 1e-6f);
}

void compute_factors(const GatedDeltaRuleJob& job, int64_t first, int64_t last) {
    const float scale = 1 / std::sqrt(static_cast<float>(job.D_k));
    for (int64_t t = first; t < last; t++) {
        for (int64_t h = 0; h < job.H_v; h++) {
            const int64_t key_head = h / (job.H_v / job.H_k);
            const float* q = job.qkv + t * job.qkv_stride + key_head * job.D_k;
            DeltaFactors& factors = job.factors[t * job.H_v + h];
            factors.q = norm_factor(q, job.D_k) * scale;
            factors.k = norm_factor(q + job.H_k * job.D_k, job.D_k);
            set_gates(job, t, h, factors);
        }
    }
}

// Processes one token for one column: updates the column's state, D_k floats, and returns its
// output.
float step(float* state, const float* q, const float* k, float v, int64_t D_k,
           const DeltaFactors& factors) {
    float predicted = 0;
    for (int64_t i = 0; i < D_k; i++) {
        state[i] *= factors.decay;
        predicted += state[i] * (k[i] * factors.k);
    }
    const float delta = factors.beta * (v - predicted);
    float o = 0;
    for (int64_t i = 0; i < D_k; i++) {
        state[i] += k[i] * factors.k * delta;
        o += state[i] * (q[i] * factors.q);
    }
    return o;
}

void compute_columns(const GatedDeltaRuleJob& job, int64_t sequence, int64_t head, int64_t first,
                     int64_t last) {
    const int64_t keys = job.H_k * job.D_k;
    const auto state_of = [&](int64_t slot) {
        return job.states + (slot * job.H_v + head) * job.D_k * job.D_v;
    };
    for (int64_t column = first; column < last; column++) {
        std::vector<float> state(job.D_k);  // a copy, because only slots in write_slots may change
        if (const int64_t slot = read_slot(job.slots, sequence); slot >= 0) {
            for (int64_t i = 0; i < job.D_k; i++) {
                state[i] = state_of(slot)[i * job.D_v + column];
            }
        }
        const int64_t end = end_token(job.slots, sequence);
        for (int64_t t = first_token(job.slots, sequence); t < end; t++) {
            const float* row = job.qkv + t * job.qkv_stride;
            const float* q = row + head / (job.H_v / job.H_k) * job.D_k;
            const float v = row[2 * keys + head * job.D_v + column];
            job.o[(t * job.H_v + head) * job.D_v + column] =
                step(state.data(), q, q + keys, v, job.D_k, job.factors[t * job.H_v + head]);
            if (const int64_t slot = write_slot(job.slots, t); slot >= 0) {
                for (int64_t i = 0; i < job.D_k; i++) {
                    state_of(slot)[i * job.D_v + column] = state[i];
                }
            }
        }
    }
}

}  // namespace

const GatedDeltaRuleKernel gated_delta_rule_reference = {compute_factors, compute_columns};

void set_gates(const GatedDeltaRuleJob& job, int64_t token, int64_t head, DeltaFactors& factors) {
    const float a = load_element(job.a, token * job.a_stride + head, job.format);
    const float b = load_element(job.b, token * job.b_stride + head, job.format);
    factors.beta = sigmoid(b);
    factors.decay = std::exp(-std::exp(job.A_log[head]) * softplus(a + job.dt_bias[head]));
}

}  // namespace tiny_llm_ext
