# What others link: libvkattn and the optional libvkattn_runtime, each as a static and a shared library. Whoever links
# them finds the C ABI of vkattn.h and of runtime.h: nothing of fmt, of libzstd, of VulkanMemoryAllocator or of a
# kernel. They need none of those libraries to link, either. A project that adds this one by add_subdirectory or
# FetchContent links the same targets, by the names that the installed package gives them.
include(GNUInstallDirs)

set(parts vkattn_objects vkattn_spirv vkattn_plan vkattn_fmt)

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

# vkattn_package_static(TARGET NAME OUTPUT PARTS ... ARCHIVES ...): vkattn::NAME, the archive of the targets PARTS and
# of what they need of ARCHIVES.
function(vkattn_package_static target name output)
  cmake_parse_arguments(PARSE_ARGV 3 of "" "" "PARTS;ARCHIVES")
  set(of_objects "")
  foreach(part ${of_PARTS})
    list(APPEND of_objects $<TARGET_OBJECTS:${part}>)
  endforeach()
  vkattn_one_object(${output}_whole "vkattn_*" ${of_objects} ${of_ARCHIVES})
  add_library(${target} STATIC ${${output}_whole})
  add_dependencies(${target} ${of_PARTS})
  vkattn_package_target(${target} ${name})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${output})
  if(CMAKE_STATIC_LIBRARY_SUFFIX STREQUAL CMAKE_IMPORT_LIBRARY_SUFFIX) # a shared library has an archive of this name
    set_target_properties(${target} PROPERTIES OUTPUT_NAME ${output}_static)
  endif()
  foreach(archive IN LISTS ${output}_whole_archives) # there is none but libzstd
    set(name "${CMAKE_STATIC_LIBRARY_PREFIX}vkattn_zstd${CMAKE_STATIC_LIBRARY_SUFFIX}")
    target_link_libraries(${target} INTERFACE $<BUILD_INTERFACE:${archive}>
      $<INSTALL_INTERFACE:$<INSTALL_PREFIX>/${CMAKE_INSTALL_LIBDIR}/${name}>)
    if(VKATTN_INSTALL)
      install(FILES "${archive}" DESTINATION "${CMAKE_INSTALL_LIBDIR}" RENAME "${name}")
    endif()
  endforeach()
endfunction()

# vkattn_package_shared(TARGET NAME OUTPUT PARTS...): vkattn::NAME, the shared library of the targets PARTS.
function(vkattn_package_shared target name output)
  set(of_objects "")
  foreach(part ${ARGN})
    list(APPEND of_objects $<TARGET_OBJECTS:${part}>)
  endforeach()
  add_library(${target} SHARED ${of_objects})
  vkattn_package_target(${target} ${name})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${output}
    VERSION ${PROJECT_VERSION} SOVERSION "${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")
  if(WIN32) # The name does not depend on the compiler.
    set_target_properties(${target} PROPERTIES PREFIX "")
  endif()
  if(APPLE)
    target_link_options(${target} PRIVATE "LINKER:-exported_symbol,_vkattn_*") # libzstd's symbols are not hidden
  endif()
  if(UNIX AND NOT APPLE)
    # Weak symbols of std that the compiler makes have their own visibility.
    target_link_options(${target} PRIVATE "LINKER:--version-script=${PROJECT_SOURCE_DIR}/src/exports.map")
    set_property(TARGET ${target} PROPERTY LINK_DEPENDS "${PROJECT_SOURCE_DIR}/src/exports.map")
  endif()
  if(VKATTN_SANITIZE)
    target_link_options(${target} PRIVATE -fsanitize=${VKATTN_SANITIZE})
  elseif(UNIX AND NOT APPLE)
    target_link_options(${target} PRIVATE "LINKER:-z,defs")
  endif()
endfunction()

vkattn_package_static(vkattn_static static vkattn PARTS ${parts} ARCHIVES "${VKATTN_ZSTD}")
# Named, for programs whose CMake knows no C++.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND NOT APPLE AND NOT WIN32)
  target_link_libraries(vkattn_static INTERFACE stdc++ m)
endif()
vkattn_package_shared(vkattn_shared shared vkattn ${parts})
target_compile_definitions(vkattn_shared INTERFACE VKATTN_SHARED)
target_link_libraries(vkattn_shared PRIVATE "${VKATTN_ZSTD}")

# The runtime is a library of its own: embedders with a Vulkan device do not load it. Other languages load the shared
# one, which finds the shared libvkattn beside itself.
set(runtime_parts vkattn_runtime_objects vkattn_fmt)
vkattn_package_static(vkattn_runtime_static runtime_static vkattn_runtime PARTS ${runtime_parts})
target_link_libraries(vkattn_runtime_static INTERFACE vkattn_static ${CMAKE_DL_LIBS} Threads::Threads)
vkattn_package_shared(vkattn_runtime_shared runtime_shared vkattn_runtime ${runtime_parts})
target_compile_definitions(vkattn_runtime_shared INTERFACE VKATTN_RUNTIME_SHARED)
target_link_libraries(vkattn_runtime_shared PUBLIC vkattn_shared PRIVATE ${CMAKE_DL_LIBS} Threads::Threads)
if(APPLE)
  set_target_properties(vkattn_runtime_shared PROPERTIES INSTALL_RPATH "@loader_path")
elseif(UNIX)
  set_target_properties(vkattn_runtime_shared PROPERTIES INSTALL_RPATH "$ORIGIN")
endif()

# vkattn::vkattn and vkattn::runtime are each one of the two; src/vkattn-config.cmake.in says the same of the installed
# package.
if(BUILD_SHARED_LIBS)
  add_library(vkattn::vkattn ALIAS vkattn_shared)
  add_library(vkattn::runtime ALIAS vkattn_runtime_shared)
else()
  add_library(vkattn::vkattn ALIAS vkattn_static)
  add_library(vkattn::runtime ALIAS vkattn_runtime_static)
endif()
