// A graph: what a function of arrays does, written down once.
//
// In a decode step MLX spends about 6 µs on each node of the graph: Python builds it, MLX finds its
// place in the order, works out where its arrays are, and hands a task to the thread that computes.
// A transformer block has twenty nodes, most of their kernels take no longer than that, and the
// work takes a core away from a thread that multiplies. From one token to the next nothing changes
// but the numbers, so all of this can be done once:
//
//     GraphCache   graphs of one function, by the shapes of its inputs      (graph_cache.h)
//     CapturedGraph  its operations in an order to run them in                    (here)
//     ExecutableGraph    their tasks, for inputs that lie in memory in one way (executable.h)
//     GraphReplay     the node of MLX's graph that runs a executable (graph_cache.h)
//
// The same kernels run in the same order and give the same bits. GPUs have this as CUDA graphs, and
// for the same reason. mx.compile is something else: it fuses MLX's own elementwise operations into
// new kernels, and leaves ours as many nodes as they were.
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

/// The operations between some placeholders and some outputs. What else they read, weights for
/// example, is part of it.
///
/// Every operation must be on one stream of the CPU, and must be a Capturable
/// (common/capturable.h), or one of MLX's that only look at an array in another way. Those that
/// write into an input, as into a KV cache, may do that to one of the graph's that nothing
/// reads afterwards.
class CapturedGraph {
   public:
    /// placeholders: arrays without data, from which the outputs were computed. What the outputs
    /// depend on besides is evaluated now.
    /// Throws std::invalid_argument if an operation is not as above, or if there are none.
    CapturedGraph(const std::vector<mx::array>& placeholders,
                  const std::vector<mx::array>& outputs);

    /// Whether it is for inputs of these shapes and dtypes on this stream.
    bool fits(const std::vector<mx::array>& inputs, mx::Stream stream) const;

    /// Evaluates every operation, for inputs that have memory, in the current capture, which gets
    /// the tasks. Returns the outputs.
    std::vector<mx::array> evaluate(const std::vector<mx::array>& inputs) const;

    /// Whether the tasks overwrite an input, and which input an output is, overwritten; −1 if it
    /// has memory of its own.
    bool overwrites(size_t input) const { return overwrites_[input]; }
    int overwritten_input(size_t output) const { return overwritten_inputs_[output]; }

    /// A step in words: its operation, its inputs (nothing for a constant), its outputs, and what
    /// nothing after it reads. Numbers count the inputs first, then what the steps make.
    using NodeInfo = std::tuple<std::string, std::vector<std::optional<int>>, std::vector<int>,
                                std::vector<int>>;
    std::vector<NodeInfo> node_infos() const;

    mx::Stream stream() const { return stream_; }
    const std::vector<mx::Shape>& output_shapes() const { return output_shapes_; }
    const std::vector<mx::Dtype>& output_dtypes() const { return output_dtypes_; }

   private:
    // Where an array is: of the inputs and what the steps made of them, in this order, or of the
    // constants.
    struct Place {
        bool is_constant;
        int index;
    };

    struct Step {
        std::shared_ptr<mx::Primitive> primitive;
        std::vector<Place> inputs;
        std::vector<mx::Shape> shapes;  // of its outputs
        std::vector<mx::Dtype> dtypes;
        int first_output;           // the index of its first output's place
        std::vector<int> last_use;  // indices that nothing after it reads
    };

    class Tracer;

    std::vector<int> aliases_of(const Place& place) const;
    void find_last_uses();
    void find_overwritten();

    std::vector<mx::Shape> input_shapes_, output_shapes_;
    std::vector<mx::Dtype> input_dtypes_, output_dtypes_;
    std::vector<mx::array> constants_;
    std::vector<Step> steps_;
    std::vector<Place> outputs_;
    std::vector<int> view_of_;             // of each index: which it is a view of, or −1
    std::vector<bool> overwrites_;         // of each input
    std::vector<int> overwritten_inputs_;  // of each output
    mx::Stream stream_;
};

}  // namespace tiny_llm_ext
