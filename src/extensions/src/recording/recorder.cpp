#include "src/recording/recorder.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "common/rows.h"
#include "common/tasks.h"

namespace tiny_llm_ext {

namespace {

// Of a function. Each thread has a stream and so recordings of its own, and threads end. A
// recording takes a fifth of a megabyte for a model of eight layers; sixteen requests of random
// lengths came back to the newest sixteen.
constexpr size_t MOST_RECORDINGS = 32;

// Of a recording: one for each layout of its inputs, and each place of those that are overwritten.
constexpr size_t MOST_PROGRAMS = 8;

// The node's outputs. MLX gives all inputs to each of them, thousands of references for a model's
// layers. But it looks for what is still to be computed; the rest only the first needs to have.
std::vector<mx::array> outputs_of(const std::shared_ptr<mx::Primitive>& replay,
                                  const Recording& recording,
                                  const std::vector<mx::array>& inputs) {
    std::vector<mx::array> to_compute;
    std::copy_if(inputs.begin(), inputs.end(), std::back_inserter(to_compute),
                 [](const mx::array& input) { return !input.is_available(); });
    std::vector<mx::array> outputs;
    for (size_t i = 0; i < recording.output_shapes().size(); i++) {
        outputs.emplace_back(recording.output_shapes()[i], recording.output_dtypes()[i], replay,
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

std::optional<std::vector<mx::array>> Recorder::replay(const std::vector<mx::array>& inputs) {
    const mx::Stream stream = mx::default_stream(mx::Device::cpu);
    for (auto replay = replays_.rbegin(); replay != replays_.rend(); ++replay) {
        const auto& recording = static_cast<const Replay&>(**replay).recording();
        if (recording.fits(inputs, stream)) {
            std::rotate(replay.base() - 1, replay.base(), replays_.end());  // the latest is last
            return outputs_of(replays_.back(), recording, inputs);
        }
    }
    return std::nullopt;
}

std::vector<mx::array> Recorder::placeholders(const std::vector<mx::array>& inputs) {
    std::vector<mx::array> blanks;
    for (const auto& input : inputs) {
        blanks.emplace_back(input.shape(), input.dtype(), nullptr, std::vector<mx::array>{});
    }
    return blanks;
}

void Recorder::record(const std::vector<mx::array>& placeholders,
                      const std::vector<mx::array>& outputs) {
    const auto recording = std::make_shared<const Recording>(placeholders, outputs);
    if (replays_.size() == MOST_RECORDINGS) {
        replays_.erase(replays_.begin());
    }
    replays_.push_back(std::make_shared<Replay>(recording));
}

std::vector<Recording::Described> Recorder::steps() const {
    if (replays_.empty()) {
        return {};
    }
    return static_cast<const Replay&>(*replays_.back()).recording().described();
}

// Inputs as a program takes them: without gaps; and what it overwrites must be this node's alone.
std::vector<mx::array> Replay::prepared(const std::vector<mx::array>& inputs) {
    std::vector<mx::array> ready;
    for (size_t i = 0; i < inputs.size(); i++) {
        const bool is_ready =
            recording_->overwrites(i) ? may_overwrite(inputs[i]) : is_dense(inputs[i]);
        ready.push_back(is_ready ? inputs[i] : copy_of(inputs[i], stream()));
    }
    return ready;
}

void Replay::eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>& outputs) {
    // MLX releases the other outputs' inputs later. But an input may be overwritten only while a
    // single reference to it is left.
    for (size_t i = 1; i < outputs.size(); i++) {
        outputs[i].inputs().clear();
    }
    const auto& inputs = outputs[0].inputs();
    const auto ready = prepared(inputs);
    const auto program = program_for(ready);
    std::vector<const char*> from;
    std::vector<char*> to;
    for (size_t i = 0; i < inputs.size(); i++) {
        keep_for_tasks(stream(), inputs[i]);
        from.push_back(ready[i].data<char>());
    }
    for (size_t i = 0; i < outputs.size(); i++) {
        program->allocate_output(i, ready, outputs[i]);
        to.push_back(outputs[i].data<char>());
    }
    add_task(stream(),
             [program, from = std::move(from), to = std::move(to)] { program->run(from, to); });
}

void Replay::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
    throw std::logic_error("[recording] a GPU's graph has no such node");
}

std::vector<mx::Shape> Replay::output_shapes(const std::vector<mx::array>&) {
    return recording_->output_shapes();
}

std::shared_ptr<const Program> Replay::program_for(const std::vector<mx::array>& inputs) {
    std::lock_guard lock(mutex_);
    for (const auto& program : programs_) {
        if (program->fits(inputs)) {
            return program;
        }
    }
    if (programs_.size() == MOST_PROGRAMS) {
        programs_.erase(programs_.begin());
    }
    programs_.push_back(std::make_shared<const Program>(recording_, inputs));
    return programs_.back();
}

}  // namespace tiny_llm_ext
