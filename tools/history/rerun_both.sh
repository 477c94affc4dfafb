#!/usr/bin/env bash
# Measures two commits against each other on this machine: builds both in work trees of their own and runs a case with the
# first, the second, the second and the first (A B B A), so that a drift of the machine hits both.
#
#   tools/history/rerun_both.sh COMMIT COMMIT [flags of precbench run...]
#
# Records go to out/rerun/COMMIT; the work trees stay in out/rerun/trees, for further runs.
set -euo pipefail

[ $# -ge 2 ] && [[ "$1$2" =~ ^[0-9a-f]+$ ]] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
first=$1 second=$2
shift 2
cd "$(git rev-parse --show-toplevel)"

for commit in "$first" "$second"; do
  tree=out/rerun/trees/$commit
  [ -d "$tree" ] || git worktree add --detach "$tree" "$commit" >/dev/null
  cmake -S "$tree" -B "$tree/build" -DPRECBENCH_BUILD_TESTS=OFF >/dev/null
  cmake --build "$tree/build" --target precbench >/dev/null
done
times=()
for commit in "$first" "$second" "$second" "$first"; do
  time=$(out/rerun/trees/"$commit"/build/precbench run --out "out/rerun/$commit" "$@" |
    python3 -c 'import json, sys; print(float(json.load(sys.stdin)["timing"]["median_ms"]))')
  echo "$commit: $time ms"
  times+=("$time")
done
python3 -c '
import sys
a, b, c, d = map(float, sys.argv[3:])
print(f"step of {sys.argv[2]} against {sys.argv[1]}: {100 * ((b + c) / (a + d) - 1):+.2f}%; "
      f"runs of one commit differ by {100 * abs(d / a - 1):.2f}% and {100 * abs(c / b - 1):.2f}%")' "$first" "$second" "${times[@]}"
