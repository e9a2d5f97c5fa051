# aotriton._binding, the Python binding, for each of AOTRITON_BINDING_PYTHONS; left out, with a word, where one's headers are missing.

set(AOTRITON_BINDINGS "")
execute_process(COMMAND "${AOTRITON_HOST_PYTHON}" -m pybind11 --cmakedir
                OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(PYBIND11_NOPYTHON ON)
find_package(pybind11 CONFIG REQUIRED PATHS "${pybind11_DIR}" NO_DEFAULT_PATH)
file(GLOB binding_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/v2src/python/*.cc")

set(pythons ${AOTRITON_BINDING_PYTHONS})
if(NOT pythons)
  set(pythons "${AOTRITON_HOST_PYTHON}")
endif()
foreach(python IN LISTS pythons)
  execute_process(
    COMMAND "${python}" -c "import sysconfig as of; print(of.get_path('include'), of.get_config_var('EXT_SUFFIX'), sep=';')"
    OUTPUT_VARIABLE told OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  list(POP_FRONT told headers suffix)
  if(NOT EXISTS "${headers}/Python.h")
    if(AOTRITON_BINDING_PYTHONS)
      message(FATAL_ERROR "${python}, one of AOTRITON_BINDING_PYTHONS, has no Python.h in ${headers}")
    endif()
    message(STATUS "Python headers were not found: the Python binding is not built")
    continue()
  endif()
  set(target "binding${suffix}")
  add_library(${target} MODULE ${binding_sources})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME _binding PREFIX "" SUFFIX "${suffix}"
                        LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/python/aotriton")
  target_compile_options(${target} PRIVATE ${AOTRITON_WARNINGS})
  target_include_directories(${target} SYSTEM PRIVATE "${headers}")
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/v2src" "${AOTRITON_GENERATED_DIR}")
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_link_libraries(${target} PRIVATE aotriton_inside pybind11::headers)
  # Glue: for size, which takes the compiler two thirds of the time. In two pieces, for as many cores: what all files take
  # from pybind11 costs the compiler twice what is their own.
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-Os>)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 3)
  list(APPEND AOTRITON_BINDINGS ${target})
endforeach()
add_custom_target(binding DEPENDS ${AOTRITON_BINDINGS})
