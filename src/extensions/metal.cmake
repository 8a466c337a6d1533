# The GPU side of the extension. Where MLX has Metal, SOURCES keeps the encoders (<op>_metal.cpp) and
# loses the stubs; elsewhere it is the other way round. The kernels become tiny_llm_ext.metallib,
# named by METAL_LIBRARY, if Apple's Metal compiler is there.
file(GLOB METAL_ENCODERS CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/src/*/*_metal.cpp"
     "${CMAKE_CURRENT_LIST_DIR}/common/metal_device.cpp")
if(NOT MLX_BUILD_METAL)
  list(REMOVE_ITEM SOURCES ${METAL_ENCODERS})
  return()
endif()
list(REMOVE_ITEM SOURCES "${CMAKE_CURRENT_LIST_DIR}/common/gpu_not_built.cpp")

execute_process(
  COMMAND xcrun -sdk macosx metal --version
  RESULT_VARIABLE METAL_COMPILER_MISSING
  OUTPUT_QUIET ERROR_QUIET)
if(METAL_COMPILER_MISSING)
  message(WARNING "There is no Metal compiler, so operations will refuse to run on the GPU. Install "
                  "Xcode, run `xcodebuild -downloadComponent MetalToolchain`, and build again.")
  return()
endif()

file(GLOB METAL_KERNELS CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/common/*.metal"
     "${CMAKE_CURRENT_LIST_DIR}/src/*/*.metal")
file(GLOB METAL_HEADERS CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/common/*.h"
     "${CMAKE_CURRENT_LIST_DIR}/src/*/*.h")
mlx_build_metallib(
  TARGET tiny_llm_metallib
  TITLE tiny_llm_ext
  OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}"
  SOURCES ${METAL_KERNELS}
  INCLUDE_DIRS "${CMAKE_CURRENT_LIST_DIR}"
  DEPS ${METAL_HEADERS}
  COMPILE_OPTIONS -std=metal3.1) # the first with bfloat; macOS 14
set(METAL_LIBRARY "${CMAKE_CURRENT_BINARY_DIR}/tiny_llm_ext.metallib")
