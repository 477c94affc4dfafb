#!/usr/bin/env bash
# Measures how much of the cost of FP8 comes from base weights that were on the grid of a quantized file.
#
#   tools/trained/base_precision.sh OUT [flags of both precbench sweep and precbench study, e.g. --at-once 6]
#
# OUT is a folder of trained_study.sh with a model and a text; HELD_OUT=0.05 trained_study.sh smollm2 OUT --dry-run
# makes one. Trains the model for 500 steps in BF16, so that its weights leave the file's grid, rounds copies of the
# result to Q4_1 and to Q8_0 (round_checkpoint.py), reads the held-out text with each of these three bases in BF16, and
# studies each with causes/base.toml. Everything is kept in OUT/base; a second call continues where the first ended. The
# last lines compare the bases.
#
# TEXT is the name of the text's files in OUT, default documentation-0.05. STEPS replaces the 500 steps, CONFIG the
# study file. PYTHON is an interpreter with gguf (tools/setup/python_packages.sh), PRECBENCH the program, default
# build/precbench.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

die() {
  echo "$0: $*" >&2
  exit 2
}

[ $# -ge 1 ] || { sed -n '2,14p' "$0" >&2; exit 2; }
out=$1
shift
precbench=${PRECBENCH:-$here/../../build/precbench}
[ -x "$precbench" ] || die "$precbench is not built: see README.md, or set PRECBENCH"
[ -f "$out/model/config.json" ] || die "$out has no model: trained_study.sh makes it"
text=$out/${TEXT:-documentation-0.05}
for kind in u16 u32 jsonl ''; do
  [ -n "$kind" ] ||
    die "$text.u16, .u32 and .jsonl do not exist: HELD_OUT=0.05 trained_study.sh makes a text; TEXT names another"
  [ ! -f "$text.$kind" ] || break
done
[ -f "$text.eval.$kind" ] || die "$text.eval.$kind does not exist: without held-out text there is no loss to compare"
[ -n "${PYTHON:-}" ] || PYTHON=$("$here/../setup/python_packages.sh" "$out/.venv") || exit 2

config=${CONFIG:-$here/causes/base.toml}
data=(--data "$text.$kind" --eval-data "$text.eval.$kind")
base=$out/base
# Defaults of the sweeps: the values of causes/base.toml.
words=" $* " defaults=()
for flag in "--seq 512" "--batch 32" "--eval-tokens 131072"; do
  # shellcheck disable=SC2206  # flag and value are two words
  [[ $words == *" ${flag% *}"[\ =]* ]] || defaults+=($flag)
done
# Trains or reads the weights in $1 in BF16, with the flags that follow; writes records to $2.
in_bf16() {
  local weights=$1 records=$2
  shift 2
  "$precbench" sweep --model "$out/model/config.json" --init-from "$weights" --recipe bf16 --out "$records" \
    "${data[@]}" "${defaults[@]}" "$@"
}

if [ ! -f "$base/as-is/config.json" ]; then
  mkdir -p "$base/as-is"
  in_bf16 "$out/model/model.safetensors" "$base/train" --steps "${STEPS:-500}" --lr 1e-4 --warmup 10 \
    --save-final "$base/as-is/model.safetensors" "$@"
  cp "$out/model/config.json" "$base/as-is/"
fi
for type in Q4_1 Q8_0; do
  [ -f "$base/$type/config.json" ] ||
    "$PYTHON" "$here/round_checkpoint.py" "$base/as-is" --type "$type" --embedding Q8_0 --out "$base/$type"
done
for name in as-is Q4_1 Q8_0; do
  # At this rate a step moves no FP32 weight: the held-out loss after it is that of the base.
  in_bf16 "$base/$name/model.safetensors" "$base/$name/loss" --steps 1 --lr 1e-30 --warmup 0 "$@"
  "$precbench" study --model "$out/model/config.json" --init-from "$base/$name/model.safetensors" --config "$config" \
    --out "$base/$name/study" "${data[@]}" "$@"
done
"$PYTHON" - "$base" <<'PYTHON'
import json, pathlib, statistics, sys

def held_out(rows):
    return statistics.mean(row["training"]["evaluations"][-1]["loss"] for row in rows)

def cost(answer):
    age = answer["ages"][-1]
    interval = "" if age["low"] is None else f" [{age['low']:+.5f}, {age['high']:+.5f}]"
    return f"{age['loss_gap']:+.5f}{interval}"

print("base: BF16's held-out loss before re-warming, after it; cost of each recipe served in BF16, in itself, and raw, "
      "nats [95%]")
for name in "as-is", "Q4_1", "Q8_0":
    folder = pathlib.Path(sys.argv[1]) / name
    before, study = ([json.loads(line) for line in (folder / part / "records.jsonl").read_text().splitlines()]
                     for part in ("loss", "study"))
    trunks = [row for row in study if row["study"]["part"] == "trunk"]
    costs = [f"{card['recipe']} " +
             ", ".join(cost(card["deployment"][answer]) for answer in ("in_bf16", "in_recipe", "raw"))
             for card in json.loads((folder / "study/cards.json").read_text()) if card["deployment"]]
    print(f"{name}: {held_out(before):.4f}, {held_out(trunks):.4f}; {'; '.join(costs)}")
PYTHON
