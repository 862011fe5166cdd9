# The planner's tests. Like the planner they see no Vulkan header: fmt is linked without its include path.
set(tests_dir "${CMAKE_CURRENT_LIST_DIR}")
file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/plan_tests_include")
foreach(library fmt nlohmann doctest)
  file(CREATE_LINK "${VKATTN_SDK}/include/${library}" "${CMAKE_BINARY_DIR}/plan_tests_include/${library}" SYMBOLIC)
endforeach()

set(plan_sources
  plan_arrays.cpp plan_cases.cpp plan_checks.cpp plan_checks_interface.cpp plan_checks_matrix.cpp
  plan_checks_memory.cpp plan_checks_tiles.cpp plan_checks_work.cpp plan_checks_decoding.cpp plan_reading.cpp
  gate/layouts.cpp problem_bounds.cpp profile.cpp
  test_overlap.cpp test_plan.cpp test_plan_backward.cpp test_plan_choices.cpp test_plan_combine.cpp
  test_plan_faults.cpp test_plan_features.cpp test_plan_golden.cpp test_plan_interfaces.cpp test_plan_limits.cpp
  test_plan_matrix.cpp test_plan_random.cpp test_plan_refusals.cpp test_plan_sweep.cpp test_plan_tuning.cpp
  test_problem.cpp test_profile.cpp test_self_test.cpp test_struct_sizes.cpp)
list(TRANSFORM plan_sources PREPEND "${tests_dir}/")
add_executable(vkattn_plan_tests ${plan_sources} ${VKATTN_TEST_MAIN})
# These have names of their own that others have, too.
set(alone plan_cases.cpp profile.cpp test_plan_faults.cpp test_plan_golden.cpp test_plan_sweep.cpp
  test_problem.cpp test_self_test.cpp)
list(TRANSFORM alone PREPEND "${tests_dir}/")
vkattn_unity(vkattn_plan_tests BATCH 15 ALONE ${alone})
target_compile_definitions(vkattn_plan_tests PRIVATE VKATTN_TESTS_DIR="${tests_dir}")
target_include_directories(vkattn_plan_tests SYSTEM PRIVATE "${CMAKE_BINARY_DIR}/plan_tests_include")
add_dependencies(vkattn_plan_tests vkattn_fmt)
target_link_libraries(vkattn_plan_tests PRIVATE vkattn_plan vkattn_oracle vkattn_warnings "$<TARGET_FILE:vkattn_fmt>")
vkattn_compile_fast(vkattn_plan_tests)
target_precompile_headers(vkattn_plan_tests PRIVATE <doctest/doctest.h> <fmt/format.h> <fmt/ranges.h> <algorithm>
                                                    <functional> <map> <string> <vector> "${tests_dir}/plan_flaws.hpp"
                                                    "${tests_dir}/plan_reading.hpp")
# These have names that the headers above have, too.
set_source_files_properties("${tests_dir}/plan_cases.cpp" "${tests_dir}/profile.cpp"
                            PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
add_test(NAME plan COMMAND vkattn_plan_tests)
