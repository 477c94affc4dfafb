#!/usr/bin/env bash
# Writes the committed reports: the page results/**/NAME.md of the records NAME.jsonl or NAME.jsonl.xz beside it.
#
#   tools/ci/reports.sh            writes all of them; for a new one, create an empty page first
#   tools/ci/reports.sh --check    fails if one is not what the program prints
set -euo pipefail
cd "$(dirname "$0")/../.."
case ${1:-} in
  "") write=1 ;;
  --check) write= ;;
  *) sed -n '2,5p' "$0" >&2; exit 2 ;;
esac

# Prints further records that a report needs.
beside() {
  case $1 in
    results/h200/long-run-15m) echo results/h200/study-15m.jsonl.xz ;;        # the forks, on whose cards the long run stands
    results/h100/age-15m) echo results/h100/trained-smollm2.jsonl.xz ;;       # the trained model beside the young one
  esac
}

mkdir -p out/reports
count=0
while read -r page; do
  name=${page%.md}
  if [ -f "$name.jsonl" ]; then
    records=$name.jsonl
  elif [ -f "$name.jsonl.xz" ]; then
    records=$name.jsonl.xz
  else
    continue  # a page written by hand
  fi
  # shellcheck disable=SC2046
  build/precbench report "$records" $(beside "$name") --format md >out/reports/page.md
  if [ -n "$write" ]; then
    cp out/reports/page.md "$page"
  elif ! diff "$page" out/reports/page.md; then
    echo "$0: $page is not what the program prints; tools/ci/reports.sh writes it" >&2
    exit 1
  fi
  count=$((count + 1))
done < <(git ls-files --cached --others --exclude-standard 'results/*.md')
[ "$count" -ge 30 ] || { echo "$0: found $count reports only" >&2; exit 1; }
