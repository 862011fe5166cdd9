# vkattn_compile_shader(OUTPUT FILE MACROS): SPIR-V as text, the words separated by commas.
# Vulkan 1.2 (SPIR-V 1.5) on purpose: 1.6 brings LocalSizeId and varying subgroups. GPU modules are not optimised here:
# the driver does it better (-2 to -8 %). Modules for CPUs are, whose drivers then have less to do: forward_tiles of
# lavapipe 59 -> 28 ms, of SwiftShader 516 -> 357.
function(vkattn_compile_shader output file macros)
  separate_arguments(macros UNIX_COMMAND "${macros}")
  add_custom_command(
    OUTPUT "${output}"
    COMMAND "${VKATTN_GLSLC}" --target-env=vulkan1.2 -fshader-stage=compute -Werror -I "${VKATTN_SHADER_DIR}"
            ${macros} -mfmt=num -MD -MF "${output}.d" -MT "${output}" "${VKATTN_SHADER_DIR}/${file}" -o "${output}"
    DEPENDS "${VKATTN_SHADER_DIR}/${file}" "${VKATTN_GLSLC}"
    DEPFILE "${output}.d"
    VERBATIM)
endfunction()

# Compiles a matrix kernel, and flattens it: one function, no variables outside it. NVIDIA's driver keeps arrays of
# matrices in registers only so (H200, 580.159, forward at D64: 38 for 319 TFLOP/s). Passes that go further, to SSA,
# undo it (37).
function(vkattn_compile_matrix_shader output file macros)
  separate_arguments(macros UNIX_COMMAND "${macros}")
  add_custom_command(
    OUTPUT "${output}"
    COMMAND "${VKATTN_GLSLC}" --target-env=vulkan1.2 -fshader-stage=compute -Werror -I "${VKATTN_SHADER_DIR}"
            ${macros} -MD -MF "${output}.d" -MT "${output}" "${VKATTN_SHADER_DIR}/${file}" -o "${output}.spv"
    COMMAND "${VKATTN_SPIRV_OPT}" --merge-return --inline-entry-points-exhaustive --eliminate-dead-functions
            --private-to-local "${output}.spv" -o "${output}.flat.spv"
    COMMAND "${CMAKE_COMMAND}" "-DFROM=${output}.flat.spv" "-DTO=${output}" -P "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/spirv_text.cmake"
    DEPENDS "${VKATTN_SHADER_DIR}/${file}" "${VKATTN_GLSLC}" "${VKATTN_SPIRV_OPT}"
    DEPFILE "${output}.d"
    VERBATIM)
endfunction()

# vkattn_read_modules(OUTPUT LIST): the modules of a list of kernels as NAME|FILE|MACROS|NEEDS|FORMS, from its lines
# KERNEL and MODULE and from those of the files that it includes. tests/mutants/faults.sh reads the same lines.
function(vkattn_read_modules output list)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${list}")
  get_filename_component(folder "${list}" DIRECTORY)
  file(STRINGS "${list}" lines REGEX "^(KERNEL|MODULE|#include)")
  set(modules "")
  set(kernel "")
  foreach(line IN LISTS lines)
    if(line MATCHES "^#include \"(interface/[a-z0-9_]+\\.def)\"$")
      vkattn_read_modules(of_file "${folder}/${CMAKE_MATCH_1}")
      list(APPEND modules ${of_file})
    elseif(line MATCHES "^KERNEL\\(([a-z0-9_]+)\\)$")
      set(kernel "${CMAKE_MATCH_1}")
    elseif(line MATCHES "^MODULE\\(([a-z0-9_]+), \"([^\"]*)\", (.*), ([12])\\)$")
      list(APPEND modules "${CMAKE_MATCH_1}|${kernel}.comp|${CMAKE_MATCH_2}|${CMAKE_MATCH_3}|${CMAKE_MATCH_4}")
    elseif(line MATCHES "^(MODULE|KERNEL)[ (]")
      message(FATAL_ERROR "${list}: cannot read '${line}'")
    endif()
  endforeach()
  set(${output} "${modules}" PARENT_SCOPE)
endfunction()

# Compiles every module of a list of kernels and embeds the words in a generated header: arrays code_NAME and
# code_NAME_rolled, the same where a module has one form. tests/mutants/faults.sh compiles modules by the same commands.
function(vkattn_embed_shaders target list output)
  vkattn_read_modules(lines "${list}")
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/${target}_shaders")
  file(MAKE_DIRECTORY "${folder}")
  file(RELATIVE_PATH within "${PROJECT_BINARY_DIR}" "${folder}")
  set(text "")
  set(words "")
  foreach(line IN LISTS lines)
    string(REPLACE "|" ";" line "${line}")
    list(GET line 0 name)
    list(GET line 1 file)
    list(GET line 2 macros)
    list(GET line 3 needs)
    list(GET line 4 forms)
    set(modules "${name}" "${name}_rolled")
    if(forms EQUAL 1)
      list(REMOVE_AT modules 1)
    endif()
    foreach(module IN LISTS modules)
      set(inc "${folder}/${module}.inc")
      if(VKATTN_SPIRV_FROM AND EXISTS "${VKATTN_SPIRV_FROM}/${within}/${module}.inc")
        set(inc "${VKATTN_SPIRV_FROM}/${within}/${module}.inc")
      elseif(NOT module STREQUAL name)
        vkattn_compile_shader("${inc}" "${file}" "${macros} -DROLLED -O")
      elseif(needs STREQUAL "NEED_MATRIX")
        vkattn_compile_matrix_shader("${inc}" "${file}" "${macros}")
      else()
        vkattn_compile_shader("${inc}" "${file}" "${macros}")
      endif()
      string(APPEND text "constexpr uint32_t code_${module}[] = {\n#include \"${inc}\"\n};\n")
      list(APPEND words "${inc}")
    endforeach()
    foreach(other "${name}" "${name}_rolled")
      if(NOT other IN_LIST modules)
        string(APPEND text "constexpr auto& code_${other} = code_${modules};\n")
      endif()
    endforeach()
  endforeach()
  file(CONFIGURE OUTPUT "${folder}/${output}" CONTENT "${text}" @ONLY)
  target_sources(${target} PRIVATE ${words})
  target_include_directories(${target} PRIVATE "${folder}")
endfunction()
