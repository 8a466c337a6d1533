// <metal_atomic>. All threads of a launch run on one host thread, so a plain read-modify-write is
// atomic. The race detector treats it as an atomic access.
#pragma once

namespace metal {

enum memory_order {
    memory_order_relaxed,
    memory_order_acquire,
    memory_order_release,
    memory_order_acq_rel,
    memory_order_seq_cst
};

template <class T>
struct atomic {
    T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;
typedef atomic<ulong> atomic_ulong;

#define MSL_ATOMIC_FUNCTION MSL_UNSEEN static __attribute__((noinline))
#define MSL_REPORT_ATOMIC(WRITES) \
    msl_atomic((const volatile void*)object, sizeof(T), WRITES, __builtin_return_address(0))

#define MSL_READ_MODIFY_WRITE(NAME, SPACE, VALUE)                                                 \
    template <class T>                                                                            \
    MSL_ATOMIC_FUNCTION T NAME(volatile SPACE atomic<T>* object, std::type_identity_t<T> operand, \
                               memory_order) {                                                    \
        MSL_REPORT_ATOMIC(true);                                                                  \
        T before = object->value;                                                                 \
        object->value = (T)(VALUE);                                                               \
        return before;                                                                            \
    }
#define MSL_ATOMICS(SPACE)                                                                        \
    MSL_READ_MODIFY_WRITE(atomic_fetch_add_explicit, SPACE, before + operand)                     \
    MSL_READ_MODIFY_WRITE(atomic_fetch_sub_explicit, SPACE, before - operand)                     \
    MSL_READ_MODIFY_WRITE(atomic_fetch_max_explicit, SPACE, before < operand ? operand : before)  \
    MSL_READ_MODIFY_WRITE(atomic_fetch_min_explicit, SPACE, operand < before ? operand : before)  \
    MSL_READ_MODIFY_WRITE(atomic_fetch_and_explicit, SPACE, before& operand)                      \
    MSL_READ_MODIFY_WRITE(atomic_fetch_or_explicit, SPACE, before | operand)                      \
    MSL_READ_MODIFY_WRITE(atomic_fetch_xor_explicit, SPACE, before ^ operand)                     \
    MSL_READ_MODIFY_WRITE(atomic_exchange_explicit, SPACE, operand)                               \
    template <class T>                                                                            \
    MSL_ATOMIC_FUNCTION T atomic_load_explicit(const volatile SPACE atomic<T>* object,            \
                                               memory_order) {                                    \
        MSL_REPORT_ATOMIC(false);                                                                 \
        return object->value;                                                                     \
    }                                                                                             \
    template <class T>                                                                            \
    MSL_ATOMIC_FUNCTION void atomic_store_explicit(volatile SPACE atomic<T>* object,              \
                                                   std::type_identity_t<T> value, memory_order) { \
        MSL_REPORT_ATOMIC(true);                                                                  \
        object->value = value;                                                                    \
    }                                                                                             \
    template <class T>                                                                            \
    MSL_ATOMIC_FUNCTION bool atomic_compare_exchange_weak_explicit(                               \
        volatile SPACE atomic<T>* object, T* expected, std::type_identity_t<T> value,             \
        memory_order, memory_order) {                                                             \
        MSL_REPORT_ATOMIC(true);                                                                  \
        if (object->value == *expected) {                                                         \
            object->value = value;                                                                \
            return true;                                                                          \
        }                                                                                         \
        *expected = object->value;                                                                \
        return false;                                                                             \
    }
MSL_ATOMICS(device)
MSL_ATOMICS(threadgroup)
#undef MSL_ATOMICS
#undef MSL_READ_MODIFY_WRITE

}  // namespace metal
