# Writes build_info_text.h at every build: commit, dirty flag, compiler and flags. The file is only modified if
# these change. Inputs: SOURCE_DIR, OUTPUT, FLAGS, COMPILER, and COMMIT: the commit for a source tree without
# its own git checkout; empty: ask git.
set(commit "${COMMIT}")
set(dirty false)
if(commit STREQUAL "")
  execute_process(COMMAND git rev-parse HEAD WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE commit
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND git status --porcelain --untracked-files=no WORKING_DIRECTORY ${SOURCE_DIR}
                  OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    set(dirty true)
  endif()
endif()
set(text "// Made by tools/setup/build_info.cmake: which source was built, and how.
#pragma once
namespace precbench {
inline constexpr char kBuildCommit[] = \"${commit}\";
inline constexpr bool kBuildDirty = ${dirty};
inline constexpr char kBuildFlags[] = \"${FLAGS}\";
inline constexpr char kBuildCompiler[] = \"${COMPILER}\";
}  // namespace precbench
")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
