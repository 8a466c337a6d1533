// Cache of a function's captured graphs, and the graph node that replays one.
//
//     graph_cache.replay(inputs)  ──hit──▶  one node
//            │ miss
//            ▼
//     function(placeholders)   ──▶  graph_cache.capture(placeholders, outputs)
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "src/graph_capture/executable.h"

namespace tiny_llm_ext {

/// LRU cache of one function's graphs, keyed by the inputs' shapes and dtypes and the stream.
class GraphCache {
   public:
    /// The function's outputs for these inputs, computed by one node; nullopt on a cache miss.
    std::optional<std::vector<mx::array>> replay(const std::vector<mx::array>& inputs);

    /// Arrays without data, with the shapes and dtypes of `inputs`, for calling the function.
    static std::vector<mx::array> placeholders(const std::vector<mx::array>& inputs);

    /// Caches the graph between placeholders and outputs. Throws as the constructor of
    /// CapturedGraph does.
    void capture(const std::vector<mx::array>& placeholders, const std::vector<mx::array>& outputs);

    /// Steps of the most recently captured or replayed graph.
    std::vector<CapturedGraph::NodeInfo> steps() const;

   private:
    std::vector<std::shared_ptr<mx::Primitive>> replays_;
};

/// Graph node that replays a captured graph. Its inputs and outputs are those of the captured
/// graph.
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
    std::mutex mutex_;  // guards the members below
    std::vector<std::shared_ptr<const ExecutableGraph>> executables_;
};

}  // namespace tiny_llm_ext
