# The GPU tests over a copy of the shaders, into which tests/mutants/run plants faults: the same objects, with the
# embedded SPIR-V in front of the library's, of float32 kernels for CPUs and of what the float16 matrix kernel needs. Not
# built by default; the copy must be there first.
add_executable(vkattn_mutant_tests EXCLUDE_FROM_ALL "${VKATTN_TEST_MAIN}" $<TARGET_OBJECTS:vkattn_gpu_tests>
  "${PROJECT_SOURCE_DIR}/src/vulkan/spirv.cpp")
set(VKATTN_SHADER_DIR "${CMAKE_BINARY_DIR}/mutants/shaders")
vkattn_embed_shaders(vkattn_mutant_tests "${PROJECT_SOURCE_DIR}/shaders/variants.def" spirv_arrays.inc CPU_ONLY "[^f]_f32$|_matrix_f16(_bias)?$|mask_classes_f16$")
target_include_directories(vkattn_mutant_tests PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/shaders")
target_link_libraries(vkattn_mutant_tests PRIVATE vkattn_runtime vkattn_oracle vkattn_fmt vkattn_warnings)
