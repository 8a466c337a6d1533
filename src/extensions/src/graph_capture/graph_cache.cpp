#include "src/graph_capture/graph_cache.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "common/rows.h"
#include "common/tasks.h"

namespace tiny_llm_ext {

namespace {

// Graphs per function. Each thread has a separate stream and therefore separate graphs, so graphs
// of finished threads must be evicted. A graph of an eight-layer model takes 0.2 MB. In a run of
// sixteen requests of random lengths, only the sixteen most recent graphs were reused; 32 leave a
// margin.
constexpr size_t MAX_GRAPHS = 32;

// Executables per graph: one for each layout of its inputs and address of its overwritten inputs.
constexpr size_t MAX_EXECUTABLES = 8;

// Creates the outputs of a replay node. MLX would store all inputs in each output: thousands of
// references for a model's layers. Its graph traversal needs only unevaluated inputs, so all
// outputs except the first store only those.
std::vector<mx::array> outputs_of(const std::shared_ptr<mx::Primitive>& replay,
                                  const CapturedGraph& graph,
                                  const std::vector<mx::array>& inputs) {
    std::vector<mx::array> to_compute;
    std::copy_if(inputs.begin(), inputs.end(), std::back_inserter(to_compute),
                 [](const mx::array& input) { return !input.is_available(); });
    std::vector<mx::array> outputs;
    for (size_t i = 0; i < graph.output_shapes().size(); i++) {
        outputs.emplace_back(graph.output_shapes()[i], graph.output_dtypes()[i], replay,
                             i == 0 ? inputs : to_compute);
    }
    for (size_t i = 0; i < outputs.size(); i++) {
        std::vector<mx::array> siblings = outputs;
        siblings.erase(siblings.begin() + static_cast<int>(i));
        outputs[i].set_siblings(std::move(siblings), static_cast<uint16_t>(i));
    }
    return outputs;
}

}  // namespace

std::optional<std::vector<mx::array>> GraphCache::replay(const std::vector<mx::array>& inputs) {
    const mx::Stream stream = mx::default_stream(mx::Device::cpu);
    for (auto replay = replays_.rbegin(); replay != replays_.rend(); ++replay) {
        const auto& graph = static_cast<const GraphReplay&>(**replay).graph();
        if (graph.fits(inputs, stream)) {
            std::rotate(replay.base() - 1, replay.base(), replays_.end());  // LRU order
            return outputs_of(replays_.back(), graph, inputs);
        }
    }
    return std::nullopt;
}

std::vector<mx::array> GraphCache::placeholders(const std::vector<mx::array>& inputs) {
    std::vector<mx::array> arrays;
    for (const auto& input : inputs) {
        arrays.emplace_back(input.shape(), input.dtype(), nullptr, std::vector<mx::array>{});
    }
    return arrays;
}

void GraphCache::capture(const std::vector<mx::array>& placeholders,
                         const std::vector<mx::array>& outputs) {
    const auto graph = std::make_shared<const CapturedGraph>(placeholders, outputs);
    if (replays_.size() == MAX_GRAPHS) {
        replays_.erase(replays_.begin());
    }
    replays_.push_back(std::make_shared<GraphReplay>(graph));
}

std::vector<CapturedGraph::NodeInfo> GraphCache::steps() const {
    if (replays_.empty()) {
        return {};
    }
    return static_cast<const GraphReplay&>(*replays_.back()).graph().node_infos();
}

// Copies the inputs that an executable cannot use: those with gaps, and overwritten inputs that
// have other readers, unless these are allowed.
std::vector<mx::array> GraphReplay::prepared(const std::vector<mx::array>& inputs) {
    std::vector<mx::array> ready;
    for (size_t i = 0; i < inputs.size(); i++) {
        const bool is_ready = graph_->overwrites(i)
                                  ? can_overwrite(inputs[i], graph_->overwrites_shared_memory(i))
                                  : is_dense(inputs[i]);
        ready.push_back(is_ready ? inputs[i] : copy_of(inputs[i], stream()));
    }
    return ready;
}

void GraphReplay::eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>& outputs) {
    // Releases the inputs that the other outputs store. MLX would do so later, but `prepared` can
    // reuse an overwritten input's memory only if a single reference is left.
    for (size_t i = 1; i < outputs.size(); i++) {
        outputs[i].inputs().clear();
    }
    const auto& inputs = outputs[0].inputs();
    const auto ready = prepared(inputs);
    const auto executable = executable_for(ready);
    std::vector<const char*> from;
    std::vector<char*> to;
    for (size_t i = 0; i < inputs.size(); i++) {
        add_temporary(stream(), inputs[i]);
        from.push_back(ready[i].data<char>());
    }
    for (size_t i = 0; i < outputs.size(); i++) {
        executable->allocate_output(i, ready, outputs[i]);
        to.push_back(outputs[i].data<char>());
    }
    add_task(stream(), [executable, from = std::move(from), to = std::move(to)] {
        executable->run(from, to);
    });
}

void GraphReplay::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
    throw std::logic_error("[graph_capture] this node has no GPU kernel");
}

std::vector<mx::Shape> GraphReplay::output_shapes(const std::vector<mx::array>&) {
    return graph_->output_shapes();
}

std::shared_ptr<const ExecutableGraph> GraphReplay::executable_for(
    const std::vector<mx::array>& inputs) {
    std::lock_guard lock(mutex_);
    for (const auto& executable : executables_) {
        if (executable->fits(inputs)) {
            return executable;
        }
    }
    if (executables_.size() == MAX_EXECUTABLES) {
        executables_.erase(executables_.begin());
    }
    executables_.push_back(std::make_shared<const ExecutableGraph>(graph_, inputs));
    return executables_.back();
}

}  // namespace tiny_llm_ext
