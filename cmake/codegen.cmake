# This build's families: what is generated from the tuning database, and whose images are compiled.

set(AOTRITON_PACKAGE_ROOT "${PROJECT_SOURCE_DIR}")
set(AOTRITON_RUNTIME_DIR "${PROJECT_SOURCE_DIR}/v2src")
set(AOTRITON_GENERATED_DIR "${PROJECT_BINARY_DIR}/generated")

find_package(ZLIB QUIET)
if(NOT ZLIB_FOUND)
  message(STATUS "zlib was not found: images are stored uncompressed")
endif()

include(cmake/family.cmake)
aotriton_generate(OUT "${AOTRITON_GENERATED_DIR}" DATABASE "${AOTRITON_DATABASE}" ARCHS ${AOTRITON_ARCHS}
                  COVERAGE "${AOTRITON_COVERAGE}" FAMILIES ${AOTRITON_FAMILIES})
