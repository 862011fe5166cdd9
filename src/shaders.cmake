# How kernels become part of a program. Each line MODULE of a kernel's interface gives a module in one or two forms, and
# each form has two files in TARGET_modules: NAME.spv is the SPIR-V, and NAME.inc is C++ that has it compressed.

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

# vkattn_add_module(LIST FORM): adds the line of a form of the module that was read last. Modules for GPUs are not
# optimised here, because drivers do it better (-2 to -8 %). Portable kernels for CPUs are, by passes that take 0.02 s a
# module: the first backward of a process takes lavapipe 254 ms instead of the 367 ms without any. After glslc -O it
# takes 170 ms, and SwiftShader makes a pipeline in 0.6 instead of 0.85 s, but -O takes 0.5 s a module. Once compiled,
# kernels run equally fast in all three forms (lavapipe of Mesa 26.1, SwiftShader). A matrix kernel is flattened to one
# function with no variables outside it, because NVIDIA's driver keeps arrays of matrices in registers only so:
# otherwise the forward at D64 reaches 38 instead of 319 TFLOP/s (H200, 580.159). Passes that go further, to SSA, undo
# it (37 TFLOP/s).
function(vkattn_add_module list form)
  set(flags "${module_macros}")
  set(passes "")
  if(NOT form STREQUAL module)
    string(APPEND flags " -DROLLED")
    if(NOT module_needs MATCHES "NEED_MATRIX")
      set(passes "--eliminate-dead-branches --eliminate-local-single-block --eliminate-local-single-store \
--eliminate-dead-code-aggressive --simplify-instructions --eliminate-dead-code-aggressive")
    endif()
  endif()
  if(module_needs STREQUAL "NEED_MATRIX")
    set(passes "--merge-return --inline-entry-points-exhaustive --eliminate-dead-functions --private-to-local")
  endif()
  set(${list} ${${list}} "${form}|${flags}|${passes}" PARENT_SCOPE)
endfunction()

# vkattn_read_modules(OUTPUT LIST): the modules of a list of kernels as NAME|FILE|MACROS|NEEDS|FORMS, from its lines
# KERNEL and MODULE and from those of the files that it includes. Macros ID_NAME have the ids of the kernel's
# specialization constants: a constant's place among them.
function(vkattn_read_modules output list)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${list}")
  get_filename_component(folder "${list}" DIRECTORY)
  file(STRINGS "${list}" lines REGEX "^(KERNEL|MODULE|CONSTANT|#include)")
  set(modules "")
  set(constants "")
  set(kernel "")
  foreach(line IN LISTS lines)
    if(line MATCHES "^#include \"((interface/)?[a-z0-9_]+\\.def)\"$")
      vkattn_read_modules(of_file "${folder}/${CMAKE_MATCH_1}")
      list(APPEND modules ${of_file})
      list(APPEND constants ${of_file_constants})
    elseif(line MATCHES "^CONSTANT\\([a-z]+, [a-z0-9_]+, ([A-Z0-9_]+),")
      list(APPEND constants "${CMAKE_MATCH_1}")
    elseif(line MATCHES "^KERNEL\\(([a-z0-9_]+)\\)$")
      set(kernel "${CMAKE_MATCH_1}")
    elseif(line MATCHES "^MODULE\\(([a-z0-9_]+), [A-Z0-9]+, \"([^\"]*)\", (.*), ([12])\\)$")
      string(REPLACE " | " "+" needs "${CMAKE_MATCH_3}")
      list(APPEND modules "${CMAKE_MATCH_1}|${kernel}.comp|${CMAKE_MATCH_2}|${needs}|${CMAKE_MATCH_4}")
    elseif(line MATCHES "^(MODULE|KERNEL|CONSTANT)[ (]")
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
    list(TRANSFORM modules REPLACE "^([^|]*[|][^|]*[|][^|]*)" "\\1${ids}")
    set(constants "")
  endif()
  set(${output} "${modules}" PARENT_SCOPE)
  set(${output}_constants "${constants}" PARENT_SCOPE)
endfunction()

# vkattn_split_module(LINE): sets module, module_file, module_kernel, module_macros, module_needs and module_forms, the
# names of its forms, to what vkattn_read_modules says of a module.
function(vkattn_split_module line)
  string(REPLACE "|" ";" line "${line}")
  foreach(name IN ITEMS module module_file module_macros module_needs count)
    list(POP_FRONT line ${name})
    set(${name} "${${name}}" PARENT_SCOPE)
  endforeach()
  string(REGEX REPLACE "\\.comp$" "" module_kernel "${module_file}")
  set(module_kernel "${module_kernel}" PARENT_SCOPE)
  set(module_forms "${module}" PARENT_SCOPE)
  if(count EQUAL 2)
    set(module_forms "${module}" "${module}_rolled" PARENT_SCOPE)
  endif()
endfunction()

# vkattn_pack_module(SPIRV OUTPUT): OUTPUT is the module as C++, by src/pack_module.cpp. That program runs while
# building: a build for another machine takes the modules of one for this machine (VKATTN_SPIRV_FROM).
function(vkattn_pack_module spirv output)
  add_custom_command(OUTPUT "${output}" COMMAND vkattn_pack_module "${spirv}" "${output}"
    DEPENDS "${spirv}" vkattn_pack_module VERBATIM)
endfunction()

# vkattn_find_module(FOLDER OTHER FORM): sets spirv and packed to the files of a form of the module that was read last.
# What the folder OTHER of VKATTN_SPIRV_FROM lacks of them is made in FOLDER: to_compile_KERNEL gets the module's line.
macro(vkattn_find_module folder other form)
  set(spirv "${other}/${form}.spv")
  set(packed "${other}/${form}.inc")
  if(NOT VKATTN_SPIRV_FROM OR NOT EXISTS "${spirv}")
    set(spirv "${folder}/${form}.spv")
    vkattn_add_module(to_compile_${module_kernel} "${form}")
    list(APPEND kernels_to_compile "${module_kernel}")
  endif()
  if(NOT VKATTN_SPIRV_FROM OR NOT EXISTS "${packed}")
    set(packed "${folder}/${form}.inc")
    vkattn_pack_module("${spirv}" "${packed}")
  endif()
endmacro()

# vkattn_embed_shaders(TARGET KERNELS OUTPUT [KEPT...]): compiles the modules of a list of kernels, or of those that are
# KEPT, and embeds them, compressed, in a generated header: frames code_NAME and code_NAME_rolled, the same where a
# module has one form, and empty ones for the other kernels and for the forms for CPUs that VKATTN_CPU_FORMS leaves out.
# The module list of TARGET is what vkattn_print_sizes reads.
function(vkattn_embed_shaders target kernels output)
  vkattn_read_modules(lines "${kernels}")
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/${target}_modules")
  file(MAKE_DIRECTORY "${folder}")
  file(RELATIVE_PATH within "${PROJECT_BINARY_DIR}" "${folder}")
  set(text "#include \"vulkan/spirv.hpp\"\n")
  set(list "")
  set(all_packed "")
  set(kernels_to_compile "")
  foreach(line IN LISTS lines)
    vkattn_split_module("${line}")
    if(ARGN AND NOT module_kernel IN_LIST ARGN)
      string(APPEND text "constexpr ::vkattn::core::Frame code_${module}, code_${module}_rolled;\n")
      continue()
    endif()
    foreach(form IN LISTS module_forms)
      # CMake's AND does not bind more strongly than OR.
      if(form STREQUAL "${module}_rolled" AND NOT (VKATTN_CPU_FORMS STREQUAL "all" OR
         (VKATTN_CPU_FORMS STREQUAL "portable" AND NOT module_needs MATCHES "NEED_MATRIX")))
        string(APPEND text "constexpr ::vkattn::core::Frame code_${form};\n")
        continue()
      endif()
      vkattn_find_module("${folder}" "${VKATTN_SPIRV_FROM}/${within}" "${form}")
      list(APPEND all_packed "${packed}")
      string(APPEND text "#include \"${packed}\"\n")
      string(APPEND list "${module_file} ${spirv} ${packed}\n")
    endforeach()
    if(NOT "${module}_rolled" IN_LIST module_forms)
      string(APPEND text "constexpr auto& code_${module}_rolled = code_${module};\n")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES kernels_to_compile)
  foreach(kernel IN LISTS kernels_to_compile)
    vkattn_compile_modules("${folder}" "${kernel}.comp" "${to_compile_${kernel}}")
  endforeach()
  add_custom_target(${target}_modules DEPENDS ${all_packed})
  set_property(TARGET ${target} PROPERTY VKATTN_MODULES "${all_packed}")
  add_dependencies(${target} ${target}_modules)
  file(CONFIGURE OUTPUT "${folder}/${output}" CONTENT "${text}" @ONLY)
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
