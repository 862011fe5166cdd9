# Compiles every variant of a variants.def and embeds the words: arrays code_NAME in a generated header.
# Vulkan 1.2 (SPIR-V 1.5) on purpose: 1.6 brings LocalSizeId and varying subgroups. No -O: the driver optimises.
function(vkattn_embed_shaders target variants output)
  file(STRINGS "${variants}" lines REGEX "^VKATTN_VARIANT")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${variants}")
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/${target}_shaders")
  file(MAKE_DIRECTORY "${folder}")
  set(text "")
  set(words "")
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "^VKATTN_VARIANT\\(([a-z0-9_]+), \"([a-z0-9_.]+)\", \"([^\"]*)\", ")
      message(FATAL_ERROR "${variants}: cannot read '${line}'")
    endif()
    set(name "${CMAKE_MATCH_1}")
    set(file "${CMAKE_MATCH_2}")
    separate_arguments(macros UNIX_COMMAND "${CMAKE_MATCH_3}")
    set(inc "${folder}/${name}.inc")
    add_custom_command(
      OUTPUT "${inc}"
      COMMAND "${VKATTN_SDK}/bin/glslc" --target-env=vulkan1.2 -fshader-stage=compute -Werror -I "${VKATTN_SHADER_DIR}"
              ${macros} -mfmt=num -MD -MF "${inc}.d" -MT "${inc}" "${VKATTN_SHADER_DIR}/${file}" -o "${inc}"
      DEPENDS "${VKATTN_SHADER_DIR}/${file}" "${VKATTN_SDK}/bin/glslc"
      DEPFILE "${inc}.d"
      VERBATIM)
    string(APPEND text "constexpr uint32_t code_${name}[] = {\n#include \"${name}.inc\"\n};\n")
    list(APPEND words "${inc}")
  endforeach()
  file(CONFIGURE OUTPUT "${folder}/${output}" CONTENT "${text}" @ONLY)
  target_sources(${target} PRIVATE ${words})
  target_include_directories(${target} PRIVATE "${folder}")
endfunction()
