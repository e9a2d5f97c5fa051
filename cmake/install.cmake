# What `cmake --install` gives: headers, library, CMake package and pkg-config file (component library), aotriton-explain
# (program), the Python binding (binding).

include(CMakePackageConfigHelpers)

set(config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/${AOTRITON_NAME}")
install(TARGETS aotriton_v2 EXPORT aotriton DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library)
install(DIRECTORY "${AOTRITON_PUBLIC_HEADERS}/${AOTRITON_NAME}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT library)
install(EXPORT aotriton NAMESPACE ${AOTRITON_NAME}:: FILE ${AOTRITON_NAME}-targets.cmake DESTINATION "${config_dir}"
        COMPONENT library)
install(TARGETS aotriton-explain DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT program)

# What a family outside of the tree is generated, compiled and built with: the Python package, and the runtime's headers.
# A wheel is that package, and all of this lies inside of it.
set(share "${CMAKE_INSTALL_DATADIR}/${AOTRITON_NAME}")
set(AOTRITON_INSTALLED_RUNTIME "${share}/v2src")
if(SKBUILD)
  set(AOTRITON_INSTALLED_PACKAGE ..)
  set(package .)
  install(TARGETS aotriton_inside DESTINATION . COMPONENT binding)
else()
  set(AOTRITON_INSTALLED_PACKAGE "${share}/python")
  set(package "${share}/python/aotriton")
  install(FILES LICENSE DESTINATION "${share}" COMPONENT library)
  install(DIRECTORY aotriton/ DESTINATION "${package}" COMPONENT library
          FILES_MATCHING PATTERN "*.py" PATTERN "*.j2" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
endif()
install(FILES "${AOTRITON_GENERATED_DIR}/aotriton.pyi" DESTINATION "${package}" RENAME __init__.pyi COMPONENT library)
if(AOTRITON_BINDINGS)
  install(TARGETS ${AOTRITON_BINDINGS} DESTINATION "${package}" COMPONENT binding)
endif()
if(AOTRITON_TORCH)
  install(TARGETS aotriton_torch aotriton_torch_autograd DESTINATION "${package}" COMPONENT binding)
endif()
install(FILES "${PROJECT_SOURCE_DIR}/requirements.txt" DESTINATION "${share}" COMPONENT library)
foreach(room IN LISTS AOTRITON_ROOMS)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/v2src/${room}" DESTINATION "${share}/v2src" COMPONENT library
          FILES_MATCHING PATTERN "*.h")
endforeach()
install(FILES "${PROJECT_SOURCE_DIR}/cmake/family.cmake" DESTINATION "${config_dir}" RENAME aotriton-family.cmake COMPONENT library)
install(FILES "${PROJECT_SOURCE_DIR}/cmake/python.cmake" DESTINATION "${config_dir}" RENAME aotriton-python.cmake COMPONENT library)

# An archive needs what it uses to be linked, too: of a C program, the C++ library as well.
set(AOTRITON_DEPENDENCIES "")
set(AOTRITON_PC_LIBS "")
if(NOT BUILD_SHARED_LIBS)
  set(AOTRITON_DEPENDENCIES "include(CMakeFindDependencyMacro)\nfind_dependency(Threads)")
  list(TRANSFORM AOTRITON_CXX_LIBRARIES PREPEND " -l" OUTPUT_VARIABLE cxx_libraries)
  list(JOIN cxx_libraries "" cxx_libraries)
  set(AOTRITON_PC_LIBS " -lpthread -ldl${cxx_libraries}")
  if(ZLIB_FOUND)
    string(APPEND AOTRITON_DEPENDENCIES "\nfind_dependency(ZLIB)")
    string(PREPEND AOTRITON_PC_LIBS " -lz")
  endif()
endif()
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/aotriton-config.cmake.in"
  "${PROJECT_BINARY_DIR}/${AOTRITON_NAME}-config.cmake" INSTALL_DESTINATION "${config_dir}"
  PATH_VARS AOTRITON_INSTALLED_PACKAGE AOTRITON_INSTALLED_RUNTIME)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/${AOTRITON_NAME}-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/${AOTRITON_NAME}-config.cmake" "${PROJECT_BINARY_DIR}/${AOTRITON_NAME}-config-version.cmake"
        DESTINATION "${config_dir}" COMPONENT library)

# Folders as pkg-config has them: seen from the .pc file, so that the tree may be moved; an absolute one as it is.
set(pc_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
if(IS_ABSOLUTE "${pc_dir}")
  set(AOTRITON_PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
else()
  file(RELATIVE_PATH up "/${pc_dir}/" "/")
  string(REGEX REPLACE "/$" "" up "${up}")
  set(AOTRITON_PC_PREFIX "\${pcfiledir}/${up}")
endif()
cmake_path(APPEND AOTRITON_PC_LIBDIR "\${prefix}" "${CMAKE_INSTALL_LIBDIR}")
cmake_path(APPEND AOTRITON_PC_INCLUDEDIR "\${prefix}" "${CMAKE_INSTALL_INCLUDEDIR}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/aotriton_v2.pc.in" "${PROJECT_BINARY_DIR}/${AOTRITON_NAME}_v2.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/${AOTRITON_NAME}_v2.pc" DESTINATION "${pc_dir}" COMPONENT library)

# The last step of the default workflow: what one call gets from the library that was just installed.
add_custom_target(show
  COMMAND ${CMAKE_COMMAND} -E echo
          "aotriton-explain: what a bf16 forward, batch 2, 16 heads, 1024 x 1024, head dim 128 runs on an H100"
  COMMAND "${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/aotriton-explain" --op attn_fwd --arch sm_90 --dtype bf16
          --head-dim 128 --seqlen-q 1024 --seqlen-k 1024 --batch 2 --heads 16
  USES_TERMINAL VERBATIM)
