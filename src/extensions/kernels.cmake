# The CPU kernels, which know nothing of MLX: libraries of objects for the module, and for the tests
# in tests/, which need nothing but a compiler.
#
# Kernels are compiled for their instruction set, whatever machine builds them; which one runs is
# chosen when the module is used. A file <op>_simd.cpp is compiled once for each set of vector
# instructions, <op>_<set>.cpp for that one, <op>_portable.cpp, a readable reference, for any machine.
#
# Sets KERNEL_LIBRARIES, to link, and ALL_KERNELS, the files in them.

option(TINY_LLM_SANITIZE "stop at memory errors and undefined behaviour" OFF)
if(TINY_LLM_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all
                      -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=address,undefined)
endif()

file(GLOB ALL_KERNELS CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/src/*/*.cpp")
set(FIXED_POINT_KERNELS "${ALL_KERNELS}")
list(FILTER FIXED_POINT_KERNELS INCLUDE REGEX "_fixed_point\\.cpp$") # for sets without bfloat16
foreach(kind portable simd avx512 amx)
  string(TOUPPER ${kind} KIND)
  set(${KIND}_KERNELS "${ALL_KERNELS}")
  list(FILTER ${KIND}_KERNELS INCLUDE REGEX "_${kind}\\.cpp$")
endforeach()
set(ALL_KERNELS ${PORTABLE_KERNELS} ${SIMD_KERNELS} ${AVX512_KERNELS} ${AMX_KERNELS}
                ${FIXED_POINT_KERNELS})
set(AVX2_KERNELS ${SIMD_KERNELS} ${FIXED_POINT_KERNELS})
set(NEON_KERNELS ${SIMD_KERNELS} ${FIXED_POINT_KERNELS})
list(APPEND AVX512_KERNELS ${SIMD_KERNELS})

# GCC 12 warns of variables in its own intrinsics, which leave unused lanes undefined on purpose.
set(NEON_FLAGS -O3 -ffp-contract=off -Wno-uninitialized -Wno-maybe-uninitialized)
set(AVX2_FLAGS ${NEON_FLAGS} -mavx2 -mfma -mf16c)
set(AVX512_FLAGS ${AVX2_FLAGS} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16)
set(AMX_FLAGS ${AVX512_FLAGS} -mamx-tile -mamx-bf16)

set(INSTRUCTION_SETS portable)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND INSTRUCTION_SETS avx2 avx512 amx)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  list(APPEND INSTRUCTION_SETS neon)
endif()
set(KERNEL_LIBRARIES)
foreach(isa ${INSTRUCTION_SETS})
  string(TOUPPER ${isa} ISA)
  add_library(kernels_${isa} OBJECT ${${ISA}_KERNELS})
  set_target_properties(kernels_${isa} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(kernels_${isa} PRIVATE "${CMAKE_CURRENT_LIST_DIR}")
  target_compile_definitions(kernels_${isa} PRIVATE TINY_LLM_ISA=${isa})
  target_compile_options(kernels_${isa} PRIVATE -Wall -Wextra ${${ISA}_FLAGS})
  list(APPEND KERNEL_LIBRARIES kernels_${isa})
endforeach()
