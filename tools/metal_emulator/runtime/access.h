// What instrumented kernels report: every load and store of theirs.
#pragma once

namespace msl {
// Sets up the mode's bookkeeping for the bound buffers.
void start_watching();
}  // namespace msl
