# Every test that needs no GPU: C++ under sanitizers, Python modules one by one, and the installed tree from outside.

# C++: the written runtime with made-up tables and a recording driver, under the address and undefined-behaviour sanitizers.
file(GLOB fake_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/test/cxx/fake/*.cc")
file(GLOB cxx_tests CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/test/cxx/test_*.cc")
add_library(aotriton_checked STATIC ${runtime_sources} "${PROJECT_SOURCE_DIR}/v2src/driver/recording.cc" ${fake_sources})
target_compile_options(aotriton_checked PUBLIC -Wall -Wextra -Werror -g -fsanitize=address,undefined -fno-sanitize-recover=all)
target_link_options(aotriton_checked PUBLIC -fsanitize=address,undefined)
target_compile_definitions(aotriton_checked PRIVATE AOTRITON_VERSION="${PROJECT_VERSION}")
target_include_directories(aotriton_checked PUBLIC "${PROJECT_SOURCE_DIR}/v2src/include" "${PROJECT_SOURCE_DIR}/v2src"
                           "${PROJECT_SOURCE_DIR}/test/cxx/fake" "${PROJECT_SOURCE_DIR}/test/cxx")
target_link_libraries(aotriton_checked PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
if(ZLIB_FOUND)
  target_compile_definitions(aotriton_checked PUBLIC AOTRITON_HAVE_ZLIB)
  target_link_libraries(aotriton_checked PUBLIC ZLIB::ZLIB)
endif()
foreach(source IN LISTS cxx_tests)
  get_filename_component(name "${source}" NAME_WE)
  add_executable(${name} "${source}")
  target_link_libraries(${name} PRIVATE aotriton_checked)
  add_test(NAME cxx.${name} COMMAND ${name})
endforeach()

set(vendors cuda amdhip64)
set(vendor_libraries libcuda.so.1 libamdhip64.so)
# The vendors' drivers are opened by name, so stand-ins of that name in a folder of their own take their place.
foreach(vendor library IN ZIP_LISTS vendors vendor_libraries)
  add_library(standin_${vendor} MODULE "${PROJECT_SOURCE_DIR}/test/cxx/vendor/lib${vendor}.cc")
  set_target_properties(standin_${vendor} PROPERTIES PREFIX "" SUFFIX "" OUTPUT_NAME "${library}"
                        LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/vendor")
endforeach()
add_executable(test_vendor "${PROJECT_SOURCE_DIR}/test/cxx/vendor/test_vendor.cc")
target_link_libraries(test_vendor PRIVATE aotriton_checked)
add_test(NAME cxx.test_vendor COMMAND test_vendor)
set_tests_properties(cxx.test_vendor PROPERTIES ENVIRONMENT "LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/vendor")

set_target_properties(bench-latency PROPERTIES EXCLUDE_FROM_ALL OFF)  # a test loads it beside the stand-in for CUDA

# The tests of the installed tree share one install.
set(test_prefix "${PROJECT_BINARY_DIR}/test-install")
add_test(NAME install COMMAND "${CMAKE_COMMAND}" --install "${PROJECT_BINARY_DIR}" --prefix "${test_prefix}")
set_tests_properties(install PROPERTIES FIXTURES_SETUP installed)

file(GLOB python_tests CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/test/test_*.py")
list(APPEND python_tests "${PROJECT_SOURCE_DIR}/test/gpu")  # skipped, with the reason, where there is no GPU
foreach(source IN LISTS python_tests)
  get_filename_component(name "${source}" NAME_WE)
  add_test(NAME py.${name} COMMAND "${AOTRITON_HOST_PYTHON}" -m pytest -q -rs -p no:cacheprovider "${source}"
           WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(py.${name} PROPERTIES
    SKIP_RETURN_CODE 5 # pytest's for a file whose every test is skipped
    FIXTURES_REQUIRED installed
    ENVIRONMENT "PYTHONPATH=${PROJECT_SOURCE_DIR}:${PROJECT_BINARY_DIR}/python;PYTHONDONTWRITEBYTECODE=1;AOTRITON_INSTALL=${test_prefix};AOTRITON_EXPLAIN=${test_prefix}/${CMAKE_INSTALL_BINDIR}/aotriton-explain;AOTRITON_ARCHIVE=${test_prefix}/${CMAKE_INSTALL_LIBDIR}/libaotriton_v2.a;AOTRITON_BENCH_LATENCY=$<TARGET_FILE:bench-latency>;AOTRITON_STANDINS=${PROJECT_BINARY_DIR}/vendor;AOTRITON_COVERAGE=${AOTRITON_COVERAGE};AOTRITON_DATABASE=${AOTRITON_DATABASE};CXX=${CMAKE_CXX_COMPILER};CMAKE_COMMAND=${CMAKE_COMMAND}")
  if(AOTRITON_IMAGE_STORE)
    set_property(TEST py.${name} APPEND PROPERTY ENVIRONMENT "AOTRITON_IMAGE_STORE=${AOTRITON_IMAGE_STORE}")
  endif()
endforeach()
