# libaotriton_torch.so, torch's operators, against the stable ABI of the torch that the build's Python has.
#
# It is loaded by torch.ops.load_library, or linked by a program that runs compiled models; newer torch loads it, too.

set(AOTRITON_TORCH_PACKAGE "" CACHE PATH "Folder of the package torch; empty: that of the build's Python")
set(torch_package "${AOTRITON_TORCH_PACKAGE}")
if(NOT torch_package)
  # -I: where pip builds, Python's path leads to what the build needs alone, but torch is where the wheel will be.
  execute_process(
    COMMAND "${AOTRITON_HOST_PYTHON}" -I -c
            "from importlib.util import find_spec; print(find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE torch_package OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
set(torch_versions "${torch_package}/include/torch/csrc/stable/version.h")
set(torch_is_new "")
if(EXISTS "${torch_versions}")
  file(STRINGS "${torch_versions}" torch_is_new REGEX "define TORCH_VERSION_2_11_0 ")
endif()
if(NOT torch_is_new)
  if(AOTRITON_TORCH STREQUAL "AUTO")
    message(STATUS "Without torch's operators: ${AOTRITON_HOST_PYTHON} has no torch 2.11 or newer")
    set(AOTRITON_TORCH OFF)
    return()
  endif()
  message(FATAL_ERROR "AOTRITON_TORCH is on, but ${AOTRITON_HOST_PYTHON} has no torch 2.11 or newer: "
                      "install it there, or set AOTRITON_TORCH_PACKAGE to the folder of the package torch.")
endif()
message(STATUS "torch's operators are built with ${torch_package}")

file(GLOB torch_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/v2src/torch/*.cc")
add_library(aotriton_torch MODULE ${torch_sources})
target_compile_features(aotriton_torch PRIVATE cxx_std_20)
target_compile_options(aotriton_torch PRIVATE ${AOTRITON_WARNINGS})
target_include_directories(aotriton_torch PRIVATE "${PROJECT_SOURCE_DIR}/v2src")
target_include_directories(aotriton_torch SYSTEM PRIVATE "${torch_package}/include")
# libtorch.so has nothing of its own, but needs what this build of torch has: libtorch_cpu.so, and with CUDA or ROCm theirs.
target_link_libraries(aotriton_torch PRIVATE aotriton_inside -Wl,--no-as-needed "${torch_package}/lib/libtorch.so" -Wl,--as-needed
                      "${torch_package}/lib/libtorch_cpu.so")
set_target_properties(aotriton_torch PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/python/aotriton"
                      UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 3 SKIP_BUILD_RPATH ON)

# libaotriton_torch_autograd-<release>.so: autograd and autocast in C++, against the classes of this torch, and so for its
# release alone.
file(STRINGS "${torch_package}/include/torch/headeronly/version.h" torch_release REGEX "define TORCH_VERSION_(MAJOR|MINOR) ")
string(REGEX REPLACE "[^0-9]*([0-9]+);[^0-9]*([0-9]+)" "\\1.\\2" torch_release "${torch_release}")
add_library(aotriton_torch_autograd MODULE "${PROJECT_SOURCE_DIR}/v2src/torch/release/autograd.cc")
target_compile_features(aotriton_torch_autograd PRIVATE cxx_std_20)
target_compile_options(aotriton_torch_autograd PRIVATE ${AOTRITON_WARNINGS})
target_include_directories(aotriton_torch_autograd SYSTEM PRIVATE "${torch_package}/include")
target_link_libraries(aotriton_torch_autograd PRIVATE "${torch_package}/lib/libtorch_cpu.so" "${torch_package}/lib/libc10.so")
set_target_properties(aotriton_torch_autograd PROPERTIES OUTPUT_NAME "aotriton_torch_autograd-${torch_release}"
                      LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/python/aotriton" SKIP_BUILD_RPATH ON)
add_dependencies(aotriton_torch aotriton_torch_autograd)
