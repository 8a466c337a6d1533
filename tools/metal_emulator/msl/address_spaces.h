// Address spaces as types: clang's OpenCL qualifiers are checked strictly in C++ too, and on x86-64
// and ARM all of them are ordinary memory, so that the program that was checked can also run.
#pragma once

#define device __attribute__((opencl_global))
#define threadgroup __attribute__((opencl_local))
#define constant const __attribute__((opencl_constant))
#define thread

#define MSL_INLINE static inline __attribute__((always_inline))
// Functions of the emulator that access memory on the kernel's behalf and report it themselves.
#define MSL_UNSEEN [[clang::disable_sanitizer_instrumentation]]

namespace msl {

// A type without reference, const and address space.
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
