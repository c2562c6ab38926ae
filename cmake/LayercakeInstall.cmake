# `cmake --install` and the tarball (`cpack`): the programs with the shared libraries that they need,
# found from where the programs lie. The C and C++ libraries and the driver's are the machine's own,
# so the machine must be no older than the one that built this.
include(GNUInstallDirs)

set(layercake_programs layercake layercake-coordinator layercake-worker)
foreach(program IN LISTS layercake_programs)
  set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  # The old tag also counts for what the libraries themselves need; the new one does not.
  target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
endforeach()

install(TARGETS ${layercake_programs} RUNTIME_DEPENDENCY_SET layercake_libraries RUNTIME)
install(RUNTIME_DEPENDENCY_SET layercake_libraries
  PRE_EXCLUDE_REGEXES
    "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|util)\\.so" "^libstdc\\+\\+\\.so" "^libgcc_s\\.so"
    "^libcuda\\.so" "^libnvidia-"
  DESTINATION ${CMAKE_INSTALL_LIBDIR})

# UCX loads its transports from the folder `ucx` beside libucs.
find_library(LAYERCAKE_UCS_LIBRARY ucs)
if(LAYERCAKE_UCS_LIBRARY)
  get_filename_component(ucs_folder ${LAYERCAKE_UCS_LIBRARY} DIRECTORY)
  # Between hosts and GPUs: what is missing on a machine is skipped there.
  file(GLOB ucx_modules ${ucs_folder}/ucx/libuct_*.so.0)
  foreach(module IN LISTS ucx_modules)
    get_filename_component(file ${module} REALPATH)
    get_filename_component(name ${module} NAME)
    install(FILES ${file} DESTINATION ${CMAKE_INSTALL_LIBDIR}/ucx RENAME ${name})
  endforeach()
endif()

install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/README.md
  DESTINATION ${CMAKE_INSTALL_DOCDIR})
# Packing builds what it packs, not the tests.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_NAME layercake)
set(CPACK_STRIP_FILES ON)
include(CPack)
