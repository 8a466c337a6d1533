// What an operation derives its graph node from, if a recording may have it
// (src/graph_capture/graph.h).
#pragma once

namespace tiny_llm_ext {

/// A graph node on the CPU whose evaluation gives all its work to `add_task` (common/tasks.h), and
/// takes memory from `allocate` (common/rows.h) alone: then its tasks can be captured and run
/// again.
class Capturable {
   public:
    virtual ~Capturable() = default;

    /// Whether it writes its second input into its first, and calls that its output.
    virtual bool writes_in_place() const { return false; }
};

}  // namespace tiny_llm_ext
