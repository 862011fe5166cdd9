# The tests that run on a Vulkan device: one binary, run by tools/on DEVICE -- .../vkattn_gpu_tests
set(gpu_tests "${CMAKE_CURRENT_LIST_DIR}")

set(gpu_sources
  fixture.cpp case_suite.cpp interposer.cpp dot_emulation.cpp test_dot_products.cpp test_api.cpp test_api_features.cpp
  test_api_backward.cpp test_api_context.cpp test_labels.cpp test_modules.cpp test_plan_check.cpp test_tensor_memory.cpp test_versions.cpp
  test_nonfinite.cpp test_pipelines.cpp test_record.cpp test_runs.cpp
  test_runtime.cpp test_guard.cpp test_cases.cpp test_tunings.cpp test_far.cpp test_far_results.cpp
  test_rounding.cpp test_invariance.cpp test_combine.cpp test_block_map.cpp test_long.cpp test_reruns.cpp
  own_work.cpp faulty_new.cpp
  test_faults.cpp test_self_test.cpp test_behaviour.cpp faulty_vulkan.cpp test_runtime_faults.cpp test_transformer.cpp
  test_sharing.cpp)
list(TRANSFORM gpu_sources PREPEND "${gpu_tests}/gpu/")
add_executable(vkattn_gpu_tests "${VKATTN_TEST_MAIN}" "${gpu_tests}/c_abi.c" ${gpu_sources})
vkattn_unity(vkattn_gpu_tests BATCH 17 ALONE "${gpu_tests}/gpu/faulty_new.cpp")
set_target_properties(vkattn_gpu_tests PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}"
  C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
target_link_libraries(vkattn_gpu_tests PRIVATE vkattn_cases vkattn_warnings)
# The tests' own shaders; the library's folder stays what it is elsewhere.
function(vkattn_embed_test_shaders)
  set(VKATTN_SHADER_DIR "${gpu_tests}/gpu")
  vkattn_embed_shaders(vkattn_gpu_tests "${gpu_tests}/gpu/shaders.def" test_shaders.inc)
endfunction()
vkattn_embed_test_shaders()

# Modules as an application compiles them: what is in variant/lib stands in for a file of shaders/lib.
add_library(vkattn_gpu_variant OBJECT "${gpu_tests}/gpu/variant/modules.cpp")
target_include_directories(vkattn_gpu_variant PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/shaders"
                                                      "${PROJECT_SOURCE_DIR}/include")
target_link_libraries(vkattn_gpu_variant PRIVATE vkattn_sdk vkattn_warnings)
function(vkattn_embed_variant)
  set(VKATTN_MODULE_OPTIONS " -I\"${gpu_tests}/gpu/variant\"")
  vkattn_embed_shaders(vkattn_gpu_variant "${gpu_tests}/gpu/variant/modules.def" modules.inc)
endfunction()
vkattn_embed_variant()
target_sources(vkattn_gpu_tests PRIVATE $<TARGET_OBJECTS:vkattn_gpu_variant>)

# tools/gate: what the drivers' compilers make of every pipeline. It runs nothing.
add_executable(vkattn_gate "${gpu_tests}/gate/main.cpp" "${gpu_tests}/gate/compiler.cpp" "${gpu_tests}/gate/layouts.cpp"
  $<TARGET_OBJECTS:vkattn_gate_parts>)
vkattn_unity(vkattn_gate)
set_target_properties(vkattn_gate PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
target_link_libraries(vkattn_gate PRIVATE vkattn_cases vkattn_warnings vkattn_cli11)
