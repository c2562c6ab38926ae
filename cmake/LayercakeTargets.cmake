# layercake_library(NAME [UNITY] SOURCES ... [APART ...] DEPS ... [PRIVATE_DEPS ...]
#     [PRECOMPILE <header> ...])
#     UNITY: files that include the same large headers are compiled eight at a time, but those
#     that are APART, which have names of their own that others have too
# layercake_test(NAME [UNITY] SOURCES ... [APART ...] DEPS ... [LABELS ...] [PRECOMPILE <header> ...])
#     one executable, one ctest entry per TEST
# layercake_binary(NAME SOURCES ... DEPS ...)
# layercake_fuzzer(NAME SOURCES ... DEPS ...)                 only with LAYERCAKE_FUZZ
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

add_library(layercake_options INTERFACE)
target_include_directories(layercake_options INTERFACE ${CMAKE_SOURCE_DIR})
# nvcc takes warnings for its host compiler only behind -Xcompiler, and its own stubs convert.
target_compile_options(layercake_options INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wshadow -Wconversion -fno-omit-frame-pointer>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Werror>)
# Flow warnings of g++ 12 are often wrong about inlined library code, and more so between a
# sanitizer's checks: they are shown, and stop nobody.
if(NOT LAYERCAKE_SANITIZE)
  target_compile_options(layercake_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(layercake_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:
      -Wno-error=array-bounds -Wno-error=maybe-uninitialized -Wno-error=restrict
      -Wno-error=stringop-overflow -Wno-error=stringop-overread>)
  endif()
endif()
if(LAYERCAKE_SANITIZE)
  add_compile_options(-fsanitize=${LAYERCAKE_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LAYERCAKE_SANITIZE})
endif()
if(LAYERCAKE_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# The headers that nearly every file includes, parsed once: a third of the build time. A file still
# includes what it uses; the fuzz build, which has no such header, holds that.
option(LAYERCAKE_PRECOMPILED_HEADERS "Precompile the common headers" ON)
function(layercake_precompile name)
  if(LAYERCAKE_PRECOMPILED_HEADERS AND NOT LAYERCAKE_FUZZ)
    target_precompile_headers(${name} PRIVATE ${ARGN})
  endif()
endfunction()
set(LAYERCAKE_COMMON_HEADERS
  <algorithm> <cstdint> <functional> <map> <memory> <optional> <string> <utility> <vector>
  <absl/functional/any_invocable.h> <absl/status/statusor.h> <absl/strings/str_cat.h>
  <absl/time/time.h> <absl/types/span.h>)

# A thread-sanitized program is told about the locks of the distribution's Abseil.
function(layercake_tell_tsan name)
  if(LAYERCAKE_SANITIZE MATCHES "thread")
    target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/testing/tsan_abseil.cc)
  endif()
endfunction()

# layercake_unity(NAME ON|OFF [FILE that is compiled by itself ...])
function(layercake_unity name wanted)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${wanted})
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

function(layercake_library name)
  cmake_parse_arguments(ARG "UNITY" "" "SOURCES;APART;DEPS;PRIVATE_DEPS;PRECOMPILE" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES} ${ARG_APART})
  layercake_unity(${name} ${ARG_UNITY} ${ARG_APART})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE layercake_options ${ARG_PRIVATE_DEPS})
  list(LENGTH ARG_SOURCES source_count)
  if(source_count GREATER 4)
    layercake_precompile(${name} ${LAYERCAKE_COMMON_HEADERS} ${ARG_PRECOMPILE})
  endif()
endfunction()

function(layercake_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE layercake_options ${ARG_DEPS})
  layercake_tell_tsan(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
endfunction()

if(LAYERCAKE_TESTS)
  include(GoogleTest)
endif()
function(layercake_test name)
  if(NOT LAYERCAKE_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "UNITY" "" "SOURCES;APART;DEPS;LABELS;PRECOMPILE" ${ARGN})
  add_executable(${name} ${ARG_SOURCES} ${ARG_APART})
  layercake_unity(${name} ${ARG_UNITY} ${ARG_APART})
  target_link_libraries(${name} PRIVATE layercake_options ${ARG_DEPS} GTest::gmock_main)
  target_compile_definitions(${name} PRIVATE LAYERCAKE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  layercake_tell_tsan(${name})
  list(LENGTH ARG_SOURCES source_count)
  if(source_count GREATER 2)
    layercake_precompile(${name} ${LAYERCAKE_COMMON_HEADERS} <gmock/gmock.h> <gtest/gtest.h>
      ${ARG_PRECOMPILE})
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST
    PROPERTIES TIMEOUT 300 LABELS "${ARG_LABELS}")
endfunction()

function(layercake_fuzzer name)
  if(NOT LAYERCAKE_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE layercake_options ${ARG_DEPS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
endfunction()
