# vkattn_reference: makes problems as files, and holds results to the oracle. It is for the tests and for tools/demo.
# Compiling the tests takes longer than running them, and -O1 halves that: all arithmetic of note is in the oracle. The
# option is a library's, so that it comes after those of vkattn_warnings.
add_library(vkattn_fast_compile INTERFACE)
target_compile_options(vkattn_fast_compile INTERFACE $<$<CONFIG:Release>:-O1>)
function(vkattn_compile_fast target)
  target_link_libraries(${target} PRIVATE vkattn_fast_compile)
endfunction()

set(reference_sources blocks.cpp check.cpp make.cpp problem.cpp run.cpp)
list(TRANSFORM reference_sources PREPEND "${CMAKE_CURRENT_LIST_DIR}/reference/")
# A library, for its tests to call what its subcommands do.
add_library(vkattn_reference_commands STATIC EXCLUDE_FROM_ALL ${reference_sources})
vkattn_unity(vkattn_reference_commands)
target_link_libraries(vkattn_reference_commands PUBLIC vkattn_oracle vkattn_npy vkattn_cli11 vkattn_sdk
                      PRIVATE vkattn_fmt vkattn_warnings vkattn_fast_compile)
add_executable(vkattn_reference EXCLUDE_FROM_ALL "${CMAKE_CURRENT_LIST_DIR}/reference/main.cpp")
set_target_properties(vkattn_reference PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
target_link_libraries(vkattn_reference PRIVATE vkattn_reference_commands vkattn_fmt vkattn_warnings)
vkattn_compile_fast(vkattn_reference)
if(VKATTN_TESTS)
  set_target_properties(vkattn_reference PROPERTIES EXCLUDE_FROM_ALL OFF)
endif()
