#!/usr/bin/env bash
# Prints the simulated error rates of a check as the table of tools/gate/README.md. With --check, fails if the page has
# another one. Takes minutes; BUILD is the folder of precbench_tests.
#
#   tools/gate/rates_table.sh [--check]
set -euo pipefail
cd "$(dirname "$0")/../.."

table=$("${BUILD:-build}/precbench_tests" "gate rates: table" | grep '^|')
if [ "${1:-}" != --check ]; then
  printf '%s\n' "$table"
  exit
fi
page=$(sed -n '/^| cases | records |/,/^$/p' tools/gate/README.md | grep '^|' || true)
[ "$page" = "$table" ] || {
  diff <(printf '%s\n' "$page") <(printf '%s\n' "$table") || true
  echo "tools/gate/README.md has another table: paste that of tools/gate/rates_table.sh" >&2
  exit 1
}
