# Writes build_info.h, run at every build: commit, dirty flag, compiler and flags, touched only when they change.
# In: SOURCE_DIR, OUTPUT, FLAGS, COMPILER; COMMIT: what to say where the source is a copy of a commit without, or
# beside, a git checkout; empty: git is asked.
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
