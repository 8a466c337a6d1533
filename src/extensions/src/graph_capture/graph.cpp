// Conversion of an MLX graph to a list of operations.
#include "src/graph_capture/graph.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "common/capturable.h"
#include "common/checks.h"
#include "common/gpu.h"
#include "common/rows.h"
#include "common/tasks.h"

namespace tiny_llm_ext {

namespace {

constexpr const char* GRAPH_CAPTURE = "graph_capture";

// Stream of the first output that is computed by an operation; some outputs may be inputs of the
// graph.
mx::Stream stream_of(const std::vector<mx::array>& outputs) {
    const auto computed = std::find_if(outputs.begin(), outputs.end(),
                                       [](const mx::array& x) { return x.has_primitive(); });
    check(computed != outputs.end(), GRAPH_CAPTURE,
          "expected at least one output computed by an operation, got ", outputs.size(),
          " outputs, none of them computed");
    return computed->primitive().stream();
}

bool contains(const std::vector<int>& indices, int index) {
    return std::find(indices.begin(), indices.end(), index) != indices.end();
}

// Casts a graph node to Capturable; nullptr if the node cannot be captured.
const Capturable* as_capturable(const mx::Primitive& primitive) {
    return dynamic_cast<const Capturable*>(&primitive);
}

bool writes_in_place(const mx::Primitive& primitive) {
    const Capturable* capturable = as_capturable(primitive);
    return capturable != nullptr && capturable->writes_in_place();
}

bool is_reshape(const mx::Primitive& primitive) {
    return std::string_view(primitive.name()) == "Reshape";
}

// Whether a node is an MLX view, which enqueues no task if its input is row-major.
bool is_view(const mx::Primitive& primitive) {
    const std::set<std::string_view> views = {"ExpandDims", "Reshape", "Slice", "Squeeze",
                                              "Transpose"};
    return views.contains(primitive.name());
}

}  // namespace

// Traverses the MLX graph from the outputs to the placeholders and appends its operations to the
// captured graph's steps.
class CapturedGraph::Tracer {
   public:
    Tracer(CapturedGraph& graph, const std::vector<mx::array>& placeholders) : graph_(graph) {
        for (const auto& placeholder : placeholders) {
            indices_.insert({placeholder.id(), {false, computed_++}});
        }
    }

    // Returns the index of x. Appends x and its dependencies if necessary.
    ArrayIndex index_of(const mx::array& x) {
        if (const auto known = indices_.find(x.id()); known != indices_.end()) {
            return known->second;
        }
        return depends_on_placeholders(x) ? add_step(x) : add_constant(x);
    }

   private:
    bool depends_on_placeholders(const mx::array& x);

    ArrayIndex add_constant(mx::array x) {
        x.eval();
        const ArrayIndex array = {true, static_cast<int>(graph_.constants_.size())};
        graph_.constants_.push_back(x);
        indices_.insert({x.id(), array});
        return array;
    }

    // Appends a step with all outputs of the primitive, which computes them together.
    ArrayIndex add_step(const mx::array& x) {
        check(x.primitive().stream() == graph_.stream_, GRAPH_CAPTURE,
              "expected all operations on one stream, got ", x.primitive().name(),
              " on another stream");
        check(as_capturable(x.primitive()) != nullptr || is_view(x.primitive()), GRAPH_CAPTURE,
              "expected only operations of tiny_llm_ext and MLX views, got ", x.primitive().name());
        Step step = {x.primitive_ptr(), {}, {}, {}, 0, {}};
        for (const auto& input : x.inputs()) {
            step.inputs.push_back(index_of(input));
        }
        step.first_output = computed_;
        const bool views_computed = is_view(x.primitive()) && !step.inputs[0].is_constant;
        graph_.view_of_.resize(computed_ + x.outputs().size(), -1);
        graph_.view_of_[computed_] = views_computed ? step.inputs[0].index : -1;
        for (const auto& output : x.outputs()) {
            step.shapes.push_back(output.shape());
            step.dtypes.push_back(output.dtype());
            indices_.insert({output.id(), {false, computed_++}});
        }
        graph_.steps_.push_back(std::move(step));
        return indices_.at(x.id());
    }

    CapturedGraph& graph_;
    std::unordered_map<std::uintptr_t, ArrayIndex> indices_;
    std::unordered_map<std::uintptr_t, bool> depends_;
    int computed_ = 0;  // number of non-constant arrays
};

// Whether x depends on a placeholder, directly or indirectly. `indices_` has the arrays already
// appended, `depends_` memoizes earlier results.
bool CapturedGraph::Tracer::depends_on_placeholders(const mx::array& x) {
    if (const auto known = indices_.find(x.id()); known != indices_.end()) {
        return !known->second.is_constant;
    }
    if (const auto known = depends_.find(x.id()); known != depends_.end()) {
        return known->second;
    }
    // [task 4.7.2 depends]
    const auto& inputs = x.inputs();
    const bool depends = std::any_of(inputs.begin(), inputs.end(), [&](const auto& input) {
        return depends_on_placeholders(input);
    });
    depends_.insert({x.id(), depends});
    return depends;
    // [/task 4.7.2 depends]
}

CapturedGraph::CapturedGraph(const std::vector<mx::array>& placeholders,
                             const std::vector<mx::array>& outputs)
    : stream_(stream_of(outputs)) {
    check(!is_gpu(stream_), GRAPH_CAPTURE, "expected operations on the CPU, got a GPU stream");
    for (const auto& input : placeholders) {
        input_shapes_.push_back(input.shape());
        input_dtypes_.push_back(input.dtype());
    }
    Tracer tracer(*this, placeholders);
    for (const auto& output : outputs) {
        outputs_.push_back(tracer.index_of(output));
        output_shapes_.push_back(output.shape());
        output_dtypes_.push_back(output.dtype());
    }
    find_last_uses();
    find_overwritten();
}

// An array's index and the indices of the arrays that it is a view of, because reading the view
// reads their memory.
std::vector<int> CapturedGraph::aliases_of(const ArrayIndex& array) const {
    std::vector<int> indices;
    for (int index = array.is_constant ? -1 : array.index; index >= 0; index = view_of_[index]) {
        indices.push_back(index);
    }
    return indices;
}

// Fills each step's last_use: indices whose memory no later step reads. The graph's outputs are
// read after all steps. A step's unused output has its last use in that step.
void CapturedGraph::find_last_uses() {
    // [task 4.7.2 last-uses]
    std::unordered_set<int> used_later;
    for (const ArrayIndex& output : outputs_) {
        for (const int index : aliases_of(output)) {
            used_later.insert(index);
        }
    }
    for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
        std::vector<ArrayIndex> used = step->inputs;
        for (size_t i = 0; i < step->shapes.size(); i++) {
            // Outputs count as used by their step, because some have no other use.
            used.push_back({false, step->first_output + static_cast<int>(i)});
        }
        for (const ArrayIndex& array : used) {
            for (const int index : aliases_of(array)) {
                if (used_later.insert(index).second) {
                    step->last_use.push_back(index);
                }
            }
        }
    }
    // [/task 4.7.2 last-uses]
}

void CapturedGraph::find_overwritten() {
    std::unordered_map<int, int> overwritten;  // array index -> index of the input that it aliases
    for (int i = 0; i < static_cast<int>(input_shapes_.size()); i++) {
        overwritten.insert({i, i});
    }
    overwrites_.assign(input_shapes_.size(), false);
    overwrites_shared_memory_.assign(input_shapes_.size(), true);
    for (const Step& step : steps_) {
        if (!writes_in_place(*step.primitive)) {
            continue;
        }
        const ArrayIndex& buffer = step.inputs[0];
        const auto input = overwritten.find(buffer.index);
        const bool is_last = contains(step.last_use, buffer.index);
        const bool writes_itself = std::any_of(
            step.inputs.begin() + 1, step.inputs.end(),
            [&](const ArrayIndex& other) { return contains(aliases_of(other), buffer.index); });
        check(!buffer.is_constant && input != overwritten.end() && is_last && !writes_itself,
              GRAPH_CAPTURE,
              "expected in-place writes only to graph inputs that are not read afterwards, got ",
              step.primitive->name(), " on another array");
        overwrites_[input->second] = true;
        if (!as_capturable(*step.primitive)->overwrites_shared_memory()) {
            overwrites_shared_memory_[input->second] = false;
        }
        overwritten.insert({step.first_output, input->second});
    }
    for (const ArrayIndex& output : outputs_) {
        const auto found = overwritten.find(output.index);
        const bool is_buffer =
            !output.is_constant && found != overwritten.end() && overwrites_[found->second];
        overwritten_inputs_.push_back(is_buffer ? found->second : -1);
    }
}

bool CapturedGraph::fits(const std::vector<mx::array>& inputs, mx::Stream stream) const {
    if (stream != stream_ || inputs.size() != input_shapes_.size()) {
        return false;
    }
    for (size_t i = 0; i < inputs.size(); i++) {
        if (inputs[i].dtype() != input_dtypes_[i] || inputs[i].shape() != input_shapes_[i]) {
            return false;
        }
    }
    return true;
}

std::vector<CapturedGraph::NodeInfo> CapturedGraph::node_infos() const {
    std::vector<NodeInfo> steps;
    for (const Step& step : steps_) {
        std::vector<std::optional<int>> from;
        for (const ArrayIndex& array : step.inputs) {
            from.push_back(array.is_constant ? std::nullopt : std::optional(array.index));
        }
        std::vector<int> to, last_uses = step.last_use;
        for (size_t i = 0; i < step.shapes.size(); i++) {
            to.push_back(step.first_output + static_cast<int>(i));
        }
        std::sort(last_uses.begin(), last_uses.end());
        steps.emplace_back(step.primitive->name(), from, to, last_uses);
    }
    return steps;
}

std::vector<mx::array> CapturedGraph::evaluate(const std::vector<mx::array>& inputs) const {
    std::vector<std::optional<mx::array>> computed(inputs.begin(), inputs.end());
    const auto at = [&](const ArrayIndex& array) {
        return array.is_constant ? constants_[array.index] : *computed[array.index];
    };
    for (const Step& step : steps_) {
        std::vector<mx::array> from, to;
        for (const ArrayIndex& array : step.inputs) {
            from.push_back(at(array));
        }
        if (is_reshape(*step.primitive)) {
            // MLX would copy an array with gaps itself, and that copy would not be captured.
            from[0] = row_contiguous(from[0], stream_);
        }
        for (size_t i = 0; i < step.shapes.size(); i++) {
            to.emplace_back(step.shapes[i], step.dtypes[i], step.primitive,
                            std::vector<mx::array>{});
        }
        step.primitive->eval_cpu(from, to);
        computed.insert(computed.end(), to.begin(), to.end());
        for (const int index : step.last_use) {
            computed[index].reset();
        }
    }
    std::vector<mx::array> outputs;
    for (const ArrayIndex& array : outputs_) {
        outputs.push_back(at(array));
    }
    return outputs;
}

}  // namespace tiny_llm_ext
