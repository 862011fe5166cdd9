# How kernels become part of a program. Lines MODULES, as in shaders/modules.def, say which modules there are, and each
# has two files in TARGET_modules: NAME.spv is the SPIR-V, and NAME.inc is C++ that has it compressed.

# vkattn_compile_modules(FOLDER FILE LINES): compiles modules of one shader to FOLDER/NAME.spv. LINES are
# NAME|FLAGS|PASSES, with the options of glslc and the passes of spirv-opt. Modules have no names: nothing needs them,
# and they were 11 % of the portable kernels' bytes. Ids are numbered in the order in which they appear, for
# src/vulkan/spirv_ids.hpp. The target is Vulkan 1.2 (SPIR-V 1.5) on purpose: 1.6 brings LocalSizeId and varying
# subgroups.
function(vkattn_compile_modules folder file lines)
  get_filename_component(kernel "${file}" NAME_WE)
  list(TRANSFORM lines REPLACE "\\|.*" "" OUTPUT_VARIABLE names)
  list(TRANSFORM names REPLACE "(.+)" "${folder}/\\1.spv" OUTPUT_VARIABLE outputs)
  list(GET outputs 0 first)
  string(REPLACE ";" "\n" text "${lines}")
  file(CONFIGURE OUTPUT "${folder}/${kernel}.txt" CONTENT "${text}\n" @ONLY)
  set(script "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/compile_modules.cmake")
  add_custom_command(
    OUTPUT ${outputs}
    COMMAND "${CMAKE_COMMAND}" "-DSHADER=${VKATTN_SHADER_DIR}/${file}" "-DMODULES=${folder}/${kernel}.txt"
            "-DFOLDER=${folder}" "-DFIRST=${first}" "-DGLSLC=${VKATTN_GLSLC}" "-DSPIRV_OPT=${VKATTN_SPIRV_OPT}"
            -P "${script}"
    DEPENDS "${VKATTN_SHADER_DIR}/${file}" "${folder}/${kernel}.txt" "${script}" "${VKATTN_GLSLC}" "${VKATTN_SPIRV_OPT}"
    DEPFILE "${folder}/${kernel}.d"
    VERBATIM)
endfunction()

# vkattn_split_module(LINE): sets module, module_kernel and module_macros, the name, the kernel and the list of macros
# of a module that vkattn_read_modules has read.
macro(vkattn_split_module line)
  string(REGEX MATCH "^(.*)[|](.*)[|](.*)$" module "${line}")
  set(module "${CMAKE_MATCH_1}")
  set(module_kernel "${CMAKE_MATCH_2}")
  string(REPLACE " " ";" module_macros "${CMAKE_MATCH_3}")
endmacro()

# vkattn_read_modules(OUTPUT LIST): the modules of a list as NAME|KERNEL|MACROS, from its lines MODULES.
function(vkattn_read_modules output list)
  set(all_macros "${PROJECT_SOURCE_DIR}/shaders/macros.def")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${list}" "${all_macros}")
  file(STRINGS "${all_macros}" parts REGEX "^MACRO")
  file(STRINGS "${list}" lines REGEX "^MODULES")
  set(modules "")
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "^MODULES\\(([a-z0-9_]+), ([12]), ([A-Z0-9_|, ]+)\\)$")
      message(FATAL_ERROR "${list}: cannot read '${line}'")
    endif()
    set(kernel "${CMAKE_MATCH_1}")
    set(forms "${CMAKE_MATCH_2}")
    string(REPLACE " | " " " sets "${CMAKE_MATCH_3}")
    string(REPLACE ", " ";" sets "${sets}")
    foreach(macros IN LISTS sets)
      set(name "${kernel}")
      foreach(part IN LISTS parts)
        string(REGEX MATCH "^MACRO\\(([A-Z0-9_]+), \"([a-z0-9_]+)\"\\)" part "${part}")
        set(text "${CMAKE_MATCH_2}")
        if(" ${macros} " MATCHES " ${CMAKE_MATCH_1} ")
          string(APPEND name "_${text}")
        endif()
      endforeach()
      list(APPEND modules "${name}|${kernel}|${macros}")
      if(forms EQUAL 2)
        list(APPEND modules "${name}_rolled|${kernel}|${macros} ROLLED")
      endif()
    endforeach()
  endforeach()
  set(${output} "${modules}" PARENT_SCOPE)
endfunction()

# vkattn_read_constants(OUTPUT LIST): reads the interfaces of kernels. The property VKATTN_IDS_OF_KERNEL becomes macros
# ID_NAME with the ids of its specialization constants: a constant's place among them. OUTPUT are constants outside of
# kernels.
function(vkattn_read_constants output list)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${list}")
  get_filename_component(folder "${list}" DIRECTORY)
  file(STRINGS "${list}" lines REGEX "^(KERNEL|CONSTANT|#include)")
  set(constants "")
  set(kernel "")
  foreach(line IN LISTS lines)
    if(line MATCHES "^#include \"((interface/)?[a-z0-9_]+\\.def)\"$")
      vkattn_read_constants(of_file "${folder}/${CMAKE_MATCH_1}")
      list(APPEND constants ${of_file})
    elseif(line MATCHES "^CONSTANT\\([a-z]+, [a-z0-9_]+, ([A-Z0-9_]+),")
      list(APPEND constants "${CMAKE_MATCH_1}")
    elseif(line MATCHES "^KERNEL\\(([a-z0-9_]+)\\)$")
      set(kernel "${CMAKE_MATCH_1}")
    elseif(line MATCHES "^(KERNEL|CONSTANT)[ (]")
      message(FATAL_ERROR "${list}: cannot read '${line}'")
    endif()
  endforeach()
  if(kernel)
    set(ids "")
    set(id 0)
    foreach(constant IN LISTS constants)
      string(APPEND ids " -DID_${constant}=${id}")
      math(EXPR id "${id} + 1")
    endforeach()
    set_property(GLOBAL PROPERTY VKATTN_IDS_OF_${kernel} "${ids}")
    set(constants "")
  endif()
  set(${output} "${constants}" PARENT_SCOPE)
endfunction()

# vkattn_module_line(OUTPUT): the line that compiles the module which was split last, with VKATTN_MODULE_OPTIONS, which
# are empty but in a test. Modules for GPUs are not optimised
# here, because drivers do it better (-2 to -8 %). Portable kernels for CPUs are, by passes that take 0.02 s a module:
# the first backward of a process takes lavapipe 254 ms instead of the 367 ms without any. After glslc -O it takes 170
# ms, and SwiftShader makes a pipeline in 0.6 instead of 0.85 s, but -O takes 0.5 s a module. Once compiled, kernels run
# equally fast in all three forms (lavapipe of Mesa 26.1, SwiftShader). A matrix kernel is flattened to one function
# with no variables outside it, because NVIDIA's driver keeps arrays of matrices in registers only so: otherwise the
# forward at D64 reaches 38 instead of 319 TFLOP/s (H200, 580.159). Passes that go further, to SSA, undo it (37
# TFLOP/s).
function(vkattn_module_line output)
  set(passes "")
  if(module_kernel MATCHES "matrix")
    set(passes "--merge-return --inline-entry-points-exhaustive --eliminate-dead-functions --private-to-local")
  elseif("ROLLED" IN_LIST module_macros)
    set(passes "--eliminate-dead-branches --eliminate-local-single-block --eliminate-local-single-store \
--eliminate-dead-code-aggressive --simplify-instructions --eliminate-dead-code-aggressive")
  endif()
  list(TRANSFORM module_macros PREPEND "-D" OUTPUT_VARIABLE flags)
  list(JOIN flags " " flags)
  if("COOPMAT2" IN_LIST module_macros)
    string(APPEND flags " --target-env=vulkan1.3")
  endif()
  get_property(ids GLOBAL PROPERTY VKATTN_IDS_OF_${module_kernel})
  set(${output} "${module}|${flags}${ids}${VKATTN_MODULE_OPTIONS}|${passes}" PARENT_SCOPE)
endfunction()

# vkattn_pack_module(SPIRV OUTPUT [PREFIX]): OUTPUT is the module as C++, by src/pack_module.cpp. That program runs
# while building: a build for another machine takes the modules of one for this machine (VKATTN_SPIRV_FROM).
function(vkattn_pack_module spirv output)
  add_custom_command(OUTPUT "${output}" COMMAND vkattn_pack_module "${spirv}" "${output}" ${ARGN}
    DEPENDS "${spirv}" ${ARGN} vkattn_pack_module VERBATIM)
endfunction()

# vkattn_find_module(FOLDER OTHER): sets spirv and packed to the files of the module that was split last. What the
# folder OTHER of VKATTN_SPIRV_FROM lacks of them is made in FOLDER: to_compile_KERNEL gets the module's line. A module
# is compressed with one as its prefix that is like it and comes before it: a form for CPUs with the one for GPUs, one
# of bfloat16 with that of float16, another one with the first of its kernel. Together they take 3.9 instead of 6.1 MB,
# but to decompress one takes 2 ms instead of 0.6.
macro(vkattn_find_module folder other)
  set(spirv "${other}/${module}.spv")
  set(packed "${other}/${module}.inc")
  if(NOT VKATTN_SPIRV_FROM OR NOT EXISTS "${spirv}")
    set(spirv "${folder}/${module}.spv")
    vkattn_module_line(compiled)
    list(APPEND to_compile_${module_kernel} "${compiled}")
    list(APPEND kernels_to_compile "${module_kernel}")
  endif()
  # A packed module is taken from another build only together with the module that it was packed from.
  if(NOT VKATTN_SPIRV_FROM OR NOT EXISTS "${packed}" OR NOT spirv STREQUAL "${other}/${module}.spv")
    set(packed "${folder}/${module}.inc")
    string(REGEX REPLACE "_rolled$" "" like "${module}")
    if(like STREQUAL module)
      string(REPLACE "_bf16" "_f16" like "${module}")
    endif()
    if(NOT DEFINED spirv_of_${like})
      set(like "${first_of_${module_kernel}}")
    endif()
    set(prefix "")
    if(like)
      set(prefix "${spirv_of_${like}}")
    endif()
    vkattn_pack_module("${spirv}" "${packed}" ${prefix})
  endif()
  if(NOT DEFINED first_of_${module_kernel})
    set(first_of_${module_kernel} "${module}")
  endif()
  set(spirv_of_${module} "${spirv}")
endmacro()

# vkattn_embed_shaders(TARGET MODULES OUTPUT [KEPT...]): compiles the modules of a list, all or those of the kernels
# that are KEPT, and embeds them, compressed, in a generated header: frames code_NAME, and a macro
# EMBEDDED_MODULES(EACH) that names them all as EACH(kernel, macros, frame). VKATTN_CPU_FORMS may leave out forms for
# CPUs. The module list of TARGET is what vkattn_print_sizes reads.
function(vkattn_embed_shaders target modules output)
  vkattn_read_modules(lines "${modules}")
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/${target}_modules")
  file(MAKE_DIRECTORY "${folder}")
  file(RELATIVE_PATH within "${PROJECT_BINARY_DIR}" "${folder}")
  set(text "#include \"vulkan/spirv.hpp\"\n")
  set(each "")
  set(list "")
  set(all_packed "")
  set(kernels_to_compile "")
  foreach(line IN LISTS lines)
    vkattn_split_module("${line}")
    if(ARGN AND NOT module_kernel IN_LIST ARGN)
      continue()
    endif()
    # CMake's AND does not bind more strongly than OR.
    if("ROLLED" IN_LIST module_macros AND NOT (VKATTN_CPU_FORMS STREQUAL "all" OR
       (VKATTN_CPU_FORMS STREQUAL "portable" AND NOT module_kernel MATCHES "matrix")))
      continue()
    endif()
    vkattn_find_module("${folder}" "${VKATTN_SPIRV_FROM}/${within}")
    list(APPEND all_packed "${packed}")
    list(JOIN module_macros " | " macros)
    string(APPEND text "#include \"${packed}\"\n")
    string(APPEND each " EACH(${module_kernel}, ${macros}, code_${module})")
    list(JOIN module_macros "," macros)
    string(APPEND list "${module_kernel} ${macros} ${spirv} ${packed}\n")
  endforeach()
  list(REMOVE_DUPLICATES kernels_to_compile)
  foreach(kernel IN LISTS kernels_to_compile)
    vkattn_compile_modules("${folder}" "${kernel}.comp" "${to_compile_${kernel}}")
  endforeach()
  add_custom_target(${target}_modules DEPENDS ${all_packed})
  set_property(TARGET ${target} PROPERTY VKATTN_MODULES "${all_packed}")
  add_dependencies(${target} ${target}_modules)
  file(CONFIGURE OUTPUT "${folder}/${output}" CONTENT "${text}#define EMBEDDED_MODULES(EACH)${each}\n" @ONLY)
  file(CONFIGURE OUTPUT "${folder}/list.txt" CONTENT "${list}" @ONLY)
  target_include_directories(${target} PRIVATE "${folder}")
endfunction()

# vkattn_print_sizes(TARGET): whenever an embedded module has changed, the build prints how large the kernels are.
function(vkattn_print_sizes target)
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/${target}_modules")
  set(script "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/module_sizes.cmake")
  get_target_property(texts ${target} VKATTN_MODULES)
  add_custom_command(
    OUTPUT "${folder}/sizes.txt"
    COMMAND "${CMAKE_COMMAND}" "-DMODULES=${folder}/list.txt" "-DTABLE=${folder}/sizes.txt" -P "${script}"
    DEPENDS ${texts} "${folder}/list.txt" "${script}"
    VERBATIM)
  add_custom_target(${target}_sizes DEPENDS "${folder}/sizes.txt")
  add_dependencies(${target}_sizes ${target}_modules) # by name, so that Make does not compile the modules twice
  add_dependencies(${target} ${target}_sizes)
endfunction()
