# cmake -DSHADER=FILE -DMODULES=FILE -DFOLDER=FOLDER -DFIRST=FILE -DGLSLC=... -DSPIRV_OPT=... -P compile_modules.cmake
#
# Compiles the modules of one shader, which src/shaders.cmake lists in MODULES, to FOLDER/NAME.spv. Those with the same
# options take one call of glslc, because it takes 0.25 s to begin and 0.03 s for a module: each is a file of its own,
# with its macros behind the line #version. FOLDER/NAME.spv.d names the files that a module is made of, and
# FOLDER/KERNEL.d those of all, for FIRST, the first of them.
cmake_policy(VERSION 3.22)

file(READ "${SHADER}" text)
file(STRINGS "${MODULES}" lines)
get_filename_component(shaders "${SHADER}" DIRECTORY)
get_filename_component(kernel "${SHADER}" NAME_WE)

# write_source(NAME FLAGS): writes FOLDER/NAME.comp, and sets the caller's options to those of the flags that define
# nothing.
function(write_source name flags)
  set(head "#version 460\n")
  separate_arguments(flags UNIX_COMMAND "${flags}")
  set(others "${flags}")
  list(FILTER others EXCLUDE REGEX "^-D")
  list(FILTER flags INCLUDE REGEX "^-D")
  foreach(flag IN LISTS flags)
    string(REGEX MATCH "^-D([^=]+)=?(.*)$" flag "${flag}")
    string(APPEND head "#define ${CMAKE_MATCH_1} ${CMAKE_MATCH_2}\n")
  endforeach()
  string(REPLACE "#version 460\n" "${head}#line 2\n" source "${text}")
  if(source STREQUAL text)
    message(FATAL_ERROR "${SHADER} has no line '#version 460'")
  endif()
  file(WRITE "${FOLDER}/${name}.comp" "${source}")
  set(options "${others}" PARENT_SCOPE)
endfunction()

set(groups "") # Modules of a group have the same options.
foreach(line IN LISTS lines)
  string(REGEX MATCH "^([^|]*)\\|([^|]*)\\|" line "${line}")
  set(name "${CMAKE_MATCH_1}")
  write_source("${name}" "${CMAKE_MATCH_2}")
  string(MAKE_C_IDENTIFIER "with ${options}" group)
  list(APPEND groups "${group}")
  set(options_${group} ${options})
  list(APPEND sources_${group} "${name}.comp")
endforeach()
list(REMOVE_DUPLICATES groups)
foreach(group IN LISTS groups)
  execute_process(
    COMMAND "${GLSLC}" --target-env=vulkan1.2 -fshader-stage=compute -Werror ${options_${group}} -I "${shaders}" -MD -c
            ${sources_${group}}
    WORKING_DIRECTORY "${FOLDER}" COMMAND_ERROR_IS_FATAL ANY)
endforeach()

# In depfiles a space in a path is escaped, which glslc does not do.
foreach(path IN ITEMS SHADER FOLDER FIRST shaders)
  string(REPLACE " " "\\ " escaped_${path} "${${path}}")
endforeach()
set(files "")
foreach(line IN LISTS lines)
  string(REGEX MATCH "^([^|]*)\\|[^|]*\\|(.*)$" line "${line}")
  set(name "${CMAKE_MATCH_1}")
  separate_arguments(passes UNIX_COMMAND "${CMAKE_MATCH_2}")
  set(compiled "${FOLDER}/${name}.comp.spv")
  execute_process(
    COMMAND "${SPIRV_OPT}" --skip-validation --strip-debug ${passes} --compact-ids "${compiled}"
            -o "${FOLDER}/${name}.spv"
    COMMAND_ERROR_IS_FATAL ANY)
  file(READ "${compiled}.d" listed)
  string(REPLACE "${name}.comp.spv: ${name}.comp" "${escaped_SHADER}" read "${listed}")
  if(read STREQUAL listed)
    message(FATAL_ERROR "glslc has written another depfile than was expected: ${listed}")
  endif()
  string(REPLACE "${shaders}/" "${escaped_shaders}/" read "${read}")
  string(STRIP "${read}" read)
  file(WRITE "${FOLDER}/${name}.spv.d" "${escaped_FOLDER}/${name}.spv: ${read}\n")
  list(APPEND files "${read}")
  file(REMOVE "${FOLDER}/${name}.comp" "${compiled}" "${compiled}.d")
endforeach()
list(JOIN files " " files)
file(WRITE "${FOLDER}/${kernel}.d" "${escaped_FIRST}: ${files}\n")
