# libaotriton_v2: the written runtime, the generated tables and the embedded images; and aotriton-explain on top of them.
#
# aotriton_v2 is what users link: an archive, or with BUILD_SHARED_LIBS a shared library that exports the C functions and
# nothing else. aotriton_inside is the same for what reaches below the public headers: the program and the binding. In a
# wheel that is a shared library, too, which exports everything, so that several bindings have one copy of the images.

find_package(Threads REQUIRED)

set(AOTRITON_ROOMS base program driver call dispatch launch api) # of the runtime, in v2src/; families have their own
set(runtime_sources "")
foreach(room IN LISTS AOTRITON_ROOMS)
  file(GLOB own CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/v2src/${room}/*.cc")
  list(APPEND runtime_sources ${own})
endforeach()
set(family_sources "")
foreach(family IN LISTS AOTRITON_FAMILY_NAMES)
  file(GLOB own CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/v2src/${family}/*.cc")
  list(APPEND family_sources ${own})
endforeach()
foreach(family IN LISTS AOTRITON_FAMILIES)
  file(GLOB own CONFIGURE_DEPENDS "${family}/v2src/*.cc")
  list(APPEND family_sources ${own})
endforeach()

# aotriton_library(NAME [STATIC|SHARED])
function(aotriton_library name)
  add_library(${name} ${ARGN} ${runtime_sources} ${family_sources} ${AOTRITON_GENERATED_SOURCES} ${AOTRITON_IMAGE_SOURCES})
  target_compile_features(${name} PUBLIC cxx_std_17 PRIVATE cxx_std_20)
  # Behind the user's flags: choices follow from IEEE arithmetic, and checks ask for infinities.
  target_compile_options(${name} PRIVATE ${AOTRITON_WARNINGS} -fno-fast-math -ffp-contract=off -fno-trapping-math)
  target_compile_definitions(${name} PRIVATE AOTRITON_VERSION="${PROJECT_VERSION}")
  target_include_directories(${name}
    PUBLIC "$<BUILD_INTERFACE:${AOTRITON_PUBLIC_HEADERS}>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>"
    PRIVATE "${PROJECT_SOURCE_DIR}/v2src" "${AOTRITON_GENERATED_DIR}")
  target_link_libraries(${name} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  if(ZLIB_FOUND)
    target_compile_definitions(${name} PRIVATE AOTRITON_HAVE_ZLIB)
    target_link_libraries(${name} PRIVATE ZLIB::ZLIB)
  endif()
endfunction()

aotriton_library(aotriton_v2)
add_library(aotriton::aotriton_v2 ALIAS aotriton_v2)
set_target_properties(aotriton_v2 PROPERTIES OUTPUT_NAME ${AOTRITON_NAME}_v2 EXPORT_NAME ${AOTRITON_NAME}_v2)

# What a C compiler must be told to link beside the archive; a C++ compiler does so by itself.
set(AOTRITON_CXX_LIBRARIES ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
list(FILTER AOTRITON_CXX_LIBRARIES INCLUDE REGEX "^(stdc\\+\\+|c\\+\\+|c\\+\\+abi|m)$")
list(REMOVE_DUPLICATES AOTRITON_CXX_LIBRARIES)
if(NOT BUILD_SHARED_LIBS)
  target_link_libraries(aotriton_v2 INTERFACE "$<INSTALL_INTERFACE:${AOTRITON_CXX_LIBRARIES}>")
endif()
if(BUILD_SHARED_LIBS)
  # Before 1.0 a minor version may change the interface. Templates of the standard library would be exported, too.
  set(exported "${PROJECT_BINARY_DIR}/exported.map")
  file(CONFIGURE OUTPUT "${exported}" CONTENT "{ global: ${AOTRITON_NAME}_*; local: *; };\n")
  set_target_properties(aotriton_v2 PROPERTIES VERSION ${PROJECT_VERSION} LINK_DEPENDS "${exported}"
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_compile_definitions(aotriton_v2 PRIVATE "AOTRITON_API=__attribute__((visibility(\"default\")))")
  target_link_options(aotriton_v2 PRIVATE "LINKER:--version-script=${exported}" LINKER:-z,defs)
  aotriton_library(aotriton_inside STATIC)
elseif(SKBUILD)
  aotriton_library(aotriton_inside SHARED)
  set_target_properties(aotriton_inside PROPERTIES OUTPUT_NAME aotriton_runtime CXX_VISIBILITY_PRESET default)
  # Calls inside of it stay inside, whatever else the process has loaded.
  target_compile_options(aotriton_inside PRIVATE -fno-semantic-interposition $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>)
  target_link_options(aotriton_inside PRIVATE LINKER:-Bsymbolic LINKER:-z,defs)
else()
  add_library(aotriton_inside ALIAS aotriton_v2)
endif()

if(SKBUILD)
  set(CMAKE_INSTALL_RPATH "$ORIGIN" "$ORIGIN/..") # the binding is beside libaotriton_runtime.so, the program in bin/
endif()

file(GLOB explain_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/v2src/explain/*.cc")
add_executable(aotriton-explain ${explain_sources})
target_include_directories(aotriton-explain PRIVATE "${PROJECT_SOURCE_DIR}/v2src" "${AOTRITON_GENERATED_DIR}")
target_compile_options(aotriton-explain PRIVATE ${AOTRITON_WARNINGS} $<$<CONFIG:Release>:-Os>)  # quicker to compile
target_compile_features(aotriton-explain PRIVATE cxx_std_20)
target_link_libraries(aotriton-explain PRIVATE aotriton_inside)

# Host time of a call; built on request, as it reaches below the public headers.
add_executable(bench-launch EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/bench/launch.cc")
target_include_directories(bench-launch PRIVATE "${PROJECT_SOURCE_DIR}/v2src" "${AOTRITON_GENERATED_DIR}")
target_compile_features(bench-launch PRIVATE cxx_std_20)
target_link_libraries(bench-launch PRIVATE aotriton_inside)

# Host time of a choice.
add_executable(bench-choice EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/bench/choice.cc")
target_include_directories(bench-choice PRIVATE "${PROJECT_SOURCE_DIR}/v2src" "${AOTRITON_GENERATED_DIR}")
target_compile_features(bench-choice PRIVATE cxx_std_20)
target_link_libraries(bench-choice PRIVATE aotriton_inside)

# Host time of calls of new shapes.
add_executable(bench-new-shape EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/bench/new_shape.cc")
target_include_directories(bench-new-shape PRIVATE "${PROJECT_SOURCE_DIR}/v2src" "${AOTRITON_GENERATED_DIR}")
target_compile_features(bench-new-shape PRIVATE cxx_std_20)
target_link_libraries(bench-new-shape PRIVATE aotriton_inside)

# Host time of a call beside torch's, loaded by bench/latency.py.
add_library(bench-latency MODULE EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/bench/latency.cc")
set_target_properties(bench-latency PROPERTIES PREFIX "")
target_compile_options(bench-latency PRIVATE ${AOTRITON_WARNINGS})
target_include_directories(bench-latency PRIVATE "${PROJECT_SOURCE_DIR}/v2src")
target_link_libraries(bench-latency PRIVATE aotriton_inside)
