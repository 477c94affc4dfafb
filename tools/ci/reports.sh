#!/usr/bin/env bash
# Prints the report of every committed record file to out/reports/, and fails if one of them has none.
#
#   tools/ci/reports.sh            all of them
#   tools/ci/reports.sh NAME...    those whose name contains one of these, such as study-36m
set -euo pipefail
cd "$(dirname "$0")/../.."

# Prints further records that a report needs.
beside() {
  case $1 in
    results/h100/age-15m) echo results/h100/trained-smollm2.jsonl.xz ;;  # the trained model beside the young one
  esac
}

# Succeeds if the name in $1 contains one of the other arguments, or if there are none.
wanted() {
  local name=$1 part
  shift
  [ $# -gt 0 ] || return 0
  for part in "$@"; do [[ $name != *"$part"* ]] || return 0; done
  return 1
}

count=0
while read -r records; do
  name=${records%.jsonl.xz}
  wanted "$name" "$@" || continue
  page=out/reports/${name#results/}.md
  mkdir -p "$(dirname "$page")"
  # shellcheck disable=SC2046
  build/precbench report "$records" $(beside "$name") --format md >"$page"
  grep -q '^#' "$page" || { echo "$0: $records: its report is empty" >&2; exit 1; }
  count=$((count + 1))
done < <(git ls-files --cached --others --exclude-standard 'results/*.jsonl.xz')
[ "$count" -gt 0 ] || { echo "$0: no record file is called $*" >&2; exit 1; }
echo "$count reports are in out/reports"
