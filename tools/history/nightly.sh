#!/usr/bin/env bash
# Judges a night's records beside those of the nights before, and keeps all of them as history.jsonl on the branch nightly-history
# of origin. Exits as `report --history --fail-on slower` does; bad input leaves the branch as it was.
#
#   tools/history/nightly.sh [RECORDS]     RECORDS: default out/regression-gpu, as of the sweep of that name
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
records=${1:-out/regression-gpu}
branch=nightly-history parent=
mkdir -p out
rm -f out/history.jsonl

found=0
git ls-remote --quiet --exit-code origin "refs/heads/$branch" >/dev/null || found=$?
[ $found -eq 0 ] || [ $found -eq 2 ] || exit 2  # 2: there is no such branch yet
if [ $found -eq 0 ]; then
  git fetch --quiet origin "$branch"
  parent=$(git rev-parse FETCH_HEAD)
  git show "$parent:history.jsonl" >out/history.jsonl
fi

status=0
build/precbench report --history "$records" --append out/history.jsonl --since 14d --fail-on slower --format md -o out/history.md ||
  status=$?
[ $status -ne 2 ] || exit 2
[ -z "${GITHUB_STEP_SUMMARY:-}" ] || cat out/history.md >>"$GITHUB_STEP_SUMMARY"

tree=$(printf '100644 blob %s\thistory.jsonl\n' "$(git hash-object -w out/history.jsonl)" | git mktree)
commit=$(git -c user.name=nightly -c user.email=nightly@localhost commit-tree "$tree" ${parent:+-p "$parent"} -m "Nights until $(date -u +%F)")
git push --quiet origin "$commit:refs/heads/$branch"
exit $status
