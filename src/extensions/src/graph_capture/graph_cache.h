// Captured graphs as functions use them, and the graph node that replays one.
//
//     graph_cache.replay(inputs)  ──shapes it knows──▶  one node
//            │ nothing
//            ▼
//     function(placeholders)   ──▶  graph_cache.capture(placeholders, outputs)
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "src/graph_capture/executable.h"

namespace tiny_llm_ext {

/// The graphs of one function: one for each list of shapes and dtypes that it was called with
/// on a stream. Of very many those that were not used for the longest time are dropped.
class GraphCache {
   public:
    /// The function's outputs for these inputs, from one node; nothing if there is no graph.
    std::optional<std::vector<mx::array>> replay(const std::vector<mx::array>& inputs);

    /// Arrays without data, of the shapes and dtypes of `inputs`, to call the function with.
    static std::vector<mx::array> placeholders(const std::vector<mx::array>& inputs);

    /// Keeps what was computed from placeholders. Throws as CapturedGraph does.
    void capture(const std::vector<mx::array>& placeholders, const std::vector<mx::array>& outputs);

    /// The steps of the graph that was made or replayed last.
    std::vector<CapturedGraph::NodeInfo> steps() const;

   private:
    std::vector<std::shared_ptr<mx::Primitive>> replays_;
};

/// The graph node. Inputs and outputs: the graph's.
class GraphReplay : public mx::Primitive {
   public:
    explicit GraphReplay(std::shared_ptr<const CapturedGraph> graph)
        : mx::Primitive(graph->stream()), graph_(std::move(graph)) {}

    const CapturedGraph& graph() const { return *graph_; }

    void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
    void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;

    const char* name() const override { return "TinyLlmReplay"; }
    bool is_equivalent(const mx::Primitive& other) const override { return this == &other; }
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    std::vector<mx::array> prepared(const std::vector<mx::array>& inputs);
    std::shared_ptr<const ExecutableGraph> executable_for(const std::vector<mx::array>& inputs);

    std::shared_ptr<const CapturedGraph> graph_;
    std::mutex mutex_;  // of what follows
    std::vector<std::shared_ptr<const ExecutableGraph>> executables_;
};

}  // namespace tiny_llm_ext
