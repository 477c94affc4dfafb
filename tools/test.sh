#!/usr/bin/env bash
# Sets up and builds (setup.sh), then runs all tests and ends with CTest's summary. Tests that need a GPU are
# skipped without one.
#
#   tools/test.sh [cmake options]
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup/setup.sh "$@"
# Several tests run at once, each with several threads, which must not spin while waiting for a core.
export OMP_WAIT_POLICY=passive
# The time limit only ends hanging tests; no passing test depends on its duration.
ctest --test-dir build --output-on-failure --parallel "$(nproc)" --timeout 3600
