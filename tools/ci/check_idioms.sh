#!/usr/bin/env bash
# Refuses what a compiler lets pass here:
# - comments that open with a fragment ("Of the rows ...", "Whether ...", "What ..."), which readers have to complete
#   themselves. Start with a verb or a noun phrase: "Returns ...", "Number of ...", "True if ...".
# - Catch2's matcher Contains, which is a substring in Catch2 2 and an element of a range in Catch2 3: ContainsText of
#   kernels/testing/catch.h compiles with both.
# - a test that is skipped without a GPU but has no tag [gpu], by which gpu_tests.py selects tests: no machine would run it.
#
# Usage: tools/ci/check_idioms.sh     prints each such line; exit status 1 if there is one.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Prints the lines of $2... that match $1.
lines() { git grep --untracked -nE "$1" -- "${@:2}"; }

status=0
if lines '^\s*//+<?\s*(Of|What|Whether|Those) ' '*.h' '*.cpp' '*.cu' '*.cuh'; then
  echo "$0: start these comments with a verb or a noun phrase" >&2
  status=1
fi
if lines '\bMatchers::Contains\b' '*.h' '*.cpp' ':!kernels/testing/catch.h'; then
  echo "$0: use ContainsText" >&2
  status=1
fi
if git ls-files -z --cached --others --exclude-standard '*_test.cpp' | xargs -0 awk '
    /^TEST_CASE\(/ { head = ""; open = 1 }
    open { head = head $0; if (/\{$/) open = 0 }
    !open && /(gpus?_or_skip|gpu_here)\(\)/ && head != "" && head !~ /\[gpu\]/ { print FILENAME ": " head; head = "" }
    /^}/ { head = "" }' | grep .; then
  echo "$0: give these tests the tag [gpu]" >&2
  status=1
fi
exit $status
