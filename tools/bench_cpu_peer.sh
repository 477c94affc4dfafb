#!/usr/bin/env bash
# The CPU device beside PyTorch on this machine: tokens/s of the bf16 step against the compiled FP32 peer
# (peer_torch.py), and the step time of every quantized recipe against bf16. Model tiny, batch 8 x 128.
#
#   tools/bench_cpu_peer.sh                     # after a build; a Python with torch as $PYTHON or python3
#   THREADS=4 BUILD=build-release tools/bench_cpu_peer.sh
#
# The peer runs before and after precbench and its faster run counts, so that a machine that warms up or is
# disturbed in between does not flatter us. Run it on an otherwise idle machine.
set -euo pipefail
cd "$(dirname "$0")/.."

threads=${THREADS:-2}
precbench=${BUILD:-build}/precbench
python=${PYTHON:-python3}
recipes=bf16,tensorwise,rowwise,rowwise_gw_hp,blockwise,blockwise_pow2,mxfp8,mxfp8_floor
batch=8
seq=128

if [ ! -x "$precbench" ]; then
  echo "$0: $precbench is not built; run tools/quickstart.sh, or name the build folder in BUILD" >&2
  exit 2
fi
if ! "$python" -c 'import torch' 2>/dev/null; then
  echo "$0: $python has no torch; pip install torch, and name its Python in PYTHON" >&2
  exit 2
fi

export OMP_NUM_THREADS=$threads
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# Its warnings go to a file, shown only if it fails.
peer() {
  echo "peer: PyTorch $("$python" -c 'import torch; print(torch.__version__)'), compiled, FP32 ..." >&2
  "$python" tools/peer_torch.py --device cpu --steps 60 --warmup 20 "tiny:fp32:$batch:$seq" \
    >>"$out/peer.jsonl" 2>"$out/peer.log" || { cat "$out/peer.log" >&2; exit 1; }
}

peer
"$precbench" sweep --device cpu --model tiny --recipe "$recipes" --batch "$batch" --seq "$seq" --steps 60 \
  --out "$out" >&2
peer

"$python" - "$out" "$threads" $((batch * seq)) <<'EOF'
import json, pathlib, sys

out, threads, tokens = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
read = lambda name: [json.loads(line) for line in (out / name).read_text().splitlines()]
peers = read("peer.jsonl")
for line in peers:
    if "error" in line:
        sys.exit(f"the peer failed: {line['error']}")
peer = min(line["median_ms"] for line in peers)
times = {}
for record in read("records.jsonl"):
    name = record["case"]["recipe"]
    if record["status"] != "ok":
        sys.exit(f"precbench {name}: {record['status']}: {record['error']}")
    times[name] = record["timing"]["median_ms"]
bf16 = times["bf16"]

print(f"\nOne training step of tiny, {tokens} tokens, {threads} threads")
print(f"{'':26}{'ms':>8}{'tokens/s':>10}{'against':>18}")
print(f"{'PyTorch FP32':26}{peer:8.2f}{tokens / peer * 1e3:10.0f}")
print(f"{'precbench bf16':26}{bf16:8.2f}{tokens / bf16 * 1e3:10.0f}{peer / bf16:9.2f}x the peer")
for name, ms in times.items():
    if name != "bf16":  # emulated: a cost, not a speed
        print(f"{'precbench ' + name:26}{ms:8.2f}{'':10}{ms / bf16:9.2f}x the time")
slowest = max(times.values()) / bf16
print(f"bf16 at least as fast as the peer: {'yes' if bf16 <= peer else 'NO'}")
print(f"emulation at most 2x the bf16 step: {'yes' if slowest <= 2 else 'NO'} ({slowest:.2f}x)")
EOF
