# The name that programs see, aotriton with AOTRITON_NAME_SUFFIX behind it: of the library, the C++ namespace, the C
# functions and types, the macros, the folder of headers and the packages.
#
# ROCm's AOTriton has the same names, and with a suffix the two can be in one program. Sources have no suffix: the public
# headers are written anew, and the compiler is told what everything that they declare is called.

if(NOT AOTRITON_NAME_SUFFIX MATCHES "^[A-Za-z0-9_]*$")
  message(FATAL_ERROR "AOTRITON_NAME_SUFFIX is '${AOTRITON_NAME_SUFFIX}': only letters, digits and _ can be in a name")
endif()
set(AOTRITON_NAME "aotriton${AOTRITON_NAME_SUFFIX}")
set(AOTRITON_PUBLIC_HEADERS "${PROJECT_SOURCE_DIR}/v2src/include")
if(AOTRITON_NAME_SUFFIX STREQUAL "")
  return()
endif()

set(AOTRITON_PUBLIC_HEADERS "${PROJECT_BINARY_DIR}/include")
string(TOUPPER "${AOTRITON_NAME}" upper)
file(GLOB headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/v2src/include/aotriton/*.h")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${headers})
set(defines "#define aotriton ${AOTRITON_NAME}\n")
foreach(header IN LISTS headers)
  get_filename_component(name "${header}" NAME)
  file(READ "${header}" text)
  string(REGEX MATCHALL "aotriton_[a-z0-9_]*[a-z0-9]" declared "${text}")
  list(APPEND symbols ${declared})
  string(REPLACE aotriton "${AOTRITON_NAME}" text "${text}")
  string(REPLACE AOTRITON "${upper}" text "${text}")
  file(CONFIGURE OUTPUT "${AOTRITON_PUBLIC_HEADERS}/${AOTRITON_NAME}/${name}" CONTENT "${text}" @ONLY)
endforeach()
list(REMOVE_DUPLICATES symbols)
foreach(symbol IN LISTS symbols)
  string(REGEX REPLACE "^aotriton" "${AOTRITON_NAME}" renamed "${symbol}")
  string(APPEND defines "#define ${symbol} ${renamed}\n")
endforeach()
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/renamed.h" CONTENT "${defines}" @ONLY)
add_compile_options("SHELL:-include \"${PROJECT_BINARY_DIR}/renamed.h\"")
include_directories("${PROJECT_SOURCE_DIR}/v2src/include")
