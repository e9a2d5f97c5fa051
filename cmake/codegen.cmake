# From the tuning database to generated C++, at configure time, and to compiled images, at build time.

set(AOTRITON_GENERATED_DIR "${PROJECT_BINARY_DIR}/generated")

# Everything that the generated code follows from: a change reruns the configure step, which writes only what differs.
file(GLOB generator_inputs CONFIGURE_DEPENDS
     "${PROJECT_SOURCE_DIR}/rules/*.py" "${PROJECT_SOURCE_DIR}/tritonsrc/*.py"
     "${PROJECT_SOURCE_DIR}/codegen/*.py" "${PROJECT_SOURCE_DIR}/codegen/template/*.j2")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${generator_inputs} "${AOTRITON_DATABASE}")

set(python_path "${PROJECT_SOURCE_DIR}")
if(DEFINED ENV{PYTHONPATH})
  string(APPEND python_path ":$ENV{PYTHONPATH}")
endif()
set(run_python "${CMAKE_COMMAND}" -E env "PYTHONPATH=${python_path}" PYTHONDONTWRITEBYTECODE=1 "${AOTRITON_HOST_PYTHON}")

set(arch_arguments "")
foreach(arch IN LISTS AOTRITON_ARCHS)
  list(APPEND arch_arguments --arch "${arch}")
endforeach()
execute_process(
  COMMAND ${run_python} -m aotriton.codegen.generate --database "${AOTRITON_DATABASE}" ${arch_arguments}
          --coverage "${AOTRITON_COVERAGE}" --out "${AOTRITON_GENERATED_DIR}"
  RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "Code generation failed: see its message above.")
endif()
include("${AOTRITON_GENERATED_DIR}/sources.cmake")
list(TRANSFORM AOTRITON_GENERATED_SOURCES PREPEND "${AOTRITON_GENERATED_DIR}/")
list(TRANSFORM AOTRITON_IMAGE_SOURCES PREPEND "${AOTRITON_GENERATED_DIR}/")
list(TRANSFORM AOTRITON_IMAGE_BINARIES PREPEND "${AOTRITON_GENERATED_DIR}/")

# zlib makes the archive about three times smaller. Without its headers images are stored plainly.
find_package(ZLIB QUIET)
if(ZLIB_FOUND)
  set(compression zlib)
else()
  set(compression none)
  message(STATUS "zlib was not found: images are stored uncompressed")
endif()

if(AOTRITON_IMAGE_SOURCES)
  set(store_arguments "")
  if(AOTRITON_IMAGE_STORE)
    set(store_arguments --store "${AOTRITON_IMAGE_STORE}")
  endif()
  file(GLOB compile_inputs CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/codegen/*.py"
       "${PROJECT_SOURCE_DIR}/codegen/template/images.cc.j2")
  # One command for all images: its workers import Triton once, and the store answers for every image it has seen.
  # It leaves unchanged files alone, so the C++ compiler runs only for what differs.
  add_custom_command(
    OUTPUT ${AOTRITON_IMAGE_SOURCES} ${AOTRITON_IMAGE_BINARIES}
    COMMAND ${run_python} -m aotriton.codegen.compile --list "${AOTRITON_GENERATED_DIR}/images.json"
            --out "${AOTRITON_GENERATED_DIR}" --compress ${compression} ${store_arguments}
    DEPENDS "${AOTRITON_GENERATED_DIR}/images.json" ${compile_inputs}
    COMMENT "Compiling images"
    USES_TERMINAL VERBATIM)
  # .incbin is invisible to dependency scanning.
  foreach(source binary IN ZIP_LISTS AOTRITON_IMAGE_SOURCES AOTRITON_IMAGE_BINARIES)
    set_source_files_properties("${source}" PROPERTIES OBJECT_DEPENDS "${binary}")
  endforeach()
  set_source_files_properties(${AOTRITON_IMAGE_SOURCES} PROPERTIES
    COMPILE_OPTIONS "-Wa,-I${AOTRITON_GENERATED_DIR};-fno-lto")
endif()

# `git diff` of the database shows text: .gitattributes names the converter, and git keeps its command in the checkout's own settings.
find_package(Git QUIET)
if(GIT_FOUND AND EXISTS "${PROJECT_SOURCE_DIR}/.git")
  execute_process(COMMAND "${GIT_EXECUTABLE}" config --local diff.tuning_database.textconv "python3 rules/dump.py"
                  WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" ERROR_QUIET)
endif()
