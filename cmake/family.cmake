# From families of kernels to generated C++, at configure time, and to compiled images, at build time. Used by this
# project's own build, and installed for projects that add a family of their own (aotriton_add_family).
#
# Expects AOTRITON_HOST_PYTHON (python.cmake), AOTRITON_PACKAGE_ROOT, the folder with the Python package aotriton, and
# AOTRITON_RUNTIME_DIR, the folder with the runtime's own headers.

# aotriton_generate(OUT DIR DATABASE FILE ARCHS ... COVERAGE NAME|FILE [FAMILIES FOLDER ...] [ALONE])
# Sets AOTRITON_GENERATED_SOURCES, AOTRITON_IMAGE_SOURCES, AOTRITON_FAMILY_NAMES and AOTRITON_PRODUCTS, and adds the
# command that compiles the images. FAMILIES are outside of the package; ALONE: they are all there is, and are added to
# the library whose package has set AOTRITON_PRODUCTS.
function(aotriton_generate)
  cmake_parse_arguments(PARSE_ARGV 0 arg "ALONE" "OUT;DATABASE;COVERAGE" "ARCHS;FAMILIES")

  # Everything that the generated code follows from: a change reruns the configure step, which writes only what differs.
  set(package "${AOTRITON_PACKAGE_ROOT}/aotriton")
  file(GLOB_RECURSE inputs FOLLOW_SYMLINKS CONFIGURE_DEPENDS
       "${package}/rules/*.py" "${package}/tritonsrc/*.py" "${package}/codegen/*.py" "${package}/codegen/template/*.j2"
       "${package}/model_*.py")
  foreach(family IN LISTS arg_FAMILIES)
    file(GLOB_RECURSE own CONFIGURE_DEPENDS "${family}/rules/*.py" "${family}/tritonsrc/*")
    file(GLOB database CONFIGURE_DEPENDS "${family}/rules/*.sqlite3")
    list(FILTER own EXCLUDE REGEX "/__pycache__/")
    list(APPEND inputs ${own} ${database})
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${inputs})
  if(EXISTS "${arg_DATABASE}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${arg_DATABASE}")
  endif()

  # A coverage by name, or a file of models.
  set(coverage "${arg_COVERAGE}")
  get_filename_component(models "${arg_COVERAGE}" ABSOLUTE BASE_DIR "${CMAKE_SOURCE_DIR}")
  if(NOT arg_COVERAGE MATCHES "^(none|small|default|full)$" AND EXISTS "${models}")
    set(coverage "${models}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${models}")
  endif()

  # The package alone: where pip installed it, other packages of other versions lie beside it.
  set(python_path "${CMAKE_CURRENT_BINARY_DIR}/aotriton-python")
  file(MAKE_DIRECTORY "${python_path}")
  file(CREATE_LINK "${package}" "${python_path}/aotriton" SYMBOLIC)
  if(DEFINED ENV{PYTHONPATH})
    string(APPEND python_path ":$ENV{PYTHONPATH}")
  endif()
  list(JOIN arg_FAMILIES ":" listed)
  set(run_python "${CMAKE_COMMAND}" -E env "PYTHONPATH=${python_path}" PYTHONDONTWRITEBYTECODE=1
      "AOTRITON_FAMILIES=${listed}" "${AOTRITON_HOST_PYTHON}")

  set(options --database "${arg_DATABASE}" --coverage "${coverage}" --out "${arg_OUT}")
  foreach(arch IN LISTS arg_ARCHS)
    list(APPEND options --arch "${arch}")
  endforeach()
  foreach(family IN LISTS arg_FAMILIES)
    list(APPEND options --family "${family}")
  endforeach()
  if(arg_ALONE)
    list(APPEND options --alone)
    foreach(product IN LISTS AOTRITON_PRODUCTS)
      list(APPEND options --product "${product}")
    endforeach()
  endif()
  # zlib makes the archive about three times smaller. Without its headers images are stored plainly.
  if(ZLIB_FOUND)
    set(compression zlib)
  else()
    set(compression none)
  endif()
  set(compile -m aotriton.codegen.compile --list "${arg_OUT}/images.json" --out "${arg_OUT}" --compress ${compression})
  if(AOTRITON_IMAGE_STORE)
    list(APPEND compile --store "${AOTRITON_IMAGE_STORE}")
    list(APPEND options --store "${AOTRITON_IMAGE_STORE}")
  endif()
  set(generate -m aotriton.codegen.generate ${options} --compress ${compression})
  set(steps generate)
  if(AOTRITON_ALLOW_REBUILT)
    # Tables say which images are not what was measured, so those are compiled before the tables are written for good.
    set(rebuilt "${arg_OUT}/rebuilt.txt")
    list(APPEND generate --rebuilt "${rebuilt}")
    set(compile_and_list ${compile} --allow-rebuilt "${rebuilt}")
    set(steps generate compile_and_list generate)
  endif()
  foreach(step IN LISTS steps)
    execute_process(COMMAND ${run_python} ${${step}} RESULT_VARIABLE failed)
    if(failed)
      message(FATAL_ERROR "Code generation failed: see its message above.")
    endif()
  endforeach()
  include("${arg_OUT}/sources.cmake")
  get_filename_component(models_folder "${models}" DIRECTORY)
  foreach(config IN LISTS AOTRITON_MODEL_CONFIGS)
    get_filename_component(config "${config}" ABSOLUTE BASE_DIR "${models_folder}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${config}")
  endforeach()
  foreach(list_name IN ITEMS AOTRITON_GENERATED_SOURCES AOTRITON_IMAGE_SOURCES AOTRITON_IMAGE_BINARIES)
    list(TRANSFORM ${list_name} PREPEND "${arg_OUT}/")
  endforeach()

  if(AOTRITON_IMAGE_SOURCES)
    file(GLOB compile_inputs CONFIGURE_DEPENDS "${package}/codegen/*.py" "${package}/codegen/template/images.cc.j2")
    # One command for all images: its workers import Triton once, and the store answers for every image it has seen.
    # It leaves unchanged files alone, so the C++ compiler runs only for what differs.
    add_custom_command(
      OUTPUT ${AOTRITON_IMAGE_SOURCES} ${AOTRITON_IMAGE_BINARIES}
      COMMAND ${run_python} ${compile}
      DEPENDS "${arg_OUT}/images.json" ${compile_inputs}
      COMMENT "Compiling images"
      USES_TERMINAL VERBATIM)
    # .incbin is invisible to dependency scanning.
    foreach(source binary IN ZIP_LISTS AOTRITON_IMAGE_SOURCES AOTRITON_IMAGE_BINARIES)
      set_source_files_properties("${source}" PROPERTIES OBJECT_DEPENDS "${binary}")
    endforeach()
    set_source_files_properties(${AOTRITON_IMAGE_SOURCES} PROPERTIES COMPILE_OPTIONS "-Wa,-I${arg_OUT};-fno-lto")
  endif()
  set(AOTRITON_GENERATED_SOURCES "${AOTRITON_GENERATED_SOURCES}" PARENT_SCOPE)
  set(AOTRITON_IMAGE_SOURCES "${AOTRITON_IMAGE_SOURCES}" PARENT_SCOPE)
  set(AOTRITON_FAMILY_NAMES "${AOTRITON_FAMILY_NAMES}" PARENT_SCOPE)
  set(AOTRITON_PRODUCTS "${AOTRITON_PRODUCTS}" PARENT_SCOPE)
endfunction()

# aotriton_add_family(TARGET FOLDER [ARCHS ...] [COVERAGE NAME])
# A static library with the family in FOLDER, for a project that has found the package aotriton. Its generated headers,
# one an operator, are in the target's include path. Winners are in FOLDER/rules/tuning_database.sqlite3.
function(aotriton_add_family target folder)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "COVERAGE" "ARCHS")
  if(NOT AOTRITON_HOST_PYTHON)
    include("${CMAKE_CURRENT_FUNCTION_LIST_DIR}/aotriton-python.cmake")
  endif()
  if(NOT arg_COVERAGE)
    set(arg_COVERAGE full)
  endif()
  if(NOT arg_ARCHS)
    set(arg_ARCHS ${AOTRITON_ARCHS})
  endif()
  get_filename_component(folder "${folder}" ABSOLUTE)
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/${target}")
  aotriton_generate(OUT "${generated}" DATABASE "${folder}/rules/tuning_database.sqlite3" ARCHS ${arg_ARCHS}
                    COVERAGE "${arg_COVERAGE}" FAMILIES "${folder}" ALONE)
  file(GLOB written CONFIGURE_DEPENDS "${folder}/v2src/*.cc")
  add_library(${target} STATIC ${AOTRITON_GENERATED_SOURCES} ${AOTRITON_IMAGE_SOURCES} ${written})
  target_compile_features(${target} PRIVATE cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                                             VISIBILITY_INLINES_HIDDEN ON)
  target_include_directories(${target} PUBLIC "${generated}" PRIVATE "${folder}/v2src" "${AOTRITON_RUNTIME_DIR}")
  target_link_libraries(${target} PUBLIC aotriton::aotriton_v2)
endfunction()
