# The CPU kernels, which do not use MLX: libraries of objects for the module, and for the tests
# in tests/, which need nothing but a compiler. Leaves their sources in KERNEL_SOURCES;
# add_kernel_libraries() leaves the libraries' names in KERNEL_LIBRARIES.
#
# Kernels are compiled for their instruction set, whatever machine builds them; which one runs is
# chosen when the module is used. The folder fast/ of an operation has its kernels with vectors. A
# file's name says which sets it is for; <op>_simd.cpp is for all that have vectors, and is compiled
# once for each.
function(find_kernels variable pattern)
  file(GLOB files CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/src/*/${pattern}.cpp")
  set(${variable} ${files} PARENT_SCOPE)
endfunction()
find_kernels(PORTABLE_KERNELS *_reference)
find_kernels(SIMD_KERNELS fast/*_simd)
find_kernels(COURSE_KERNELS week4/*_simd) # the learner's, Week 4
list(APPEND SIMD_KERNELS ${COURSE_KERNELS})
find_kernels(AVX2_NEON_KERNELS fast/*_avx2_neon)
find_kernels(AVX512_KERNELS fast/*_avx512)
find_kernels(AMX_KERNELS fast/*_amx)
set(KERNEL_SOURCES ${PORTABLE_KERNELS} ${SIMD_KERNELS} ${AVX2_NEON_KERNELS} ${AVX512_KERNELS}
                   ${AMX_KERNELS})
list(APPEND AVX2_KERNELS ${SIMD_KERNELS} ${AVX2_NEON_KERNELS})
list(APPEND NEON_KERNELS ${SIMD_KERNELS} ${AVX2_NEON_KERNELS})
list(APPEND AVX512_KERNELS ${SIMD_KERNELS})

# Parsing headers takes longer than compiling most files, so a target's files are one translation
# unit: ON for an installation. In a learner's tree, "untasked": all but the files that the learner
# changes. LARGE_KERNELS are compiled beside the others, on another core.
set(TINY_LLM_UNITY OFF CACHE STRING "compile the files of a target as one")
set(LARGE_KERNELS ${SIMD_KERNELS} ${AVX512_KERNELS})
list(FILTER LARGE_KERNELS INCLUDE REGEX "/(attention_block_simd|quantized_matmul_avx512).cpp$")
set_source_files_properties(${LARGE_KERNELS} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
function(compile_as_one target)
  if(NOT TINY_LLM_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  if(TINY_LLM_UNITY STREQUAL "untasked")
    get_target_property(files ${target} SOURCES)
    foreach(file ${files})
      set(tasks "")
      if(EXISTS "${file}") # not so what the build itself writes
        file(STRINGS "${file}" tasks REGEX "\\[task ")
      endif()
      if(tasks)
        set_source_files_properties("${file}" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      endif()
    endforeach()
  endif()
endfunction()

option(TINY_LLM_SANITIZE "stop at memory errors and undefined behaviour" OFF)
# A build that is only to be right, and soon: see `LESS_OPTIMIZED` of tools/course/build.py.
set(TINY_LLM_KERNEL_OPTIMIZATION -O3 CACHE STRING "the compiler's optimization of kernels")
set(KERNEL_OPTIMIZATION ${TINY_LLM_KERNEL_OPTIMIZATION})
if(TINY_LLM_SANITIZE)
  set(KERNEL_OPTIMIZATION -O1) # unrolled loops have so many checks that -O3 takes minutes
  add_compile_options(-O1 -fsanitize=address,undefined -fno-sanitize-recover=all
                      -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=address,undefined)
endif()

# GCC 12 warns of variables in its own intrinsics, which leave unused lanes undefined on purpose.
set(SIMD_FLAGS ${KERNEL_OPTIMIZATION} -ffp-contract=off
               $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>
               $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
set(AVX2_FLAGS ${SIMD_FLAGS} -mavx2 -mfma -mf16c)
set(AVX512_FLAGS ${AVX2_FLAGS} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16)
set(AMX_FLAGS ${AVX512_FLAGS} -mavx512vnni -mamx-tile -mamx-int8)
set(NEON_FLAGS ${SIMD_FLAGS})
set(PORTABLE_FLAGS ${KERNEL_OPTIMIZATION})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(INSTRUCTION_SETS avx512 avx2 amx)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(INSTRUCTION_SETS neon)
endif()

function(add_kernel_libraries)
  foreach(isa ${INSTRUCTION_SETS} portable)
    string(TOUPPER ${isa} ISA)
    if(NOT ${ISA}_KERNELS) # in a learner's tree, which lacks the solution's fastest
      continue()
    endif()
    add_library(kernels_${isa} OBJECT ${${ISA}_KERNELS})
    set_target_properties(kernels_${isa} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_include_directories(kernels_${isa} PRIVATE "${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
    target_compile_definitions(kernels_${isa} PRIVATE TINY_LLM_ISA=${isa})
    target_compile_options(kernels_${isa} PRIVATE -Wall -Wextra ${${ISA}_FLAGS})
    compile_as_one(kernels_${isa})
    list(APPEND KERNEL_LIBRARIES kernels_${isa})
  endforeach()
  set(KERNEL_LIBRARIES ${KERNEL_LIBRARIES} PARENT_SCOPE)
endfunction()
