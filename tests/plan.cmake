# The planner's tests. Like the planner they see no Vulkan header: fmt is linked without its include path.
set(tests_dir "${CMAKE_CURRENT_LIST_DIR}")
file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/plan_tests_include")
foreach(library fmt nlohmann doctest)
  file(CREATE_LINK "${VKATTN_SDK}/include/${library}" "${CMAKE_BINARY_DIR}/plan_tests_include/${library}" SYMBOLIC)
endforeach()

add_executable(vkattn_plan_tests
  "${tests_dir}/main.cpp" "${tests_dir}/plan_arrays.cpp" "${tests_dir}/plan_backward_model.cpp" "${tests_dir}/plan_cases.cpp"
  "${tests_dir}/plan_checks.cpp" "${tests_dir}/plan_checks_backward.cpp"
  "${tests_dir}/plan_checks_backward_matrix.cpp" "${tests_dir}/plan_checks_baseline.cpp"
  "${tests_dir}/plan_checks_matrix.cpp" "${tests_dir}/plan_checks_memory.cpp" "${tests_dir}/plan_checks_work.cpp"
  "${tests_dir}/plan_faults.cpp" "${tests_dir}/plan_matrix_model.cpp" "${tests_dir}/plan_model.cpp"
  "${tests_dir}/plan_pieces.cpp" "${tests_dir}/problem_bounds.cpp"
  "${tests_dir}/test_plan_faults.cpp" "${tests_dir}/test_plan_interfaces.cpp"
  "${tests_dir}/profile.cpp" "${tests_dir}/test_plan.cpp" "${tests_dir}/test_plan_backward.cpp"
  "${tests_dir}/test_plan_backward_refusals.cpp" "${tests_dir}/test_plan_baseline.cpp"
  "${tests_dir}/test_plan_combine.cpp"
  "${tests_dir}/test_plan_features.cpp" "${tests_dir}/test_plan_golden.cpp" "${tests_dir}/test_plan_limits.cpp"
  "${tests_dir}/test_plan_matrix.cpp" "${tests_dir}/test_plan_missing_kernels.cpp"
  "${tests_dir}/test_plan_matrix_sweep.cpp"
  "${tests_dir}/test_plan_refusals.cpp" "${tests_dir}/test_plan_tuning.cpp" "${tests_dir}/test_problem.cpp"
  "${tests_dir}/test_overlap.cpp" "${tests_dir}/test_problem_features.cpp" "${tests_dir}/test_plan_extremes.cpp" "${tests_dir}/test_struct_sizes.cpp" "${tests_dir}/test_self_test.cpp" "${tests_dir}/test_plan_watchdog.cpp")
target_compile_definitions(vkattn_plan_tests PRIVATE VKATTN_TESTS_DIR="${tests_dir}")
target_include_directories(vkattn_plan_tests SYSTEM PRIVATE "${CMAKE_BINARY_DIR}/plan_tests_include")
add_dependencies(vkattn_plan_tests vkattn_fmt)
target_link_libraries(vkattn_plan_tests PRIVATE vkattn_plan vkattn_oracle vkattn_warnings "$<TARGET_FILE:vkattn_fmt>")
if(COMMAND vkattn_compile_fast)
  vkattn_compile_fast(vkattn_plan_tests)
endif()
target_precompile_headers(vkattn_plan_tests PRIVATE <doctest/doctest.h> <fmt/format.h> <fmt/ranges.h> <algorithm>
                                                    <functional> <map> <string> <vector>)
add_test(NAME plan COMMAND vkattn_plan_tests)
