#!/usr/bin/env bash
# Judges one commit for `git bisect run`: builds it, runs a case RUNS times (default 3) and compares the median of their
# median step times with a limit. Copy it out of the tree first, since commits under test may not have it.
#
#   git bisect run out/bisect_step.sh above|below MS [flags of precbench run...]
#
# Exit status, as git bisect wants it: 1 (bad) if the step is longer (above) or shorter (below) than MS, 0 (good) if not,
# 125 (skip) if the commit cannot be built or the case cannot be run.
set -uo pipefail

[[ "${1:-}" =~ ^(above|below)$ && "${2:-}" =~ ^[0-9]+(\.[0-9]+)?$ ]] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 128; }
side=$1 limit=$2
shift 2

[ -f build/CMakeCache.txt ] || cmake -B build -DPRECBENCH_BUILD_TESTS=OFF >/dev/null || exit 125
cmake --build build --target precbench >/dev/null || exit 125
times=()
for ((run = 0; run < ${RUNS:-3}; run++)); do
  time=$(build/precbench run "$@" 2>/dev/null | python3 -c 'import json, sys; print(float(json.load(sys.stdin)["timing"]["median_ms"]))') || exit 125
  times+=("$time")
done
printf '%s\n' "${times[@]}" | python3 -c '
import statistics, sys
times = [float(line) for line in sys.stdin]
middle, side, limit = statistics.median(times), sys.argv[1], float(sys.argv[2])
bad = middle > limit if side == "above" else middle < limit
words = ", ".join(f"{time:g}" for time in times)
print(f"{words} ms, limit {limit:g}:", "bad" if bad else "good")
sys.exit(bad)' "$side" "$limit"
