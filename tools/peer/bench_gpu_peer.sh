#!/usr/bin/env bash
# The CUDA device beside PyTorch + torch.compile + torchao (peer_torch.py) on one GPU, shape by shape: precbench's recipes
# at one shape, then the peer's at the same, a minute or two apart. The setting is bench/sweeps/h200-single.toml's: BF16
# weights, gradients and moments, no clipping, no recompute, lm_head in BF16.
#
#   tools/peer/bench_gpu_peer.sh                            # after a build; a Python with torch and torchao as $PYTHON or python3
#   OUT=out/beside tools/peer/bench_gpu_peer.sh 8b:1:4096   # one shape: the peer's model name, batch, sequence length,
#                                                           # and where a step has several, its passes
#
# Shapes of others: 8b:1:8192:16 is that of Megatron's published tokens/s, 8b:16:1024:32 llm.q's 524,288 tokens a step.
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
if ! "$python" -c 'import torch, torchao' 2>/dev/null; then
  echo "$0: $python has no torch or no torchao; pip install torch torchao, and name its Python in PYTHON" >&2
  exit 2
fi

declare -A models=([8b]=llama3.1-8b [3b]=llama3.2-3b [1b]=llama3.2-1b)
mkdir -p "$out"
for shape in "$@"; do
  IFS=: read -r size batch seq passes <<<"$shape"
  if [ -z "${models[${size:-none}]:-}" ] || [ -z "${seq:-}" ]; then
    echo "$0: \"$shape\" is no shape: give 8b, 3b or 1b, batch, sequence length and passes, as in 8b:1:4096 or 8b:1:8192:16" >&2
    exit 2
  fi
  passes=${passes:-1}
  "$precbench" sweep --device cuda --model "${models[$size]}" --batch "$batch" --seq "$seq" --accumulation "$passes" --gpus 1 \
    --recipe bf16,tensorwise,rowwise,blockwise --master bf16 --moments bf16 --grads bf16 --clip 0 --lr 1e-5 --seed 42 \
    --steps auto --time-limit 12 --out "$out" || [ $? -eq 1 ]  # 1: a case failed, which is a row
  steps=$((passes > 1 ? 3 : 12))
  cases=()
  for recipe in bf16 tensorwise tensorwise_auto rowwise rowwise_auto; do cases+=("$size:$recipe:$batch:$seq:$passes"); done
  TORCHAO_FORCE_SKIP_LOADING_SO_FILES=1 "$python" tools/peer/peer_torch.py --steps $steps --warmup $((steps / 2)) \
    "${cases[@]}" >>"$out/peer.ndjson"
done

tools/ci/readme_tables.py --beside-peer "$out"
