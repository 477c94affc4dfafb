"""Committed records and formatting helpers for the scripts in this folder."""
import json, math, pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"


def lines(path):
    """Returns the records of a file under results/, or anywhere if the path is absolute."""
    return [json.loads(line) for line in (RESULTS / path).read_text().splitlines()]


def measured(path, *keys):
    """Returns records with a speed by these fields of their case; the first of each."""
    found = {}
    for record in lines(path):
        if record["status"] == "ok" and (record["metrics"] or {}).get("tokens_per_s"):
            found.setdefault(tuple(record["case"].get(key) for key in keys), record)
    return found


def rate(record):
    return record["metrics"]["tokens_per_s"]


def gib(record):
    return record["memory"]["measured"]["peak"] / 2**30


def over_bf16(bf16, others):
    """Returns the cells of a row: tokens/s of BF16's record and of the others with their speedup ("-" if
    missing), then the peak memory of BF16 and of the first other."""
    return [f"{rate(bf16):,.0f}", *(f"{rate(other):,.0f} ({rate(other) / rate(bf16):.2f}x)" if other else "-" for other in others),
            f"{gib(bf16):.1f} / {gib(others[0]):.1f}"]


def spread(values, digits=0, unit=""):
    """Returns minimum and maximum, or the common value."""
    low, high = f"{min(values):,.{digits}f}{unit}", f"{max(values):,.{digits}f}{unit}"
    return low if low == high else f"{low} to {high}"


def percent_at_most(value):
    return f"{math.ceil(1000 * value) / 10:.1f}%"


def table(header, rows):
    return "\n".join(["| " + " | ".join(header) + " |", "|" + "---|" * len(header)] +
                     ["| " + " | ".join(row) + " |" for row in rows])
