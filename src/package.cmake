# What others link: libvkattn as a static and a shared library, and the optional runtime. Whoever links them finds the C
# ABI of vkattn.h and, of the runtime, what is in namespace vkattn: nothing of fmt, of libzstd, of VulkanMemoryAllocator
# or of a kernel. They need none of those libraries to link, either. A project that adds this one by add_subdirectory or
# FetchContent links the same targets, by the names that the installed package gives them.
include(GNUInstallDirs)

set(parts vkattn_objects vkattn_spirv vkattn_plan vkattn_fmt)
set(objects "")
foreach(part ${parts})
  list(APPEND objects $<TARGET_OBJECTS:${part}>)
endforeach()

# The SDK has headers of other libraries too, which are not to get in the way of the embedder's own.
set(headers "${PROJECT_BINARY_DIR}/vulkan_include")
file(MAKE_DIRECTORY "${headers}")
foreach(folder vulkan vk_video)
  file(CREATE_LINK "${VKATTN_SDK}/include/${folder}" "${headers}/${folder}" COPY_ON_ERROR SYMBOLIC)
endforeach()

# vkattn_package_target(TARGET NAME): TARGET is vkattn::NAME, in the installed package and in projects that add this
# one.
function(vkattn_package_target target name)
  add_library(vkattn::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} LINKER_LANGUAGE CXX
    ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib" LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
  target_include_directories(${target} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                 $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_include_directories(${target} SYSTEM INTERFACE $<BUILD_INTERFACE:${headers}>)
endfunction()

# vkattn_one_object(OUTPUT SYMBOLS PARTS...): an archive's members would show each other's symbols to everybody. One
# object, in which all but SYMBOLS is local, shows what a shared library does. Where a part is an archive, the object
# has those of its members that the parts before it need. Without GNU binutils the members stay, and OUTPUT_archives is
# what has to be linked besides. Make has no rule for a part in the folder of its user: who uses OUTPUT has to depend on
# the targets that PARTS are of.
function(vkattn_one_object output symbols)
  set(linker "${CMAKE_LINKER}")
  if(linker MATCHES "lld")
    find_program(VKATTN_GNU_LD ld.bfd)
    set(linker "${VKATTN_GNU_LD}")
  endif()
  set(version "")
  if(linker)
    execute_process(COMMAND "${linker}" --version OUTPUT_VARIABLE version ERROR_QUIET)
  endif()
  if(NOT CMAKE_OBJCOPY OR NOT version MATCHES "^GNU ld" OR APPLE OR WIN32)
    set(members ${ARGN})
    set(archives ${ARGN})
    list(FILTER members EXCLUDE REGEX "\\.(a|lib)$")
    list(FILTER archives INCLUDE REGEX "\\.(a|lib)$")
    set(${output} "${members}" PARENT_SCOPE)
    set(${output}_archives "${archives}" PARENT_SCOPE)
    return()
  endif()
  set(object "${CMAKE_CURRENT_BINARY_DIR}/${output}.o")
  add_custom_command(OUTPUT "${object}"
    COMMAND "${linker}" -r --force-group-allocation -o "${object}" ${ARGN}
    COMMAND "${CMAKE_OBJCOPY}" --wildcard "--keep-global-symbol=${symbols}" "${object}"
    DEPENDS ${ARGN} COMMAND_EXPAND_LISTS VERBATIM)
  set_source_files_properties("${object}" PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  set(${output} "${object}" PARENT_SCOPE)
endfunction()

vkattn_one_object(vkattn_whole "vkattn_*" ${objects} "${VKATTN_ZSTD}")
add_library(vkattn_static STATIC ${vkattn_whole})
add_dependencies(vkattn_static ${parts})
vkattn_package_target(vkattn_static static)
set_target_properties(vkattn_static PROPERTIES OUTPUT_NAME vkattn)
if(WIN32) # where a shared library has an archive of this name
  set_target_properties(vkattn_static PROPERTIES OUTPUT_NAME vkattn_static)
endif()
target_link_libraries(vkattn_static INTERFACE ${vkattn_whole_archives})
# Named, for programs whose CMake knows no C++.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND NOT APPLE AND NOT WIN32)
  target_link_libraries(vkattn_static INTERFACE stdc++ m)
endif()

add_library(vkattn_shared SHARED ${objects})
vkattn_package_target(vkattn_shared shared)
set_target_properties(vkattn_shared PROPERTIES OUTPUT_NAME vkattn
  VERSION ${PROJECT_VERSION} SOVERSION "${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")
target_compile_definitions(vkattn_shared INTERFACE VKATTN_SHARED)
target_link_libraries(vkattn_shared PRIVATE "${VKATTN_ZSTD}")
if(APPLE)
  target_link_options(vkattn_shared PRIVATE "LINKER:-exported_symbol,_vkattn_*") # libzstd's symbols are not hidden
endif()
if(UNIX AND NOT APPLE)
  # Weak symbols of std that the compiler makes have their own visibility.
  target_link_options(vkattn_shared PRIVATE "LINKER:--version-script=${CMAKE_CURRENT_LIST_DIR}/exports.map")
  set_property(TARGET vkattn_shared PROPERTY LINK_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/exports.map")
endif()
if(VKATTN_SANITIZE)
  target_link_options(vkattn_shared PRIVATE -fsanitize=${VKATTN_SANITIZE})
elseif(UNIX AND NOT APPLE)
  target_link_options(vkattn_shared PRIVATE "LINKER:-z,defs")
endif()

# vkattn::vkattn is one of the two; src/vkattn-config.cmake.in says the same of the installed package.
if(BUILD_SHARED_LIBS)
  add_library(vkattn::vkattn ALIAS vkattn_shared)
else()
  add_library(vkattn::vkattn ALIAS vkattn_static)
endif()

vkattn_one_object(vkattn_runtime_whole "_Z*6vkattn*" $<TARGET_OBJECTS:vkattn_runtime_objects>
                  $<TARGET_OBJECTS:vkattn_fmt>)
add_library(vkattn_runtime_static STATIC ${vkattn_runtime_whole})
add_dependencies(vkattn_runtime_static vkattn_runtime_objects vkattn_fmt)
vkattn_package_target(vkattn_runtime_static runtime)
set_target_properties(vkattn_runtime_static PROPERTIES OUTPUT_NAME vkattn_runtime)
target_link_libraries(vkattn_runtime_static INTERFACE $<BUILD_INTERFACE:vkattn::vkattn> ${CMAKE_DL_LIBS}
                                                      Threads::Threads)
