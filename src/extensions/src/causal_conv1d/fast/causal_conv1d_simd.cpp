// Vectorized causal_conv1d: the reference, token by token, LANES channels at a time.
#include "common/simd.h"
#include "src/causal_conv1d/causal_conv1d_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

// Channels first … first + n − 1 of a sequence: their taps, and their inputs before the step.
struct Channels {
    int64_t first, n;
    float taps[MAX_CONV_WIDTH][CONV_CHANNELS];
    // The K − 1 inputs before the step, in the format of x. A copy, because a token may overwrite
    // the slot while later tokens still need them.
    char earlier[MAX_CONV_WIDTH - 1][CONV_CHANNELS * 4];
};

void read_taps(const CausalConv1dJob& job, Channels& channels) {
    const int64_t by_channel = job.weight_strides[0];
    for (int64_t j = 0; j < job.K; j++) {
        const int64_t start = channels.first * by_channel + j * job.weight_strides[1];
        if (by_channel != 1) {
            for (int64_t c = 0; c < channels.n; c++) {
                channels.taps[j][c] =
                    load_element(job.weight, start + c * by_channel, job.weight_format);
            }
            continue;
        }
        for_vectors(channels.n, [&](int64_t c, int count) {
            const Floats taps = load_up_to(job.weight, start + c, job.weight_format, count);
            store(channels.taps[j], c, Format::float32, taps, count);
        });
    }
}

// Computes y for one token. rows: its K inputs, oldest first.
template <Format F>
void convolve(const CausalConv1dJob& job, const Channels& channels, const char* const* rows,
              float* y) {
    for_vectors(channels.n, [&](int64_t c, int count) {
        Floats sum = {};
        for (int64_t j = 0; j < job.K; j++) {
            const Floats taps = load_up_to(channels.taps[j], c, Format::float32, count);
            sum = fma(taps, load_up_to(rows[j], c, F, count), sum);
        }
        store(y, c, Format::float32, silu(sum), count);
    });
}

template <Format F>
void convolve_sequence(const CausalConv1dJob& job, int64_t sequence, int64_t first, int64_t last) {
    constexpr int64_t ITEM = F == Format::float32 ? 4 : 2;
    const int64_t history = job.K - 1, begin = first_token(job.slots, sequence);
    Channels channels;
    channels.first = first;
    channels.n = last - first;
    read_taps(job, channels);
    const int64_t bytes = channels.n * ITEM;
    const auto state = [&](int64_t slot, int64_t j) {
        return static_cast<char*>(job.states) + ((slot * history + j) * job.C + first) * ITEM;
    };
    const int64_t source = read_slot(job.slots, sequence);
    for (int64_t j = 0; j < history; j++) {
        if (source < 0) {
            memset(channels.earlier[j], 0, bytes);
        } else {
            memcpy(channels.earlier[j], state(source, j), bytes);
        }
    }
    for (int64_t t = begin; t < end_token(job.slots, sequence); t++) {
        const char* rows[MAX_CONV_WIDTH];
        for (int64_t j = 0; j < job.K; j++) {
            const int64_t i = t - begin + j;  // index among `earlier` followed by the step's inputs
            rows[j] = i < history ? channels.earlier[i]
                                  : static_cast<const char*>(job.x) +
                                        ((begin + i - history) * job.x_stride + first) * ITEM;
        }
        convolve<F>(job, channels, rows, job.y + t * job.C + first);
        if (const int64_t slot = write_slot(job.slots, t); slot >= 0) {
            for (int64_t j = 0; j < history; j++) {
                memcpy(state(slot, j), rows[j + 1], bytes);
            }
        }
    }
}

}  // namespace

void causal_conv1d(const CausalConv1dJob& job, int64_t sequence, int64_t first, int64_t last) {
    switch (job.format) {
        case Format::float32:
            return convolve_sequence<Format::float32>(job, sequence, first, last);
        case Format::float16:
            return convolve_sequence<Format::float16>(job, sequence, first, last);
        default:
            return convolve_sequence<Format::bfloat16>(job, sequence, first, last);
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
