#!/usr/bin/env bash
# Runs on a GPU runner for every change: build, tests that need a GPU, a short sweep, the check against a
# baseline, a report. Any CI can call it. Exits with the check's status: 0 nothing is worse, 1 a
# regression, 2 bad input (including a missing baseline), 3 inconclusive; or with 1 if the build, the tests
# or the sweep failed.
#
#   tools/ci/ci-gpu.sh [BASELINE]
#
# BASELINE defaults to results/baseline/<GPU>.jsonl, or <GPU>.jsonl.xz, as in nvidia-h200.jsonl.xz. If it is missing, the
# script says how to make one from this run. Output in out/regression-gpu: records.jsonl, report.html, check.md,
# check.json, junit.xml.
set -euo pipefail
cd "$(dirname "$0")/../.."

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
baseline=${1:-results/baseline/$(tr 'A-Z ' 'a-z-' <<<"$gpu").jsonl}
[ -n "${1:-}" ] || [ -e "$baseline" ] || [ ! -e "$baseline.xz" ] || baseline+=.xz
out=out/regression-gpu

tools/setup/setup.sh
build/precbench list devices
tools/ci/gpu_tests.py || exit 1
# Status 1: some cases failed; the check judges them.
build/precbench sweep --config bench/sweeps/regression-gpu.toml --fresh || [ $? -eq 1 ] || exit 1

status=0
build/precbench check --baseline "$baseline" $out --markdown $out/check.md --json $out/check.json \
  --junit $out/junit.xml || status=$?
build/precbench report $out --format html -o $out/report.html
[ -z "${GITHUB_STEP_SUMMARY:-}" ] || build/precbench report $out --format md >>"$GITHUB_STEP_SUMMARY"
if [ ! -e "$baseline" ]; then
  echo "No baseline for $gpu yet. If this run is one to hold others to:"
  echo "  build/precbench check --accept --baseline $baseline $out"
  echo "Accept two to four more runs of the same commit, too: their spread tells noise from a change."
fi
exit $status
