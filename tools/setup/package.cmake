# Installation, and CPack's .deb: the program with embedded plot scripts and schema, sweep
# files, and baselines.
#
#   cmake --install build --prefix DIR        or, in the build folder: cpack -G DEB
include(GNUInstallDirs)
install(TARGETS precbench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
file(GLOB sweep_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/bench/sweeps/*.toml ${CMAKE_SOURCE_DIR}/bench/sweeps/*.json)
install(FILES ${sweep_files} DESTINATION ${CMAKE_INSTALL_DATADIR}/precbench/sweeps)
file(GLOB baselines CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/results/baseline/*.jsonl)
install(FILES ${baselines} DESTINATION ${CMAKE_INSTALL_DATADIR}/precbench/baseline)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME precbench)
set(CPACK_PACKAGE_CONTACT "precbench's maintainers <precbench@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "how fast, how big and how good each low-precision training recipe is")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# dpkg-shlibdeps finds the packages of this distribution that provide the linked libraries.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS gnuplot-nox)
include(CPack)
