#!/usr/bin/env python3
"""Writes example.jsonl.xz, the history that README.md shows: 70 simulated nights of three cases. Two of them get 2.1% slower in
night 58, after a change of the GEMMs. Step times have the noise between runs of the committed repeats: standard deviation 0.42%, heavy
tails, some slow nights. Real rows are made by `precbench report --history RECORDS --append FILE`.

Usage: tools/history/example_nights.py FILE.xz
"""
import datetime
import hashlib
import json
import lzma
import math
import random
import sys

NIGHTS, SLOW_FROM, SLOWER = 70, 58, 0.021
DEVIATION, SLOW_NIGHT, SLOW_NIGHTS = 0.0042, 0.02, 0.05
FIRST_NIGHT = datetime.datetime(2026, 9, 1, 2)
NAMES = "gemm quantize attention norm head optimizer communication idle".split()
# Step of llama3.2-1b on an H200, by operation, ms.
CASES = {
    "bf16": dict(gemm=88.1, quantize=0.0, attention=14.2, norm=9.8, head=13.1, optimizer=10.9, communication=0.0, idle=1.0),
    "tensorwise": dict(gemm=58.4, quantize=11.9, attention=14.2, norm=9.8, head=13.1, optimizer=10.9, communication=0.0, idle=1.1),
    "rowwise": dict(gemm=59.3, quantize=12.3, attention=14.2, norm=9.8, head=13.1, optimizer=10.9, communication=0.0, idle=1.1),
}


def commit(night):
    """Returns the commit of a night: a new one every second night."""
    return hashlib.sha1(f"night {night // 2}".encode()).hexdigest()[:12]


def noise(source):
    """Returns the logarithm of a night's step time relative to the usual one: Student's t with three degrees of freedom."""
    student = source.gauss(0, 1) / math.sqrt(sum(source.gauss(0, 1) ** 2 for _ in range(3)) / 3)
    return DEVIATION * student / math.sqrt(3) + SLOW_NIGHT * (source.random() < SLOW_NIGHTS)


def rows():
    source = random.Random(1)
    for night in range(NIGHTS):
        for number, (recipe, usual) in enumerate(CASES.items()):
            ops = dict(usual)
            if recipe != "bf16" and night >= SLOW_FROM:
                ops["gemm"] += SLOWER * sum(ops.values())
            factor = math.exp(noise(source))
            time = sum(ops.values()) * factor
            yield {"history": 1, "method": 2, "id": hashlib.sha1(recipe.encode()).hexdigest()[:16],
                   "created": (FIRST_NIGHT + datetime.timedelta(days=night, minutes=5 * number)).strftime("%Y-%m-%dT%H:%M:%SZ"),
                   "commit": commit(night), "machine": "NVIDIA H200", "board": "GPU-11111111-2222-3333-4444-555555555555",
                   "driver": "580.95.05", "cuda": "13.0", "cublaslt": "13.1.0", "cudnn": "9.14.0",
                   "ms": float(f"{time:.6g}"), "wall_ms": float(f"{time + 0.3:.6g}"), "clock": 1755 + source.randrange(-15, 16),
                   "power": 640 + source.randrange(-9, 10), "peak": 34_359_738_368, "loss": 5.4321,
                   "ops": [float(f"{ops[name] * factor:.4g}") for name in NAMES],
                   "case": {"model": "llama3.2-1b", "recipe": recipe, "seq": 8192, "batch": 1}}


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    with lzma.open(sys.argv[1], "wt", preset=9 | lzma.PRESET_EXTREME) as file:
        for row in rows():
            file.write(json.dumps(row, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
