#!/usr/bin/env bash
# Profiles our kernels with the GPU's hardware counters (Nsight Compute's ncu): kernel launches of a one-block
# training step, for Llama 3.1 8B at 8192 tokens and Llama 3.2 1B at 2048. Needs a GPU that permits access to
# counters, and a build. Clocks are not changed. Each kernel runs alone, once per set of counters, so its time
# differs from that in a real step.
#
#   tools/ci/profile_gpu.sh [OUT]      writes ncu's OUT/*.csv (default out/profile), prints a line per kernel
set -euo pipefail
cd "$(dirname "$0")/../.."

precbench=${BUILD:-build}/precbench
out=${1:-out/profile}
ncu=$(command -v ncu || ls /usr/local/cuda/bin/ncu 2>/dev/null) || {
  echo "$0: no ncu here; it comes with the CUDA toolkit (nsight-compute)" >&2
  exit 2
}
mkdir -p "$out"

# Arguments: NAME KERNELS LAUNCHES and the case. The first launches of a GEMM are those that time its tiles,
# at the step's own shapes.
profile() {
  local name=$1 kernels=$2 launches=$3
  shift 3
  "$ncu" --clock-control none --kernel-name-base mangled --kernel-name "regex:$kernels" --launch-count "$launches" --csv --page raw --log-file "$out/$name.csv" \
    --section SpeedOfLight --section ComputeWorkloadAnalysis --section MemoryWorkloadAnalysis --section WarpStateStats \
    --section LaunchStats --section Occupancy --print-units base \
    "$precbench" run --device cuda --layers 1 --batch 1 --attention own --gemm own --graph off --steps 1 --master bf16 --moments bf16 \
    --grads bf16 --clip 0 --lr 1e-5 "$@" >"$out/$name.log" 2>&1 || {
    tail -n 3 "$out/$name.log" >&2
    exit 1
  }
}

ops='attend_|produce_|_tiles|tile_kernel|rmsnorm|swiglu|adamw'
profile 8b-tensorwise "$ops" 80 --model llama3.1-8b --seq 8192 --recipe tensorwise
profile 8b-rowwise-gw-hp 'produce_rows' 20 --model llama3.1-8b --seq 8192 --recipe rowwise_gw_hp
profile 8b-blockwise 'BlockwiseMainloop.*ScalesE0' 40 --model llama3.1-8b --seq 8192 --recipe blockwise
profile 8b-blockwise-wgrad 'BlockwiseMainloop.*ScalesE1' 40 --model llama3.1-8b --seq 8192 --recipe blockwise
profile 1b-bf16 'attend_' 40 --model llama3.2-1b --seq 2048 --recipe bf16
tools/ci/profile_table.py "$out"/*.csv
