// One pool of threads for all kernels.
#pragma once

#include <cstdint>

namespace tiny_llm_ext {

/// How many threads work on a kernel, the calling one included: TINY_LLM_NUM_THREADS, or the number
/// of cores this process may use.
int num_threads();

/// Runs body(chunk) for every chunk in 0 … chunks − 1, on all threads; returns when all are done.
///
/// Each thread has a run of neighbouring chunks of its own. Chunks are claimed one at a time, from
/// the others' runs when one's own is used up (schedule.h): a thread that was slow to wake does
/// fewer, and the caller never waits for one that has not begun. What a `body` throws, the first of
/// it, is thrown here when all chunks are done. `body` must not call parallel_for.
template <typename Body>
void parallel_for(int64_t chunks, const Body& body);

namespace detail {
using Chunk = void (*)(const void* body, int64_t chunk);
void run_parallel(int64_t chunks, Chunk run, const void* body);
}  // namespace detail

template <typename Body>
void parallel_for(int64_t chunks, const Body& body) {
    detail::run_parallel(
        chunks, [](const void* body, int64_t chunk) { (*static_cast<const Body*>(body))(chunk); },
        &body);
}

}  // namespace tiny_llm_ext
