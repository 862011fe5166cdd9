# How kernels become part of a program. Each line of a variants.def gives one or two modules, and each module has three
# files in TARGET_modules: NAME.spv is the SPIR-V, NAME.spv.gz the compressed file, and NAME.inc has its bytes as text.

# vkattn_compile_shader(OUTPUT FILE MACROS PASSES): OUTPUT is the SPIR-V of a shader after these passes of spirv-opt. It
# has no names, which nothing needs, but which were 8 % of the portable kernels' bytes. The target is Vulkan 1.2 (SPIR-V
# 1.5) on purpose: 1.6 brings LocalSizeId and varying subgroups.
function(vkattn_compile_shader output file macros passes)
  separate_arguments(macros UNIX_COMMAND "${macros}")
  add_custom_command(
    OUTPUT "${output}"
    COMMAND "${VKATTN_GLSLC}" --target-env=vulkan1.2 -fshader-stage=compute -Werror -I "${VKATTN_SHADER_DIR}"
            ${macros} -MD -MF "${output}.d" -MT "${output}" "${VKATTN_SHADER_DIR}/${file}" -o "${output}.named"
    COMMAND "${VKATTN_SPIRV_OPT}" ${passes} --strip-debug "${output}.named" -o "${output}"
    COMMAND "${CMAKE_COMMAND}" -E rm "${output}.named"
    DEPENDS "${VKATTN_SHADER_DIR}/${file}" "${VKATTN_GLSLC}" "${VKATTN_SPIRV_OPT}"
    DEPFILE "${output}.d"
    VERBATIM)
endfunction()

# vkattn_compile_module(OUTPUT NAME): OUTPUT is the module NAME of the variant that was read last. GPU modules are not
# optimised here: the driver does it better (-2 to -8 %). Modules for CPUs are, whose drivers then have less to do:
# forward_tiles of lavapipe 59 -> 28 ms, of SwiftShader 516 -> 357. A matrix kernel is flattened to one function with no
# variables outside it, because NVIDIA's driver keeps arrays of matrices in registers only so (H200, 580.159, forward at
# D64: 38 for 319 TFLOP/s). Passes that go further, to SSA, undo it (37). tests/mutants/faults.sh compiles by the same
# commands.
function(vkattn_compile_module output name)
  set(passes "")
  if(NOT name STREQUAL variant)
    string(APPEND variant_macros " -DROLLED -O")
  elseif(variant_needs STREQUAL "NEED_MATRIX")
    set(passes --merge-return --inline-entry-points-exhaustive --eliminate-dead-functions --private-to-local)
  endif()
  vkattn_compile_shader("${output}" "${variant_file}" "${variant_macros}" "${passes}")
endfunction()

# vkattn_read_variant(LINE): sets variant, variant_file, variant_macros, variant_needs and variant_modules, the names of
# its modules, to what a line of a variants.def says.
function(vkattn_read_variant line)
  if(NOT line MATCHES "^VKATTN_VARIANT\\(([a-z0-9_]+), \"([a-z0-9_.]+)\", \"([^\"]*)\", (.*), ([12])\\)$")
    message(FATAL_ERROR "this is no line of a variants.def: ${line}")
  endif()
  set(variant "${CMAKE_MATCH_1}" PARENT_SCOPE)
  set(variant_file "${CMAKE_MATCH_2}" PARENT_SCOPE)
  set(variant_macros "${CMAKE_MATCH_3}" PARENT_SCOPE)
  set(variant_needs "${CMAKE_MATCH_4}" PARENT_SCOPE)
  set(variant_modules "${CMAKE_MATCH_1}" PARENT_SCOPE)
  if(CMAKE_MATCH_5 EQUAL 2)
    set(variant_modules "${CMAKE_MATCH_1}" "${CMAKE_MATCH_1}_rolled" PARENT_SCOPE)
  endif()
endfunction()

# vkattn_compress_module(SPIRV OUTPUT): OUTPUT is what an array of the compressed bytes is made of.
function(vkattn_compress_module spirv output)
  set(script "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/compressed_text.cmake")
  string(REGEX REPLACE "inc$" "spv.gz" compressed "${output}")
  add_custom_command(
    OUTPUT "${output}" "${compressed}"
    COMMAND "${CMAKE_COMMAND}" "-DFROM=${spirv}" "-DCOMPRESSED=${compressed}" "-DTEXT=${output}" -P "${script}"
    DEPENDS "${spirv}" "${script}"
    VERBATIM)
endfunction()

# Compiles every variant of a variants.def and embeds it, compressed, in a generated header: arrays code_NAME and
# code_NAME_rolled, the same where a variant has one module. The module list of TARGET is what vkattn_print_sizes reads.
function(vkattn_embed_shaders target variants output)
  file(STRINGS "${variants}" lines REGEX "^VKATTN_VARIANT")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${variants}")
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/${target}_modules")
  file(MAKE_DIRECTORY "${folder}")
  file(RELATIVE_PATH within "${PROJECT_BINARY_DIR}" "${folder}")
  set(text "")
  set(list "")
  foreach(line IN LISTS lines)
    vkattn_read_variant("${line}")
    foreach(module IN LISTS variant_modules)
      set(spirv "${VKATTN_SPIRV_FROM}/${within}/${module}.spv")
      if(NOT VKATTN_SPIRV_FROM OR NOT EXISTS "${spirv}")
        set(spirv "${folder}/${module}.spv")
        vkattn_compile_module("${spirv}" "${module}")
      endif()
      vkattn_compress_module("${spirv}" "${folder}/${module}.inc")
      target_sources(${target} PRIVATE "${folder}/${module}.inc")
      string(APPEND text "constexpr uint8_t code_${module}[] = {\n#include \"${folder}/${module}.inc\"\n};\n")
      string(APPEND list "${variant_file} ${spirv} ${folder}/${module}.spv.gz\n")
    endforeach()
    if(NOT "${variant}_rolled" IN_LIST variant_modules)
      string(APPEND text "constexpr auto& code_${variant}_rolled = code_${variant};\n")
    endif()
  endforeach()
  file(CONFIGURE OUTPUT "${folder}/${output}" CONTENT "${text}" @ONLY)
  file(CONFIGURE OUTPUT "${folder}/list.txt" CONTENT "${list}" @ONLY)
  target_include_directories(${target} PRIVATE "${folder}")
endfunction()

# vkattn_print_sizes(TARGET): whenever an embedded module has changed, the build prints how large the kernels are.
function(vkattn_print_sizes target)
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/${target}_modules")
  set(script "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/module_sizes.cmake")
  get_target_property(texts ${target} SOURCES)
  list(FILTER texts INCLUDE REGEX "\\.inc$")
  add_custom_command(
    OUTPUT "${folder}/sizes.txt"
    COMMAND "${CMAKE_COMMAND}" "-DMODULES=${folder}/list.txt" "-DTABLE=${folder}/sizes.txt" -P "${script}"
    DEPENDS ${texts} "${folder}/list.txt" "${script}"
    VERBATIM)
  target_sources(${target} PRIVATE "${folder}/sizes.txt")
endfunction()
