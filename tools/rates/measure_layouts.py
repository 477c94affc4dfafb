#!/usr/bin/env python3
"""Measures every layout that a question to `precbench plan` allows on the GPUs of this machine, and compares the first proposal with the
fastest of them.

Layouts: micro-batches that divide the global batch, what is recomputed and, on several GPUs, the kind of data parallelism, resharding,
gradient synchronization and context ranks. Tensor and pipeline ranks cannot run. Layouts that do not fit or are not supported are left
out. Exit status: 0 if the first proposal takes at most 3% longer than the fastest layout, else 1.

Usage: tools/rates/measure_layouts.py --on MACHINE --model MODEL --seq N --global-batch N [--gpus N] [--recipe NAME]
                                      [--time-limit S] [--out DIR] [FLAGS of plan and sweep ...]
"""
import argparse
import json
import math
import os
import pathlib
import subprocess
import sys

PRECBENCH = os.environ.get("PRECBENCH", "build/precbench")
RECOMPUTE = ("none", "norm", "ffn+norm", "attention+ffn+norm", "block")
WITHIN = 0.03
# Fields by which layouts differ.
FIELDS = ("batch", "accumulation", "recompute", "parallel", "context", "reshard", "grad_sync")


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in "on", "model":
        parser.add_argument(f"--{flag}", required=True)
    for flag in "seq", "global-batch":
        parser.add_argument(f"--{flag}", required=True, type=int)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--recipe", default="bf16")
    parser.add_argument("--time-limit", default="2", help="seconds that each layout runs")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/layouts"))
    return parser.parse_known_args(words)


def common_flags(options, rest):
    return ["--model", options.model, "--seq", str(options.seq), "--gpus", str(options.gpus), "--recipe", options.recipe, *rest]


def first_proposal(options, rest):
    """Returns the fields of the layout that plan proposes first among those that can run."""
    command = [PRECBENCH, "plan", *common_flags(options, rest), "--on", options.on, "--global-batch", str(options.global_batch),
               "--proposals", "1", "--tensor", "1", "--pipeline", "1", "--shard-optimizer", "off", "--gather", "bf16", "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        sys.exit(f"plan: status {answer.returncode}: {(answer.stderr or answer.stdout).strip()}")
    proposal = json.loads(answer.stdout)["recipes"][0]["proposals"][0]
    return {**{field: proposal[field] for field in FIELDS if field in proposal}, "accumulation": proposal["micro_batches"]}


def sweeps(options):
    """Yields the flags of one sweep for each context size and micro-batch that divides the batch."""
    for context in (n for n in (1, 2, 4, 8) if options.gpus % n == 0):
        data = options.gpus // context
        for batch in (2**n for n in range(int(math.log2(options.global_batch)) + 1)):
            if options.global_batch % (batch * data):
                continue
            flags = ["--context", str(context), "--batch", str(batch), "--accumulation",
                     str(options.global_batch // (batch * data)), "--recompute", ",".join(RECOMPUTE)]
            if options.gpus > 1:
                yield [*flags, "--parallel", "ddp"]
                yield [*flags, "--parallel", "fsdp", "--reshard", "on,off", "--grad-sync", "every,last"]
            else:
                yield flags


def measured(options, rest):
    """Runs every layout and returns its fields with the measured and the predicted milliseconds, fastest first."""
    options.out.mkdir(parents=True, exist_ok=True)
    for number, flags in enumerate(sweeps(options)):
        subprocess.run([PRECBENCH, "sweep", *common_flags(options, rest), *flags, "--time-limit", options.time_limit, "--device", "cuda",
                        "--out", str(options.out / str(number))], stdout=subprocess.DEVNULL, check=False)
    found = []
    for path in sorted(options.out.glob("*/*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record.get("status") != "ok" or not (record.get("timing") or {}).get("median_ms"):
                continue
            fields = {field: record["case"].get(field) for field in FIELDS}
            found.append((record["timing"]["median_ms"], (record.get("predicted") or {}).get("step_ms"), fields))
    return sorted(found, key=lambda one: one[0])


def is_layout(fields, proposal):
    return all(str(fields[field]) == str(value) for field, value in proposal.items() if fields.get(field) is not None)


def main(words):
    options, rest = arguments(words)
    proposal = first_proposal(options, rest)
    found = measured(options, rest)
    own = [one for one in found if is_layout(one[2], proposal)]
    if not own:
        sys.exit(f"the first proposal was not measured: {proposal}; {len(found)} layouts were")
    for ms, predicted, fields in found:
        mark = "  <- first proposal" if fields == own[0][2] else ""
        print(f"{ms:10.2f} ms  predicted {predicted or math.nan:10.2f} ms  "
              f"{' '.join(f'{key} {value}' for key, value in fields.items() if value is not None)}{mark}")
    slower = own[0][0] / found[0][0] - 1
    verdict = "within" if slower <= WITHIN else "NOT within"
    print(f"{options.model} {options.recipe}, {len(found)} layouts: the first proposal takes {100 * slower:.1f}% longer than the fastest: "
          f"{verdict} {100 * WITHIN:.0f}%")
    return 0 if slower <= WITHIN else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
