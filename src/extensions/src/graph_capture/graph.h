// graph_capture: CPU graphs, captured once and replayed as one node.
//
// In a decode step MLX spends about 6 µs on each node of the graph: Python builds it, MLX sorts it
// topologically, resolves its arrays' memory and dispatches a task to the stream's thread. A
// transformer block has twenty nodes, and most of their kernels take no longer than that. The
// overhead also occupies a core that could run kernels. Only the values change from one token to
// the next, so this work is done once:
//
//     GraphCache       graphs of one function, keyed by input shapes      (graph_cache.h)
//     CapturedGraph    the operations in execution order                  (here)
//     ExecutableGraph  their tasks, for one memory layout of the inputs   (executable.h)
//     GraphReplay      the MLX graph node that runs an executable         (graph_cache.h)
//
// A replay runs the same kernels in the same order as the captured graph, so it gives the same
// bits. CUDA graphs do this on a GPU. mx.compile instead fuses MLX's elementwise operations into
// new kernels, and leaves the nodes of this extension unchanged.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// The operations between placeholders and outputs. Other arrays that they read, such as weights,
/// are constants of the graph.
///
/// All operations must be on one CPU stream, and must be Capturable (common/capturable.h) or MLX
/// views. An operation that writes to an input, such as a KV cache, may only write to an input of
/// the graph that is not read afterwards.
class CapturedGraph {
   public:
    /// placeholders: arrays without data, from which the outputs were computed. The constructor
    /// evaluates all other dependencies of the outputs.
    /// Throws std::invalid_argument if an operation violates the rules of this class, or if no
    /// output is the result of an operation.
    CapturedGraph(const std::vector<mx::array>& placeholders,
                  const std::vector<mx::array>& outputs);

    /// Whether the graph was captured for these shapes, dtypes and stream.
    bool fits(const std::vector<mx::array>& inputs, mx::Stream stream) const;

    /// Evaluates every operation on allocated inputs; the current TaskCapture receives the tasks.
    /// Returns the outputs.
    std::vector<mx::array> evaluate(const std::vector<mx::array>& inputs) const;

    /// Whether the tasks overwrite an input.
    bool overwrites(size_t input) const { return overwrites_[input]; }
    /// Whether they may do so although other arrays share the input's memory.
    bool overwrites_shared_memory(size_t input) const { return overwrites_shared_memory_[input]; }
    /// Index of the overwritten input whose memory an output shares, or −1.
    int overwritten_input(size_t output) const { return overwritten_inputs_[output]; }

    /// Description of a step: operation, and the indices of its inputs (nullopt for a constant),
    /// its outputs, and the arrays that no later step reads. Indices number the graph's inputs
    /// first, then the steps' outputs.
    using NodeInfo = std::tuple<std::string, std::vector<std::optional<int>>, std::vector<int>,
                                std::vector<int>>;
    std::vector<NodeInfo> node_infos() const;

    mx::Stream stream() const { return stream_; }
    const std::vector<mx::Shape>& output_shapes() const { return output_shapes_; }
    const std::vector<mx::Dtype>& output_dtypes() const { return output_dtypes_; }

   private:
    // Index of an array: in the graph's inputs followed by the steps' outputs, or in the constants.
    struct ArrayIndex {
        bool is_constant;
        int index;
    };

    struct Step {
        std::shared_ptr<mx::Primitive> primitive;
        std::vector<ArrayIndex> inputs;
        std::vector<mx::Shape> shapes;  // of the outputs
        std::vector<mx::Dtype> dtypes;
        int first_output;           // index of the step's first output
        std::vector<int> last_use;  // indices of arrays that no later step reads
    };

    class Tracer;

    std::vector<int> aliases_of(const ArrayIndex& array) const;
    void find_last_uses();
    void find_overwritten();

    std::vector<mx::Shape> input_shapes_, output_shapes_;
    std::vector<mx::Dtype> input_dtypes_, output_dtypes_;
    std::vector<mx::array> constants_;
    std::vector<Step> steps_;
    std::vector<ArrayIndex> outputs_;
    std::vector<int> view_of_;      // per index: index of the array that it is a view of, or −1
    std::vector<bool> overwrites_;  // per input
    std::vector<bool> overwrites_shared_memory_;  // per input
    std::vector<int> overwritten_inputs_;         // per output
    mx::Stream stream_;
};

}  // namespace tiny_llm_ext
