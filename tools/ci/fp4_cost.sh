#!/usr/bin/env bash
# What emulating FP4 costs a CPU: user time of a training step of tiny in each recipe, over that in BF16. One thread; BF16
# and the recipe take turns A B B A, each run twice with different numbers of steps, so that start and probes drop out.
# Usage: tools/ci/fp4_cost.sh [PRECBENCH [OUT]]; prints a table, and leaves the longer runs' rows in OUT/records.jsonl.
set -euo pipefail
shopt -s inherit_errexit
program=${1:-build/precbench}
out=${2:-out/fp4-cost}
export OMP_NUM_THREADS=1
short=4 long=44
rm -rf "$out"
mkdir -p "$out"

# User seconds of a run: RECIPE STEPS FOLDER.
user_s() {
  local TIMEFORMAT=%U
  { time "$program" sweep --model tiny --recipe "$1" --device cpu --seq 128 --batch 4 --steps "$2" --keep-bf16 none \
    --switch-recipe none --fresh --out "$3" >/dev/null 2>&1; } 2>&1
}

# User milliseconds of a step.
step_ms() {
  local few many
  few=$(user_s "$1" $short "$out/short")
  many=$(user_s "$1" $long "$out/$1")
  awk "BEGIN { print 1000 * ($many - $few) / ($long - $short) }"
}

printf '%-12s %10s %10s %8s\n' recipe 'bf16, ms' 'recipe, ms' ratio
for recipe in nvfp4 mxfp4_bwd quartet quartet_sr quartet2; do
  a=$(step_ms bf16)
  b=$(step_ms $recipe)
  c=$(step_ms $recipe)
  d=$(step_ms bf16)
  awk -v bf16="$a $d" -v other="$b $c" -v name=$recipe 'BEGIN {
    split(bf16, x); split(other, y)
    printf "%-12s %10.1f %10.1f %8.2f\n", name, (x[1] + x[2]) / 2, (y[1] + y[2]) / 2, (y[1] + y[2]) / (x[1] + x[2]) }'
done
cat "$out"/{bf16,nvfp4,mxfp4_bwd,quartet,quartet_sr,quartet2}/records.jsonl >"$out/records.jsonl"
