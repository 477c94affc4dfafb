#!/usr/bin/env bash
# Prints the simulated error rates of a check or of a history as the table of tools/gate/README.md or tools/history/README.md. With
# --check, fails if the page has another one. Takes minutes; BUILD is the folder of precbench_tests.
#
#   tools/ci/rates_table.sh gate|history [--check]
set -euo pipefail
cd "$(dirname "$0")/../.."

case ${1:-} in
  gate) test="gate rates: table" head="| cases | records |" ;;
  history) test="history simulation: table" head="| noise of a night |" ;;
  *) echo "usage: $0 gate|history [--check]" >&2; exit 2 ;;
esac
page=tools/$1/README.md
table=$("${BUILD:-build}/precbench_tests" "$test" | grep '^|')
if [ "${2:-}" != --check ]; then
  printf '%s\n' "$table"
  exit
fi
shown=$(sed -n "/^$head/,/^\$/p" "$page" | grep '^|' || true)
[ "$shown" = "$table" ] || {
  diff <(printf '%s\n' "$shown") <(printf '%s\n' "$table") || true
  echo "$page has another table: paste that of $0 $1" >&2
  exit 1
}
