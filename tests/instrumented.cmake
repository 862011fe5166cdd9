# The library once more, with sanitizers or with counters of coverage, in the same build folder and not by default. Only
# the code under test is compiled again; the tests' objects, fmt and the embedded SPIR-V are those of the build.

# vkattn_again(NAME FROM FLAGS [FILE]): the sources of target FROM, or only this one, as an object library, with flags
# of its own. The files that the build generates for FROM are no sources of it, but must be there.
function(vkattn_again name from flags)
  get_target_property(folder ${from} SOURCE_DIR)
  get_target_property(sources ${from} SOURCES)
  get_target_property(alone ${from} VKATTN_ALONE)
  if(ARGN)
    set(sources ${ARGN})
  endif()
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  list(TRANSFORM sources PREPEND "${folder}/" REGEX "^[^/]")
  if(alone)
    list(TRANSFORM alone PREPEND "${folder}/")
  else() # no target of vkattn_unity
    set(alone "")
  endif()
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${sources})
  vkattn_unity(${name} ALONE ${alone})
  target_include_directories(${name} SYSTEM PRIVATE $<TARGET_PROPERTY:${from},INCLUDE_DIRECTORIES>)
  target_compile_definitions(${name} PRIVATE $<TARGET_PROPERTY:${from},COMPILE_DEFINITIONS>)
  target_link_libraries(${name} PRIVATE vkattn_sdk)
  target_compile_options(${name} PRIVATE -Wall -O1 -g1 ${flags})
  add_dependencies(${name} ${from})
endfunction()

# vkattn_instrument(KIND FLAGS): vkattn_plan_tests_KIND and vkattn_gpu_tests_KIND.
function(vkattn_instrument kind flags)
  foreach(part plan objects runtime_objects)
    vkattn_again(vkattn_${part}_${kind} vkattn_${part} "${flags}")
    list(APPEND library $<TARGET_OBJECTS:vkattn_${part}_${kind}>)
  endforeach()
  # The instrumented objects come first: of an inline function that others have too, the linker keeps the first copy.
  add_executable(vkattn_plan_tests_${kind} EXCLUDE_FROM_ALL $<TARGET_OBJECTS:vkattn_plan_${kind}>
    $<TARGET_OBJECTS:vkattn_plan_tests> ${VKATTN_TEST_MAIN})
  target_link_libraries(vkattn_plan_tests_${kind} PRIVATE vkattn_oracle vkattn_fmt)
  add_executable(vkattn_gpu_tests_${kind} EXCLUDE_FROM_ALL ${library} $<TARGET_OBJECTS:vkattn_gpu_tests>
    $<TARGET_OBJECTS:vkattn_gpu_variant> $<TARGET_OBJECTS:vkattn_cases> $<TARGET_OBJECTS:vkattn_spirv> ${VKATTN_TEST_MAIN})
  target_link_libraries(vkattn_gpu_tests_${kind} PRIVATE vkattn_oracle vkattn_fmt "${VKATTN_ZSTD}" ${CMAKE_DL_LIBS}
                                                         Threads::Threads)
  target_link_options(vkattn_plan_tests_${kind} PRIVATE ${flags})
  target_link_options(vkattn_gpu_tests_${kind} PRIVATE ${flags})
endfunction()

set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
vkattn_instrument(sanitized "${sanitizers}")
vkattn_instrument(coverage "--coverage")

# The readers of files are no part of the library, but they take input from anywhere. Of the library, the unit tests
# feed what decompresses modules with damaged ones, and the reader of the runtime's cache with damaged files.
vkattn_again(vkattn_npy_sanitized vkattn_npy "${sanitizers}")
vkattn_again(vkattn_reference_sanitized vkattn_reference_commands "${sanitizers}")
vkattn_again(vkattn_spirv_sanitized vkattn_objects "${sanitizers}" vulkan/spirv.cpp vulkan/spirv_ids.cpp)
vkattn_again(vkattn_cache_file_sanitized vkattn_runtime_objects "${sanitizers}" runtime/cache_file.cpp)
add_executable(vkattn_unit_tests_sanitized EXCLUDE_FROM_ALL $<TARGET_OBJECTS:vkattn_npy_sanitized>
  $<TARGET_OBJECTS:vkattn_reference_sanitized> $<TARGET_OBJECTS:vkattn_spirv_sanitized>
  $<TARGET_OBJECTS:vkattn_cache_file_sanitized> $<TARGET_OBJECTS:vkattn_unit_tests>
  $<TARGET_OBJECTS:vkattn_gate_parts> ${VKATTN_TEST_MAIN})
target_link_libraries(vkattn_unit_tests_sanitized PRIVATE vkattn_oracle vkattn vkattn_fmt vkattn_cli11)
target_link_options(vkattn_unit_tests_sanitized PRIVATE ${sanitizers})
