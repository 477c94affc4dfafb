#!/usr/bin/env bash
# Sets up and builds (setup.sh), then runs every test and ends with CTest's summary. Tests that need a GPU say so
# and are skipped where there is none.
#
#   tools/test.sh [cmake options]
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup/setup.sh "$@"
# Several tests run at once, and each has threads of its own: they must not spin while they wait for a core.
export OMP_WAIT_POLICY=passive
# The time limit is for tests that hang: no test that passes depends on how long it takes.
ctest --test-dir build --output-on-failure --parallel "$(nproc)" --timeout 3600
