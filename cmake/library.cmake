# libaotriton_v2.a: the written runtime, the generated tables and the embedded images; and aotriton-explain on top of it.

find_package(Threads REQUIRED)

file(GLOB runtime_sources CONFIGURE_DEPENDS
     "${PROJECT_SOURCE_DIR}/v2src/*.cc"
     "${PROJECT_SOURCE_DIR}/v2src/driver/cuda.cc" "${PROJECT_SOURCE_DIR}/v2src/driver/hip.cc"
     "${PROJECT_SOURCE_DIR}/v2src/driver/driver.cc")
set(family_sources "")
foreach(family IN LISTS AOTRITON_FAMILY_NAMES)
  file(GLOB own CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/v2src/${family}/*.cc")
  list(APPEND family_sources ${own})
endforeach()
foreach(family IN LISTS AOTRITON_FAMILIES)
  file(GLOB own CONFIGURE_DEPENDS "${family}/v2src/*.cc")
  list(APPEND family_sources ${own})
endforeach()

add_library(aotriton_v2 STATIC ${runtime_sources} ${family_sources} ${AOTRITON_GENERATED_SOURCES} ${AOTRITON_IMAGE_SOURCES})
add_library(aotriton::aotriton_v2 ALIAS aotriton_v2)
target_compile_features(aotriton_v2 PUBLIC cxx_std_17 PRIVATE cxx_std_20)
target_compile_options(aotriton_v2 PRIVATE ${AOTRITON_WARNINGS})
target_compile_definitions(aotriton_v2 PRIVATE AOTRITON_VERSION="${PROJECT_VERSION}")
target_include_directories(aotriton_v2
  PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/v2src/include>" "$<INSTALL_INTERFACE:include>"
  PRIVATE "${PROJECT_SOURCE_DIR}/v2src" "${AOTRITON_GENERATED_DIR}")
target_link_libraries(aotriton_v2 PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
if(ZLIB_FOUND)
  target_compile_definitions(aotriton_v2 PRIVATE AOTRITON_HAVE_ZLIB)
  target_link_libraries(aotriton_v2 PUBLIC ZLIB::ZLIB)
endif()

file(GLOB explain_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/v2src/explain_main/*.cc")
add_executable(aotriton-explain ${explain_sources})
target_include_directories(aotriton-explain PRIVATE "${PROJECT_SOURCE_DIR}/v2src" "${AOTRITON_GENERATED_DIR}")
target_compile_options(aotriton-explain PRIVATE ${AOTRITON_WARNINGS} $<$<CONFIG:Release>:-Os>)  # quicker to compile
target_compile_features(aotriton-explain PRIVATE cxx_std_20)
target_link_libraries(aotriton-explain PRIVATE aotriton_v2)

# Host time of a call; built on request, as it reaches below the public headers.
add_executable(bench-launch EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/bench/launch.cc")
target_include_directories(bench-launch PRIVATE "${PROJECT_SOURCE_DIR}/v2src" "${AOTRITON_GENERATED_DIR}")
target_compile_features(bench-launch PRIVATE cxx_std_20)
target_link_libraries(bench-launch PRIVATE aotriton_v2)

# Host time of a choice.
add_executable(bench-choice EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/bench/choice.cc")
target_include_directories(bench-choice PRIVATE "${PROJECT_SOURCE_DIR}/v2src" "${AOTRITON_GENERATED_DIR}")
target_compile_features(bench-choice PRIVATE cxx_std_20)
target_link_libraries(bench-choice PRIVATE aotriton_v2)

# The same beside torch, loaded by bench/latency.py.
add_library(bench-latency MODULE EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/bench/latency.cc")
set_target_properties(bench-latency PROPERTIES PREFIX "")
target_compile_options(bench-latency PRIVATE ${AOTRITON_WARNINGS})
target_include_directories(bench-latency PRIVATE "${PROJECT_SOURCE_DIR}/v2src")
target_link_libraries(bench-latency PRIVATE aotriton_v2)
