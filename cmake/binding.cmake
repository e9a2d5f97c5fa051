# pyaotriton, the Python binding, for the Python that was found; left out, with a word, where its headers are missing.

set(AOTRITON_BINDING OFF)
if(NOT Python3_Development.Module_FOUND)
  message(STATUS "Python headers were not found: pyaotriton is not built")
  return()
endif()
execute_process(COMMAND "${AOTRITON_HOST_PYTHON}" -m pybind11 --cmakedir
                OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(PYBIND11_FINDPYTHON OFF)
set(PYTHON_EXECUTABLE "${Python3_EXECUTABLE}")
find_package(pybind11 CONFIG REQUIRED PATHS "${pybind11_DIR}" NO_DEFAULT_PATH)

set(AOTRITON_BINDING ON)
file(GLOB binding_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/v2src/python/*.cc")
python3_add_library(pyaotriton MODULE WITH_SOABI ${binding_sources})
target_compile_options(pyaotriton PRIVATE ${AOTRITON_WARNINGS})
target_include_directories(pyaotriton PRIVATE "${PROJECT_SOURCE_DIR}/v2src" "${AOTRITON_GENERATED_DIR}")
target_compile_features(pyaotriton PRIVATE cxx_std_20)
target_link_libraries(pyaotriton PRIVATE aotriton_inside pybind11::headers)
# Glue: for size, which takes the compiler two thirds of the time.
target_compile_options(pyaotriton PRIVATE $<$<CONFIG:Release>:-Os>)
# In two pieces, for as many cores: what all files take from pybind11 costs the compiler twice what is their own.
set_target_properties(pyaotriton PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/python"
                      UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 3)
