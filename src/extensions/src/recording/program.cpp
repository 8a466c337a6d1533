#include "src/recording/program.h"

#include <cassert>
#include <cstring>
#include <map>

#include "common/rows.h"
#include "common/tasks.h"

namespace tiny_llm_ext {

namespace {

// Programs of a stream run one after the other, and nothing between inputs and outputs outlives a
// run: they share memory. It goes with the thread, but for what programs still have of it.
Capture::Workspace& workspace_of(mx::Stream stream) {
    thread_local std::map<int, Capture::Workspace> workspaces;
    return workspaces[stream.index];
}

}  // namespace

Program::Slot Program::slot_of(const mx::array& x, bool is_copied) {
    return {const_cast<char*>(x.data<char>()), is_copied ? x.nbytes() : 0, x.data_size(),
            x.strides(), x.flags()};
}

Program::Program(std::shared_ptr<const Recording> recording, const std::vector<mx::array>& inputs)
    : recording_(std::move(recording)) {
    Capture capture(workspace_of(recording_->stream()));
    std::vector<mx::array> places;
    for (size_t i = 0; i < inputs.size(); i++) {
        assert(is_dense(inputs[i]));
        const bool is_copied = !recording_->overwrites(i);
        mx::array place(inputs[i].shape(), inputs[i].dtype(), nullptr, {});
        if (is_copied) {
            capture.allocate(place);
            place.copy_shared_buffer(place, inputs[i].strides(), inputs[i].flags(),
                                     inputs[i].size());
        } else {
            place.copy_shared_buffer(inputs[i]);
        }
        inputs_.push_back(slot_of(place, is_copied));
        places.push_back(place);
    }
    const auto results = recording_->evaluate(places);
    for (size_t i = 0; i < results.size(); i++) {
        const auto& result = results[i];
        outputs_.push_back(
            slot_of(is_dense(result) ? result : row_contiguous(result, recording_->stream()),
                    recording_->overwritten_input(i) < 0));
    }
    memory_ = std::move(capture.memory);
    tasks_ = std::move(capture.tasks);
}

bool Program::fits(const std::vector<mx::array>& inputs) const {
    // [task 4.7.3 lies]
    for (size_t i = 0; i < inputs.size(); i++) {
        if (recording_->overwrites(i) ? inputs[i].data<char>() != inputs_[i].data
                                      : inputs[i].strides() != inputs_[i].strides) {
            return false;
        }
    }
    return true;
    // [/task 4.7.3 lies]
}

void Program::allocate_output(size_t index, const std::vector<mx::array>& inputs,
                              mx::array& out) const {
    if (const int input = recording_->overwritten_input(index); input >= 0) {
        out.copy_shared_buffer(inputs[input]);
        return;
    }
    const Slot& slot = outputs_[index];
    allocate(out);
    out.copy_shared_buffer(out, slot.strides, slot.flags, slot.size);
}

void Program::run(const std::vector<const char*>& from, const std::vector<char*>& to) const {
    for (size_t i = 0; i < from.size(); i++) {
        std::memcpy(inputs_[i].data, from[i], inputs_[i].bytes);
    }
    for (const auto& task : tasks_) {
        task();
    }
    for (size_t i = 0; i < to.size(); i++) {
        std::memcpy(to[i], outputs_[i].data, outputs_[i].bytes);
    }
}

}  // namespace tiny_llm_ext
