#!/usr/bin/env bash
# Refuses comments that open with a fragment ("Of the rows ...", "Whether ...", "What ..."), which readers have to complete
# themselves. Start with a verb or a noun phrase: "Returns ...", "Number of ...", "True if ...".
#
# Usage: tools/ci/check_comments.sh     prints each such line; exit status 1 if there is one.
set -euo pipefail
cd "$(dirname "$0")/../.."

if git grep --untracked -nE '^\s*//+<?\s*(Of|What|Whether|Those) ' -- '*.h' '*.cpp' '*.cu' '*.cuh'; then
  echo "$0: start these comments with a verb or a noun phrase" >&2
  exit 1
fi
