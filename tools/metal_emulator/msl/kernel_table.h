// Builds a kernel's table entry from its function type, and calls it with a launch's bindings.
#pragma once

namespace msl {

// A parameter as parsed by the rewriter; msl::Parameter's other fields follow from the C++ type.
struct Declared {
    const char* name;
    Binding binding;
    uint32_t index;
    bool constant_space, optional;
};

template <class T>
constexpr char element_letter() {
    typedef element_t<T> E;
    if constexpr (std::is_void_v<E>) {
        return 'v';
    } else if constexpr (std::same_as<E, float>) {
        return 'f';
    } else if constexpr (std::same_as<E, half>) {
        return 'h';
    } else if constexpr (std::same_as<E, bfloat>) {
        return 'b';
    } else if constexpr (std::same_as<E, bool>) {
        return '?';
    } else if constexpr (std::is_integral_v<E>) {
        return std::is_signed_v<E> ? 'i' : 'u';
    } else {
        return 's';
    }
}

template <class T>
constexpr uint32_t size_of() {
    if constexpr (std::is_void_v<T>) {
        return 1;
    } else {
        return sizeof(T);
    }
}

template <class P>
constexpr Parameter describe(Declared declared) {
    typedef std::remove_pointer_t<std::remove_reference_t<P>> Target;
    constexpr bool bound = std::is_reference_v<P> || std::is_pointer_v<P>;
    typedef plain_t<Target> T;
    return {declared.name,           declared.binding,
            declared.index,          bound ? element_letter<T>() : '-',
            size_of<element_t<T>>(), size_of<T>(),
            std::is_reference_v<P>,  bound && !std::is_const_v<Target>,
            declared.constant_space, declared.optional};
}

template <class P>
MSL_INLINE decltype(auto) argument(const Parameter& parameter, const Bindings& bindings,
                                   const Position& at) {
    if constexpr (std::is_reference_v<P>) {
        return (P) * (std::remove_reference_t<P>*)bindings.buffers[parameter.index];
    } else if constexpr (std::is_pointer_v<P>) {
        const bool local = parameter.binding == Binding::THREADGROUP_MEMORY;
        return (P)(local ? bindings.threadgroup_memory : bindings.buffers)[parameter.index];
    } else {
        const uint32_t* values = (const uint32_t*)((const char*)&at + parameter.index);
        if constexpr (shape<P>::is_vector) {
            P result;
            for (int i = 0; i < shape<P>::size; ++i) {
                result[i] = (element_t<P>)values[i];
            }
            return result;
        } else {
            return (P)values[0];
        }
    }
}

// Table entry for `function` with the parameters `DECLARED`.
template <auto function, const auto& DECLARED>
struct Entry;
template <class... P, void (*function)(P...), const auto& DECLARED>
struct Entry<function, DECLARED> {
    template <size_t... I>
    static constexpr auto describe_all(std::index_sequence<I...>) {
        struct {
            Parameter all[sizeof...(P) + 1];
        } result{{describe<P>(DECLARED[I])..., {}}};
        return result;
    }
    static constexpr auto parameters = describe_all(std::index_sequence_for<P...>{});

    template <size_t... I>
    MSL_UNSEEN static void call_with(const Bindings& bindings, const Position& at,
                                     std::index_sequence<I...>) {
        function(argument<P>(parameters.all[I], bindings, at)...);
    }
    MSL_UNSEEN static void call(const Bindings& bindings, const Position& at) {
        call_with(bindings, at, std::index_sequence_for<P...>{});
    }
};

}  // namespace msl

#define MSL_POSITION(FIELD) offsetof(msl::Position, FIELD)
