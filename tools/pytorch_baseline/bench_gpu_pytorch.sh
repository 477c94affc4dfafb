#!/usr/bin/env bash
# Compares the CUDA device with PyTorch + torch.compile + torchao (pytorch_step.py) on one GPU,
# alternating: at each shape a recipe of PyTorch, then precbench's of the same name. Settings as
# in bench/sweeps/h200-single.toml: BF16 weights, gradients and moments, no clipping, no
# recompute, lm_head in BF16.
#
#   tools/pytorch_baseline/bench_gpu_pytorch.sh                            # after a build; a Python with torch and torchao as $PYTHON or python3
#   OUT=out/beside tools/pytorch_baseline/bench_gpu_pytorch.sh 8b:1:4096   # one shape: PyTorch model name, batch, sequence length
#                                                           # and, if a step has several, its passes
#   OUT=out/beside-experts tools/pytorch_baseline/bench_gpu_pytorch.sh moe-4b-a1b:2:4096 qwen3-30b-a3b/6:2:4096   # second one: 6 blocks
#   OUT=out/blocks tools/pytorch_baseline/bench_gpu_pytorch.sh moe-4b-a1b/1:2:4096 moe-4b-a1b/5:2:4096            # isolates one block
#   OUT=out/tensor TENSOR=2 tools/pytorch_baseline/bench_gpu_pytorch.sh 8b:1:8192        # two tensor-parallel GPUs
#   OUT=out/families tools/pytorch_baseline/bench_gpu_pytorch.sh gemma-3-4b:1:4096 gpt-oss-20b/6:1:4096           # Transformers' models (configs/)
#
# Shapes of published results: 8b:1:8192:16 is Megatron's for tokens/s, 7b:16:1024:32 is llm.q's for
# Qwen2.5 (524,288 tokens per step). $ROUTING selects expert routing on both sides, balanced or learned,
# without auxiliary loss; Transformers' models always route by their router. $RECIPES are PyTorch's recipe
# names, with the suffix _async for asynchronous tensor parallelism; $TIME_LIMIT is the sampling time of a
# precbench case in seconds.
#
# Writes $OUT/records.jsonl and $OUT/pytorch.ndjson, and prints a table of both (tools/ci/readme_tables.py
# --beside-pytorch $OUT prints it again). PyTorch's step is timed by the host around Python that launches
# compiled blocks, as users run it; precbench's by the device around a CUDA graph. At small shapes much of the
# difference is launch overhead.
set -euo pipefail
cd "$(dirname "$0")/../.."

precbench=${BUILD:-build}/precbench
python=${PYTHON:-python3}
out=${OUT:-out/beside-pytorch}
[ $# -gt 0 ] || set -- 8b:1:8192 8b:1:4096 3b:1:4096 1b:1:2048 1b:8:2048

if [ ! -x "$precbench" ]; then
  echo "$0: $precbench is not built; run tools/quickstart.sh, or name the build folder in BUILD" >&2
  exit 2
fi
if ! "$python" -c 'from importlib.util import find_spec as find; exit(not (find("torch") and find("torchao")))'; then
  echo "$0: $python has no torch or no torchao; pip install torch torchao, and name its Python in PYTHON" >&2
  exit 2
fi

# PyTorch model names and ours, which are equal for MoE models.
declare -A models=([8b]=llama3.1-8b [3b]=llama3.2-3b [1b]=llama3.2-1b [7b]=qwen2.5-7b [1.5b]=qwen2.5-1.5b
  [moe-4b-a1b]=moe-4b-a1b [qwen3-30b-a3b]=qwen3-30b-a3b [olmoe-1b-7b]=olmoe-1b-7b [mixtral-8x7b]=mixtral-8x7b)
declare -A routing=()    # of models with experts
declare -A converted=()  # models whose experts pytorch_step.py converts
for model in moe-4b-a1b qwen3-30b-a3b olmoe-1b-7b mixtral-8x7b; do
  routing[$model]=${ROUTING:-balanced} converted[$model]=yes
done
for config in tools/pytorch_baseline/configs/*.json; do
  model=$(basename "$config" .json)
  models[$model]=$model
  ! grep -q experts "$config" || routing[$model]=learned
done
tensor=${TENSOR:-1}
recipes=${RECIPES:-bf16 rowwise rowwise_auto tensorwise tensorwise_auto blockwise}
[ "$tensor" = 1 ] || recipes=${RECIPES:-bf16 bf16_async tensorwise tensorwise_async}

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
coproc pytorch { exec "$python" tools/pytorch_baseline/pytorch_step.py --tensor "$tensor" --routing "${ROUTING:-balanced}" - 2>&3; }
for shape in "$@"; do
  fields_of "$shape"
  passes=${passes:-1}
  flags=(--gpus "$tensor")
  [ "$tensor" = 1 ] || flags+=(--tensor "$tensor")
  [ -z "${layers:-}" ] || flags+=(--layers "$layers")
  [ -z "${routing[$model]:-}" ] || flags+=(--routing "${routing[$model]}" --aux 0)
  for recipe in $recipes; do
    # PyTorch has neither blockwise linears that compile nor tensorwise experts. Transformers' experts stay in BF16.
    if [[ $recipe != blockwise && ($recipe != tensorwise* || -z ${converted[$model]:-}) ]]; then
      echo "$size:$recipe:$batch:$seq:$passes" >&"${pytorch[1]}"
      read -r line <&"${pytorch[0]}"
      tee -a "$out/pytorch.ndjson" <<<"$line"
    fi
    # Exit status 1: a case failed, which is recorded. Existing results are not measured again.
    "$precbench" sweep --device cuda --model "${models[$model]}" --batch "$batch" --seq "$seq" --accumulation "$passes" \
      --recipe "${recipe%_*}" --master bf16 --moments bf16 --grads bf16 --clip 0 --lr 1e-5 --seed 42 "${flags[@]}" \
      --steps auto --time-limit "${TIME_LIMIT:-12}" --out "$out" || [ $? -eq 1 ]
  done
done

tools/ci/readme_tables.py --beside-pytorch "$out"
