// From a graph to a list of operations.
#include "src/recording/recording.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "common/checks.h"
#include "common/rows.h"
#include "common/tasks.h"

namespace tiny_llm_ext {

namespace {

constexpr const char* NAME = "recording";

// The stream of what computes the outputs; some may be inputs.
mx::Stream stream_of(const std::vector<mx::array>& outputs) {
    const auto computed = std::find_if(outputs.begin(), outputs.end(),
                                       [](const mx::array& x) { return x.has_primitive(); });
    check(computed != outputs.end(), NAME, "expected a function that computes something, got ",
          outputs.size(), " arrays that are nothing new");
    return computed->primitive().stream();
}

bool is_one_of(std::initializer_list<std::string_view> names, const mx::Primitive& primitive) {
    return std::find(names.begin(), names.end(), primitive.name()) != names.end();
}

// Whether its tasks go through `add_task`.
bool adds_tasks(const mx::Primitive& primitive) {
    return is_one_of({"TinyLlmMatmul", "TinyLlmQkNormRope", "TinyLlmQuantizedMatmul",
                      "TinyLlmQuantizedMatmulEach", "TinyLlmRmsNorm", "TinyLlmSwiglu"},
                     primitive);
}

// Whether it has no task, given an input in row-major order.
bool is_view(const mx::Primitive& primitive) {
    return is_one_of({"ExpandDims", "Reshape", "Squeeze", "Transpose"}, primitive);
}

}  // namespace

// Walks the graph from the outputs back to the placeholders, and writes down the steps.
class Recording::Tracer {
   public:
    Tracer(Recording& recording, const std::vector<mx::array>& placeholders)
        : recording_(recording) {
        for (const auto& placeholder : placeholders) {
            places_.insert({placeholder.id(), {false, computed_++}});
        }
    }

    // Where x is, once all that it depends on is written down.
    Place place_of(const mx::array& x) {
        if (const auto known = places_.find(x.id()); known != places_.end()) {
            return known->second;
        }
        return depends_on_placeholders(x) ? add_step(x) : add_constant(x);
    }

   private:
    bool depends_on_placeholders(const mx::array& x) {
        if (const auto known = places_.find(x.id()); known != places_.end()) {
            return !known->second.is_constant;
        }
        if (const auto known = depends_.find(x.id()); known != depends_.end()) {
            return known->second;
        }
        const auto& inputs = x.inputs();
        const bool depends = std::any_of(inputs.begin(), inputs.end(), [&](const auto& input) {
            return depends_on_placeholders(input);
        });
        depends_.insert({x.id(), depends});
        return depends;
    }

    Place add_constant(mx::array x) {
        x.eval();
        const Place place = {true, static_cast<int>(recording_.constants_.size())};
        recording_.constants_.push_back(x);
        places_.insert({x.id(), place});
        return place;
    }

    // A primitive computes all of its outputs at once.
    Place add_step(const mx::array& x) {
        check(x.primitive().stream() == recording_.stream_, NAME,
              "expected all operations on one stream, got ", x.primitive().name(), " on another");
        Step step = {x.primitive_ptr(), {}, {}, {}};
        for (const auto& input : x.inputs()) {
            step.inputs.push_back(place_of(input));
        }
        for (const auto& output : x.outputs()) {
            step.shapes.push_back(output.shape());
            step.dtypes.push_back(output.dtype());
            places_.insert({output.id(), {false, computed_++}});
        }
        recording_.steps_.push_back(std::move(step));
        return places_.at(x.id());
    }

    Recording& recording_;
    std::unordered_map<std::uintptr_t, Place> places_;
    std::unordered_map<std::uintptr_t, bool> depends_;
    int computed_ = 0;  // arrays that are not constants
};

Recording::Recording(const std::vector<mx::array>& placeholders,
                     const std::vector<mx::array>& outputs)
    : stream_(stream_of(outputs)) {
    check(stream_.device == mx::Device::cpu, NAME,
          "expected operations on the CPU: a GPU is told of each as it comes");
    for (const auto& input : placeholders) {
        input_shapes_.push_back(input.shape());
        input_dtypes_.push_back(input.dtype());
    }
    Tracer tracer(*this, placeholders);
    for (const auto& output : outputs) {
        outputs_.push_back(tracer.place_of(output));
        output_shapes_.push_back(output.shape());
        output_dtypes_.push_back(output.dtype());
    }
    can_be_captured_ = std::all_of(steps_.begin(), steps_.end(), [](const Step& step) {
        return adds_tasks(*step.primitive) || is_view(*step.primitive);
    });
}

bool Recording::fits(const std::vector<mx::array>& inputs, mx::Stream stream) const {
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

std::vector<mx::array> Recording::evaluate(const std::vector<mx::array>& inputs,
                                           std::vector<mx::array>& between) const {
    std::vector<mx::array> computed = inputs;
    const auto at = [&](const Place& place) {
        return (place.is_constant ? constants_ : computed)[place.index];
    };
    for (const Step& step : steps_) {
        std::vector<mx::array> from, to;
        for (const Place& place : step.inputs) {
            from.push_back(at(place));
        }
        if (Capture::current() != nullptr && is_one_of({"Reshape"}, *step.primitive)) {
            from[0] = row_contiguous(from[0], stream_);  // MLX's own copy would not be captured
        }
        for (size_t i = 0; i < step.shapes.size(); i++) {
            to.emplace_back(step.shapes[i], step.dtypes[i], step.primitive,
                            std::vector<mx::array>{});
        }
        step.primitive->eval_cpu(from, to);
        computed.insert(computed.end(), to.begin(), to.end());
    }
    std::vector<mx::array> outputs;
    for (const Place& place : outputs_) {
        outputs.push_back(at(place));
    }
    between.assign(computed.begin() + inputs.size(), computed.end());
    return outputs;
}

}  // namespace tiny_llm_ext
