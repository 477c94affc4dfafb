#!/usr/bin/env python3
"""Writes what `precbench advise` expects of recommendations that are measured afterwards: speeds and loss gaps, as JSON.

Usage: tools/advise/advised.py ROUND > results/predicted/ROUND.json       PRECBENCH is the program, default build/precbench

ROUND is advised or advised-second: the sweep file of bench/sweeps that measures the speeds. Loss gaps are measured by training from
scratch (bench/sweeps/scratch-15m.toml) and on a text that no study had read (TEXT=prose tools/trained/trained_study.sh).
results/predicted/measured-later.md compares both.
"""
import json
import os
import subprocess
import sys

PRECBENCH = os.environ.get("PRECBENCH", "build/precbench")
# Of speeds and of loss gaps: models and tokens, those that the models have seen; 15m is trained here.
ROUNDS = {
    "advised": ((("smollm2-135m", "100B"), ("qwen2.5-0.5b", "100B"), ("qwen3-4b", "100B")),
                (("15m", "47M"), ("smollm2-135m", "2T"), ("gemma-3-270m", "6T"))),
    "advised-second": ((("smollm2-360m", "100B"), ("qwen2.5-1.5b", "500B"), ("qwen2.5-3b", "1T")),
                       ())}


def answer(model, tokens, *flags):
    command = [PRECBENCH, "advise", "--model", model, "--tokens", tokens, "--gpu", "h200", *flags, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: status {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return json.loads(done.stdout)


def speeds(model, tokens):
    found = answer(model, tokens)
    best = found["best"] or found["recommended"]["recipe"]
    rows = {row["recipe"]: row for row in found["rows"]}
    return {"model": model, "tokens": tokens, "recommended": found["recommended"]["recipe"], "best": best,
            "recipes": {name: {key: rows[name][key] for key in ("source", "tokens_per_s", "speedup")} for name in ("bf16", best)}}


def losses(model, tokens, serve):
    found = answer(model, tokens, "--serve", serve)
    gaps = {row["recipe"]: row["loss_gap"] for row in found["rows"] if row["loss_gap"]}
    return {"model": model, "tokens": tokens, "serve": serve, "loss_nats": found["bf16_loss_nats"],
            "recipes": {name: {"nats": gap["nats"], "evidence": gap["evidence_words"]} for name, gap in sorted(gaps.items())}}


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in ROUNDS:
        sys.exit(__doc__)
    of_speeds, of_losses = ROUNDS[sys.argv[1]]
    document = {"speeds": [speeds(*question) for question in of_speeds],
                "losses": [losses(*question, serve) for question in of_losses for serve in ("bf16", "recipe")]}
    json.dump(document, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
