# What tests/mutants/run needs. vkattn_fingerprint tells which faults have to be planted again. vkattn_mutant_tests is
# the GPU tests' objects with modules that are read from a folder where it has them (mutants/spirv.cpp): a fault in a
# shader then costs a run of glslc, and no C++ is compiled or linked. It is not built by default.
add_executable(vkattn_fingerprint "${gpu_tests}/gpu/fingerprint.cpp")
add_executable(vkattn_mutant_tests EXCLUDE_FROM_ALL "${VKATTN_TEST_MAIN}" $<TARGET_OBJECTS:vkattn_gpu_tests>
               $<TARGET_OBJECTS:vkattn_gpu_variant>)

# The tool likewise: what conformance must find is planted in tests/cli/conformance.sh.
add_executable(vkattn_mutant $<TARGET_OBJECTS:vkattn_cli_objects>)
target_link_libraries(vkattn_mutant PRIVATE vkattn_npy Threads::Threads)

foreach(program vkattn_fingerprint vkattn_mutant_tests vkattn_mutant)
  target_sources(${program} PRIVATE "${gpu_tests}/mutants/spirv.cpp")
  target_link_libraries(${program} PRIVATE vkattn_cases vkattn_warnings)
  target_link_options(${program} PRIVATE -Wl,--wrap=_ZN6vkattn4core8spirv_ofERKNS0_6ModuleE
    -Wl,--wrap=_ZN6vkattn4core10decompressERKNS0_5FrameESt17basic_string_viewIcSt11char_traitsIcEE)
endforeach()
target_link_libraries(vkattn_mutant PRIVATE vkattn_cli11)
