// topk_softmax on the CPU. A token has at most a few hundred router logits, which are too few to
// need a vector kernel.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "common/checks.h"
#include "common/rows.h"
#include "common/tasks.h"
#include "src/topk_softmax/topk_softmax.h"

namespace tiny_llm_ext {

namespace {

struct TopkSoftmaxJob {
    int64_t N, X, K;
    bool normalize;
    Format format;  // of logits
    Rows logits;
    uint32_t* experts;  // N × K
    float* weights;     // N × K
};

// Computes rows first … last − 1.
void route(const TopkSoftmaxJob& job, int64_t first, int64_t last) {
    std::vector<float> logits(job.X);
    std::vector<uint32_t> order(job.X);
    for (int64_t n = first; n < last; n++) {
        for (int64_t x = 0; x < job.X; x++) {
            logits[x] = load_element(job.logits.data, n * job.logits.stride + x, job.format);
        }
        std::iota(order.begin(), order.end(), 0);
        std::partial_sort(
            order.begin(), order.begin() + job.K, order.end(), [&](uint32_t a, uint32_t b) {
                if (std::isnan(logits[a]) != std::isnan(logits[b])) {
                    return std::isnan(logits[a]);
                }
                return logits[a] != logits[b] && !std::isnan(logits[a]) ? logits[a] > logits[b]
                                                                        : a < b;
            });
        std::copy_n(order.begin(), job.K, job.experts + n * job.K);

        // If the selected weights are normalized, the sum over all experts cancels, so only the
        // selected ones are summed.
        const float largest = logits[order[0]];
        float sum = 0;
        for (int64_t x = 0; x < (job.normalize ? job.K : job.X); x++) {
            sum += std::exp(logits[job.normalize ? order[x] : x] - largest);
        }
        for (int64_t k = 0; k < job.K; k++) {
            job.weights[n * job.K + k] = std::exp(logits[order[k]] - largest) / sum;
        }
    }
}

}  // namespace

void TopkSoftmax::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
    const Rows logits = rows_of(inputs[0], stream());
    const TopkSoftmaxJob job = {
        .N = static_cast<int64_t>(outputs[0].size()) / k_,
        .X = inputs[0].shape(-1),
        .K = k_,
        .normalize = normalize_,
        .format = format_of(inputs[0].dtype()),
        .logits = logits,
        .experts = static_cast<uint32_t*>(allocate(outputs[0])),
        .weights = static_cast<float*>(allocate(outputs[1])),
    };
    if (job.N > 0) {
        add_task(stream(), [job] {
            for_rows(job.N, 4 * job.X,  // 4, because sorting a logit costs more than reading it
                     [&](int64_t first, int64_t last) { route(job, first, last); });
        });
    }
}

}  // namespace tiny_llm_ext
