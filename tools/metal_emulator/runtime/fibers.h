// Fibers: the threads of a threadgroup as functions that can be left in the middle and resumed.
#pragma once
#include <stddef.h>

#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(MSL_UCONTEXT)
#define MSL_UCONTEXT
#endif
#ifdef MSL_UCONTEXT
#include <ucontext.h>
#endif

namespace msl {

#ifdef MSL_UCONTEXT
typedef ucontext_t Context;
#else
typedef void* Context;  // the stack pointer; all else that must survive lies on the stack
#endif

constexpr size_t STACK_SIZE = 256 << 10;

// `count` stacks, as address space: pages become memory when they are touched.
void reserve_stacks(size_t count);
// Whether `address` is in one of the stacks.
bool on_a_stack(const void* address);
// Whether `address` is just below the first stack, where nothing may be.
bool in_stack_guard(const void* address);
// Whether the running code has used more than stack number `i`.
bool stack_overflowed(size_t i);
// Prepares `context` to enter `start` on stack number `i`; `start` never returns.
void prepare(Context& context, size_t i, void (*start)());
// Leaves the running code, to be resumed through `from`, and resumes `to`.
void switch_context(Context& from, Context& to);

}  // namespace msl
