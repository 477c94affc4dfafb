#!/usr/bin/env bash
# The CUDA device beside PyTorch + torch.compile + torchao (peer_torch.py) on one GPU, in turns: at each shape a recipe of
# the peer's, then precbench's of that name. The setting is bench/sweeps/h200-single.toml's: BF16 weights, gradients and
# moments, no clipping, no recompute, lm_head in BF16.
#
#   tools/peer/bench_gpu_peer.sh                            # after a build; a Python with torch and torchao as $PYTHON or python3
#   OUT=out/beside tools/peer/bench_gpu_peer.sh 8b:1:4096   # one shape: the peer's model name, batch, sequence length,
#                                                           # and where a step has several, its passes
#   OUT=out/beside-experts tools/peer/bench_gpu_peer.sh moe-4b-a1b:2:4096 qwen3-30b-a3b/6:2:4096   # of the second 6 blocks
#   OUT=out/blocks tools/peer/bench_gpu_peer.sh moe-4b-a1b/1:2:4096 moe-4b-a1b/5:2:4096            # and so one block by itself
#
# Shapes of others: 8b:1:8192:16 is that of Megatron's published tokens/s, 7b:16:1024:32 llm.q's of Qwen2.5, 524,288 tokens a step.
# Experts are chosen by $ROUTING on both sides, balanced or learned, without a balance loss. $RECIPES are the peer's names of
# recipes, $TIME_LIMIT is how many seconds a case of ours may be sampled.
#
# Leaves $OUT/records.jsonl and $OUT/peer.ndjson, and prints the table of both (tools/ci/readme_tables.py --beside-peer $OUT
# prints it again). The peer's step is timed by the host around Python that launches compiled blocks, as its users run
# it, ours by the device around a CUDA graph: at small shapes much of the distance is launching.
set -euo pipefail
cd "$(dirname "$0")/../.."

precbench=${BUILD:-build}/precbench
python=${PYTHON:-python3}
out=${OUT:-out/beside-peer}
[ $# -gt 0 ] || set -- 8b:1:8192 8b:1:4096 3b:1:4096 1b:1:2048 1b:8:2048

if [ ! -x "$precbench" ]; then
  echo "$0: $precbench is not built; run tools/quickstart.sh, or name the build folder in BUILD" >&2
  exit 2
fi
if ! "$python" -c 'from importlib.util import find_spec as find; exit(not (find("torch") and find("torchao")))'; then
  echo "$0: $python has no torch or no torchao; pip install torch torchao, and name its Python in PYTHON" >&2
  exit 2
fi

# The peer's names and ours, which are the same of mixtures of experts.
declare -A models=([8b]=llama3.1-8b [3b]=llama3.2-3b [1b]=llama3.2-1b [7b]=qwen2.5-7b [1.5b]=qwen2.5-1.5b
  [moe-4b-a1b]=moe-4b-a1b [qwen3-30b-a3b]=qwen3-30b-a3b [olmoe-1b-7b]=olmoe-1b-7b [mixtral-8x7b]=mixtral-8x7b)
routing=${ROUTING:-balanced}
recipes=${RECIPES:-bf16 rowwise rowwise_auto tensorwise tensorwise_auto blockwise}

fields_of() {  # MODEL[/LAYERS]:BATCH:SEQ[:PASSES]
  IFS=: read -r size batch seq passes <<<"$1"
  IFS=/ read -r model layers <<<"$size"
  if [ -z "${models[${model:-none}]:-}" ] || [ -z "${seq:-}" ]; then
    echo "$0: \"$1\" is no shape: give one of ${!models[*]}, batch, sequence length and passes, as in 8b:1:4096 or" \
      "8b:1:8192:16; model/N is its first N blocks" >&2
    exit 2
  fi
}
for shape in "$@"; do fields_of "$shape"; done

mkdir -p "$out"
exec 3>&1
coproc peer { exec "$python" tools/peer/peer_torch.py --routing "$routing" - 2>&3; }
for shape in "$@"; do
  fields_of "$shape"
  passes=${passes:-1}
  flags=()
  [ -z "${layers:-}" ] || flags+=(--layers "$layers")
  [ "$model" != "${models[$model]}" ] || flags+=(--routing "$routing" --aux 0)
  for recipe in $recipes; do
    # PyTorch has neither blockwise linears that compile nor tensorwise experts.
    if [[ $recipe != blockwise && ($recipe != tensorwise* || $model != "${models[$model]}") ]]; then
      echo "$size:$recipe:$batch:$seq:$passes" >&"${peer[1]}"
      read -r line <&"${peer[0]}"
      tee -a "$out/peer.ndjson" <<<"$line"
    fi
    # Exit status 1: a case failed, which is a row. What is there already is not run again.
    "$precbench" sweep --device cuda --model "${models[$model]}" --batch "$batch" --seq "$seq" --accumulation "$passes" --gpus 1 \
      --recipe "${recipe%_auto}" --master bf16 --moments bf16 --grads bf16 --clip 0 --lr 1e-5 --seed 42 "${flags[@]}" \
      --steps auto --time-limit "${TIME_LIMIT:-12}" --out "$out" || [ $? -eq 1 ]
  done
done

tools/ci/readme_tables.py --beside-peer "$out"
