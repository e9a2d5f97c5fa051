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

# `git diff` of the database shows text: .gitattributes names the converter, and git keeps its command in the checkout's own settings.
find_package(Git QUIET)
if(GIT_FOUND AND EXISTS "${PROJECT_SOURCE_DIR}/.git")
  execute_process(COMMAND "${GIT_EXECUTABLE}" config --local diff.tuning_database.textconv "python3 rules/dump.py"
                  WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" ERROR_QUIET)
endif()
