# The installed package: the targets of package.cmake, the headers, and the tool where it is built.
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/vkattn")
# From the folder of vkattn.pc up to the prefix, so that an installation can be moved.
file(RELATIVE_PATH VKATTN_PC_UP "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
# A program that links the archives needs these besides.
set(VKATTN_PC_PRIVATE "-lstdc++ -lm")
set(VKATTN_PC_RUNTIME_PRIVATE "-ldl -lpthread")
if(WIN32)
  string(PREPEND VKATTN_PC_PRIVATE "-lvkattn_zstd ")
  set(VKATTN_PC_RUNTIME_PRIVATE "")
endif()
foreach(name vkattn vkattn-runtime)
  configure_file("${CMAKE_CURRENT_LIST_DIR}/${name}.pc.in" "${CMAKE_CURRENT_BINARY_DIR}/${name}.pc" @ONLY)
endforeach()
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/vkattn-config.cmake.in"
  "${CMAKE_CURRENT_BINARY_DIR}/vkattn-config.cmake" INSTALL_DESTINATION "${package_dir}")
# While the version is 0.x, a minor version may change the ABI, as the soname says.
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/vkattn-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion)

install(TARGETS vkattn_static vkattn_shared vkattn_runtime_static vkattn_runtime_shared EXPORT vkattn
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(EXPORT vkattn NAMESPACE vkattn:: FILE vkattn-targets.cmake DESTINATION "${package_dir}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/vkattn" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/vkattn-config.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/vkattn-config-version.cmake"
  DESTINATION "${package_dir}")
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/vkattn.pc" "${CMAKE_CURRENT_BINARY_DIR}/vkattn-runtime.pc"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
# The notices are due with binaries. The sources that a package takes may lack the file.
install(FILES "${PROJECT_SOURCE_DIR}/THIRD_PARTY.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}" OPTIONAL)
if(VKATTN_TOOLS)
  install(TARGETS vkattn_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
