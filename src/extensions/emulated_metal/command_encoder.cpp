// Records and checks an operation's dispatches, with the barriers that MLX would insert.
#include <algorithm>
#include <stdexcept>

#include "mlx/backend/metal/device.h"

namespace mlx::core::metal {

namespace {

// Memory span of an array: lowest element address, and bytes to the end of the highest element.
struct Span {
    const char* memory;
    size_t bytes, lead;
};

Span span_of(const array& a, int64_t offset) {
    const auto* first =
        static_cast<const char*>(const_cast<array&>(a).buffer().raw_ptr()) + a.offset() + offset;
    if (a.size() == 0) {
        return {first, 0, 0};
    }
    int64_t low = 0, high = 0;
    for (int i = 0; i < static_cast<int>(a.ndim()); i++) {
        const int64_t reach = a.strides(i) * (a.shape(i) - 1);
        (reach < 0 ? low : high) += reach;
    }
    const auto item = static_cast<int64_t>(a.itemsize());
    return {first + low * item, static_cast<size_t>((high - low + 1) * item),
            static_cast<size_t>(-low * item)};
}

const void* buffer_of(const array& a) { return a.buffer().ptr(); }

bool same_memory(const array& a, const array& b) {
    return a.data_shared_ptr() != nullptr && a.data_shared_ptr() == b.data_shared_ptr();
}

}  // namespace

void CommandEncoder::set_compute_pipeline_state(MTL::ComputePipelineState* pipeline) {
    command_ = {};
    command_.pipeline = pipeline;
}

void CommandEncoder::bind(const array& a, int index, int64_t offset, bool is_output) {
    const Span span = span_of(a, offset);
    command_.buffers.push_back({index, a.dtype(), a.data_shared_ptr().get(), span.memory,
                                span.bytes, span.lead, is_output});
}

void CommandEncoder::set_input_array(const array& a, int index, int64_t offset) {
    needs_barrier_ |= previous_outputs_.count(buffer_of(a)) > 0;
    next_inputs_.insert(buffer_of(a));
    bind(a, index, offset, /*is_output=*/false);
}

void CommandEncoder::set_output_array(array& a, int index, int64_t offset) {
    needs_barrier_ |= previous_outputs_.count(buffer_of(a)) > 0;
    bind(a, index, offset, /*is_output=*/true);
    register_output_array(a);
}

void CommandEncoder::register_output_array(const array& a) {
    needs_barrier_ |= previous_inputs_.count(buffer_of(a)) > 0;
    next_outputs_.insert(buffer_of(a));
}

void CommandEncoder::add_temporary(array a) {
    // Fills the array with NaN, to expose elements that no thread writes.
    std::memset(a.buffer().raw_ptr(), 0xff, a.nbytes());
    temporaries_.push_back(std::move(a));
}

void CommandEncoder::set_threadgroup_memory_length(size_t length, int index) {
    command_.threadgroup_memory[index] = length;
}

void CommandEncoder::dispatch_threadgroups(MTL::Size grid, MTL::Size group) {
    if (needs_barrier_) {
        previous_inputs_.clear();
        previous_outputs_.clear();
    }
    previous_inputs_.merge(next_inputs_);
    previous_outputs_.merge(next_outputs_);
    next_inputs_.clear();
    next_outputs_.clear();
    command_.has_barrier = std::exchange(needs_barrier_, false);
    command_.operation = operation_;
    command_.grid = {grid.width, grid.height, grid.depth};
    command_.group = {group.width, group.height, group.depth};
    for (const auto& buffer : command_.buffers) {
        if (command_.pipeline->written.count(buffer.index) > 0 && !buffer.is_output) {
            throw std::runtime_error("[" + operation_ + "] " + command_.pipeline->kernel +
                                     " may write to buffer(" + std::to_string(buffer.index) +
                                     "), which is bound with set_input_array: MLX would insert no "
                                     "barrier before a command that reads it.");
        }
    }
    commands_.push_back(std::move(command_));
    command_ = {};
}

void CommandEncoder::begin(const std::string& operation, const std::vector<array>& inputs,
                           bool shares) {
    operation_ = operation;
    first_command_ = commands_.size();
    may_overwrite_.clear();
    for (const auto& input : inputs) {
        // References by commands in flight do not prevent overwriting the input, because they run
        // before this operation's commands.
        const auto retained = retained_.find(input.data_shared_ptr().get());
        if (retained != retained_.end()) {
            retained->second.data = nullptr;
        }
        may_overwrite_.push_back(input.is_donatable() || (shares && may_overwrite_.empty()));
        if (retained != retained_.end()) {
            retained->second.data = input.data_shared_ptr();
        }
    }
}

void CommandEncoder::end(const std::vector<array>& inputs, const std::vector<array>& outputs) {
    check_in_place(inputs, outputs);
    check_lifetimes(inputs, outputs);
    clear_memory(inputs, outputs);
    retain(inputs, outputs);
    temporaries_.clear();
    if (!is_deferred) {
        run();
    }
}

void CommandEncoder::run() {
    auto commands = std::exchange(commands_, {});
    if (!commands.empty()) {
        device().emulator.run(commands);
    }
    while (in_flight_.size() > delay) {
        complete_first();
    }
}

void CommandEncoder::discard() {
    commands_.clear();
    command_ = {};
    temporaries_.clear();
    while (!in_flight_.empty()) {
        complete_first();
    }
    needs_barrier_ = false;
    for (auto* set : {&previous_inputs_, &previous_outputs_, &next_inputs_, &next_outputs_}) {
        set->clear();
    }
}

// Checks that an input whose memory an output shares has no other references.
void CommandEncoder::check_in_place(const std::vector<array>& inputs,
                                    const std::vector<array>& outputs) const {
    for (const auto& output : outputs) {
        for (size_t i = 0; i < inputs.size(); i++) {
            if (same_memory(inputs[i], output) && !may_overwrite_[i]) {
                throw std::runtime_error("[" + operation_ + "] output overwrites input " +
                                         std::to_string(i) +
                                         ", which another array or operation still references.");
            }
        }
    }
}

// Checks that all bound memory stays alive until the commands have run: MLX guarantees this only
// for inputs, outputs and arrays passed to add_temporary.
void CommandEncoder::check_lifetimes(const std::vector<array>& inputs,
                                     const std::vector<array>& outputs) const {
    for (size_t c = first_command_; c < commands_.size(); c++) {
        for (const auto& buffer : commands_[c].buffers) {
            const auto owns_memory = [&](const array& a) {
                return a.data_shared_ptr().get() == buffer.data;
            };
            if (std::none_of(inputs.begin(), inputs.end(), owns_memory) &&
                std::none_of(outputs.begin(), outputs.end(), owns_memory) &&
                std::none_of(temporaries_.begin(), temporaries_.end(), owns_memory)) {
                throw std::runtime_error(
                    "[" + operation_ + "] buffer(" + std::to_string(buffer.index) + ") of " +
                    commands_[c].pipeline->kernel +
                    " is neither an input nor an output nor a temporary: its memory is freed "
                    "before the command runs.");
            }
        }
    }
}

// Fills newly allocated outputs with NaN, to expose elements that no thread writes.
void CommandEncoder::clear_memory(const std::vector<array>& inputs,
                                  const std::vector<array>& outputs) const {
    for (const auto& output : outputs) {
        const auto shares_memory = [&](const array& input) { return same_memory(input, output); };
        if (output.size() > 0 && std::none_of(inputs.begin(), inputs.end(), shares_memory)) {
            std::memset(const_cast<array&>(output).buffer().raw_ptr(), 0xff, output.nbytes());
        }
    }
}

void CommandEncoder::retain(const std::vector<array>& inputs, const std::vector<array>& outputs) {
    std::vector<const array::Data*> retained;
    const auto add = [&](const array& a) {
        const auto shares_memory = [&](const array& output) { return same_memory(a, output); };
        if (std::none_of(outputs.begin(), outputs.end(), shares_memory)) {
            const Data& data = a.data_shared_ptr();
            retained_[data.get()].data = data;
            retained_[data.get()].operations++;
            retained.push_back(data.get());
        }
    };
    std::for_each(inputs.begin(), inputs.end(), add);
    std::for_each(temporaries_.begin(), temporaries_.end(), add);
    in_flight_.push_back(std::move(retained));
}

void CommandEncoder::complete_first() {
    for (const auto* data : in_flight_.front()) {
        if (--retained_.at(data).operations == 0) {
            retained_.erase(data);
        }
    }
    in_flight_.pop_front();
}

}  // namespace mlx::core::metal
