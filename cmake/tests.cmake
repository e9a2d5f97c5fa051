# Every test that needs no GPU: C++ under sanitizers, Python modules one by one, and the installed tree from outside.

get_property(coverages CACHE AOTRITON_COVERAGE PROPERTY STRINGS)
if(NOT AOTRITON_COVERAGE IN_LIST coverages)
  message(FATAL_ERROR "AOTRITON_BUILD_TESTS: the tests are of a coverage by name (${coverages}), not of ${AOTRITON_COVERAGE}")
endif()

# C++: the written runtime and what the generator makes of a made-up database, with a recording driver.
set(fake_dir "${PROJECT_BINARY_DIR}/fake")
if(ZLIB_FOUND)
  set(compression zlib)
else()
  set(compression none)
endif()
file(GLOB_RECURSE fake_inputs CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/test/fake_build.py" "${PROJECT_SOURCE_DIR}/test/toy/*.py")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${fake_inputs})
execute_process(
  COMMAND "${CMAKE_COMMAND}" -E env PYTHONDONTWRITEBYTECODE=1 "${AOTRITON_HOST_PYTHON}"
          "${PROJECT_SOURCE_DIR}/test/fake_build.py" --out "${fake_dir}" --compress ${compression}
  COMMAND_ERROR_IS_FATAL ANY)

# aotriton_fake_library(NAME OPTION ...)
# The library over the made-up tables, compiled and linked with these options.
function(aotriton_fake_library name)
  include("${fake_dir}/sources.cmake")
  foreach(list_name IN ITEMS AOTRITON_GENERATED_SOURCES AOTRITON_IMAGE_SOURCES)
    list(TRANSFORM ${list_name} PREPEND "${fake_dir}/")
  endforeach()
  set(written "")
  foreach(family IN LISTS AOTRITON_FAMILY_NAMES)
    file(GLOB own CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/v2src/${family}/*.cc")
    list(APPEND written ${own})
  endforeach()
  add_library(${name} STATIC ${runtime_sources} ${written} "${PROJECT_SOURCE_DIR}/test/runtime/recording.cc"
                             ${AOTRITON_GENERATED_SOURCES} ${AOTRITON_IMAGE_SOURCES})
  set_source_files_properties(${AOTRITON_IMAGE_SOURCES} PROPERTIES COMPILE_OPTIONS "-Wa,-I${fake_dir}")
  # With -O1 tests are compiled in half the time, and run as fast as they need to; a sanitizer's report needs lines alone.
  target_compile_options(${name} PUBLIC -Wall -Wextra -Werror -g1 -O1 ${ARGN})
  target_link_options(${name} PUBLIC ${ARGN})
  target_compile_definitions(${name} PRIVATE AOTRITON_VERSION="${PROJECT_VERSION}")
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}/v2src/include" "${PROJECT_SOURCE_DIR}/v2src"
                                            "${fake_dir}" "${PROJECT_SOURCE_DIR}/test/runtime")
  target_link_libraries(${name} PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
  if(ZLIB_FOUND)
    target_compile_definitions(${name} PUBLIC AOTRITON_HAVE_ZLIB)
    target_link_libraries(${name} PUBLIC ZLIB::ZLIB)
  endif()
endfunction()
aotriton_fake_library(aotriton_checked -fsanitize=address,undefined -fno-sanitize-recover=all)
aotriton_fake_library(aotriton_raced -fsanitize=thread)

# aotriton_cxx_test(NAME SOURCE LIBRARY)
function(aotriton_cxx_test name source library)
  add_executable(${name} "${PROJECT_SOURCE_DIR}/test/runtime/${source}")
  target_link_libraries(${name} PRIVATE ${library})
  add_test(NAME cxx.${name} COMMAND ${name})
endfunction()

file(GLOB cxx_tests CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/test/runtime" "${PROJECT_SOURCE_DIR}/test/runtime/test_*.cc")
foreach(source IN LISTS cxx_tests)
  get_filename_component(name "${source}" NAME_WE)
  aotriton_cxx_test(${name} ${source} aotriton_checked)
endforeach()

# A minute of fuzzing: a longer run is `fuzz CALLS SEED cuda|hip`.
add_executable(fuzz "${PROJECT_SOURCE_DIR}/test/runtime/fuzz.cc")
target_link_libraries(fuzz PRIVATE aotriton_checked)
foreach(vendor IN ITEMS cuda hip)
  add_test(NAME cxx.fuzz_${vendor} COMMAND fuzz 1000000000 1 ${vendor} 30)
endforeach()

# The vendors' drivers are opened by name, so stand-ins of that name in a folder of their own take their place.
function(aotriton_standin name source library folder)
  add_library(${name} SHARED "${PROJECT_SOURCE_DIR}/test/runtime/vendor/${source}")
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/test/runtime")
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX "" OUTPUT_NAME "${library}"
                        LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/${folder}")
endfunction()
aotriton_standin(standin_cuda libcuda.cc libcuda.so.1 vendor)
aotriton_standin(standin_hip libamdhip64.cc libamdhip64.so vendor)
aotriton_standin(standin_contexts libcuda_contexts.cc libcuda.so.1 contexts)
aotriton_cxx_test(test_vendor vendor/test_vendor.cc aotriton_checked)
aotriton_cxx_test(test_contexts vendor/test_contexts.cc aotriton_checked)
aotriton_cxx_test(test_threads vendor/test_threads.cc aotriton_raced)
aotriton_cxx_test(test_missing vendor/test_missing.cc aotriton_checked)
add_dependencies(test_vendor standin_cuda standin_hip)
set_tests_properties(cxx.test_vendor PROPERTIES ENVIRONMENT "LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/vendor")
foreach(name IN ITEMS test_contexts test_threads)
  target_link_libraries(${name} PRIVATE standin_contexts)
endforeach()

# Two shared objects with the library inside, of different versions. The first has all of it.
foreach(which IN ITEMS first second)
  add_library(copy_${which} MODULE "${PROJECT_SOURCE_DIR}/test/runtime/copies/copy.cc")
endforeach()
target_link_libraries(copy_first PRIVATE "$<LINK_LIBRARY:WHOLE_ARCHIVE,aotriton_v2>")
target_sources(copy_second PRIVATE "${PROJECT_SOURCE_DIR}/v2src/api/runtime.cc")
target_compile_definitions(copy_second PRIVATE AOTRITON_VERSION="77.8.9")
target_include_directories(copy_second PRIVATE "${PROJECT_SOURCE_DIR}/v2src" "${AOTRITON_GENERATED_DIR}")
target_link_libraries(copy_second PRIVATE aotriton_v2)
add_executable(test_copies "${PROJECT_SOURCE_DIR}/test/runtime/copies/test_copies.cc")
target_include_directories(test_copies PRIVATE "${PROJECT_SOURCE_DIR}/test/runtime")
target_compile_options(test_copies PRIVATE ${AOTRITON_WARNINGS})
target_compile_definitions(test_copies PRIVATE FIRST_COPY="$<TARGET_FILE:copy_first>" NM="${CMAKE_NM}"
                           SECOND_COPY="$<TARGET_FILE:copy_second>" FIRST_VERSION="${PROJECT_VERSION}")
add_dependencies(test_copies copy_first copy_second)
target_link_libraries(test_copies PRIVATE ${CMAKE_DL_LIBS})
add_test(NAME cxx.test_copies COMMAND test_copies)

# A test loads bench-latency beside the stand-in for CUDA; the other benchmarks must compile.
set_target_properties(bench-latency bench-launch bench-choice bench-new-shape PROPERTIES EXCLUDE_FROM_ALL OFF)

# The tests of the installed tree share one install.
set(test_prefix "${PROJECT_BINARY_DIR}/test-install")
add_test(NAME install COMMAND "${CMAKE_COMMAND}" --install "${PROJECT_BINARY_DIR}" --prefix "${test_prefix}")
set_tests_properties(install PROPERTIES FIXTURES_SETUP installed)

# A project of somebody else's, in C99 and C++17, built against the installed tree; its programs check what they are told.
add_test(NAME cxx.consumer COMMAND "${CMAKE_CTEST_COMMAND}"
  --build-and-test "${PROJECT_SOURCE_DIR}/test/package/consumer" "${PROJECT_BINARY_DIR}/consumer"
  --build-generator "${CMAKE_GENERATOR}" --build-makeprogram "${CMAKE_MAKE_PROGRAM}" --build-noclean
  --build-options "-DCMAKE_PREFIX_PATH=${test_prefix}" "-DCMAKE_C_COMPILER=${CMAKE_C_COMPILER}"
                  "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}"
  --test-command "${CMAKE_CTEST_COMMAND}" --output-on-failure)
set_tests_properties(cxx.consumer PROPERTIES FIXTURES_REQUIRED installed)

# The same in C alone, without a C++ compiler.
add_test(NAME c.consumer COMMAND "${CMAKE_CTEST_COMMAND}"
  --build-and-test "${PROJECT_SOURCE_DIR}/test/package/consumer/c" "${PROJECT_BINARY_DIR}/c-consumer"
  --build-generator "${CMAKE_GENERATOR}" --build-makeprogram "${CMAKE_MAKE_PROGRAM}"
  --build-options "-DCMAKE_PREFIX_PATH=${test_prefix}" "-DCMAKE_C_COMPILER=${CMAKE_C_COMPILER}"
  --test-command "${CMAKE_CTEST_COMMAND}" --output-on-failure)
set_tests_properties(c.consumer PROPERTIES FIXTURES_REQUIRED installed)

# What Python's tests are told of this build, whoever runs them: test/ctest_environment.py reads the file.
set(told
  AOTRITON_INSTALL=${test_prefix}
  AOTRITON_EXPLAIN=${test_prefix}/${CMAKE_INSTALL_BINDIR}/aotriton-explain
  AOTRITON_ARCHIVE=${test_prefix}/${CMAKE_INSTALL_LIBDIR}/libaotriton_v2.a
  AOTRITON_GENERATED=${AOTRITON_GENERATED_DIR}
  AOTRITON_BENCH_LATENCY=$<TARGET_FILE:bench-latency>
  AOTRITON_STANDINS=${PROJECT_BINARY_DIR}/vendor
  AOTRITON_PACKAGED=${PROJECT_BINARY_DIR}/packaged
  AOTRITON_COVERAGE=${AOTRITON_COVERAGE}
  AOTRITON_DATABASE=${AOTRITON_DATABASE}
  CC=${CMAKE_C_COMPILER}
  CXX=${CMAKE_CXX_COMPILER}
  CMAKE_COMMAND=${CMAKE_COMMAND})
if(AOTRITON_IMAGE_STORE)
  list(APPEND told AOTRITON_IMAGE_STORE=${AOTRITON_IMAGE_STORE})
endif()
file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/test-environment" CONTENT "$<JOIN:${told},\n>\n")

file(GLOB_RECURSE python_tests CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/test/test_*.py")
list(FILTER python_tests EXCLUDE REGEX "/test/gpu/")
list(APPEND python_tests "${PROJECT_SOURCE_DIR}/test/gpu")  # skipped, with the reason, where there is no GPU
foreach(source IN LISTS python_tests)
  get_filename_component(name "${source}" NAME_WE)
  add_test(NAME py.${name} COMMAND "${AOTRITON_HOST_PYTHON}" -m pytest -q -rs -p no:cacheprovider "${source}"
           WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(py.${name} PROPERTIES
    SKIP_RETURN_CODE 5 # pytest's for a file whose every test is skipped
    FIXTURES_REQUIRED installed
    ENVIRONMENT "AOTRITON_BUILD=${PROJECT_BINARY_DIR};PYTHONDONTWRITEBYTECODE=1")
  set(needs_torch "")
  if(NOT IS_DIRECTORY "${source}")
    file(STRINGS "${source}" needs_torch REGEX "importorskip\\(\"torch\"")
  endif()
  if(name MATCHES "^test_torch" OR needs_torch)
    set_tests_properties(py.${name} PROPERTIES LABELS torch FIXTURES_REQUIRED "")  # the preset torch installs nothing
  endif()
endforeach()
