#!/usr/bin/env bash
# From a fresh clone to the first table: sets up and builds the program (setup.sh), runs a short sweep over
# recipes and prints its report. On a GPU the sweep trains Llama 3.2 1B, otherwise the tiny model on the CPU
# for about 20 seconds. A second run repeats only unfinished cases.
#
#   tools/quickstart.sh [cmake options]
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup/setup.sh --program "$@"
sweep=quickstart
build/precbench list devices | grep -q '^cuda' && sweep=quickstart-gpu
status=0
build/precbench sweep --config "bench/sweeps/$sweep.toml" || status=$?
[ $status -gt 1 ] || build/precbench report "out/$sweep"  # 1: some cases failed; the report says which and why
exit $status
