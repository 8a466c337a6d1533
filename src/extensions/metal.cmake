# GPU side of the extension. The encoders (<op>_metal.cpp) are compiled everywhere: against MLX's
# Metal interface if available, otherwise against a replica backed by an emulator (emulated_metal/).
# Kernel sources are embedded as C++ constants and compiled by the driver on first use, so the build
# needs no Metal compiler.
if(MLX_BUILD_METAL)
  set(GPU_INCLUDES "")
else()
  list(REMOVE_ITEM SOURCES "${CMAKE_CURRENT_LIST_DIR}/common/gpu_metal.cpp")
  file(GLOB EMULATED_METAL CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/emulated_metal/*.cpp")
  list(APPEND SOURCES ${EMULATED_METAL})
  set(GPU_INCLUDES "${CMAKE_CURRENT_LIST_DIR}/emulated_metal/include")
  set(GPU_DEFINITIONS TINY_LLM_EMULATED_METAL)
endif()

file(GLOB METAL_KERNELS CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_LIST_DIR}" common/*.metal
     src/*/*.metal)
file(GLOB METAL_HEADERS CONFIGURE_DEPENDS common/metal_*.h src/*/*_params.h src/*/metal_*.h)
set(METAL_SOURCES "${CMAKE_CURRENT_BINARY_DIR}/metal_sources.cpp")
add_custom_command(
  OUTPUT "${METAL_SOURCES}"
  COMMAND "${Python_EXECUTABLE}" metal_sources.py "${METAL_SOURCES}" ${METAL_KERNELS}
  WORKING_DIRECTORY "${CMAKE_CURRENT_LIST_DIR}"
  DEPENDS metal_sources.py ${METAL_KERNELS} ${METAL_HEADERS})
list(APPEND SOURCES "${METAL_SOURCES}")

# Python bindings and Metal launches.
set(HOST_FILES "/bindings[^/]*.cpp$|/metal_[^/]*.cpp$|_(metal|launch).cpp$|/emulated_metal/")
