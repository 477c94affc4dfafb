#!/usr/bin/env python3
"""Spread of the repeats among the committed records, by kind of case: the priors of gate_noise.cpp and their table.

A repeat is another record of one case (equal id) on the same GPU model, with its own time. Repeats are of several boards,
days and commits, as those of a baseline and a later run. Prints the table of tools/gate/README.md.

    tools/gate/noise_priors.py            prints the table
    tools/gate/noise_priors.py --check    fails if the page or gate_noise.cpp says otherwise
"""
import collections
import json
import lzma
import math
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "tools/gate/README.md"
SOURCE = ROOT / "tools/gate/gate_noise.cpp"
FAST_LEARNING = 1e-4  # kFastLearning
LIMIT_OVER_SD = 3
FEWEST_STEPS = 5  # of a record: the median of fewer says little about a later run
# Name of the constant in gate_noise.cpp, and how the page calls the kind.
KINDS = {
    "GpuStepTime": "GPU step time",
    "CpuStepTime": "CPU step time",
    "GpuLoss": "GPU loss, learning rate of at least 1e-4",
    "GpuLossSlow": "GPU loss, lower learning rate",
    "DeterministicLoss": "loss of the CPU device, or with `--deterministic on`",
}


def read_cases():
    """Returns the ok records by case and machine, one for each time."""
    cases = collections.defaultdict(dict)
    for path in sorted((ROOT / "results").rglob("*.jsonl*")):
        if path.suffix not in {".jsonl", ".xz"}:
            continue
        text = (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8").read()
        for line in text.splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            if not isinstance(record, dict) or record.get("status") != "ok":
                continue
            if record.get("training") and len(record["training"]["loss"]) < FEWEST_STEPS:
                continue
            env = record["env"]
            machine = env["gpu"]["name"] if env.get("gpu") else f"CPU {env.get('cpu')} {env.get('threads')}"
            cases[record["id"], machine].setdefault(record["created"], record)
    return [list(one.values()) for one in cases.values() if len(one) > 1]


def step_times(records):
    """Returns the median step times of records that have a speed."""
    return [r["timing"]["median_ms"] for r in records
            if r.get("metrics") and r["metrics"].get("tokens_per_s") and r["timing"].get("median_ms")]


def final_losses(records):
    """Returns the mean loss over the last tenth of the steps that all have done, as in statistics.h."""
    curves = [r["training"]["loss"] for r in records if r.get("training") and r["training"]["loss"]]
    steps = min(map(len, curves), default=0)
    if steps < FEWEST_STEPS:
        return []
    window = max(5, steps // 10)
    ends = [statistics.fmean(curve[steps - window:steps]) for curve in curves]
    return ends if min(ends) > 0 else []


def loss_kind(record):
    case = record["case"]
    if case["device"] == "cpu" or case.get("deterministic") == "on":
        return "DeterministicLoss"
    rate = max([case.get("lr") or 0] + list(record["training"].get("lr") or []))
    return "GpuLoss" if rate >= FAST_LEARNING else "GpuLossSlow"


def spreads():
    """Returns (sum of squares, degrees of freedom, cases, largest sd) of the logarithms by kind."""
    found = {kind: [0.0, 0, 0, 0.0] for kind in KINDS}

    def add(kind, values):
        if len(values) < 2:
            return
        variance = statistics.variance(map(math.log, values))
        entry = found[kind]
        entry[0] += variance * (len(values) - 1)
        entry[1] += len(values) - 1
        entry[2] += 1
        entry[3] = max(entry[3], math.sqrt(variance))

    for records in read_cases():
        add("CpuStepTime" if records[0]["case"]["device"] == "cpu" else "GpuStepTime", step_times(records))
        if records[0].get("training"):
            add(loss_kind(records[0]), final_losses(records))
    return found


def prior(found, kind):
    """Returns the standard deviation of a kind; without repeats that of a GPU's step time, doubled."""
    squares, freedom, _, _ = found[kind]
    return math.sqrt(squares / freedom) if freedom else 2 * prior(found, "GpuStepTime")


def limit(found, kind):
    """Returns the largest plausible standard deviation: three times the prior, or the largest of a case."""
    return max(LIMIT_OVER_SD * prior(found, kind), found[kind][3])


def percent(fraction):
    return f"{100 * fraction:.2g}%"


def table(found):
    lines = ["| kind of case | cases | repeats beyond the first | standard deviation of one run | largest of a case | plausible limit |",
             "| --- | --- | --- | --- | --- | --- |"]
    for kind, name in KINDS.items():
        _, freedom, cases, largest = found[kind]
        sd = prior(found, kind)
        measured = percent(sd) if freedom else f"none; taken as twice a GPU's: {percent(sd)}"
        lines.append(f"| {name} | {cases} | {freedom} | {measured} | {percent(largest) if freedom else ''} | "
                     f"{percent(limit(found, kind))} |")
    return "\n".join(lines)


def check(found, text):
    """Returns the differences of the page and of the source from the records."""
    problems = []
    page = PAGE.read_text(encoding="utf-8")
    if text not in page:
        problems.append(f"{PAGE.relative_to(ROOT)} has another table: paste that of tools/gate/noise_priors.py")
    source = SOURCE.read_text(encoding="utf-8")
    for kind in KINDS:
        stated = re.search(rf'k{kind}{{"[^"]*",\s*([0-9.]+),\s*([0-9.]+)}};', source)
        wanted = prior(found, kind), limit(found, kind)
        if not stated or not all(math.isclose(float(a), b, rel_tol=0.05, abs_tol=1e-6)
                                 for a, b in zip(stated.groups(), wanted)):
            problems.append(f"{SOURCE.relative_to(ROOT)}: k{kind} is {stated and stated[0]}, the records give "
                            f"{wanted[0]:.3g} and {wanted[1]:.3g}")
    return problems


def main():
    found = spreads()
    text = table(found)
    if sys.argv[1:] != ["--check"]:
        print(text)
        return 0
    problems = check(found, text)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
