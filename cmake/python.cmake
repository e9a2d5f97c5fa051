# The Python that runs the code generator and the compiler: AOTRITON_PYTHON, or an environment made here from
# AOTRITON_REQUIREMENTS, a list of requirement files.

if(SKBUILD AND NOT AOTRITON_PYTHON)
  set(AOTRITON_PYTHON "${Python3_EXECUTABLE}")  # pip has already made an environment from pyproject.toml
endif()
if(AOTRITON_PYTHON)
  set(Python3_EXECUTABLE "${AOTRITON_PYTHON}")
  find_package(Python3 3.10 REQUIRED COMPONENTS Interpreter)
  set(AOTRITON_HOST_PYTHON "${Python3_EXECUTABLE}")
  return()
endif()

find_package(Python3 3.10 REQUIRED COMPONENTS Interpreter)
set(AOTRITON_VENV "${PROJECT_BINARY_DIR}/venv" CACHE PATH "Where the build's own Python environment lives")

set(pip_arguments "")
set(wanted "${Python3_EXECUTABLE} ${Python3_VERSION}\n")
foreach(file IN LISTS AOTRITON_REQUIREMENTS)
  list(APPEND pip_arguments -r "${file}")
  file(READ "${file}" text)
  string(APPEND wanted "${text}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
endforeach()

# What the environment holds is written into it only after the install succeeded, so a broken one is made again.
set(stamp "${AOTRITON_VENV}/requirements.installed")
set(installed "")
if(EXISTS "${stamp}")
  file(READ "${stamp}" installed)
endif()
string(FIND "${installed}" "${wanted}" found)
if(found EQUAL -1)
  message(STATUS "Making the build's Python environment in ${AOTRITON_VENV}")
  execute_process(COMMAND "${Python3_EXECUTABLE}" -m venv "${AOTRITON_VENV}" RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "Could not make a Python environment. `${Python3_EXECUTABLE} -m venv` must work (on Debian and Ubuntu: "
                        "the package python3-venv), or set AOTRITON_PYTHON to a Python that has requirements.txt installed.")
  endif()
  execute_process(COMMAND "${AOTRITON_VENV}/bin/python" -m pip install --quiet --disable-pip-version-check ${pip_arguments}
                  RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "Could not install ${AOTRITON_REQUIREMENTS} into ${AOTRITON_VENV}: see pip's message above.")
  endif()
  file(WRITE "${stamp}" "${wanted}")
endif()
set(AOTRITON_HOST_PYTHON "${AOTRITON_VENV}/bin/python")
