# vkattn_unity(TARGET [BATCH N] [ALONE SOURCE...]): compiles N sources at a time as one, or all of them, because most of
# the time goes into headers: src/plan takes 17 s of a core instead of 35. The sources ALONE are compiled by themselves.
# After a change in one file, -DVKATTN_UNITY=OFF compiles only that one.
function(vkattn_unity target)
  cmake_parse_arguments(PARSE_ARGV 1 unity "" "BATCH" "ALONE")
  if(NOT unity_BATCH)
    set(unity_BATCH 0)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${VKATTN_UNITY} UNITY_BUILD_BATCH_SIZE ${unity_BATCH}
                                             VKATTN_ALONE "${unity_ALONE}")
  set_source_files_properties(${unity_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
