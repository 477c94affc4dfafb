#!/usr/bin/env bash
# Compares the CPU device with PyTorch on this machine: tokens/s of the bf16 step against the compiled
# FP32 baseline (pytorch_step.py), and the step time of every quantized recipe relative to bf16. Model
# tiny, batch 8 x 128.
#
#   tools/pytorch_baseline/bench_cpu_pytorch.sh                     # after a build; a Python with torch as $PYTHON or python3
#   THREADS=4 PAIRS=9 BUILD=build-release tools/pytorch_baseline/bench_cpu_pytorch.sh
#
# Other programs slow the machine down for seconds at a time, so ratios only compare runs close in time. Runs
# form pairs: a short run of bf16 and one of the other side, back to back, in alternating order. The ratio of
# a pair is that of the fastest steps of its two runs; the result is the median over the pairs, shown with its
# range. Times are the fastest steps of all runs. Precbench's threads wait as in a sweep
# (bench/process/case_process.cpp).
set -euo pipefail
cd "$(dirname "$0")/../.."

precbench=${BUILD:-build}/precbench
python=${PYTHON:-python3}

if [ ! -x "$precbench" ]; then
  echo "$0: $precbench is not built; run tools/quickstart.sh, or name the build folder in BUILD" >&2
  exit 2
fi
if ! "$python" -c 'import torch' 2>/dev/null; then
  echo "$0: $python has no torch; pip install torch, and name its Python in PYTHON" >&2
  exit 2
fi
export OMP_NUM_THREADS=${THREADS:-2}
exec "$python" - "$precbench" "${PAIRS:-7}" <<'EOF'
import json, os, statistics, subprocess, sys

PRECBENCH, PAIRS = sys.argv[1], int(sys.argv[2])
RECIPES = ["tensorwise", "rowwise", "rowwise_gw_hp", "blockwise", "blockwise_pow2", "mxfp8", "mxfp8_floor"]
BATCH, SEQ = 8, 128
STEPS = 24  # the first half may be warm-up
SPINS = {} if {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ) else {"GOMP_SPINCOUNT": "1000"}


def output(command, env={}):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr or done.stdout}")
    return done.stdout


def ours(recipe):
    """The fastest step of one run, in ms."""
    record = json.loads(output([PRECBENCH, "run", "--device", "cpu", "--model", "tiny", "--recipe", recipe, "--batch",
                                str(BATCH), "--seq", str(SEQ), "--steps", str(STEPS)], SPINS))
    return record["timing"]["min_ms"]


def pytorch():
    line = json.loads(output([sys.executable, "tools/pytorch_baseline/pytorch_step.py", "--device", "cpu", "--steps", str(STEPS),
                              "--warmup", "12", f"tiny:fp32:{BATCH}:{SEQ}"]))
    if "error" in line:
        sys.exit(f"PyTorch failed: {line['error']}")
    return line["min_ms"]


def pairs(name, other):
    """Times of `other` and of bf16, pair by pair."""
    print(f"{name}: {PAIRS} pairs with bf16 ...", file=sys.stderr)
    times = []
    for i in range(PAIRS):
        bf16 = ours("bf16") if i % 2 else None
        theirs = other()
        times.append((theirs, bf16 or ours("bf16")))
    return times


measured = {"PyTorch FP32": pairs("PyTorch", pytorch)}
for recipe in RECIPES:
    measured[recipe] = pairs(recipe, lambda: ours(recipe))

tokens = BATCH * SEQ
bf16 = min(b for times in measured.values() for _, b in times)
print(f"\nOne training step of tiny, {tokens} tokens, {os.environ['OMP_NUM_THREADS']} threads, {PAIRS} pairs each")
print(f"{'':26}{'ms':>8}{'tokens/s':>10}   against bf16: median (lowest to highest pair)")
print(f"{'precbench bf16':26}{bf16:8.2f}{tokens / bf16 * 1e3:10.0f}")
medians = {}
for name, times in measured.items():
    ratios = [t / b for t, b in times]
    medians[name] = statistics.median(ratios)
    fastest = min(t for t, _ in times)
    speed = f"{tokens / fastest * 1e3:10.0f}" if name == "PyTorch FP32" else f"{'':10}"  # emulated: a cost, no speed
    print(f"{name:26}{fastest:8.2f}{speed}   {medians[name]:.2f}x the time ({min(ratios):.2f} to {max(ratios):.2f})")
slowest = max(medians[recipe] for recipe in RECIPES)
print(f"bf16 at least as fast as PyTorch: {'yes' if medians['PyTorch FP32'] >= 1 else 'NO'}")
print(f"emulation at most 2x the bf16 step: {'yes' if slowest <= 2 else 'NO'} ({slowest:.2f}x)")
EOF
