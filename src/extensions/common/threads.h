// Thread pool shared by all CPU kernels.
#pragma once

#include <cstdint>

namespace tiny_llm_ext {

/// Threads per kernel, including the calling one: TINY_LLM_NUM_THREADS, or the number of usable
/// cores.
int num_threads();

/// Runs body(chunk) for every chunk in 0 … chunks − 1, on all threads; returns when all are done.
///
/// Each thread has a contiguous run of chunks. A thread claims chunks one at a time, from other
/// threads' runs once its run is exhausted (schedule.h). A thread that wakes late therefore
/// computes fewer chunks, and the caller never waits for a thread that has not started. The first
/// exception thrown by `body` is rethrown when all chunks are done. `body` must not call
/// parallel_for.
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
