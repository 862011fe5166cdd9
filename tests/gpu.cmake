# The tests that run on a Vulkan device: one binary, run by tools/on DEVICE -- .../vkattn_gpu_tests
set(gpu_tests "${CMAKE_CURRENT_LIST_DIR}")
if(NOT VKATTN_TEST_MAIN)
  set(VKATTN_TEST_MAIN "${gpu_tests}/main.cpp")
endif()

# The cases travel inside the binary: it may run on a machine without this folder.
set(gpu_cases "${CMAKE_BINARY_DIR}/vkattn_gpu_cases")
foreach(pass forward backward)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${gpu_tests}/cases/${pass}.txt")
  file(READ "${gpu_tests}/cases/${pass}.txt" gpu_cases_text)
  file(CONFIGURE OUTPUT "${gpu_cases}/${pass}_cases.inc" CONTENT "R\"cases(@gpu_cases_text@)cases\"" @ONLY)
endforeach()

add_executable(vkattn_gpu_tests "${VKATTN_TEST_MAIN}" "${gpu_tests}/c_abi.c"
  "${gpu_tests}/gpu/device.cpp" "${gpu_tests}/gpu/guarded.cpp" "${gpu_tests}/gpu/guard_probe.cpp"
  "${gpu_tests}/gpu/cases.cpp" "${gpu_tests}/gpu/storage.cpp"
  "${gpu_tests}/gpu/inputs.cpp" "${gpu_tests}/gpu/forward_run.cpp" "${gpu_tests}/gpu/backward_run.cpp" "${gpu_tests}/gpu/test_backward.cpp"
  "${gpu_tests}/gpu/test_backward_pairwise.cpp" "${gpu_tests}/gpu/test_backward_runs.cpp" "${gpu_tests}/gpu/test_api_backward.cpp" "${gpu_tests}/gpu/test_guard.cpp"
  "${gpu_tests}/gpu/test_cases.cpp" "${gpu_tests}/gpu/interposer.cpp" "${gpu_tests}/gpu/test_record.cpp" "${gpu_tests}/gpu/test_runs.cpp" "${gpu_tests}/gpu/test_tunings.cpp"
  "${gpu_tests}/gpu/test_far.cpp" "${gpu_tests}/gpu/pairwise.cpp" "${gpu_tests}/gpu/test_pairwise.cpp" "${gpu_tests}/gpu/test_segments.cpp" "${gpu_tests}/gpu/test_invariance.cpp"
  "${gpu_tests}/gpu/test_combine.cpp" "${gpu_tests}/gpu/test_long.cpp" "${gpu_tests}/gpu/test_api.cpp" "${gpu_tests}/gpu/test_api_features.cpp"
  "${gpu_tests}/gpu/test_training.cpp")
set_target_properties(vkattn_gpu_tests PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}"
  C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
target_include_directories(vkattn_gpu_tests PRIVATE "${gpu_tests}" "${gpu_cases}" "${PROJECT_SOURCE_DIR}/src"
                                                    "${PROJECT_SOURCE_DIR}/shaders")
target_link_libraries(vkattn_gpu_tests PRIVATE vkattn_runtime vkattn_oracle vkattn_warnings vkattn_fmt)

# The tests' own shaders. By a function, for the library's folder to stay what it is elsewhere.
function(vkattn_embed_test_shaders)
  set(VKATTN_SHADER_DIR "${gpu_tests}/gpu")
  vkattn_embed_shaders(vkattn_gpu_tests "${gpu_tests}/gpu/shaders.def" test_shaders.inc)
endfunction()
vkattn_embed_test_shaders()
