#!/usr/bin/env bash
# The CUDA device beside PyTorch + torch.compile + torchao (peer_torch.py) on one GPU, shape by shape: precbench's recipes
# at one shape, then the peer's at the same, a minute or two apart. The setting is bench/sweeps/h200-single.toml's: BF16
# weights, gradients and moments, no clipping, no recompute, lm_head in BF16.
#
#   tools/bench_gpu_peer.sh                            # after a build; a Python with torch and torchao as $PYTHON or python3
#   OUT=out/beside tools/bench_gpu_peer.sh 8b:1:4096   # one shape: the peer's model name, batch, sequence length
#   PYTHON=: tools/bench_gpu_peer.sh                   # the table alone, of what $OUT holds
#
# Leaves $OUT/records.jsonl and $OUT/peer.ndjson. The peer's step is timed by the host around Python that launches
# compiled blocks, as its users run it, ours by the device around a CUDA graph: at small shapes much of the distance is
# launching.
set -euo pipefail
cd "$(dirname "$0")/.."

precbench=${BUILD:-build}/precbench
python=${PYTHON:-python3}
out=${OUT:-out/beside-peer}
[ $# -gt 0 ] || set -- 8b:1:8192 8b:1:4096 3b:1:4096 1b:1:2048 1b:8:2048

if [ ! -x "$precbench" ]; then
  echo "$0: $precbench is not built; run tools/quickstart.sh, or name the build folder in BUILD" >&2
  exit 2
fi
if [ "$python" != : ] && ! "$python" -c 'import torch, torchao' 2>/dev/null; then
  echo "$0: $python has no torch or no torchao; pip install torch torchao, and name its Python in PYTHON" >&2
  exit 2
fi

declare -A models=([8b]=llama3.1-8b [3b]=llama3.2-3b [1b]=llama3.2-1b)
mkdir -p "$out"
for shape in "$@"; do
  IFS=: read -r size batch seq <<<"$shape"
  if [ -z "${models[$size]:-}" ] || [ -z "${seq:-}" ]; then
    echo "$0: \"$shape\" is no shape: give 8b, 3b or 1b, batch and sequence length, as in 8b:1:4096" >&2
    exit 2
  fi
  [ "$python" = : ] && continue
  "$precbench" sweep --device cuda --model "${models[$size]}" --batch "$batch" --seq "$seq" --gpus 1 \
    --recipe bf16,tensorwise,rowwise,blockwise --master bf16 --moments bf16 --grads bf16 --clip 0 --lr 1e-5 --seed 42 \
    --steps auto --time-limit 12 --out "$out" || true  # a case that failed is a row
  TORCHAO_FORCE_SKIP_LOADING_SO_FILES=1 "$python" tools/peer_torch.py \
    "$size:bf16:$batch:$seq" "$size:tensorwise:$batch:$seq" "$size:rowwise:$batch:$seq" >>"$out/peer.ndjson"
done

python3 - "$out" <<'PY'
import json, sys

NAMES = {"8b": "llama3.1-8b", "3b": "llama3.2-3b", "1b": "llama3.2-1b"}
key = lambda model, batch, seq, recipe: (model, batch, seq, recipe)
peers = {}
for line in map(json.loads, open(f"{sys.argv[1]}/peer.ndjson")):
    if "error" not in line:
        peers[key(NAMES[line["model"]], line["batch"], line["seq"], line["recipe"])] = line
rows = [r for r in map(json.loads, open(f"{sys.argv[1]}/records.jsonl")) if r["status"] == "ok" and (r["metrics"] or {}).get("tokens_per_s")]
rate = {key(*(r["case"][k] for k in ("model", "batch", "seq", "recipe"))): r["metrics"]["tokens_per_s"] for r in rows}
print(f"\n{'':34}{'tokens/s':>9}{'peer':>9}{'ratio':>8}{'of bf16':>9}{'peak GiB':>10}{'peer':>8}")
for r in rows:
    model, batch, seq, recipe = k = key(*(r["case"][k] for k in ("model", "batch", "seq", "recipe")))
    peer, bf16 = peers.get(k), rate.get((model, batch, seq, "bf16"))
    theirs = f"{peer['tokens_per_s']:9.0f}{rate[k] / peer['tokens_per_s']:7.2f}x" if peer else f"{'-':>9}{'-':>8}"
    print(f"{model} {batch}x{seq} {recipe:12}".ljust(34) + f"{rate[k]:9.0f}{theirs}"
          f"{f'{rate[k] / bf16:.2f}x' if bf16 else '-':>9}{r['memory']['measured']['peak'] / 2**30:10.2f}"
          f"{peer['peak_gib'] if peer else '-':>8}")
PY
