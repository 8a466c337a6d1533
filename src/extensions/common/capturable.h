// Base class of graph nodes that graph capture accepts (src/graph_capture/graph.h).
#pragma once

namespace tiny_llm_ext {

/// A CPU graph node that submits all its work with `add_task` (common/tasks.h) and allocates only
/// with `allocate` (common/rows.h), so that its tasks can be captured and replayed.
class Capturable {
   public:
    virtual ~Capturable() = default;

    /// Whether the node overwrites its first input, whose memory becomes its first output.
    virtual bool writes_in_place() const { return false; }

    /// Whether it may do so although other arrays share that memory.
    virtual bool overwrites_shared_memory() const { return false; }
};

}  // namespace tiny_llm_ext
