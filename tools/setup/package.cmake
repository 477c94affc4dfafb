# Installation, and CPack's .deb: the program with embedded plot scripts and schema, its completion for bash, sweep
# files, baselines, and the records that `advise` reads.
#
#   cmake --install build --prefix DIR        or, in the build folder: cpack -G DEB
include(GNUInstallDirs)
install(TARGETS precbench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
file(GLOB sweep_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/bench/sweeps/*.toml ${CMAKE_SOURCE_DIR}/bench/sweeps/*.json)
install(FILES ${sweep_files} DESTINATION ${CMAKE_INSTALL_DATADIR}/precbench/sweeps)
file(GLOB baselines CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/results/baseline/*.jsonl)
install(FILES ${baselines} DESTINATION ${CMAKE_INSTALL_DATADIR}/precbench/baseline)
# Speeds of current code; `advise` finds them beside the program, in a build folder by links. What studies found is in the program itself
# (results/law/evidence.csv).
file(GLOB advice_records CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/results
     ${CMAKE_SOURCE_DIR}/results/h*/single.jsonl.xz ${CMAKE_SOURCE_DIR}/results/h*/scaling.jsonl.xz
     ${CMAKE_SOURCE_DIR}/results/h*/delayed-speed.jsonl.xz ${CMAKE_SOURCE_DIR}/results/h*/moe-*.jsonl.xz
     ${CMAKE_SOURCE_DIR}/results/h*/beside-pytorch/records.jsonl.xz ${CMAKE_SOURCE_DIR}/results/h*/fsdp-*/records.jsonl.xz)
file(REMOVE_RECURSE ${CMAKE_BINARY_DIR}/share/precbench/records)
foreach(records ${advice_records})
  get_filename_component(folder ${records} DIRECTORY)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/share/precbench/records/${folder})
  file(CREATE_LINK ${CMAKE_SOURCE_DIR}/results/${records} ${CMAKE_BINARY_DIR}/share/precbench/records/${records} SYMBOLIC)
  install(FILES ${CMAKE_SOURCE_DIR}/results/${records} DESTINATION ${CMAKE_INSTALL_DATADIR}/precbench/records/${folder})
endforeach()

# The program writes its completion itself, from the data of --help.
set(completion ${CMAKE_BINARY_DIR}/completion.bash)
add_custom_command(OUTPUT ${completion} COMMAND precbench help completion bash > ${completion} DEPENDS precbench VERBATIM)
add_custom_target(precbench_help ALL DEPENDS ${completion})
install(FILES ${completion} DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME precbench)

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
