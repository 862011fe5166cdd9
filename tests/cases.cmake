# The cases, and what runs and judges them: for the GPU tests and for `vkattn conformance`, which both run the same
# ones. The cases travel inside the binary, which may run on a machine without this folder.
set(cases_folder "${CMAKE_CURRENT_LIST_DIR}")
set(case_texts "${CMAKE_BINARY_DIR}/vkattn_gpu_cases")
foreach(pass forward backward combine behaviour pairwise errors)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${cases_folder}/cases/${pass}.txt")
  file(READ "${cases_folder}/cases/${pass}.txt" cases_text)
  file(CONFIGURE OUTPUT "${case_texts}/${pass}_cases.inc" CONTENT "R\"cases(@cases_text@)cases\"" @ONLY)
endforeach()

add_library(vkattn_oracle STATIC "${cases_folder}/oracle/attention.cpp" "${cases_folder}/oracle/backward.cpp"
  "${cases_folder}/oracle/blocks.cpp" "${cases_folder}/oracle/internal.cpp")
vkattn_unity(vkattn_oracle)
target_include_directories(vkattn_oracle PUBLIC "${cases_folder}")
target_link_libraries(vkattn_oracle PUBLIC Threads::Threads PRIVATE vkattn_warnings)

set(case_sources case_plan.cpp cases.cpp storage.cpp device.cpp guarded.cpp guard_probe.cpp inputs.cpp run_memory.cpp
  array_fill.cpp forward_run.cpp far_run.cpp far_places.cpp far_results_run.cpp company_run.cpp
  nonfinite.cpp nonfinite_run.cpp backward_run.cpp combine_run.cpp behaviour.cpp job.cpp)
list(TRANSFORM case_sources PREPEND "${cases_folder}/gpu/")
add_library(vkattn_cases STATIC ${case_sources})
vkattn_unity(vkattn_cases)
target_compile_options(vkattn_cases PRIVATE $<$<CONFIG:Release>:-O1>) # what takes time is the oracle
target_include_directories(vkattn_cases PUBLIC "${cases_folder}" "${case_texts}" "${PROJECT_SOURCE_DIR}/src"
                                               "${PROJECT_SOURCE_DIR}/shaders")
target_link_libraries(vkattn_cases PUBLIC vkattn_runtime vkattn_oracle vkattn_fmt PRIVATE vkattn_warnings)
