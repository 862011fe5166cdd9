# The README's embedding example is code: it must compile against the public headers as it stands there.
file(READ "${PROJECT_SOURCE_DIR}/README.md" readme)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/README.md")
if(NOT readme MATCHES "```cpp\n([^`]*)```")
  message(FATAL_ERROR "README.md has lost its embedding example")
endif()
file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/readme_example.cpp" CONTENT "${CMAKE_MATCH_1}" @ONLY)
add_library(vkattn_readme_example OBJECT "${CMAKE_CURRENT_BINARY_DIR}/readme_example.cpp")
target_link_libraries(vkattn_readme_example PRIVATE vkattn vkattn_warnings)
