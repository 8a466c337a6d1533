# The CPU kernels, which know nothing of MLX: libraries of objects for the module, and for the tests
# in tests/, which need nothing but a compiler. The libraries' names are left in KERNEL_LIBRARIES.

# The readable references: plain C++.
set(PORTABLE_KERNELS src/quantized_matmul/quantized_matmul_portable.cpp)

# Kernels are compiled for their instruction set, whatever machine builds them; which one runs is
# chosen when the module is used. A file <op>_simd.cpp is compiled once for each set; what a set has
# besides is in <SET>_KERNELS.
set(SIMD_KERNELS)
set(AVX2_KERNELS src/quantized_matmul/quantized_matmul_fixed_point.cpp)
set(AVX512_KERNELS src/quantized_matmul/quantized_matmul_avx512.cpp)
set(NEON_KERNELS src/quantized_matmul/quantized_matmul_fixed_point.cpp)
set(AVX2_FLAGS -mavx2 -mfma -mf16c)
set(AVX512_FLAGS -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mfma -mf16c)
set(NEON_FLAGS)
# GCC 12 warns of variables in its own intrinsics, which leave unused lanes undefined on purpose.
set(SIMD_FLAGS -O3 -ffp-contract=off -Wno-uninitialized -Wno-maybe-uninitialized)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(INSTRUCTION_SETS avx2 avx512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(INSTRUCTION_SETS neon)
endif()

option(TINY_LLM_SANITIZE "stop at memory errors and undefined behaviour" OFF)
if(TINY_LLM_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all
                      -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=address,undefined)
endif()

set(KERNEL_LIBRARIES)
foreach(isa portable ${INSTRUCTION_SETS})
  string(TOUPPER ${isa} ISA)
  set(kernels ${${ISA}_KERNELS})
  if(NOT isa STREQUAL portable)
    list(APPEND kernels ${SIMD_KERNELS})
  endif()
  list(TRANSFORM kernels PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
  add_library(kernels_${isa} OBJECT ${kernels})
  set_target_properties(kernels_${isa} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(kernels_${isa} PRIVATE "${CMAKE_CURRENT_LIST_DIR}")
  target_compile_options(kernels_${isa} PRIVATE -Wall -Wextra)
  if(NOT isa STREQUAL portable)
    target_compile_definitions(kernels_${isa} PRIVATE TINY_LLM_ISA=${isa})
    target_compile_options(kernels_${isa} PRIVATE ${SIMD_FLAGS} ${${ISA}_FLAGS})
  endif()
  list(APPEND KERNEL_LIBRARIES kernels_${isa})
endforeach()
