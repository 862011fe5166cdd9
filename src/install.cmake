# The package: libvkattn as a static and a shared library, and the optional runtime. Whoever links them finds the C ABI
# of vkattn.h and, of the runtime, what is in namespace vkattn: nothing of fmt, of libzstd, of VulkanMemoryAllocator or
# of a kernel. They need none of those libraries to link, either.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(parts $<TARGET_OBJECTS:vkattn_objects> $<TARGET_OBJECTS:vkattn_spirv> $<TARGET_OBJECTS:vkattn_plan>
          $<TARGET_OBJECTS:vkattn_fmt>)
set(headers $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

# vkattn_one_object(OUTPUT SYMBOLS PARTS...): an archive's members would show each other's symbols to everybody. One
# object, in which all but SYMBOLS is local, shows what a shared library does. Where a part is an archive, the object
# has those of its members that the parts before it need. Without GNU binutils the members stay, and OUTPUT_archives is
# what has to be linked besides.
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

vkattn_one_object(vkattn_whole "vkattn_*" ${parts} "${VKATTN_ZSTD}")
add_library(vkattn_static STATIC ${vkattn_whole})
set_target_properties(vkattn_static PROPERTIES OUTPUT_NAME vkattn EXPORT_NAME static LINKER_LANGUAGE CXX
                                               ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
if(WIN32) # where a shared library has an archive of this name
  set_target_properties(vkattn_static PROPERTIES OUTPUT_NAME vkattn_static)
endif()
target_include_directories(vkattn_static INTERFACE ${headers})
target_link_libraries(vkattn_static INTERFACE ${vkattn_whole_archives})
# Named, for programs whose CMake knows no C++.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND NOT APPLE AND NOT WIN32)
  target_link_libraries(vkattn_static INTERFACE stdc++ m)
endif()

add_library(vkattn_shared SHARED ${parts})
set_target_properties(vkattn_shared PROPERTIES OUTPUT_NAME vkattn EXPORT_NAME shared LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION} SOVERSION "${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}"
  LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
target_compile_definitions(vkattn_shared INTERFACE VKATTN_SHARED)
target_include_directories(vkattn_shared INTERFACE ${headers})
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

vkattn_one_object(vkattn_runtime_whole "_Z*6vkattn*" $<TARGET_OBJECTS:vkattn_runtime_objects>
                  $<TARGET_OBJECTS:vkattn_fmt>)
add_library(vkattn_runtime_static STATIC ${vkattn_runtime_whole})
set_target_properties(vkattn_runtime_static PROPERTIES OUTPUT_NAME vkattn_runtime EXPORT_NAME runtime
                      LINKER_LANGUAGE CXX
                                                       ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
target_include_directories(vkattn_runtime_static INTERFACE ${headers})
target_link_libraries(vkattn_runtime_static INTERFACE ${CMAKE_DL_LIBS} Threads::Threads)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/vkattn")
# From the folder of vkattn.pc up to the prefix, so that an installation can be moved.
file(RELATIVE_PATH VKATTN_PC_UP "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
configure_file("${CMAKE_CURRENT_LIST_DIR}/vkattn.pc.in" "${CMAKE_CURRENT_BINARY_DIR}/vkattn.pc" @ONLY)
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/vkattn-config.cmake.in"
  "${CMAKE_CURRENT_BINARY_DIR}/vkattn-config.cmake" INSTALL_DESTINATION "${package_dir}")
# While the version is 0.x, a minor version may change the ABI, as the soname says.
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/vkattn-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion)

install(TARGETS vkattn_static vkattn_shared vkattn_runtime_static EXPORT vkattn
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(EXPORT vkattn NAMESPACE vkattn:: FILE vkattn-targets.cmake DESTINATION "${package_dir}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/vkattn" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/vkattn-config.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/vkattn-config-version.cmake"
  DESTINATION "${package_dir}")
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/vkattn.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
