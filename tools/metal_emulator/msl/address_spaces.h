// Metal's address spaces as OpenCL's, between which clang rejects conversions in C++ too. On x86-64
// and ARM all of them map to ordinary memory, so the type-checked program can also run.
#pragma once

#define device __attribute__((opencl_global))
#define threadgroup __attribute__((opencl_local))
#define constant const __attribute__((opencl_constant))
#define thread

#define MSL_INLINE static inline __attribute__((always_inline))
// Exempts an emulator function from instrumentation, so that its accesses are not reported as the
// kernel's. Atomics report their accesses explicitly.
#define MSL_UNSEEN [[clang::disable_sanitizer_instrumentation]]

namespace msl {

// Removes reference, const and address space.
template <class T>
struct plain {
    typedef std::remove_cv_t<std::remove_reference_t<T>> type;
};
#define MSL_PLAIN(SPACE)                 \
    template <class T>                   \
    struct plain<SPACE T> : plain<T> {}; \
    template <class T>                   \
    struct plain<SPACE T&> : plain<T> {};
MSL_PLAIN(device)
MSL_PLAIN(const device)
MSL_PLAIN(threadgroup)
MSL_PLAIN(const threadgroup)
MSL_PLAIN(constant)
#undef MSL_PLAIN
template <class T>
using plain_t = typename plain<T>::type;

}  // namespace msl
