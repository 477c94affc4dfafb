#!/usr/bin/env bash
# Measures the cost of emulating FP4 on a CPU: user time of a training step of tiny in each recipe, relative to
# BF16. One thread; BF16 and the recipe alternate A B B A, each run twice with different numbers of steps, so
# that startup and probes cancel. Uses three step sizes, since the cost of casting weights shows at small ones.
#
# Usage: tools/ci/fp4_cost.sh [PRECBENCH [OUT]]
#
# Prints a table. OUT/records.jsonl gets the longer runs of the last size.
set -euo pipefail
shopt -s inherit_errexit
program=${1:-build/precbench}
out=${2:-out/fp4-cost}
export OMP_NUM_THREADS=1
short=4 long=44
rm -rf "$out"
mkdir -p "$out"

# Prints the user time of a run in seconds: RECIPE STEPS FOLDER.
user_s() {
  local TIMEFORMAT=%U
  { time "$program" sweep --model tiny --recipe "$1" --device cpu --seq "$seq" --batch "$batch" --steps "$2" --keep-bf16 none \
    --switch-recipe none --fresh --out "$3" >/dev/null 2>&1; } 2>&1
}

# Prints the user time per step in milliseconds.
step_ms() {
  local few many
  few=$(user_s "$1" $short "$out/short")
  many=$(user_s "$1" $long "$out/$1")
  awk "BEGIN { print 1000 * ($many - $few) / ($long - $short) }"
}

recipes=(nvfp4 mxfp4_bwd quartet quartet_sr quartet2)
printf '%-12s %-12s %10s %10s %8s\n' 'batch x seq' recipe 'bf16, ms' 'recipe, ms' ratio
for shape in "2 64" "4 128" "8 128"; do
  read -r batch seq <<<"$shape"
  for recipe in "${recipes[@]}"; do
    a=$(step_ms bf16)
    b=$(step_ms $recipe)
    c=$(step_ms $recipe)
    d=$(step_ms bf16)
    awk -v bf16="$a $d" -v other="$b $c" -v shape="$batch x $seq" -v name=$recipe 'BEGIN {
      split(bf16, x); split(other, y)
      printf "%-12s %-12s %10.1f %10.1f %8.2f\n", shape, name, (x[1] + x[2]) / 2, (y[1] + y[2]) / 2, (y[1] + y[2]) / (x[1] + x[2]) }'
  done
done
for recipe in bf16 "${recipes[@]}"; do cat "$out/$recipe/records.jsonl"; done >"$out/records.jsonl"
