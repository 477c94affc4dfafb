#!/usr/bin/env bash
# Prints the simulated error rates of a history as the table of tools/history/README.md. With --check, fails if the page has
# another one. Takes minutes; BUILD is the folder of precbench_tests.
#
#   tools/history/rates_table.sh [--check]
set -euo pipefail
cd "$(dirname "$0")/../.."

table=$("${BUILD:-build}/precbench_tests" "history simulation: table" | grep '^|')
if [ "${1:-}" != --check ]; then
  printf '%s\n' "$table"
  exit
fi
page=$(sed -n '/^| noise of a night |/,/^$/p' tools/history/README.md | grep '^|' || true)
[ "$page" = "$table" ] || {
  diff <(printf '%s\n' "$page") <(printf '%s\n' "$table") || true
  echo "tools/history/README.md has another table: paste that of tools/history/rates_table.sh" >&2
  exit 1
}
